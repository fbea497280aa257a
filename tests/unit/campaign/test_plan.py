"""The next run of a campaign follows from its ledger: shares are kept, no seed is repeated, limits end it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.campaign.kinds import KINDS, Kind, Workplace, simulated
from tests.campaign.ledger import Totals
from tests.campaign.plan import Limits, Run, Spent, Stop, next_step

ROOT = Path(__file__).resolve().parents[3]
PLACE = Workplace("python", Path("folder"))
LARGE, SMALL = (Kind(name, share, 10, simulated(name, "again {seed}")) for name, share in (("large", 3), ("small", 1)))
NO_LIMITS = Limits(floor_bytes=100)
BEGIN = Spent(runs=0, seconds=0.0, free_bytes=100)


def test_kinds_get_the_cpu_time_of_their_shares_and_no_seed_twice():
    totals, seen = {"large": Totals(), "small": Totals()}, set[tuple[str, int]]()
    for _ in range(400):
        step = next_step((LARGE, SMALL), totals, NO_LIMITS, BEGIN)
        assert isinstance(step, Run)
        seeds = {(step.kind.name, seed) for seed in range(step.first, step.end)}
        assert len(seeds) == 10
        assert not seeds & seen
        seen |= seeds
        total = totals[step.kind.name]
        total.next_seed, total.cpu_seconds = step.end, total.cpu_seconds + (7.0 if step.kind is LARGE else 2.0)
    assert totals["large"].cpu_seconds == pytest.approx(3 * totals["small"].cpu_seconds, rel=0.05)
    assert Counter(name for name, _ in seen)["small"] == totals["small"].next_seed


def test_a_new_ledger_begins_behind_what_is_published():
    """Or each new machine would search what has been searched."""
    assert next_step((LARGE,), {}, NO_LIMITS, BEGIN) == Run(LARGE, 0, 10)
    limits = Limits(100, first_seeds={"large": 70})
    assert next_step((LARGE,), {}, limits, BEGIN) == Run(LARGE, 70, 80)
    assert next_step((LARGE,), {"large": Totals(next_seed=20)}, limits, BEGIN) == Run(LARGE, 20, 30)


@pytest.mark.parametrize(
    ("limits", "spent", "reason"),
    [
        (NO_LIMITS, Spent(0, 0.0, 99), "the floor is"),
        (Limits(0, runs=3), Spent(3, 0.0, 0), "3 runs are done"),
        (Limits(0, seconds=60.0), Spent(1, 60.0, 0), "60 seconds are over"),
    ],
)
def test_limits_end_it(limits: Limits, spent: Spent, reason: str):
    step = next_step((LARGE,), {}, limits, spent)
    assert isinstance(step, Stop)
    assert reason in step.reason


def test_names_are_different_and_shares_are_of_a_hundred():
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    assert sum(kind.share for kind in KINDS) == 100


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_run_has_its_seed_and_runs_existing_files(kind: Kind):
    """Files and variables that a command names exist, and each seed has a different command."""
    first, second = kind.command(PLACE, 5, 5 + kind.seeds), kind.command(PLACE, 6, 6 + kind.seeds)
    assert (first.words, first.env) != (second.words, second.env)
    assert re.search(r"\b5\b|\{seed\}", first.replay)
    paths = [ROOT / word for word in first.words if word.startswith("tests/")]
    assert all(path.exists() for path in paths)
    texts = [path.read_text(encoding="utf-8") for path in paths if path.is_file()]
    for variable in {"CUTS", "ROUNDS", "SEED", "FRAMES", "SECONDS_OF_TRANSFER"} & set(first.env):
        assert any(f'"{variable}"' in text for text in texts), variable
