"""Replicas move between log directories under load, kills and failing disks: nothing is lost, and no delete is undone (ADR 14)."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from lowtide.simulation.cluster_simulation import simulate_cluster
from lowtide.storage.directory.log_move import LogMove

from .planting import find

ENOUGH = 20
"""Seeds in which each kind of move happens."""
SEEDS = min(int(os.environ.get("CLUSTER_SEEDS", os.environ.get("SEEDS", str(ENOUGH)))), 2 * ENOUGH)
FIRST_SEED = int(os.environ.get("FIRST_CLUSTER_SEED", os.environ.get("FIRST_SEED", "0")))
DIRECTORIES = ("/a", "/b", "/c")
FAULTS = (
    "moves between directories",
    "kill",
    "power cut",
    "power cut of all",
    "fast restart",
    "pause",
    "cut off",
    "slow disk",
    "full disk",
    "failing disk",
    "leader move",
    "replicas",
    "controlled shutdown",
)


@pytest.mark.seeds
def test_no_promise_is_broken() -> None:
    effects = Counter[str]()
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        effects += simulate_cluster(seed, faults=FAULTS, strikes=12, directories=DIRECTORIES).effects
    kinds = ("move between directories", "kill during a move between directories", "move between directories after a start")
    assert SEEDS < ENOUGH or all(effects[kind] for kind in kinds), effects


def test_a_copy_that_takes_the_place_without_its_log_start_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: what was deleted since the copy began comes back with it."""
    monkeypatch.setattr(LogMove, "needs_start", property(lambda _self: False))
    monkeypatch.setattr(LogMove, "_raise_start", lambda _self, _future: None)
    find("D5:", lambda seed: simulate_cluster(seed, faults=FAULTS, strikes=12, directories=DIRECTORIES), range(ENOUGH))
