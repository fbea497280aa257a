"""What a log has on disk, and how it is cut: at an offset, or emptied to begin at another one.

`Log` is this, and appends and reads.
Guards: a call that fails for want of room or of a descriptor (`StorageError.is_passing`) has changed nothing; the
caller asks for the cut again. Steps that need neither come last: to unlink and to shorten a file. Where there is no
room for the file of an emptied log, the log keeps one of its files, emptied. What makes a cut durable may lack room
once the log is cut: then the barrier is missing (`Truncation`), and the caller calls `truncation_barrier` until it
returns one.

Source: Kafka's UnifiedLog.truncateTo, truncateFullyAndStartAt.
"""

from __future__ import annotations

from contextlib import suppress

from lowtide.protocol.types import NO_LEADER_EPOCH, LeaderEpoch, Offset
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem import CannotPunchError
from lowtide.storage.checkpoint import parent_directory
from lowtide.storage.errors import StorageError, is_passing, storage_error
from lowtide.storage.log.hole import Hole
from lowtide.storage.log.log_parts import LogParts
from lowtide.storage.log.log_sync import LogSync
from lowtide.storage.log.log_values import LogConfig, Truncation
from lowtide.storage.log.offsets import LogOffsets
from lowtide.storage.log.pending_hole import PendingHole
from lowtide.storage.log.segment import Segment
from lowtide.storage.log.segment_file import BatchPlace
from lowtide.storage.log.segment_files import Readers, RemovedSegment
from lowtide.storage.log.segment_list import SegmentList
from lowtide.storage.log.segment_swap import SegmentSwaps


