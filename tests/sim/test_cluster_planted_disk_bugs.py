"""Bugs planted on purpose in the handling of a full disk and of a replica that is removed: the simulator of clusters
must find each.

Each was found within 60 seeds from the first one on; PLANT_SEEDS=n searches that many.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import pytest

from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.simulation.cluster_simulation import simulate_cluster
from lowtide.storage import errors
from lowtide.storage.compaction import erasing, log_cleaning
from lowtide.storage.directory import log_truncation, offset_checkpoint
from lowtide.storage.directory.log_flusher import LogFlusher
from lowtide.storage.directory.log_truncation import LogTruncations
from lowtide.storage.log.log import Log
from lowtide.storage.log.log_holes import LogHoles
from lowtide.storage.log.segments.hole import PendingHole

from .planting import find

MAXIMUM_SEEDS = int(os.environ.get("PLANT_SEEDS", "120"))

Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.slowest

ROOM = ("no room at times", "full disk", "leader move", "fast restart", "replica leaves while it waits", "cut off")
SHORT_OF_ROOM = ("no room at times", "pause", "leader move", "fast restart")
COMPACTING = ("no room at times", "leader move")
READING = ("cold pages",)
LEAVING = ("replica leaves while it waits", "topic created again")


def never_passing(patch: Patch, module: Any) -> None:
    """A full disk counts as a disk failure in one module."""
    patch.setattr(module, "is_passing", lambda _error: False)


def a_truncation_takes_no_room_for_a_broken_disk(patch: Patch) -> None:
    never_passing(patch, log_truncation)


def a_checkpoint_takes_no_room_for_a_broken_disk(patch: Patch) -> None:
    never_passing(patch, offset_checkpoint)


def a_log_takes_no_room_for_a_broken_disk(patch: Patch) -> None:
    """The places where a log is truncated, rolled or flushed."""
    patch.setattr(errors.StorageError, "is_passing", property(lambda _self: False))


def a_compaction_takes_no_room_for_a_broken_disk(patch: Patch) -> None:
    """Also at its last renames."""
    never_passing(patch, log_cleaning)


def a_log_that_was_cut_without_room_takes_records_at_once(patch: Patch) -> None:
    """Truncated records return with the next power cut, between later records, or histories mix."""
    original = LogTruncations.truncate

    def truncate(self: Any, log: Log, offset: Any, on_settled: Any) -> None:
        original(self, log, offset, on_settled)
        if self._stalled:
            log.truncating = 0

    patch.setattr(LogTruncations, "truncate", truncate)


def a_log_that_has_left_is_taken_for_one_that_is_here(patch: Patch) -> None:
    """The missing files of a removed log count as a disk failure."""
    patch.setattr(LogTruncations, "_is_here", lambda *_: True)


def a_flush_of_a_log_that_has_left_is_taken_for_one_that_is_here(patch: Patch) -> None:
    original = LogFlusher._on_done

    def on_done(self: Any, log: Log, offset: Any, barrier: Any, error: OSError | None) -> None:
        if error is not None:
            self._flushed_ms.setdefault(log, 0)
        original(self, log, offset, barrier, error)

    patch.setattr(LogFlusher, "_on_done", on_done)


def a_hole_reaches_beyond_the_log_start(patch: Patch) -> None:
    """Records that are kept are gone with those that were deleted."""
    original = LogHoles.begin

    def begin(self: LogHoles, least_bytes: int = 1) -> PendingHole | None:
        log = self._log
        log_start_offset = log.log_start_offset
        if log_start_offset < log.high_watermark:
            log.log_start_offset += 1
        try:
            return original(self, least_bytes)
        finally:
            log.log_start_offset = log_start_offset

    patch.setattr(LogHoles, "begin", begin)


def a_hole_is_made_under_a_slice(patch: Patch) -> None:
    """An answer that waits for its turn, or for cold pages, has zeros where its records were."""
    patch.setattr(PendingHole, "is_read", lambda _self: False)


def an_erasure_takes_a_record_that_is_kept(patch: Patch) -> None:
    """The first record that stays goes with those that were deleted."""
    original = erasing.without_erased

    def without_erased(path: str, position: int, batch: Any, erased: OffsetRanges) -> Any:
        return original(path, position, batch, OffsetRanges((first, last + 1) for first, last in erased))

    patch.setattr(erasing, "without_erased", without_erased)


PLANTS: Final = [
    (a_truncation_takes_no_room_for_a_broken_disk, "S2:", ROOM, 34),
    (a_checkpoint_takes_no_room_for_a_broken_disk, "S2:", ROOM, 8),
    (a_log_takes_no_room_for_a_broken_disk, "S2:", SHORT_OF_ROOM, 1),
    (a_compaction_takes_no_room_for_a_broken_disk, "S2:", COMPACTING, 2),
    (a_log_that_was_cut_without_room_takes_records_at_once, "L1: .* all replicas are in sync", ROOM, 49),
    (a_log_that_has_left_is_taken_for_one_that_is_here, "S2:", LEAVING, 1),
    (a_flush_of_a_log_that_has_left_is_taken_for_one_that_is_here, "S2:", LEAVING, 2),
    (a_hole_reaches_beyond_the_log_start, "S3:", ROOM, 25),
    (a_hole_is_made_under_a_slice, "S3:", READING, 90),
    (an_erasure_takes_a_record_that_is_kept, "R3:", ROOM, 1),
]
"""Each with what it violates, the faults that strike, and the seed to begin with: one that finds it soon."""


@pytest.mark.parametrize(
    ("plant", "expected", "faults", "first_seed"), PLANTS, ids=lambda value: getattr(value, "__name__", "")
)
def test_is_found(
    plant: Callable[[Patch], None], expected: str, faults: tuple[str, ...], first_seed: int, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    kinds = ("partitions", "compaction") if faults is COMPACTING else ("partitions",)
    erases = plant is an_erasure_takes_a_record_that_is_kept
    seeds = range(first_seed, first_seed + MAXIMUM_SEEDS)
    find(expected, lambda seed: simulate_cluster(seed, faults=faults, kinds=kinds, erases=erases), seeds)
