"""Bugs planted on purpose in what a lack of room, and a replica that leaves, mean to a broker: the simulator of clusters must find each.

Each was found within 60 seeds from the first one on; PLANT_SEEDS=n searches so far.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import pytest

from lowtide.simulation.cluster_simulation import simulate_cluster
from lowtide.storage import errors
from lowtide.storage.compaction import log_cleaning
from lowtide.storage.directory import log_truncation, offset_checkpoint
from lowtide.storage.directory.log_flusher import LogFlusher
from lowtide.storage.directory.log_truncation import LogTruncations
from lowtide.storage.log.log import Log

MAXIMUM_SEEDS = int(os.environ.get("PLANT_SEEDS", "120"))

Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.skipif("PYTHONASYNCIODEBUG" in os.environ, reason="the other pass searches them")

ROOM = ("no room at times", "full disk", "leader move", "fast restart", "replica leaves while it waits", "cut off")
SHORT_OF_ROOM = ("no room at times", "pause", "leader move", "fast restart")
COMPACTING = ("no room at times", "leader move")
LEAVING = ("replica leaves while it waits", "topic created again")


def never_passing(patch: Patch, module: Any) -> None:
    """A lack of room counts as a broken disk in one module."""
    patch.setattr(module, "is_passing", lambda _error: False)


def a_truncation_takes_no_room_for_a_broken_disk(patch: Patch) -> None:
    never_passing(patch, log_truncation)


def a_checkpoint_takes_no_room_for_a_broken_disk(patch: Patch) -> None:
    never_passing(patch, offset_checkpoint)


def a_log_takes_no_room_for_a_broken_disk(patch: Patch) -> None:
    """Where a log is cut, rolled or flushed."""
    patch.setattr(errors.StorageError, "is_passing", property(lambda _self: False))


def a_compaction_takes_no_room_for_a_broken_disk(patch: Patch) -> None:
    """Also at its last renames."""
    never_passing(patch, log_cleaning)


def a_log_that_was_cut_without_room_takes_records_at_once(patch: Patch) -> None:
    """What was cut comes back with the next power cut, between records that were written since; or two histories mix."""
    original = LogTruncations.truncate

    def truncate(self: Any, log: Log, offset: Any, on_settled: Any) -> None:
        original(self, log, offset, on_settled)
        if self._stalled:
            log.unsettled = 0

    patch.setattr(LogTruncations, "truncate", truncate)


def a_log_that_has_left_is_taken_for_one_that_is_here(patch: Patch) -> None:
    """The files that are missing with it are a broken disk."""
    patch.setattr(LogTruncations, "_is_here", lambda *_: True)


def a_flush_of_a_log_that_has_left_is_taken_for_one_that_is_here(patch: Patch) -> None:
    original = LogFlusher._on_done

    def on_done(self: Any, log: Log, offset: Any, barrier: Any, error: OSError | None) -> None:
        if error is not None:
            self._flushed_ms.setdefault(log, 0)
        original(self, log, offset, barrier, error)

    patch.setattr(LogFlusher, "_on_done", on_done)


PLANTS: Final = [
    (a_truncation_takes_no_room_for_a_broken_disk, ROOM, 34),
    (a_checkpoint_takes_no_room_for_a_broken_disk, ROOM, 8),
    (a_log_takes_no_room_for_a_broken_disk, SHORT_OF_ROOM, 1),
    (a_compaction_takes_no_room_for_a_broken_disk, COMPACTING, 2),
    (a_log_that_was_cut_without_room_takes_records_at_once, ROOM, 49),
    (a_log_that_has_left_is_taken_for_one_that_is_here, LEAVING, 1),
    (a_flush_of_a_log_that_has_left_is_taken_for_one_that_is_here, LEAVING, 2),
]
"""Each with the faults that strike, and the seed to begin with: one that finds it soon."""


@pytest.mark.parametrize(("plant", "faults", "first_seed"), PLANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_is_found(plant: Callable[[Patch], None], faults: tuple[str, ...], first_seed: int, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    kinds = ("partitions", "compaction") if faults is COMPACTING else ("partitions",)
    for seed in range(first_seed, first_seed + MAXIMUM_SEEDS):
        try:
            simulate_cluster(seed, faults=faults, kinds=kinds)
        except Exception as error:
            print(f"{plant.__name__}: seed {seed}: {str(error)[:200]}")
            return
    pytest.fail(f"{MAXIMUM_SEEDS} seeds found nothing")
