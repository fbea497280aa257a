"""One replica of a partition on disk: append, read, truncate, roll over, delete a prefix.

Guards: offsets rise without gaps from the log start to the log end and each is given once; what was appended is either
whole in the log or not at all; the order of the offsets (`storage/log/offsets.py`); a batch that straddles the log
start is read whole and never lowers it; slices handed out stay good until the bytes under them are truncated.

It is synchronous, has one caller at a time and never waits for the disk: what must be durable is handed out as barriers
for a committer. It doesn't move the high watermark by itself, doesn't journal log starts, and doesn't delete files of
segments below the log start. Source: Kafka's UnifiedLog and LocalLog.
"""

from __future__ import annotations

import contextlib
from struct import Struct
from typing import Final

from lowtide.protocol.control_records import read_control_record
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import LeaderEpoch, Offset, TopicId, TopicPartition
from lowtide.runtime.filesystem import Buffer
from lowtide.storage.errors import DISK_FULL, StorageError, is_passing, storage_error
from lowtide.storage.log.log_durable import DurableLog
from lowtide.storage.log.log_parts import LogParts
from lowtide.storage.log.log_values import AppendedBatch, FollowerAppend, LogConfig
from lowtide.storage.log.markers import check_producer, refused, remember_producer
from lowtide.storage.log.offsets import LogOffsets
from lowtide.storage.log.open_transactions import CompletedTransaction
from lowtide.storage.log.producer_state import ACCEPTED
from lowtide.storage.log.segment import Segment, next_base_offset
from lowtide.storage.log.segment_file import CONTROL_BYTES_MAX, FileSlice
from lowtide.storage.log.segment_files import RemovedSegment, SegmentCache
from lowtide.storage.log.stored_batches import (
    LEADER_EPOCH_MAX,
    StoredBatch,
    follow_each_other,
    split_stored_batches,
    write_together,
)
from lowtide.storage.log.unfreed import MUCH_BYTES
from lowtide.storage.log.validator import ValidatedBatch

__all__ = ["AppendedBatch", "FileSlice", "FollowerAppend", "Log", "LogConfig", "RemovedSegment", "SegmentCache"]

_PREFIX: Final = Struct(">qii")
"""What the leader sets in a batch: base offset, batch length, leader epoch. The CRC doesn't cover it."""

_LENGTH_END: Final = 12


