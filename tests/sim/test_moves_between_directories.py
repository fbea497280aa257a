"""Replicas move between log directories under load, kills and failing disks: no delete is undone (ADR 14)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from lowtide.runtime.committer import Barrier
from lowtide.simulation.cluster_simulation import simulate_cluster
from lowtide.storage.directory import log_move
from lowtide.storage.directory.log_move import LogMove

from .planting import find

ENOUGH = 20
"""Seeds in which each kind of move happens."""
SEEDS = min(int(os.environ.get("CLUSTER_SEEDS", os.environ.get("SEEDS", str(ENOUGH)))), 2 * ENOUGH)
FIRST_SEED = int(os.environ.get("FIRST_CLUSTER_SEED", os.environ.get("FIRST_SEED", "0")))
PLANT_SEEDS = int(os.environ.get("PLANT_SEEDS", "300"))
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
    "leaders die uncommitted",
    "replicas",
    "controlled shutdown",
)


@pytest.mark.seeds
@pytest.mark.slow
def test_no_promise_is_broken() -> None:
    effects = Counter[str]()
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        effects += simulate_cluster(seed, faults=FAULTS, strikes=12, directories=DIRECTORIES).effects
    kinds = (
        "move between directories",
        "kill during a move between directories",
        "move between directories after a start",
    )
    assert SEEDS < ENOUGH or all(effects[kind] for kind in kinds), effects


@pytest.mark.slowest
def test_a_copy_that_takes_the_place_without_its_log_start_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: what was deleted since the copy began comes back with it."""
    monkeypatch.setattr(LogMove, "needs_start", property(lambda _self: False))
    monkeypatch.setattr(LogMove, "_raise_start", lambda _self, _future: None)
    find("D5:", lambda seed: simulate_cluster(seed, faults=FAULTS, strikes=12, directories=DIRECTORIES), range(ENOUGH))


# Planted bugs

Patch = pytest.MonkeyPatch


def the_copy_need_not_be_on_the_disk(patch: Patch) -> None:
    """A copy takes the place while records that its source has on the disk are in memory only."""
    patch.setattr(log_move, "is_as_durable", lambda *_: True)


def the_topic_of_a_copy_is_not_synced(patch: Patch) -> None:
    """The file that ties a folder to its topic is in memory only when both folders are there."""
    patch.setattr(
        log_move, "Barrier", lambda *, files=(), directories=(): Barrier(files=files[1:], directories=directories)
    )


def the_intent_is_not_synced(patch: Patch) -> None:
    """The copy takes the place before its source's folder says, on the disk, that it may."""
    patch.setattr(
        log_move, "Barrier", lambda *, files=(), directories=(): Barrier(directories=() if files else directories)
    )


def the_name_of_a_moved_log_is_not_synced(patch: Patch) -> None:
    """The source goes before the copy has its name on the disk."""
    patch.setattr(
        log_move,
        "Barrier",
        lambda *, files=(), directories=(): Barrier(files=files, directories=directories if files else ()),
    )


def what_diverges_stays_in_the_copy(patch: Patch) -> None:
    """A truncation of the source doesn't reach records that were copied before."""
    patch.setattr(log_move, "common_end", lambda _source, future: future.log_end_offset)


PLANTS: Final = [
    (the_copy_need_not_be_on_the_disk, "(S1|R1|R2|P2):", 0),
    (the_topic_of_a_copy_is_not_synced, "(S1|R1|R2|P2|L1):", 0),
    (the_intent_is_not_synced, "(S1|R1|R2|P2|L1):", 0),
    (the_name_of_a_moved_log_is_not_synced, "(S1|R1|R2|P2|D8|L1):", 0),
    (what_diverges_stays_in_the_copy, "(P1|P2|R1|R2):", 0),
]
"""Each with what it violates, and the seed to begin with: one that finds it soon."""


AIMED: Final[dict[object, tuple[str, ...]]] = {
    what_diverges_stays_in_the_copy: ("moves between directories", "leaders die uncommitted", "leader move")
}
"""The faults, unless only moves are tested; there, half of the brokers die."""


def run(plant: tuple[Any, ...], seed: int) -> object:
    """One seed for one of these."""
    return simulate_cluster(seed, faults=AIMED.get(plant[0], FAULTS[:1]), strikes=12, directories=DIRECTORIES)


@pytest.mark.slowest
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant[0].__name__)
def test_is_found(plant: tuple[Callable[[Patch], None], str, int], monkeypatch: Patch) -> None:
    bug, expected, first_seed = plant
    bug(monkeypatch)
    find(expected, lambda seed: run(plant, seed), range(first_seed, first_seed + PLANT_SEEDS))
