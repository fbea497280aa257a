"""The files of one log: its segments, snapshots and transaction indexes. Creates and removes them.

Guards: a call that fails for lack of room or of a descriptor (`StorageError.is_passing`) has changed nothing. Steps
that need neither, such as unlinking or shortening a file, come last. If there is no room for the file of an emptied
log, the log keeps one of its files, emptied.

It decides nothing, and uses the log's offsets only to reload producers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from lowtide.protocol.types import Offset, TopicId, TopicPartition
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.errors import StorageError, is_passing, storage_error
from lowtide.storage.log.log_erasures import LogErasures
from lowtide.storage.log.log_sync import LogSync
from lowtide.storage.log.log_values import LogConfig
from lowtide.storage.log.offsets import LeaderEpochs, LogOffsets
from lowtide.storage.log.producers.producer_state import ProducerStateManager
from lowtide.storage.log.producers.snapshots import ProducerSnapshots, rebuild_aborted
from lowtide.storage.log.producers.transaction_index import TransactionIndex
from lowtide.storage.log.segment_swap import SegmentSwaps
from lowtide.storage.log.segments.new_segment import create_segment
from lowtide.storage.log.segments.segment import Segment
from lowtide.storage.log.segments.segment_file import BatchPlace
from lowtide.storage.log.segments.segment_files import Readers, RemovedSegment, SegmentCache
from lowtide.storage.log.segments.segment_list import SegmentList


class LogPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A log to open: its folder, its configuration, and shared state. By default it has its own cache and producers."""

    filesystem: FileSystem
    directory: str
    config: LogConfig
    topic_partition: TopicPartition
    topic_id: TopicId
    cache: SegmentCache = msgspec.field(default_factory=SegmentCache)
    producer_state: ProducerStateManager = msgspec.field(default_factory=ProducerStateManager)


class LogParts(msgspec.Struct):
    """The parts of one log."""

    filesystem: FileSystem
    directory: str
    segments: list[Segment]
    leader_epochs: LeaderEpochs
    producer_state: ProducerStateManager
    snapshots: ProducerSnapshots
    transaction_index: TransactionIndex
    cache: SegmentCache
    erasures: LogErasures


