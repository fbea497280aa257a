"""The next run of a campaign that brings every row to what a release needs."""

from __future__ import annotations

import pytest

from tests.campaign.kinds import Command, Kind, Workplace
from tests.campaign.ledger import Totals
from tests.campaign.plan import Limits, Run, Spent, Stop, lacking, left_table, next_step


def command(_place: Workplace, _first: int, _end: int) -> Command:
    return Command((), {}, "")


SEEDS = Kind("seeds", 20, 20, command, wanted=100)
KILLS = Kind("kills", 10, 1, command, wanted=50, counted="kill")
NO_LIMITS = Limits(0)


def step(current: dict[str, int] | None, *under_way: Run, totals: dict[str, Totals] | None = None) -> Run | Stop:
    return next_step([SEEDS, KILLS], totals or {}, NO_LIMITS, Spent(0, 0.0, 1, under_way), current)


def test_the_kind_that_is_furthest_from_what_it_wants_is_next():
    assert step({"seeds": 20, "kills": 20}) == Run(SEEDS, 0, 20)
    assert step({"seeds": 80, "kills": 20}) == Run(KILLS, 0, 1)
    assert step({}) == Run(SEEDS, 0, 20)


def test_it_ends_when_every_kind_has_what_it_wants():
    assert step({"seeds": 100, "kills": 50}) == Stop("every row has what it wants")
    assert step({"seeds": 100, "kills": 49}) == Run(KILLS, 0, 1)


def test_runs_under_way_count_by_their_seeds():
    assert step({"seeds": 80, "kills": 50}, Run(SEEDS, 0, 20)) == Stop("every row has what it wants")
    assert step({"seeds": 60, "kills": 50}, Run(SEEDS, 0, 20)) == Run(SEEDS, 20, 40)


def test_a_kind_that_counts_faults_has_one_run_at_a_time():
    assert step({"seeds": 100}, Run(KILLS, 0, 1)) == Stop("every row has what it wants")


def test_a_second_run_without_a_goal_has_other_seeds_and_another_kind():
    totals = {"seeds": Totals(next_seed=40, cpu_seconds=1.0), "kills": Totals(next_seed=7, cpu_seconds=100.0)}
    assert step(None, totals=totals) == Run(SEEDS, 40, 60)
    assert step(None, Run(SEEDS, 40, 60), totals=totals) == Run(KILLS, 7, 8)
    assert step(None, Run(SEEDS, 40, 60), Run(KILLS, 7, 8), totals=totals) == Run(SEEDS, 60, 80)


def test_what_is_left_is_said_with_its_time():
    lacks = lacking([SEEDS, KILLS], {"seeds": 28, "kills": 60}, {"seeds": 0.02})
    assert [(lack.current, lack.cpu_hours) for lack in lacks] == [(28, pytest.approx(1.0)), (60, 0.0)]
    assert left_table(lacks, 2)[-1] == "together 1.00 CPU hours, 0.50 hours if 2 cores are free"
    (unknown,) = lacking([KILLS], {}, {})
    assert unknown.cpu_hours is None
    assert left_table([unknown], 1)[1].endswith("?")