class CuttableLog(LogOffsets):
    """How a log is cut, at either end. Part of `Log`."""

    __slots__ = (
        "_aborted",
        "_filesystem",
        "_producers_are_stale",
        "_removing",
        "_segments",
        "_snapshots",
        "_sync",
        "config",
        "directory",
        "leader_epochs",
        "offline",
        "parent_directory",
        "producer_state",
        "swaps",
    )

    def __init__(self, config: LogConfig, parts: LogParts, offsets: LogOffsets) -> None:
        """A log over `parts`, of which the last segment is pinned for writing; `offsets` are taken over."""
        super().__init__(
            log_start_offset=offsets.log_start_offset,
            log_end_offset=offsets.log_end_offset,
            high_watermark=offsets.high_watermark,
            recovery_point=offsets.recovery_point,
        )
        self.config = config
        self.directory = parts.directory
        self.parent_directory = parent_directory(parts.directory)
        """The log directory that holds it."""
        self.leader_epochs = parts.leader_epochs
        self.producer_state = parts.producer_state
        self.transactions = parts.producer_state.transactions
        self.offline = False
        self._filesystem = parts.filesystem
        self._segments = SegmentList(parts.segments, parts.cache)
        self._snapshots = parts.snapshots
        self._aborted = parts.transaction_index
        self.swaps = SegmentSwaps(
            parts.filesystem, parts.directory, self._segments, parts.snapshots, parts.transaction_index
        )
        self._removing: list[RemovedSegment] = []
        self._producers_are_stale = False
        self._sync = LogSync(parts.filesystem, parts.directory, parts.leader_epochs)

    def truncate_to(self, offset: Offset, *, now_ms: int) -> Truncation:
        """Removes what lies at or above `offset`, which becomes the log end; below the log start it becomes the log start, too.

        Inside a batch the whole batch goes, and the log end falls to the batch's start, though not below the log start. Slices of
        what goes, and of the segment that is cut, are dead. At or above the log end it only drops later leader epochs.
        Before anything is appended again, the barrier must be done and the lowered recovery point be on disk: a power cut could
        otherwise mix old batches with new ones. Errors: StorageError, also one that passes, as described above.
        """
        assert offset >= 0
        if offset >= self.log_end_offset:
            self.leader_epochs.truncate_from_end(offset, is_empty=self.log_start_offset == offset)
            return Truncation(None, [])
        number = self._segments.number_of(offset)
        if number < 0 or offset < self._segments[number].first_offset:  # There is nothing before a hole's end.
            return self.truncate_fully_and_start_at(offset, now_ms=now_ms)
        place = self._segments[number].find(offset)
        self._aborted.load(self._segments[number].base_offset)
        log_end_offset = offset
        if place is not None and place.base_offset < offset and offset >= self.log_start_offset:
            log_end_offset = max(place.base_offset, self.log_start_offset)
        self._prepare(number, log_end_offset)
        removed = self._remove_from(number + 1)
        segment = self._segments.activate(number)
        segment.cut(place)
        self._aborted.cut(segment.base_offset, log_end_offset)
        self.cut(log_end_offset)
        self._sync.on_truncated(log_end_offset)
        self.leader_epochs.truncate_from_end(log_end_offset)
        self._snapshots.drop_above(log_end_offset)
        self._producers_are_stale = True
        return self._truncation(removed, now_ms)

    def truncate_fully_and_start_at(
        self,
        offset: Offset,
        *,
        log_start_offset: Offset | None = None,
        leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
        now_ms: int,
    ) -> Truncation:
        """Empties the log: the next record gets `offset`, and the log start, if not given, is `offset`, too (KAFKA-9491).

        `leader_epoch` is that of the leader for whose sake this is done: up to `offset` the log then counts as that leader's.
        Errors: StorageError, also one that passes, as described above. A crash in between leaves a prefix of the old log, perhaps with an
        empty segment behind it, or no segment at all.
        """
        removed = self._start_over(offset, now_ms)
        self.restart(log_start_offset=offset if log_start_offset is None else log_start_offset, log_end_offset=offset)
        self._sync.on_truncated(0)
        self.leader_epochs.clear()
        self.leader_epochs.assign(leader_epoch, offset)
        self.producer_state.reset()
        self.producer_state.verifications.clear()
        self._producers_are_stale = False
        return self._truncation(removed, now_ms)

    def _truncation(self, removed: list[RemovedSegment], now_ms: int) -> Truncation:
        try:
            return Truncation(self.truncation_barrier(now_ms=now_ms), removed)
        except StorageError as error:
            if not error.is_passing:
                raise
            return Truncation(None, removed, lacks_barrier=True)

    def truncation_barrier(self, *, now_ms: int) -> Barrier:
        """What makes a truncation durable. Errors: StorageError; after one that passes it is called again."""
        if self._producers_are_stale:
            self.reload_producer_state(now_ms=now_ms)
            self._producers_are_stale = False
        return self._sync.truncation_barrier(self._segments.active.to_sync())

    def on_barrier_failed(self, barrier: Barrier) -> None:
        """A barrier of this log was not carried out, or not whole, for want of room: the next one covers it too."""
        self._sync.on_failed(barrier)

    def _start_over(self, base_offset: Offset, now_ms: int) -> list[RemovedSegment]:
        """Replaces all segments by an empty one for `base_offset`, and drops all snapshots. Errors: StorageError."""
        kept = self._segments.number_of(base_offset)
        new: Segment | None = None
        if kept < 0 or self._segments.bases[kept] != base_offset:
            try:
                new = self._create_segment(base_offset, now_ms)
            except OSError as error:
                if kept < 0 or not is_passing(error):
                    raise storage_error(self.directory, error) from error
        if new is not None:
            self.swaps.on_truncated(0)
            removed = self._remove_from(0)
            self._segments.restart(new)
        else:
            self._prepare(kept, Offset(0))
            removed = self._empty_in_place(kept)
        self._snapshots.drop_above(-1)
        self._sync.note_written(())  # Names have changed: a flush of the records that come makes these durable, too.
        return removed

    def _prepare(self, number: int, end_offset: Offset) -> None:
        """Takes what cutting the log in that segment takes, its open file above all.

        Errors: StorageError; then all is as before.
        """
        segment = self._segments[number]
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
        """Leaves one segment, without its batches.

        It may begin below the log start: that needs neither room nor a name.
        """
        removed = self._remove_from(number + 1)
        kept = self._segments.activate(number)
        kept.cut(BatchPlace(kept.base_offset, kept.base_offset, 0, kept.size) if kept.size else None)
        self._aborted.removed_from(kept.base_offset)
        for segment in reversed(self._segments.remove_first(number)):
            segment.token.valid = False
            removed.append(self._gone(segment))
        self._aborted.removed_from(0)
        return removed

    def _remove_from(self, number: int) -> list[RemovedSegment]:
        """Takes the segments from `number` on out of the log and renames their files, the last first: a crash leaves a prefix."""
        removed = []
        while len(self._segments) > number:
            segment = self._segments.remove_last()
            self._aborted.removed_from(segment.base_offset)
            removed.append(self._gone(segment))
        return removed

    def _gone(self, segment: Segment) -> RemovedSegment:
        """The segment's files, renamed, or removed where there is no room for a name. Errors: StorageError."""
        gone = RemovedSegment(self.directory, segment.base_offset, segment.size)
        try:
            gone.mark_deleted(self._filesystem)
        except OSError as error:
            self.offline = True
            # Without the error's number: some of the log is gone already, so it is no error that passes.
            raise StorageError(segment.path, f"the segment can't be removed: {error.strerror}") from error
        return gone

    def _create_segment(self, base_offset: Offset, now_ms: int) -> Segment:
        self._removing = self._still_removing()
        # Renaming the old files later would take the new ones away.
        for removed in self._removing:
            if removed.base_offset == base_offset:
                removed.mark_deleted(self._filesystem)
        size, files = self.config.segment_bytes if self.config.preallocate else 0, self._segments.files
        return Segment.create(
            self._filesystem, self.directory, base_offset, now_ms=now_ms, preallocate_bytes=size, files=files
        )

    @property
    def frees_at_once(self) -> bool:
        """Whether what lies below the log start gives its room back before its names go.

        Not where a compaction may be reading: another process does that, whose open files aren't known here.
        """
        return "compact" not in self.config.cleanup_policy and self.swaps.cleaned_to is None

    def readers(self) -> Readers:
        """The open files through which others may still read what the log has let go of."""
        held = (segment.held() for segment in self._segments)
        return tuple(
            file for files in (*held, *(removed.readers or () for removed in self._removing)) for file in files
        )

    @property
    def unfreed_bytes(self) -> int:
        """About what of the first segment is deleted and is there still: as if all offsets that aren't left out took equally many bytes."""
        segment, bases = self._segments[0], self._segments.bases
        end_offset = bases[1] if len(bases) > 1 else self.log_end_offset
        first_offset = max(segment.first_offset, segment.gone_offset)
        offsets = end_offset - first_offset
        deleted = min(self.log_start_offset, end_offset) - first_offset
        left_out = segment.floor - segment.punched
        return left_out + ((segment.size - segment.floor) * deleted // offsets if deleted > 0 else 0)

    @property
    def pending_hole(self) -> PendingHole | None:
        """The hole that is on its way."""
        return self._segments[0].hole

    def begin_hole(self) -> PendingHole | None:
        """Leaves out what is deleted of the first segment, which holds the log start.

        None if that is nothing new. Errors: StorageError.
        """
        segment, log_start_offset = self._segments[0], self.log_start_offset
        if not self.frees_at_once or self._segments.number_of(log_start_offset) != 0:
            return None
        if segment.hole is not None or log_start_offset <= segment.base_offset or not segment.size:
            return None
        place = segment.find(log_start_offset)
        if place is not None:
            position, end_offset = place.position, place.base_offset
        else:
            position, end_offset = segment.size, self.log_end_offset
        next_offset = min(end_offset, log_start_offset)
        if (
            position <= segment.punched
            or next_offset <= segment.base_offset
            or (place is None and next_offset < end_offset)
        ):
            return None
        epochs = self.leader_epochs.entries()
        epoch = epochs[0][0] if epochs else NO_LEADER_EPOCH
        hole = Hole(segment.base_offset, next_offset, position, epoch, end_offset - next_offset)
        segment.leave_out(hole)
        segment.forget_file()
        segment.hole = PendingHole(segment.path, hole, segment.punched, segment.held())
        return segment.hole

    def snapshot_for_hole(self) -> list[str]:
        """Writes the state of the producers, whose batches may go.

        Returns what of it must be as durable as these. Errors: OSError.
        """
        path = self._snapshots.take_between(self.log_end_offset, self.producer_state, self.high_watermark)
        return [] if path is None or self.recovery_point <= self._segments.bases[0] else [path]

    def snapshot_for_erasure(self) -> list[str]:
        """As `snapshot_for_hole`; what it returns is to be durable before any batch goes. Errors: OSError."""
        if not self.producer_state.producers:
            return []
        self._snapshots.take_between(self.log_end_offset, self.producer_state, self.high_watermark)
        return [self._snapshots.path(self.log_end_offset)]

    def on_erased(self, offset: Offset) -> None:
        """The first segment has no record below `offset`."""
        segment = self._segments[0]
        segment.gone_offset = max(segment.gone_offset, offset)

    def on_hole_made(self, pending: PendingHole) -> None:
        """A hole is made, unless it was given up meanwhile."""
        segment = self._segments[0]
        if segment.hole is pending:
            segment.hole = None
            segment.punched = pending.hole.size
            self.on_erased(pending.hole.next_offset)

    def give_up_hole(self, pending: PendingHole) -> None:
        """A hole could not be noted: it is begun again."""
        if self._segments[0].hole is pending:
            self._segments[0].abandon_hole()

    def abandon_holes(self) -> None:
        """Nothing is punched in this log any more, but what is half done. What was left out stays so."""
        for segment in self._segments:
            if segment.hole is not None and segment.hole.stop():
                segment.hole = None

    def _holed_files(self) -> list[str]:
        """For a clean stop: the files of a first segment with a hole, as the next start finds them.

        Errors: OSError, StorageError.
        """
        segment = self._segments[0]
        if not segment.floor:
            return []
        if segment.hole is not None:
            segment.hole.make(self._filesystem)
        elif (
            segment.punched < segment.floor
            and (hole := segment.read_hole()) is not None
            and hole.size > segment.punched
        ):
            # A power cut may have brought back what was there, and the next start, a clean one, takes the hole for
            # made.
            with suppress(CannotPunchError):
                PendingHole(segment.path, hole, 0, ()).make(self._filesystem)
        return [segment.path] if segment.is_pinned else [segment.path, *segment.write_indexes()]

    def _still_removing(self) -> list[RemovedSegment]:
        """The segments of which files are to be renamed, or emptied: they have to know when their folder goes."""
        return [each for each in self._removing if not each.renamed or (each.readers is not None and not each.is_gone)]

    def reload_producer_state(self, *, now_ms: int, recalls: bool = True) -> None:
        """Brings the producer state to the log end: the newest snapshot, then the batches behind it.

        Errors: StorageError.
        With `recalls` the batches before the snapshot are looked up, which a producer may send again.
        """
        newest = self.high_watermark
        self._snapshots.reload(
            self.producer_state,
            self._segments,
            self.log_end_offset,
            newest=newest,
            log_start_offset=self.log_start_offset,
            now_ms=now_ms,
            recalls=recalls,
        )
        self.transactions.settle(newest)
