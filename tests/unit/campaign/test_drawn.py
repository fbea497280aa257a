"""Chosen runs: the same from the same, never impossible, and more often near what was seldom reached."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from lowtide.runtime.random import Random
from lowtide.simulation.faults import FAULTS
from tests.campaign.drawn import MOVES, DrawnRun, Reached, draw, near, note
from tests.campaign.found import FoundRun, keep, load, repeat
from tests.campaign.minimise import invariant, minimise
from tests.campaign.simulators import drawn_cluster, load_reached

QUIET = DrawnRun(seed=1, faults=("pause",), strikes=2)


def test_a_seed_draws_the_same_run_and_none_that_can_not_be():
    runs = [draw(seed, {}) for seed in range(300)]
    assert runs == [draw(seed, {}) for seed in range(300)]
    assert all(run.faults and (MOVES not in run.faults or len(run.directories) > 1) for run in runs)
    assert {fault for run in runs for fault in run.faults} >= set(FAULTS)


def test_half_of_the_runs_are_near_rare_states():
    reached: Reached = {}
    note(reached, msgspec.structs.replace(QUIET, faults=("held loop", "upgrade")), {"rare": 1})
    for _ in range(1000):
        note(reached, QUIET, {"common": 9})
    runs = [draw(seed, reached) for seed in range(200)]
    close = [run for run in runs if run.strikes == QUIET.strikes]
    assert 60 < len(close) < 140
    assert all(len(set(run.faults) ^ {"held loop", "upgrade"}) <= 2 for run in close)


def test_a_copy_keeps_at_least_one_fault():
    random = Random(5)
    assert all(near(QUIET, seed, random).faults for seed in range(100))


def test_a_run_is_repeated_by_its_values_and_reaches_states():
    first, second = repeat(QUIET), repeat(QUIET)
    assert first.loop.trace_digest == second.loop.trace_digest
    assert first.states == second.states != Counter()
    reached: Reached = {}
    assert note(reached, QUIET, first.states) == len(first.states)
    assert note(reached, QUIET, first.states) == 0
    assert msgspec.json.decode(msgspec.json.encode(reached), type=Reached) == reached


def test_a_seed_of_a_campaign_counts_faults_and_states():
    reached: Reached = {}
    result = drawn_cluster(3, reached)
    assert (result.reason, result.states) == (None, len(reached))
    assert result.states > 0


def test_what_was_reached_is_forgotten_where_it_can_not_be_read(tmp_path: Path):
    assert load_reached(tmp_path / "none.json") == {}
    (tmp_path / "cut.json").write_text('{"kill during pau')
    assert load_reached(tmp_path / "cut.json") == {}


def test_a_violation_is_made_as_small_as_it_goes():
    """Two faults and five strikes are what it takes here; another violation doesn't count."""

    def breaks(run: DrawnRun) -> str | None:
        tried.append(run)
        if len(run.faults) == 1:
            return "HistoryError: D2: something else"
        return "HistoryError: G4: again" if {"kill", "pause"} <= set(run.faults) and run.strikes >= 5 else None

    tried: list[DrawnRun] = []
    large = DrawnRun(
        seed=9,
        faults=("kill", "held loop", "pause", "upgrade"),
        strikes=14,
        kinds=("partitions", "groups"),
        directories=("/a", "/b"),
        erases=True,
    )
    assert minimise(large, "HistoryError: G4: first", breaks) == DrawnRun(seed=9, faults=("kill", "pause"), strikes=5)
    assert len(tried) < 60
    tried.clear()
    minimise(large, "HistoryError: G4: first", breaks, tries=3)
    assert len(tried) == 3


def test_a_violation_is_known_by_its_letter_or_its_type():
    assert invariant("HistoryError: group mixed: G4: a member commits") == "G4"
    assert invariant("StorageError: /a: no such file") == "StorageError"


def test_what_is_found_is_kept_once(tmp_path: Path):
    file = tmp_path / "found.jsonl"
    assert load(file) == []
    keep(FoundRun("D1: a", QUIET), file)
    keep(FoundRun("D1: the same run", QUIET), file)
    keep(FoundRun("D2: b", msgspec.structs.replace(QUIET, seed=2)), file)
    assert [found.reason for found in load(file)] == ["D1: a", "D2: b"]
