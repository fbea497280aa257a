"""Bugs planted on purpose in what a broker syncs, and in what it takes for granted at a start: the simulator of one
broker must find each.

How many seeds each takes is counted by `make plants`; PLANT_SEEDS=n searches that many.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from lowtide.runtime.committer import Barrier
from lowtide.simulation.broker_simulation import simulate
from lowtide.storage.directory import log_flusher
from lowtide.storage.directory.log_truncation import LogTruncations
from lowtide.storage.log.log_sync import LogSync
from lowtide.storage.log.opening.log_folder import LogFolder
from lowtide.storage.log_start import journal_loading
from lowtide.storage.log_start.journal import LogStartJournal
from lowtide.storage.log_start.journal_fold import JournalFold

from .planting import find

pytestmark = pytest.mark.slowest

MAXIMUM_SEEDS = int(os.environ.get("PLANT_SEEDS", "300"))

Patch = pytest.MonkeyPatch

LOST: Final = "(was reached before|are missing between|instead of|has a wrong CRC|S1:|nothing is read at)"
"""Acknowledged records that aren't there, or a start that can't make sense of what is."""


def new_names_are_not_synced(patch: Patch) -> None:
    """A flush syncs files, but not the folder in which a segment is new."""
    original = LogSync._barrier
    patch.setattr(
        LogSync, "_barrier", lambda self, files: msgspec.structs.replace(original(self, files), directories=())
    )


def a_segment_that_was_closed_is_not_synced(patch: Patch) -> None:
    """A flush covers the segment that is written, and none that was rolled since the last flush."""
    original = LogSync.flush_barrier
    patch.setattr(LogSync, "flush_barrier", lambda self, files, end: original(self, list(files)[-1:], end))


def a_delete_is_not_synced(patch: Patch) -> None:
    """A frame of the journal is written, and counts as durable."""
    original = LogStartJournal._submit
    patch.setattr(LogStartJournal, "_submit", lambda self, _barrier, on_done: original(self, Barrier(), on_done))


def a_fold_is_not_synced(patch: Patch) -> None:
    """The new journal takes the old one's name before its bytes are on the disk."""
    _fold_without(patch, "files")


def the_name_of_a_fold_is_not_synced(patch: Patch) -> None:
    """The old journal is back after a power cut, though deletes went into the new one."""
    _fold_without(patch, "directories")


def _fold_without(patch: Patch, what: str) -> None:
    original = JournalFold._stage

    class Unsynced:
        """One of the files of a barrier: its first sync does nothing."""

        def __init__(self, file: Any) -> None:
            self._file = file
            self._is_skipped = False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def sync(self) -> None:
            if self._is_skipped:
                self._file.sync()
            self._is_skipped = True

    def stage(self: Any, image: Any) -> Any:
        barrier = original(self, image)
        if not isinstance(barrier, Barrier):
            return barrier
        left: tuple[Any, ...] = tuple(Unsynced(file) for file in barrier.files) if what == "files" else ()
        return msgspec.structs.replace(barrier, **{what: left})

    patch.setattr(JournalFold, "_stage", stage)


def a_clean_stop_syncs_nothing(patch: Patch) -> None:
    """The mark of a clean stop is written though logs are in memory only: the next start checks nothing."""
    patch.setattr(log_flusher, "carry_out", lambda *_: None)


def only_the_last_segment_is_checked(patch: Patch) -> None:
    """Recovery begins with the last segment instead of the recovery point."""
    original = LogFolder.find_log_end

    def find_log_end(self: Any, recovery_point: int, log_start_offset: int, *, clean: bool) -> int:
        last = self.segments[-1].base_offset if self.segments else 0
        return original(self, max(recovery_point, last), log_start_offset, clean=clean)

    patch.setattr(LogFolder, "find_log_end", find_log_end)


def a_truncation_below_the_log_start_is_not_journalled(patch: Patch) -> None:
    """The journal keeps the log start that a truncation has lowered: the next start deletes what was written since."""
    original = LogTruncations._settle

    def settle(self: Any, settling: Any, truncation: Any) -> None:
        original(self, msgspec.structs.replace(settling, must_journal=False), truncation)

    patch.setattr(LogTruncations, "_settle", settle)


def a_torn_frame_hides_the_whole_journal(patch: Patch) -> None:
    """A journal whose last frame is torn counts as empty, as a damaged checkpoint does in Kafka."""
    original = journal_loading.decode_journal

    def decode_journal(image: bytes) -> Any:
        content = original(image)
        return msgspec.structs.replace(content, entries={}) if content.torn else content

    patch.setattr(journal_loading, "decode_journal", decode_journal)


PLANTS: Final = [
    (new_names_are_not_synced, LOST, 0),
    (a_segment_that_was_closed_is_not_synced, LOST, 0),
    (a_delete_is_not_synced, "(its log start fell from|are deleted for good)", 0),
    (a_fold_is_not_synced, "(its log start fell from|are deleted for good|S1:)", 0),
    (the_name_of_a_fold_is_not_synced, "(its log start fell from|are deleted for good)", 0),
    (a_clean_stop_syncs_nothing, LOST, 0),
    (only_the_last_segment_is_checked, LOST, 0),
    (a_truncation_below_the_log_start_is_not_journalled, "no request deletes beyond", 0),
    (a_torn_frame_hides_the_whole_journal, "(its log start fell from|are deleted for good)", 0),
]
"""Each with what it violates, and the seed to begin with: one that finds it soon."""


def run(_plant: tuple[Any, ...], seed: int) -> object:
    """One seed for one of these."""
    return simulate(seed)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant[0].__name__)
def test_is_found(plant: tuple[Callable[[Patch], None], str, int], monkeypatch: Patch) -> None:
    bug, expected, first_seed = plant
    bug(monkeypatch)
    find(expected, simulate, range(first_seed, first_seed + MAXIMUM_SEEDS))
