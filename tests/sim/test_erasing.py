"""Replicas erase deleted records despite all faults (D15), and planted bugs are found."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from lowtide.simulation.cluster_simulation import ClusterSimulation, simulate_cluster
from lowtide.storage.directory.directory_erasures import DirectoryErasures
from lowtide.storage.directory.file_removal import FileRemoval
from lowtide.storage.directory.log_moves import LogMoves
from lowtide.storage.directory.set_aside_folders import SetAsideFolders
from lowtide.storage.log.segments.segment_files import RemovedSegment

from .planting import find

SEEDS = int(os.environ.get("ERASING_SEEDS", "4"))
MAXIMUM_SEEDS = int(os.environ.get("PLANT_SEEDS", "60"))
KINDS: Final = ("partitions", "erasing")
SLOW: Final = ("slow disk", "leader move")
CUT: Final = ("slow disk", "power cut")
MOVES: Final = ("moves between directories", "leader move")

Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.skipif("PYTHONASYNCIODEBUG" in os.environ, reason="the other pass runs them")


@pytest.mark.seeds
def test_nothing_that_is_erased_is_in_a_file() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        counts += simulate_cluster(seed, kinds=KINDS).erasing.counts
    assert counts["answered"] > 10 * SEEDS
    assert counts["looked at after a death"] > SEEDS


def what_lies_beside_is_not_looked_at(patch: Patch) -> None:
    """For plants that this would hide: it takes time, in which the leftovers of the plants disappear."""
    patch.setattr(SetAsideFolders, "erase", lambda _self, _log, _offset, on_done: on_done(None) or (lambda: None))


def an_erasure_is_answered_while_its_log_is_written_again(patch: Patch) -> None:
    """The segment that gives way still lies there, as `.deleted`."""
    what_lies_beside_is_not_looked_at(patch)
    original = DirectoryErasures._look_at

    def look_at(self: DirectoryErasures, log: Any, now_ms: int) -> None:
        if log.swaps.is_taken:
            self._answer_requests(log)
        original(self, log, now_ms)

    patch.setattr(DirectoryErasures, "_look_at", look_at)


def an_empty_segment_is_taken_for_one_that_is_gone(patch: Patch) -> None:
    """Its bytes may return after a power cut."""
    original = FileRemoval._on_removed

    def on_removed(self: FileRemoval, piece: Any, outcome: object) -> None:
        original(self, piece, outcome)
        for freed in piece.frees:
            if isinstance(freed, RemovedSegment):
                self._forget(freed)

    patch.setattr(FileRemoval, "_on_removed", on_removed)


def an_erasure_is_answered_before_the_disk_knows(patch: Patch) -> None:
    what_lies_beside_is_not_looked_at(patch)
    original = DirectoryErasures._answer_requests

    def answer_requests(self: DirectoryErasures, log: Any) -> None:
        before = set(map(id, self._requests.get(log, ())))
        original(self, log)
        for request in [each for each in self._requests.get(log, ()) if id(each) in before and each.is_syncing]:
            self._answer(log, request, None)

    patch.setattr(DirectoryErasures, "_answer_requests", answer_requests)


def a_copy_in_another_directory_is_not_erased(patch: Patch) -> None:
    patch.setattr(LogMoves, "erase", lambda _self, _log, _offset, on_done: on_done)


PLANTS: Final = [
    (an_erasure_is_answered_while_its_log_is_written_again, SLOW, 24),
    (an_empty_segment_is_taken_for_one_that_is_gone, CUT, 6),
    (an_erasure_is_answered_before_the_disk_knows, CUT, 21),
    (a_copy_in_another_directory_is_not_erased, MOVES, 1),
]
"""Each plant with its faults and its first seed, one that finds it soon."""


@pytest.mark.parametrize(("plant", "faults", "first_seed"), PLANTS, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.slowest
def test_is_found(plant: Callable[[Patch], None], faults: tuple[str, ...], first_seed: int, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    directories = ("/a", "/b") if faults is MOVES else None

    def simulate(seed: int) -> ClusterSimulation:
        return simulate_cluster(seed, kinds=KINDS, faults=faults, strikes=10, directories=directories)

    find("D15:", simulate, range(first_seed, first_seed + MAXIMUM_SEEDS))
