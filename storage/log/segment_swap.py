"""Replaces segments by compacted ones, so that a crash leaves either the old ones or the new ones.

| step | a crash then |
|---|---|
| the files are on the disk as `.cleaned` (`cleaning.py`) | leaves them to be removed by the start |
| `begin`: renamed to `.swap`, one after the other | the same, while one of them is still `.cleaned` |
| the folder is synced | leaves the rest to the start: it removes the originals and renames the new files |
| `finish`: the originals renamed to `.deleted`; the log reads the new ones | likewise |
| `name_files`: the new ones renamed; later, if there is no room for a name | likewise |
| the folder is synced | leaves the new ones |

The last offset in a `.swap` file determines which segments a start replaces. Later segments, which are renamed in
order, may still have their names. The start keeps them; their records are superfluous, and the next compaction drops
them.

Guards: segments are replaced only if they, and all later ones that the compaction read, are unchanged: the newer record
that superseded an older one must still be there. A truncation abandons an unfinished swap before it cuts anything.
Readers keep their open files. Leader epochs and producer state aren't touched.

Source: Kafka's LocalLog.replaceSegments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from lowtide.protocol.types import Offset
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.errors import is_passing, remove_file, storage_error
from lowtide.storage.log.cleaned_segment import CLEANED_SUFFIX, CLEANED_SUFFIXES, SWAP_SUFFIX
from lowtide.storage.log.producers.open_transactions import CompletedTransaction
from lowtide.storage.log.producers.snapshots import ProducerSnapshots
from lowtide.storage.log.producers.transaction_index import TransactionIndex
from lowtide.storage.log.segments.segment import Segment
from lowtide.storage.log.segments.segment_file import SliceToken
from lowtide.storage.log.segments.segment_files import RemovedSegment
from lowtide.storage.log.segments.segment_life import SegmentEvent
from lowtide.storage.log.segments.segment_list import SegmentList
from lowtide.storage.log.segments.segment_names import (
    INDEX_SUFFIX,
    KEY_FILTER_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_name,
)

NEVER_TRUNCATED: Final = Offset(2**63 - 1)


class SegmentVersion(NamedTuple):
    """A segment as it was when a compaction was ordered."""

    segment: Segment
    size: int
    token: SliceToken
    """Replaced when the segment is cut."""


class CleanedGroup(NamedTuple):
    """The result of compacting the first `replaced` of some segments."""

    seen: Sequence[SegmentVersion]
    """These, and all later segments that the compaction read."""
    replaced: int
    size: int
    """The size of the new `.log` file."""
    has_aborted: bool
    """Whether there is a transaction index."""


class _UnnamedSegment(NamedTuple):
    """A compacted segment that the log already reads, and its files that still have the suffix `.swap`.

    The `.log` comes first. Otherwise a start would take the named files for those of the replaced segments.
    """

    segment: Segment
    paths: list[str]
    has_aborted: bool


def _naming_order(path: str) -> int:
    return (LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX).index(path[path.rindex(".") :])


class SegmentSwaps:
    """Replaces segments of one log. A swap is finished or abandoned before the next begins."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        segments: SegmentList,
        snapshots: ProducerSnapshots,
        aborted: TransactionIndex,
    ) -> None:
        self.cleaned_to: Offset | None = None
        """The exclusive end of what is known to be compacted; None if nothing is."""
        self.read_to: Offset = 0
        """The exclusive end of what compactions have read. A record below it may be gone for a later one of its key."""
        self.is_taken = False
        """Whether the log is being compacted or erased; these exclude each other."""
        self.truncated_to: Offset = NEVER_TRUNCATED
        """The lowest end at which the log was cut since the last compaction began."""
        self._filesystem = filesystem
        self._directory = directory
        self._segments = segments
        self._snapshots = snapshots
        self._aborted = aborted
        self._begun: CleanedGroup | None = None
        self._unnamed: _UnnamedSegment | None = None

    def relocate(self, directory: str) -> None:
        assert not self.is_taken, self._directory
        self._directory = directory

    def take(self) -> None:
        """Begins a compaction or an erasure: no other may begin before `release`."""
        assert not self.is_taken, self._directory
        self.is_taken = True

    def release(self) -> None:
        self.is_taken = False

    def take_for_cleaning(self, end_offset: Offset) -> None:
        """Does what `take` does, for a compaction that reads the log up to `end_offset` (exclusive)."""
        self.take()
        self.truncated_to = NEVER_TRUNCATED
        self.read_to = max(self.read_to, end_offset)

    def note_cleaned_to(self, end_offset: Offset | None) -> None:
        """Sets how far the log is compacted, from a checkpoint; None if unknown."""
        self.cleaned_to = end_offset
        self.read_to = max(self.read_to, end_offset or 0)

    def take_over(self, source: SegmentSwaps) -> None:
        """Adds what compactions of `source` have read, of which this log is a copy."""
        self.read_to = max(self.read_to, source.read_to)

    def versions_below(self, end_offset: Offset) -> list[SegmentVersion]:
        """Returns the closed segments below `end_offset` as they are now, for a compaction."""
        return [
            SegmentVersion(segment, segment.size, segment.token)
            for segment in self._segments
            if segment.base_offset < end_offset and not segment.is_pinned
        ]

    def are_unchanged(self, seen: Sequence[SegmentVersion]) -> bool:
        """Returns whether these segments are still in the log, next to each other, and unchanged."""
        first = self._segments.number_of(seen[0].segment.base_offset)
        if not 0 <= first <= len(self._segments) - len(seen):
            return False
        return all(
            self._segments[number] is each.segment
            and each.segment.token is each.token
            and each.segment.size == each.size
            and not each.segment.is_pinned
            for number, each in enumerate(seen, first)
        )

    def aborted(self, end_offset: Offset) -> tuple[list[Offset], list[CompletedTransaction]]:
        """Returns the aborted transactions below `end_offset`: segments whose file has them, and those in no file yet.

        Errors: StorageError.
        """
        return self._aborted.written_bases, [
            each for each in self._aborted.unwritten() if each.first_offset < end_offset
        ]

    def aborted_in(self, base_offset: Offset) -> list[CompletedTransaction]:
        """Returns the aborted transactions with markers in that segment. Errors: DamagedSegmentError, StorageError."""
        return list(self._aborted.entries(base_offset)) if base_offset in self._aborted.bases else []

    def begin(self, group: CleanedGroup) -> Barrier | None:
        """Renames the files of a group to `.swap`. Returns the barrier to carry out before `finish`.

        Returns None if the log has changed. Errors: StorageError if there is no room for a name; OSError, after which
        files may be left that the next start removes.
        """
        assert self._begun is None, self._directory
        assert self._unnamed is None, self._directory
        self._begun = group
        if not self.are_unchanged(group.seen):
            self.abandon(CLEANED_SUFFIX)
            return None
        for path in self._paths(group):
            try:
                self._filesystem.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
            except OSError as error:
                if not is_passing(error):
                    raise
                # While one file is `.cleaned`, a start takes none of them.
                self._unlink(group, SWAP_SUFFIX)
                self.abandon(CLEANED_SUFFIX)
                raise storage_error(path, error) from error
        return Barrier(directories=(self._directory,))

    def finish(self, now_ms: int) -> list[RemovedSegment] | None:
        """Replaces the segments once `begin`'s barrier is done; `name_files` then renames the new one.

        Returns the old ones, already renamed; None if the log has changed. Errors: OSError; a start does the rest, and
        the directory is not usable before.
        """
        group = self._begun
        if group is None:
            return None
        if not self.are_unchanged(group.seen):
            self.abandon(SWAP_SUFFIX)
            return None
        base_offset = group.seen[0].segment.base_offset
        removed = []
        for each in group.seen[: group.replaced]:
            each.segment.abandon_hole()
            # The snapshot at the first base offset covers what lies before it, and stays. The filter goes: it attests
            # keys that may have been removed.
            is_first = each.segment.base_offset == base_offset
            suffixes = (*CLEANED_SUFFIXES, KEY_FILTER_SUFFIX) if is_first else SEGMENT_SUFFIXES
            gone = RemovedSegment(self._directory, each.segment.base_offset, each.size, suffixes)
            gone.mark_deleted(self._filesystem)
            removed.append(gone)
        new = Segment(self._filesystem, self._directory, base_offset, size=group.size, created_ms=now_ms)
        new.path += SWAP_SUFFIX
        new.on(SegmentEvent.SWAP_IN)
        self._segments.replace(self._segments.number_of(base_offset), group.replaced, new)
        bases = [each.segment.base_offset for each in group.seen[: group.replaced]]
        self._snapshots.forget_replaced(bases[1:])
        self._aborted.replaced(bases, base_offset, has_file=group.has_aborted)
        self._begun, self._unnamed = (
            None,
            _UnnamedSegment(new, sorted(self._paths(group), key=_naming_order), group.has_aborted),
        )
        return removed

    def name_files(self) -> Barrier:
        """Renames the files of the last finished swap. Returns the barrier to carry out before they are relied on.

        Errors: OSError; after one that passes it is called again. Until then the log reads the `.swap` files, which a
        start finds too.
        """
        unnamed = self._unnamed
        if unnamed is not None:
            while unnamed.paths:
                self._name(unnamed, unnamed.paths[0])
                del unnamed.paths[0]
            self._unnamed = None
        return Barrier(directories=(self._directory,))

    def _name(self, unnamed: _UnnamedSegment, path: str) -> None:
        segment, base_offset = unnamed.segment, unnamed.segment.base_offset
        if not self._segments.holds(segment):  # A delete has passed it.
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.unlink(path + SWAP_SUFFIX)
            return
        try:
            self._filesystem.rename(path + SWAP_SUFFIX, path)
        except OSError:
            if unnamed.has_aborted and any(each.endswith(TRANSACTION_INDEX_SUFFIX) for each in unnamed.paths):
                self._aborted.hold(base_offset, self._aborted.path(base_offset) + SWAP_SUFFIX)
            raise
        if path.endswith(LOG_SUFFIX):
            segment.path = path
            segment.on(SegmentEvent.NAME)
        elif path.endswith(TRANSACTION_INDEX_SUFFIX):
            self._aborted.release(base_offset)

    def _paths(self, group: CleanedGroup) -> list[str]:
        stem = f"{self._directory}/{offset_name(group.seen[0].segment.base_offset)}"
        return [stem + suffix for suffix in CLEANED_SUFFIXES if suffix != TRANSACTION_INDEX_SUFFIX or group.has_aborted]

    def abandon(self, suffix: str = SWAP_SUFFIX) -> None:
        """Abandons a swap that was begun. Errors: StorageError.

        The `.log` is removed last: a start that finds it without indexes completes the swap and rebuilds them.
        """
        group, self._begun = self._begun, None
        if group is not None:
            self._unlink(group, suffix)

    def _unlink(self, group: CleanedGroup, suffix: str) -> None:
        for path in reversed(self._paths(group)):
            remove_file(self._filesystem, path + suffix)

    def on_truncated(self, end_offset: Offset) -> None:
        """Abandons a swap before the log is cut to `end_offset`.

        Errors: StorageError; after one that passes nothing has changed.
        """
        try:
            self.name_files()
        except OSError as error:
            raise storage_error(self._directory, error) from error
        self.abandon()
        self.truncated_to = min(self.truncated_to, end_offset)
        self.read_to = min(self.read_to, end_offset)
        if self.cleaned_to is not None:
            self.cleaned_to = min(self.cleaned_to, end_offset)

    def on_cleaned(self, end_offset: Offset) -> None:
        """Records a compaction up to `end_offset` (exclusive), except for records cut since it began."""
        self.cleaned_to = min(end_offset, self.truncated_to)
