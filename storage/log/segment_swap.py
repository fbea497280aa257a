"""Puts compacted segments in the place of those they were made from, so that a crash leaves the ones or the others.

| step | a crash then |
|---|---|
| the files lie there as `.cleaned`, on the disk (`cleaning.py`) | leaves them to be removed by the start |
| `begin`: renamed to `.swap`, one after the other | as before, while there is a `.cleaned` one of them |
| the folder is synced | leaves the rest to the start: it removes what they replace, and gives them their names |
| `finish`: the old ones renamed to `.deleted`, and the log reads from the new ones | likewise |
| `name_files`: the new ones renamed to their names; where there is no room for a name, later | likewise |
| the folder is synced | leaves the new ones |

The start tells by the last offset that is left which segments a `.swap` file replaces. Of those behind it, which are
renamed in their order, it may find some with their names yet, and keeps them: their records are superfluous, and the
next compaction lets them go.

Guards: segments are replaced only if they are those that were read, and all behind them, up to where that compaction
reaches, are too: what a record went for must still be there. A truncation gives up a swap that isn't finished before it
cuts anything. Readers keep the open files that they have. Leader epochs and producer state aren't touched.

Source: Kafka's LocalLog.replaceSegments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from lowtide.protocol.types import Offset
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.errors import is_passing, storage_error
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
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_name,
)

NEVER_TRUNCATED: Final = Offset(2**63 - 1)


class SeenSegment(NamedTuple):
    """A segment as it was when a compaction was ordered."""

    segment: Segment
    size: int
    token: SliceToken
    """Another one, once it was cut."""


class CleanedGroup(NamedTuple):
    """What a compaction has made of the first `replaced` of some segments."""

    seen: Sequence[SeenSegment]
    """These, and all others behind them that it reads."""
    replaced: int
    size: int
    """Of the new `.log` file."""
    has_aborted: bool
    """Whether there is a transaction index."""


class _Unnamed(NamedTuple):
    """A compacted segment from which the log reads already, and those of its files that are still called `.swap`.

    The `.log` comes first, or a start would take those that have their names for files of the segments that were
    replaced.
    """

    segment: Segment
    paths: list[str]
    has_aborted: bool


def _naming_order(path: str) -> int:
    return (LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX).index(path[path.rindex(".") :])


class SegmentSwaps:
    """The replacing of segments of one log. A swap begun is finished, or abandoned, before the next."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        segments: SegmentList,
        snapshots: ProducerSnapshots,
        aborted: TransactionIndex,
    ) -> None:
        self.cleaned_to: Offset | None = None
        """How far the log is known to be compacted (exclusive); None if it never was."""
        self.is_taken = False
        """Whether the log is compacted now, or its deleted records are erased: one of them at a time."""
        self.truncated_to: Offset = NEVER_TRUNCATED
        """The lowest end at which the log was cut since the last compaction began."""
        self._filesystem = filesystem
        self._directory = directory
        self._segments = segments
        self._snapshots = snapshots
        self._aborted = aborted
        self._begun: CleanedGroup | None = None
        self._unnamed: _Unnamed | None = None

    def relocate(self, directory: str) -> None:
        """The log's folder was renamed. No swap is under way."""
        assert not self.is_taken, self._directory
        self._directory = directory

    def take(self) -> None:
        """The log is about to be compacted, or erased: nothing else may begin before `release`."""
        assert not self.is_taken, self._directory
        self.is_taken = True

    def release(self) -> None:
        """It is done, or given up."""
        self.is_taken = False

    def note_cleaned_to(self, end_offset: Offset | None) -> None:
        """A checkpoint says how far the log is compacted; None if it says nothing."""
        self.cleaned_to = end_offset

    def see(self, end_offset: Offset) -> list[SeenSegment]:
        """The closed segments below `end_offset` as they are now, for a compaction that is about to be ordered."""
        return [
            SeenSegment(segment, segment.size, segment.token)
            for segment in self._segments
            if segment.base_offset < end_offset and not segment.is_pinned
        ]

    def are_unchanged(self, seen: Sequence[SeenSegment]) -> bool:
        """Whether these segments are still in the log, next to each other, and as they were."""
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
        """The aborted transactions that began below `end_offset`: segments with a file that has them, and those that are in no file yet.

        Errors: StorageError.
        """
        return self._aborted.written_bases, [
            each for each in self._aborted.unwritten() if each.first_offset < end_offset
        ]

    def aborted_in(self, base_offset: Offset) -> list[CompletedTransaction]:
        """The aborted transactions whose markers lie in that segment. Errors: DamagedSegmentError, StorageError."""
        return list(self._aborted.entries(base_offset)) if base_offset in self._aborted.bases else []

    def begin(self, group: CleanedGroup) -> Barrier | None:
        """Renames the files of a group to `.swap`.

        Returns what must be done before `finish`; None if the log has changed: nothing is left. Errors: StorageError
        where there is no room for a name; nothing is left then either. OSError; the files are removed by a start.
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
        """Replaces the segments, once `begin`'s barrier is done: the log reads from the new one, which `name_files` then gives its names.

        Returns the old ones, renamed already; None if the log has changed since.
        Errors: OSError; a start does the rest. The directory is then good for nothing else.
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
            # The snapshot at the first base offset tells of what lies before it, and stays.
            suffixes = CLEANED_SUFFIXES if each.segment.base_offset == base_offset else SEGMENT_SUFFIXES
            gone = RemovedSegment(self._directory, each.segment.base_offset, each.size, suffixes)
            gone.mark_deleted(self._filesystem)
            removed.append(gone)
        new = Segment(self._filesystem, self._directory, base_offset, size=group.size, created_ms=now_ms)
        new.path += SWAP_SUFFIX
        new.on(SegmentEvent.SWAP_IN)
        self._segments.replace(self._segments.number_of(base_offset), group.replaced, new)
        bases = [each.segment.base_offset for each in group.seen[: group.replaced]]
        self._snapshots.left_with_replaced(bases[1:])
        self._aborted.replaced(bases, base_offset, has_file=group.has_aborted)
        self._begun, self._unnamed = (
            None,
            _Unnamed(new, sorted(self._paths(group), key=_naming_order), group.has_aborted),
        )
        return removed

    def name_files(self) -> Barrier:
        """Gives the files of the swap that was finished last their names.

        Returns what must be done before they are relied on. Errors: OSError; after one that passes it is called again.
        Until then the log reads the `.swap` files, which a start finds too.
        """
        unnamed = self._unnamed
        if unnamed is not None:
            while unnamed.paths:
                self._name(unnamed, unnamed.paths[0])
                del unnamed.paths[0]
            self._unnamed = None
        return Barrier(directories=(self._directory,))

    def _name(self, unnamed: _Unnamed, path: str) -> None:
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
            self._aborted.let_go(base_offset)

    def _paths(self, group: CleanedGroup) -> list[str]:
        stem = f"{self._directory}/{offset_name(group.seen[0].segment.base_offset)}"
        return [stem + suffix for suffix in CLEANED_SUFFIXES if suffix != TRANSACTION_INDEX_SUFFIX or group.has_aborted]

    def abandon(self, suffix: str = SWAP_SUFFIX) -> None:
        """Gives up the swap that was begun, if there is one. Errors: StorageError.

        The `.log` goes last: a start that finds it without its indexes makes the swap whole, and builds them again.
        """
        group, self._begun = self._begun, None
        if group is not None:
            self._unlink(group, suffix)

    def _unlink(self, group: CleanedGroup, suffix: str) -> None:
        for path in reversed(self._paths(group)):
            with contextlib.suppress(FileNotFoundError):
                try:
                    self._filesystem.unlink(path + suffix)
                except FileNotFoundError:
                    raise
                except OSError as error:
                    raise storage_error(path, error) from error

    def on_truncated(self, end_offset: Offset) -> None:
        """The log is about to be cut; `end_offset` will be its end.

        Errors: StorageError; after one that passes nothing has changed.
        """
        try:
            self.name_files()
        except OSError as error:
            raise storage_error(self._directory, error) from error
        self.abandon()
        self.truncated_to = min(self.truncated_to, end_offset)
        if self.cleaned_to is not None:
            self.cleaned_to = min(self.cleaned_to, end_offset)

    def on_cleaned(self, end_offset: Offset) -> None:
        """A compaction is done up to `end_offset` (exclusive), as far as the log wasn't cut since it began."""
        self.cleaned_to = min(end_offset, self.truncated_to)
