"""Counting the seeds until a planted bug is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.simulation.history import HistoryError
from tests.campaign import evidence
from tests.sim import planting


def simulate(seed: int) -> None:
    if seed % 7 == 3:
        raise HistoryError("D8: what was deleted is back")
    if seed % 7 == 1:
        raise HistoryError("P2: a record is gone")


def test_the_first_seed_that_breaks_the_promise_is_found_and_other_violations_are_named():
    assert planting.find("D8:", simulate, range(20)) == 3
    with pytest.raises(pytest.fail.Exception, match="(?s)no seed of range.*seed 1: P2"):
        planting.find("D8:", simulate, range(3))


def test_seeds_are_counted_from_each_first_seed_and_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(planting, "LEDGER", tmp_path / "planted.jsonl")
    monkeypatch.setattr(planting, "FIRST_SEEDS", [0, 70])
    monkeypatch.setattr(planting, "SEARCHED_MAX", 5)
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/sim/test_x.py::test_is_found[a_bug-D8:-1] (call)")
    for expected in ("D8:", "D8:", "S1:"):
        with pytest.raises(pytest.skip.Exception):
            planting.find(expected, simulate, range(1))
    tries = planting.load(tmp_path / "planted.jsonl")
    assert [(each.plant, each.expected, each.first, each.searched, each.seeds) for each in tries] == [
        ("a_bug", "D8:", 0, 4, 4),
        ("a_bug", "D8:", 70, 4, 4),
        ("a_bug", "S1:", 0, 5, None),
        ("a_bug", "S1:", 70, 5, None),
    ]
    part = evidence.plant_part(tries)
    assert "| `a_bug` | `D8:` | 4, 4 |" in part
    assert "| `a_bug` | `S1:` | > 5, > 5 |" in part
    assert "1 of 2 plants" in part


def test_the_name_of_a_bug():
    assert planting.plant_of("a.py::test_is_found[a_bug] (call)") == "a_bug"
    assert planting.plant_of("a.py::test_visible_before_durable (call)") == "visible_before_durable"


def test_a_search_that_found_nothing_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(planting, "LEDGER", tmp_path / "planted.jsonl")
    monkeypatch.setattr(planting, "FIRST_SEEDS", [100])
    ran: list[int] = []

    def simulate(seed: int) -> None:
        ran.append(seed)
        if seed == 104:
            raise HistoryError("D8: lost")

    for searched in (3, 3, 10, 20):
        monkeypatch.setattr(planting, "SEARCHED_MAX", searched)
        with pytest.raises(pytest.skip.Exception):
            planting.find("D8:", simulate, range(1))
    assert ran == [100, 101, 102, 103, 104]
    (found,) = planting.load(tmp_path / "planted.jsonl")
    assert (found.searched, found.seeds) == (5, 5)
