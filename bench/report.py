"""Figures of rounds, as tables for people and as JSON or CSV for programs. Pure, except for writing the files."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .figures import ratio, show, spread
from .measure import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The figures of one round of one workload on one target. Rounds before the measured ones have negative numbers."""

    workload: str
    target: str
    number: int
    load_average: float
    """The load average of the machine over the last minute, at the end of the round."""

    figures: Figures


@dataclass(slots=True)
class Results:
    """All rounds, in order of time."""

    targets: Sequence[str]
    rounds: list[Round] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Failures, as messages."""

    def values(self, workload: str, target: str, figure: str) -> list[float]:
        """Returns a figure's values in the measured rounds."""
        chosen = (
            entry for entry in self.rounds if (entry.workload, entry.target) == (workload, target) and entry.number >= 0
        )
        return [entry.figures[figure] for entry in chosen if figure in entry.figures]

    def names(self, workload: str) -> list[str]:
        """Returns the names of a workload's figures, in the order of the targets."""
        chosen = (entry for entry in self.rounds if entry.workload == workload and entry.number >= 0)
        return list(dict.fromkeys(name for entry in chosen for name in entry.figures))


def workload_table(results: Results, workload: str) -> str:
    """Returns a table of all figures: minimum / median / maximum, and the ratio to the first target's median."""
    first = results.targets[0]
    head = ["", *(f"{target}: min / **median** / max" for target in results.targets[:1])]
    for target in results.targets[1:]:
        head += [f"{target}: min / **median** / max", f"x {first}"]
    rows = []
    for name in results.names(workload):
        base = spread(results.values(workload, first, name)).median
        row = [name]
        for number, target in enumerate(results.targets):
            found = spread(results.values(workload, target, name))
            known = not math.isnan(found.median)
            row.append(f"{show(found.least)} / **{show(found.median)}** / {show(found.most)}" if known else "-")
            if number:
                row.append(show(ratio(found.median, base)))
        rows.append(row)
    return table(head, rows)


def summary_table(results: Results, headlines: Mapping[str, Sequence[str]]) -> str:
    """Returns a table of the medians of the figures in `headlines`, by workload."""
    rows = []
    for workload, names in headlines.items():
        present = results.names(workload)
        for name in names:
            if name in present:
                medians = [spread(results.values(workload, target, name)).median for target in results.targets]
                rows.append([workload, name, *map(show, medians)])
    return table(["workload", "median of", *results.targets], rows)


def figures_table(title: str, figures: Figures) -> str:
    """Returns a table of one list of figures."""
    return table([title, ""], [[name, show(value)] for name, value in figures.items()])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def write_json(path: Path, results: Results, circumstances: Mapping[str, Any]) -> None:
    """Writes all figures and the description of the machine. Unknown figures are null."""
    rounds = [
        {
            "workload": entry.workload,
            "target": entry.target,
            "round": entry.number,
            "load_average": entry.load_average,
            "figures": {name: None if math.isnan(value) else value for name, value in entry.figures.items()},
        }
        for entry in results.rounds
    ]
    document = {**circumstances, "targets": list(results.targets), "faults": results.faults, "rounds": rounds}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def write_csv(path: Path, results: Results) -> None:
    """Writes a line for each figure of each round."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["workload", "target", "round", "load_average", "figure", "value"])
        for entry in results.rounds:
            for name, value in entry.figures.items():
                shown = "" if math.isnan(value) else f"{value:.6g}"
                writer.writerow([entry.workload, entry.target, entry.number, entry.load_average, name, shown])