class LogFiles:
    """The files of one log. `sync` tracks which of them may not be on the disk yet."""

    __slots__ = ("_directory", "_removed", "aborted", "filesystem", "segments", "snapshots", "swaps", "sync")

    def __init__(self, parts: LogParts) -> None:
        self.filesystem = parts.filesystem
        self._directory = parts.directory
        self.segments = SegmentList(parts.segments, parts.cache)
        self.snapshots = parts.snapshots
        self.aborted = parts.transaction_index
        self.sync = LogSync(parts.filesystem, parts.directory, parts.leader_epochs, parts.erasures)
        self.swaps = SegmentSwaps(parts.filesystem, parts.directory, self.segments, self.snapshots, self.aborted)
        self._removed: list[RemovedSegment] = []

    # Making files

    def make(self) -> None:
        """Creates the folder and the file of a new log, if that was put off. Errors: StorageError."""
        try:
            self.segments.active.open_for_writing()
        except OSError as error:
            raise storage_error(self._directory, error) from error

    def _create(self, base_offset: Offset, config: LogConfig, now_ms: int) -> Segment:
        self.segments.active.open_for_writing()
        self._removed = self._unfinished()
        # Renaming the old files later would take the new ones away.
        for removed in self._removed:
            if removed.base_offset == base_offset:
                removed.mark_deleted(self.filesystem)
        return create_segment(
            self.filesystem,
            self._directory,
            base_offset,
            now_ms=now_ms,
            preallocate_bytes=config.segment_bytes if config.preallocate else 0,
            files=self.segments.files,
        )

    def roll(self, base_offset: Offset, producers: ProducerStateManager, config: LogConfig, now_ms: int) -> bool:
        """Begins a new active segment at `base_offset`.

        Returns False if the active segment is empty and begins there. Errors: OSError; the log is then as before. A
        crash in between leaves an empty last segment, or one without its index files.
        """
        old = self.segments.active
        if not old.size and old.base_offset == base_offset:
            return False
        new = self._create(base_offset, config, now_ms)
        try:
            self.sync.note_written(old.write_indexes())
            self.sync.note_written(self.aborted.write(old.base_offset))
            self.sync.note_written([self.snapshots.take(base_offset, producers)])
            if config.preallocate:
                old.file.truncate(old.size)
        except OSError:
            new.forget_file()
            with contextlib.suppress(OSError):
                self.filesystem.unlink(new.path)
            raise
        old.unpin()
        self.segments.append(new)
        return True

    def rebuild_aborted(self, base_offsets: Sequence[Offset], log_end_offset: Offset) -> None:
        """Rebuilds the indexes of aborted transactions of these segments, in rising order, from the batches.

        Errors: StorageError.
        """
        self.sync.note_written(
            rebuild_aborted(self.aborted, base_offsets, self.segments, self.snapshots, log_end_offset)
        )

    def reload_producers(self, producers: ProducerStateManager, offsets: LogOffsets, *, now_ms: int) -> None:
        """Brings the producer state to the log end: the newest snapshot, then the batches after it.

        The last batches before the snapshot are looked up too, because a producer may send them again, also after a
        clean stop: its answers may have been lost. Errors: StorageError.
        """
        newest = offsets.high_watermark
        self.snapshots.reload(
            producers,
            self.segments,
            offsets.log_end_offset,
            newest=newest,
            log_start_offset=offsets.log_start_offset,
            now_ms=now_ms,
        )
        producers.transactions.settle(newest)

    # Removing files

    def remove_below(self, offset: Offset, config: LogConfig) -> list[RemovedSegment]:
        """Removes the segments wholly below `offset` from the log, but not their files; never the active one."""
        if (passed := self.segments.number_of(offset)) <= 0:
            return []
        frees = self.frees_at_once(config)
        removed = [
            RemovedSegment(
                self._directory, segment.base_offset, segment.size, readers=segment.held() if frees else None
            )
            for segment in self.segments.remove_first(passed)
        ]
        self.snapshots.forget_below(self.segments.bases[0])
        self.aborted.forget_below(self.segments.bases[0])
        self._removed = [*self._unfinished(), *removed]
        return removed

    def start_over(self, base_offset: Offset, config: LogConfig, now_ms: int) -> list[RemovedSegment]:
        """Replaces all segments by an empty one for `base_offset`, and drops all snapshots. Errors: StorageError."""
        segments = self.segments
        kept = segments.number_of(base_offset)
        new: Segment | None = None
        if kept < 0 or segments.bases[kept] != base_offset:
            try:
                new = self._create(base_offset, config, now_ms)
            except OSError as error:
                if kept < 0 or not is_passing(error):
                    raise storage_error(self._directory, error) from error
        if new is not None:
            self.swaps.on_truncated(0)
            removed = self.remove_from(0)
            segments.restart(new)
        else:
            self.prepare_cut(kept, Offset(0))
            removed = self._empty_in_place(kept)
        self.snapshots.drop_above(-1)
        self.sync.note_written(())  # Names have changed: a flush of the records that come makes these durable, too.
        return removed

    def prepare_cut(self, number: int, end_offset: Offset) -> None:
        """Opens the segment in which the log is about to be cut, and abandons a swap that reaches above `end_offset`.

        Errors: StorageError; then nothing has changed.
        """
        segment = self.segments[number]
        was_pinned = segment.is_pinned
        try:
            segment.open_for_writing()
            _ = segment.file
            self.swaps.on_truncated(end_offset)
        except StorageError:
            if segment.is_pinned and not was_pinned:
                segment.unpin()
            raise

    def _empty_in_place(self, number: int) -> list[RemovedSegment]:
        """Keeps one segment, without its batches.

        It may begin below the log start: that needs neither room nor a name.
        """
        removed = self.remove_from(number + 1)
        kept = self.segments.activate(number)
        kept.cut(BatchPlace(kept.base_offset, kept.base_offset, 0, kept.size) if kept.size else None)
        self.aborted.forget_from(kept.base_offset)
        for segment in reversed(self.segments.remove_first(number)):
            segment.token.valid = False
            removed.append(self._rename(segment))
        self.aborted.forget_from(0)
        return removed

    def remove_from(self, number: int) -> list[RemovedSegment]:
        """Removes the segments from `number` on and renames their files, last first: a crash leaves a prefix.

        Errors: StorageError.
        """
        removed = []
        while len(self.segments) > number:
            segment = self.segments.remove_last()
            self.aborted.forget_from(segment.base_offset)
            removed.append(self._rename(segment))
        return removed

    def _rename(self, segment: Segment) -> RemovedSegment:
        """Renames the files of a segment, or removes them if there is no room for a name. Errors: StorageError."""
        removed = RemovedSegment(self._directory, segment.base_offset, segment.size)
        try:
            removed.mark_deleted(self.filesystem)
        except OSError as error:
            # Without the error's number: some of the log is gone already, so it is no error that passes.
            raise StorageError(segment.path, f"the segment can't be removed: {error.strerror}") from error
        return removed

    def _unfinished(self) -> list[RemovedSegment]:
        """Returns the removed segments whose files must still be renamed or emptied before the folder goes."""
        return [each for each in self._removed if not each.renamed or (each.readers is not None and not each.is_gone)]

    def forget_removed(self) -> None:
        """Abandons removed segments and holes: the folder is about to be renamed, and its name may be reused."""
        for removed in self._removed:
            removed.abandon()
        self._removed.clear()
        self.segments.abandon_holes()

    # Who reads them

    def frees_at_once(self, config: LogConfig) -> bool:
        """Returns whether bytes below the log start are freed before their files are removed.

        They are not where a compaction may be reading: it runs in another process, whose open files are unknown here.
        """
        return "compact" not in config.cleanup_policy and self.swaps.cleaned_to is None

    def readers(self) -> Readers:
        """Returns the open files through which others may still read removed segments or holes."""
        held = (segment.held() for segment in self.segments)
        return tuple(file for files in (*held, *(each.readers or () for each in self._removed)) for file in files)

    def relocate(self, directory: str) -> None:
        """Follows the rename of the log's folder. No barrier, hole, swap or removal of this log is in progress."""
        for segment in self.segments:
            segment.directory, segment.path = directory, f"{directory}{segment.path.removeprefix(segment.directory)}"
        for part in (self.snapshots, self.aborted, self.swaps, self.sync):
            part.relocate(directory)
        self._directory = directory

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing in progress uses the folder's name, barriers aside."""
        return not (
            self.swaps.is_taken or self._unfinished() or any(segment.hole is not None for segment in self.segments)
        )
