"""Tables and files have the results of the rounds: no warm-up rounds, no unknown figures."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

from bench.report import Results, Round, figures_table, summary_table, workload_table, write_csv, write_json


def results() -> Results:
    """Two targets, two rounds and one to warm up; the second target's CPU is unknown."""
    found = Results(["one", "two"])
    for number, rate in ((-1, 1.0), (0, 100.0), (1, 300.0)):
        found.rounds.append(
            Round(workload="w", target="one", number=number, load_average=0.5, figures={"rate": rate, "cpu": rate / 10})
        )
        found.rounds.append(
            Round(
                workload="w", target="two", number=number, load_average=0.5, figures={"rate": 2 * rate, "cpu": math.nan}
            )
        )
    return found


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_table_of_a_workload():
    rows = cells(workload_table(results(), "w"))
    assert rows[0] == ["", "one: min / **median** / max", "two: min / **median** / max", "x one"]
    assert rows[2] == ["rate", "100 / **200** / 300", "200 / **400** / 600", "2"]
    assert rows[3] == ["cpu", "10 / **20** / 30", "-", "-"]
    assert len({len(line) for line in workload_table(results(), "w").splitlines()}) == 1


def test_a_target_without_results_has_dashes():
    """A workload that failed on one target still has the other's column."""
    found = results()
    found.rounds = [entry for entry in found.rounds if entry.target == "two"]
    assert cells(workload_table(found, "w"))[2] == ["rate", "-", "200 / **400** / 600", "-"]


def test_the_summary():
    rows = cells(summary_table(results(), {"w": ["rate", "absent"], "other": ["rate"]}))
    assert rows[2:] == [["w", "rate", "200", "400"]]


def test_a_list_of_figures():
    assert cells(figures_table("here", {"a": 1.5}))[2] == ["a", "1.50"]


def test_json_has_everything_and_is_json(tmp_path: Path):
    path = tmp_path / "out.json"
    found = results()
    found.faults.append("something failed")
    write_json(path, found, {"commit": "abc"})
    document = json.loads(path.read_text(), parse_constant=lambda name: 1 / 0)
    assert (document["commit"], document["targets"], document["faults"]) == (
        "abc",
        ["one", "two"],
        ["something failed"],
    )
    assert [entry["round"] for entry in document["rounds"]] == [-1, -1, 0, 0, 1, 1]
    assert document["rounds"][3]["figures"] == {"rate": 200.0, "cpu": None}


def test_csv_has_a_line_for_each_figure(tmp_path: Path):
    path = tmp_path / "out.csv"
    write_csv(path, results())
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert rows[2] == {
        "workload": "w",
        "target": "two",
        "round": "-1",
        "load_average": "0.5",
        "figure": "rate",
        "value": "2",
    }
    assert rows[3]["value"] == ""