class Log(DurableLog):
    """One partition's log. Its offsets are attributes (see `LogOffsets`).

    `offline` is set when its directory failed: it then refuses appends. `disk_full` says that the last append met a full disk.
    `leaves_much` says that what the last delete left is worth a hole at once.
    `is_future` while it is the copy of another one that is being moved into its directory: no listener is called for it (KIP-113).
    `unsettled` counts truncations that aren't on the disk yet: until they are, appends are refused (`log_truncation.py`).
    """

    __slots__ = ("disk_full", "is_future", "leaves_much", "topic_id", "topic_partition", "unsettled")

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        parts: LogParts,
        offsets: LogOffsets,
    ) -> None:
        """A log over `parts`, of which the last segment is pinned for writing; `offsets` are taken over."""
        super().__init__(config, parts, offsets)
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.disk_full = False
        self.leaves_much = False
        self.is_future = False
        self.unsettled = 0

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, oldest first; the last one is written."""
        return tuple(self._segments)

    @property
    def size_bytes(self) -> int:
        """Of all `.log` files, without what is a hole in them."""
        return sum(segment.size for segment in self._segments) - self._segments[0].punched

    @property
    def flush_is_due(self) -> bool:
        """Whether as many records as `flush.messages` says aren't known to be on disk."""
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    def take_refused(self) -> bool:
        """Whether the last append met a full disk; asked again, no, until there is another one."""
        refused, self.disk_full = self.disk_full, False
        return refused

    def configure(self, config: LogConfig) -> None:
        """Takes over a configuration."""
        self.config = config
        if not self.frees_at_once:
            self.abandon_holes()
        if config.asks_for_flushes or config.lowtide_delete_erase:
            self.attention[self] = None

    # Appending

    def append_as_leader(
        self, batch: ValidatedBatch, *, leader_epoch: LeaderEpoch, now_ms: int
    ) -> AppendedBatch | ErrorCode:
        """Gives the batch its offsets and writes it; it is readable at once, and committed when others say so.

        Returns the offsets, those of the first time for a duplicate of an idempotent producer. Errors:
        RECORD_LIST_TOO_LARGE for more than a segment holds; those of `check_producer`; KAFKA_STORAGE_ERROR when the
        disk is full or the log offline; NOT_LEADER_OR_FOLLOWER while it is unsettled. StorageError when the disk fails.
        Does not promise: durability.
        """
        config, size = self.config, batch.size_bytes
        if batch.producer_id >= 0:
            known = check_producer(self.producer_state, batch)
            if known is not ACCEPTED:
                return refused(known)
        if size > config.segment_bytes:
            return ErrorCode.RECORD_LIST_TOO_LARGE
        base_offset = self.log_end_offset
        last_offset = base_offset + batch.last_offset_delta
        max_timestamp = batch.max_timestamp
        if self.offline or self.unsettled:
            return ErrorCode.KAFKA_STORAGE_ERROR if self.offline else ErrorCode.NOT_LEADER_OR_FOLLOWER
        try:
            segment = self._segments.active
            if segment.is_full_for(size, last_offset, max_timestamp, config, now_ms):
                segment = self._roll(base_offset, now_ms)
            position = segment.size
            segment.write([_PREFIX.pack(base_offset, size - _LENGTH_END, leader_epoch), *batch.tail], size)
        except (OSError, StorageError) as error:
            return self._on_write_failed(error)
        self.disk_full = False
        segment.note_batch(last_offset, position, size, max_timestamp, config.index_interval_bytes, base_offset)
        if leader_epoch != self.leader_epochs.latest:
            self.leader_epochs.assign(leader_epoch, base_offset)
        if batch.producer_id >= 0:
            completed = remember_producer(self.producer_state, batch, base_offset, now_ms)
            if completed is not None:
                self._on_transaction_ended(segment, completed)
        self.move_log_end(last_offset + 1)
        return AppendedBatch(
            base_offset, last_offset, max_timestamp if config.message_timestamp_type == "LogAppendTime" else -1
        )

    def append_committed(self, batch: ValidatedBatch, *, leader_epoch: LeaderEpoch, now_ms: int) -> Offset | None:
        """`append_as_leader` for the only replica, where a batch is committed with its append. Returns its base offset.

        None for what is unusual: a batch that is refused, a segment that is new or full, the first one of a leader
        epoch, a flush that would be due, a disk without room. Nothing was changed then, and `append_as_leader` decides.
        Errors: StorageError when the disk fails.
        """
        config, segment, size = self.config, self._segments.active, batch.size_bytes
        base_offset = self.log_end_offset
        last_offset, max_timestamp, position = base_offset + batch.last_offset_delta, batch.max_timestamp, segment.size
        if (
            self.offline
            or self.unsettled
            or leader_epoch != self.leader_epochs.latest
            or last_offset - self.recovery_point >= config.flush_messages - 1
            or not position
            or segment.is_full_for(size, last_offset, max_timestamp, config, now_ms)
            or (batch.producer_id >= 0 and check_producer(self.producer_state, batch) is not ACCEPTED)
        ):
            return None
        try:
            segment.write([_PREFIX.pack(base_offset, size - _LENGTH_END, leader_epoch), *batch.tail], size)
        except (OSError, StorageError) as error:
            self._on_write_failed(error)
            return None
        self.disk_full = False
        segment.note_batch(last_offset, position, size, max_timestamp, config.index_interval_bytes, base_offset)
        if batch.producer_id >= 0:
            completed = remember_producer(self.producer_state, batch, base_offset, now_ms)
            if completed is not None:
                self._on_transaction_ended(segment, completed)
        self.move_committed_end(last_offset + 1)
        return base_offset

    def append_together_as_leader(
        self,
        batches: list[ValidatedBatch],
        size: int,
        deciding: list[ValidatedBatch],
        *,
        leader_epoch: LeaderEpoch,
        now_ms: int,
    ) -> tuple[Offset, ...] | None:
        """`append_as_leader` for several batches, with one write of their `size` bytes. Returns their base offsets.

        A log that accepts those of them that are `deciding` accepts all: the first one, where all are of no producer,
        or of one, in one epoch of it and without a gap between their sequences; all, where each is of no producer, or
        of one that has no other among them. None for what is unusual: one that is refused, a segment that is new or
        full, a disk without room. Nothing was changed then, and each is appended by itself. Errors: StorageError when
        the disk fails.
        """
        base_offset = end = self.log_end_offset
        segment = self._segments.active
        if self.offline or self.unsettled:
            return None
        for batch in deciding:
            if batch.producer_id >= 0 and check_producer(self.producer_state, batch) is not ACCEPTED:
                return None
        parts: list[Buffer] = []
        base_offsets = []
        for batch in batches:
            parts.append(_PREFIX.pack(end, batch.size_bytes - _LENGTH_END, leader_epoch))
            parts += batch.tail
            base_offsets.append(end)
            end += batch.last_offset_delta + 1
        latest = max([batch.max_timestamp for batch in batches])
        if not segment.has_room_for(len(batches), size, end - 1, latest, self.config, now_ms):
            return None
        position = segment.size
        try:
            segment.write(parts, size)
        except (OSError, StorageError) as error:
            self._on_write_failed(error)
            return None
        self.disk_full = False
        interval_bytes = self.config.index_interval_bytes
        for batch, offset in zip(batches, base_offsets, strict=True):
            last_offset = offset + batch.last_offset_delta
            segment.note_batch(last_offset, position, batch.size_bytes, batch.max_timestamp, interval_bytes, offset)
            position += batch.size_bytes
            if batch.producer_id >= 0:
                remember_producer(self.producer_state, batch, offset, now_ms)
        if leader_epoch != self.leader_epochs.latest:
            self.leader_epochs.assign(leader_epoch, base_offset)
        self.move_log_end(end)
        return tuple(base_offsets)

    def _on_transaction_ended(self, segment: Segment, completed: CompletedTransaction) -> None:
        if completed.is_aborted:
            self._aborted.note(segment.base_offset, completed)
        self.transactions.settle(self.high_watermark)

    def _on_write_failed(self, error: OSError | StorageError) -> ErrorCode:
        """A write failed and was cut back.

        A lack of room or of a resource is an answer, anything else the end of this directory.
        """
        if is_passing(error):
            self.disk_full = (error.error_number if isinstance(error, StorageError) else error.errno) in DISK_FULL
            self.flush_wanted = True  # The cut is to be durable, too: a clean stop promises where the log ends.
            self.attention[self] = None
            return ErrorCode.KAFKA_STORAGE_ERROR
        self.offline = True
        if isinstance(error, StorageError):
            raise error
        raise storage_error(self._segments.active.path, error) from error

    def roll(self, now_ms: int) -> bool:
        """Begins a new segment at the log end.

        Returns False when the one that is written is empty and begins there already.
        Errors: StorageError, also for a full disk; the log is then as before.
        """
        before = self._segments.active
        try:
            return self._roll(self.log_end_offset, now_ms) is not before
        except OSError as error:
            raise storage_error(before.path, error) from error

    def _roll(self, base_offset: Offset, now_ms: int) -> Segment:
        """`roll`, with OSError as it comes.

        A crash in between leaves an empty last segment, or one without its index files.
        """
        old = self._segments.active
        if not old.size and old.base_offset == base_offset:
            return old
        new = self._create_segment(base_offset, now_ms)
        try:
            self._sync.note_written(old.write_indexes())
            self._sync.note_written(self._aborted.write(old.base_offset))
            self._sync.note_written([self._snapshots.take(base_offset, self.producer_state)])
            if self.config.preallocate:
                old.file.truncate(old.size)
        except OSError:
            new.forget_file()
            with contextlib.suppress(OSError):
                self._filesystem.unlink(new.path)
            raise
        old.unpin()
        self._segments.append(new)
        self.flush_wanted = True
        self.attention[self] = None
        return new

    # Deleting a prefix

    def make_log_start_visible(self, offset: Offset) -> list[RemovedSegment]:
        """Makes `offset` the first readable one; it is durable in the journal already. A lower one changes nothing.

        Returns the segments wholly below it, never the one that is written: they are out of the log, and a worker is to
        rename and later unlink their files. Open slices of them stay good. An offset above what is pending
        (`request_log_start`) was overtaken by a truncation, and must not delete what was written since.
        """
        if offset > self.log_start_pending or not self.move_log_start(offset):
            return []
        self.leader_epochs.truncate_from_start(offset)
        # Producers stay: one that has lost its records continues where it was, and a retry of its last batch is
        # recognised (KAFKA-7190).
        bases, active = self._segments.bases, self._segments.active
        may_leave_much = active.size - active.punched >= MUCH_BYTES or len(bases) > 1
        removed = [] if len(bases) == 1 or bases[1] > offset else self.remove_below_start()
        self.leaves_much = may_leave_much and self.unfreed_bytes >= MUCH_BYTES
        return removed

    def remove_below_start(self) -> list[RemovedSegment]:
        """Takes what lies wholly below the log start out of the log; a roll after a delete to the end leaves such segments."""
        if (passed := self._segments.number_of(self.log_start_offset)) <= 0:
            return []
        frees = self.frees_at_once
        removed = [
            RemovedSegment(self.directory, segment.base_offset, segment.size, readers=segment.held() if frees else None)
            for segment in self._segments.remove_first(passed)
        ]
        self._snapshots.left_with_segments(self._segments.bases[0])
        self._aborted.left_with_segments(self._segments.bases[0])
        self._removing = [*self._still_removing(), *removed]
        return removed

    def forget_removed_segments(self) -> None:
        """The folder is about to be renamed: segments that weren't yet must not be looked for under its old name."""
        for removed in self._removing:
            removed.abandon()
        self._removing.clear()
        self.abandon_holes()

    # Following

    def append_as_follower(
        self, records: memoryview, *, now_ms: int, maximum_epoch: LeaderEpoch = LEADER_EPOCH_MAX
    ) -> FollowerAppend | ErrorCode:
        """Takes over whole batches from a leader, offsets and epochs kept; what follows the last whole batch is ignored.

        A batch of a later leader epoch than `maximum_epoch` is left, with all that follow (KAFKA-18723).
        An empty log also takes a first batch that straddles its log start, which stays where it is (KAFKA-6975).
        Errors: CORRUPT_MESSAGE for a batch with a wrong checksum, OFFSET_OUT_OF_RANGE for one that doesn't begin at or after the log
        end; nothing is written then. KAFKA_STORAGE_ERROR for a full disk, where the batches before it are kept. StorageError.
        """
        assert not self.unsettled, self.describe()
        batches = split_stored_batches(records, maximum_epoch)
        if isinstance(batches, ErrorCode):
            return batches
        if not batches:
            return FollowerAppend(-1, -1, 0, [])
        if self.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        first, expected = batches[0].header, self.log_end_offset
        straddles = first.base_offset < expected <= first.last_offset and self.log_start_offset == expected
        if not follow_each_other(batches, first.base_offset if straddles else expected):
            return ErrorCode.OFFSET_OUT_OF_RANGE
        try:
            # Nothing readable is lost: all that the log has on disk lies below its start.
            removed = self._start_over(first.base_offset, now_ms) if straddles else []
            if straddles:
                self.attention[self] = None
            together = write_together(self._segments.active, records, batches, self.config, now_ms)
            note = self._note_stored if together else self._append_stored
            for batch in batches:
                note(batch, now_ms)
        except (OSError, StorageError) as error:
            return self._on_write_failed(error)
        self.disk_full = False
        return FollowerAppend(
            first.base_offset, self.log_end_offset - 1, sum(len(batch.content) for batch in batches), removed
        )

    def _append_stored(self, batch: StoredBatch, now_ms: int) -> None:
        header, segment, size = batch.header, self._segments.active, len(batch.content)
        if segment.is_full_for(size, header.last_offset, header.max_timestamp, self.config, now_ms):
            segment = self._roll(next_base_offset(self.log_end_offset, header.last_offset), now_ms)
        segment.write([batch.content], size, counts=False)
        self._note_stored(batch, now_ms)

    def _note_stored(self, batch: StoredBatch, now_ms: int) -> None:
        """The batch is in the active segment's file, behind all that counts of it: it counts now, too."""
        header, size, segment = batch.header, len(batch.content), self._segments.active
        base_offset, epoch = header.base_offset, header.partition_leader_epoch
        last_offset = base_offset + header.last_offset_delta
        position, segment.size = segment.size, segment.size + size
        segment.note_batch(
            last_offset, position, size, header.max_timestamp, self.config.index_interval_bytes, base_offset
        )
        if epoch != self.leader_epochs.latest:
            self.leader_epochs.assign(epoch, max(base_offset, self.log_start_offset))
        if header.producer_id >= 0:
            control = read_control_record(batch.content, max_bytes=CONTROL_BYTES_MAX) if header.is_control else None
            completed = self.producer_state.replay(header, now_ms=now_ms, control=control)
            if completed is not None:
                self._on_transaction_ended(segment, completed)
        self.move_log_end(last_offset + 1)
