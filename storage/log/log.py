"""One replica of a partition on disk: append, read, roll over.

Guards: each offset from the log start to the log end is given once; a batch is in the log whole or not at all, and is
read whole even if it straddles the log start; slices stay good until the bytes under them are truncated.

It has one caller at a time and never waits for the disk: what must be durable is handed out as barriers. It doesn't
journal log starts, and doesn't delete the files below the log start. Source: Kafka's UnifiedLog and LocalLog.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from lowtide.protocol.control_records import read_control_record
from lowtide.protocol.erasure_record import ErasureRecord
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import BrokerId, LeaderEpoch, Offset
from lowtide.runtime.filesystem import Buffer
from lowtide.storage.checkpoint import parent_directory
from lowtide.storage.errors import DamagedSegmentError, StorageError, storage_error
from lowtide.storage.log.erased_reads import ErasedReads, around_erased
from lowtide.storage.log.log_erasures import stored_erasure
from lowtide.storage.log.log_files import LogFiles, LogParts, LogPlace
from lowtide.storage.log.log_values import AppendedBatch, FollowerAppend, LogConfig
from lowtide.storage.log.markers import ErasureBatch, check_producer, refused, remember_producer
from lowtide.storage.log.offsets import LogOffsets
from lowtide.storage.log.producers.open_transactions import CompletedTransaction
from lowtide.storage.log.producers.producer_state import ACCEPTED
from lowtide.storage.log.segments.segment import Segment
from lowtide.storage.log.segments.segment_file import CONTROL_BYTES_MAX, FileSlice
from lowtide.storage.log.segments.segment_files import RemovedSegment, SegmentCache
from lowtide.storage.log.segments.segment_list import NOTHING_READ, READ_OUT_OF_RANGE, LogRead, SegmentList
from lowtide.storage.log.stored_batches import (
    LEADER_EPOCH_MAX,
    StoredBatch,
    follow_each_other,
    next_base_offset,
    split_stored_batches,
    write_together,
)
from lowtide.storage.log.validation.validator import ValidatedBatch

__all__ = ["AppendedBatch", "FileSlice", "FollowerAppend", "Log", "LogConfig", "RemovedSegment", "SegmentCache"]

_PREFIX: Final = Struct(">qii")
"""What the leader sets in a batch: base offset, batch length, leader epoch. The CRC doesn't cover it."""
_LENGTH_END: Final = 12


class Log(LogOffsets):
    """One partition's log. Its offsets are attributes of its own; its segments and their files are parts.

    What else is done with a whole log is a class over it: `LogTruncation`, `LogHoles`, `LogDurability`. No part refers
    to its log: a cycle would keep the files of a deleted log open until a garbage collection.
    """

    __slots__ = (
        "are_producers_stale",
        "config",
        "directory",
        "disk_full",
        "erasures",
        "files",
        "flush_wanted",
        "frees_many_bytes",
        "is_future",
        "offline",
        "parent_directory",
        "producer_state",
        "segments",
        "swaps",
        "topic_id",
        "topic_partition",
        "truncating",
        "upkeep_queue",
    )

    def __init__(self, place: LogPlace, parts: LogParts, offsets: LogOffsets) -> None:
        """A log over `parts`, whose last segment is pinned for writing; it takes over `offsets`."""
        super().__init__(
            log_start_offset=offsets.log_start_offset,
            log_end_offset=offsets.log_end_offset,
            high_watermark=offsets.high_watermark,
            recovery_point=offsets.recovery_point,
            leader_epochs=parts.leader_epochs,
            transactions=parts.producer_state.transactions,
        )
        self.topic_partition = place.topic_partition
        self.topic_id = place.topic_id
        self.config = place.config
        self.directory = parts.directory
        self.parent_directory = parent_directory(parts.directory)
        self.erasures = parts.erasures
        self.producer_state = parts.producer_state
        self.files = LogFiles(parts)
        self.segments = self.files.segments
        self.swaps = self.files.swaps
        self.erasures.note_deleted(self.log_start_offset)
        self.offline = False
        """Whether its directory failed; it then refuses appends."""
        self.disk_full = False
        """Whether the last append met a full disk."""
        self.frees_many_bytes = False
        """Whether the last delete left enough bytes for a hole at once."""
        self.is_future = False
        """Whether it is a copy that moves into its directory (KIP-113): no listener is called for it."""
        self.truncating = 0
        """How many truncations aren't on the disk yet: until they are, appends are refused."""
        self.are_producers_stale = False
        """Whether a truncation has cut records that `producer_state` still knows."""
        self.flush_wanted = False
        """Whether a segment was rolled since the last flush barrier, or the log was repaired after an unclean stop."""
        self.upkeep_queue: dict[Any, None] = {}
        """The logs that may be due for a flush, perhaps this one; shared with the flusher."""

    @property
    def size_bytes(self) -> int:
        """The bytes of all `.log` files, without what is a hole in them."""
        return self.segments.size_bytes

    @property
    def flush_is_due(self) -> bool:
        """Whether at least `flush.messages` records are not known to be on disk, or an erasure (docs/adr/0024)."""
        if self.log_end_offset - self.recovery_point >= self.config.flush_messages:
            return True
        pending = self.erasures.pending
        return bool(pending) and pending[-1].offset >= self.recovery_point

    def configure(self, config: LogConfig) -> None:
        """Takes over a configuration."""
        self.config = config
        if not self.files.frees_at_once(config):
            self.segments.abandon_holes()
        if config.asks_for_flushes or config.lowtide_delete_erase:
            self.upkeep_queue[self] = None

    def append_as_leader(
        self, batch: ValidatedBatch, *, leader_epoch: LeaderEpoch, now_ms: int
    ) -> AppendedBatch | ErrorCode:
        """Gives a batch its offsets and writes it; followers can read it at once.

        Returns the offsets, or the original ones of a duplicate of an idempotent producer. Errors:
        RECORD_LIST_TOO_LARGE for more than a segment holds; those of `check_producer`; KAFKA_STORAGE_ERROR when the
        disk is full or the log offline; NOT_LEADER_OR_FOLLOWER while it is `truncating`. StorageError when the disk
        fails. Does not promise: durability.
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
        if self.offline or self.truncating:
            return ErrorCode.KAFKA_STORAGE_ERROR if self.offline else ErrorCode.NOT_LEADER_OR_FOLLOWER
        try:
            segment = self.segments.active
            if segment.is_full_for(size, last_offset, max_timestamp, config, now_ms):
                self.roll(now_ms)
                segment = self.segments.active
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
        elif type(batch) is ErasureBatch:
            self._note_erasure(batch.record, base_offset, leader_epoch)
        self.move_log_end(last_offset + 1)
        append_time = max_timestamp if config.message_timestamp_type == "LogAppendTime" else -1
        return AppendedBatch(base_offset, last_offset, append_time)

    def append_together_as_leader(
        self,
        batches: list[ValidatedBatch],
        size: int,
        deciding: list[ValidatedBatch],
        *,
        leader_epoch: LeaderEpoch,
        now_ms: int,
    ) -> tuple[Offset, ...] | None:
        """Appends several batches, of `size` bytes together, with one write. Returns their base offsets.

        Only `deciding` batches are checked: all of them if each has no producer or one of its own; the first one if
        all have no producer, or one in one epoch without gaps. Returns None and changes nothing in an unusual case: a
        refused batch, a new or full segment, a full disk. Errors: StorageError.
        """
        base_offset = end = self.log_end_offset
        segment = self.segments.active
        if self.offline or self.truncating:
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
            self.files.aborted.note(segment.base_offset, completed)
        self.transactions.settle(self.high_watermark)

    def _on_write_failed(self, error: OSError | StorageError) -> ErrorCode:
        """Answers a write that failed and was cut back, if it lacked room or a resource. Else raises StorageError."""
        failure = error if isinstance(error, StorageError) else storage_error(self.segments.active.path, error)
        if failure.is_passing:
            self.disk_full = failure.is_disk_full
            self.flush_wanted = True  # The cut is to be durable, too: a clean stop promises where the log ends.
            self.upkeep_queue[self] = None
            return ErrorCode.KAFKA_STORAGE_ERROR
        self.offline = True
        raise failure

    def roll(self, now_ms: int, base_offset: Offset | None = None) -> bool:
        """Begins a new segment at `base_offset`, by default the log end.

        Returns False if the active segment is empty and begins there. Errors: StorageError; the log is then as before.
        """
        begins_at = self.log_end_offset if base_offset is None else base_offset
        try:
            if not self.files.roll(begins_at, self.producer_state, self.config, now_ms):
                return False
        except OSError as error:
            raise storage_error(self.segments.active.path, error) from error
        self.flush_wanted = True
        self.upkeep_queue[self] = None
        return True

    def append_as_follower(
        self,
        records: memoryview,
        *,
        now_ms: int,
        maximum_epoch: LeaderEpoch = LEADER_EPOCH_MAX,
        broker_id: BrokerId | None = None,
        erasures_before: Offset = 0,
    ) -> FollowerAppend | ErrorCode:
        """Appends whole batches from a leader, with their offsets and epochs; ignores what follows the last whole one.

        Stops at a batch of a later leader epoch than `maximum_epoch` (KAFKA-18723). An empty log also takes a first
        batch that straddles its log start, which stays where it is (KAFKA-6975). Errors: CORRUPT_MESSAGE for a wrong
        checksum, OFFSET_OUT_OF_RANGE for a batch that doesn't begin at or after the log end; nothing is written then.
        KAFKA_STORAGE_ERROR for a full disk, where the batches before it are kept. StorageError. NotSearchedError if the
        replica on `broker_id` must start over; nothing is written then. That is never due to an erasure below
        `erasures_before`: the leader had it when the copying of this log began.
        """
        assert not self.truncating, self.describe()
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
        if broker_id is not None:
            for batch in batches:
                path, offset = self.segments.active.path, batch.header.base_offset
                if batch.header.is_control and batch.header.producer_id < 0 and offset >= erasures_before:
                    self.erasures.check_searched(path, batch.content, offset, broker_id)
        try:
            # Nothing readable is lost: all that the log has on disk lies below its start.
            removed = self.files.start_over(first.base_offset, self.config, now_ms) if straddles else []
            if straddles:
                self.upkeep_queue[self] = None
            together = write_together(self.segments.active, records, batches, self.config, now_ms)
            for batch in batches:
                if not together:
                    header, size, segment = batch.header, len(batch.content), self.segments.active
                    if segment.is_full_for(size, header.last_offset, header.max_timestamp, self.config, now_ms):
                        self.roll(now_ms, next_base_offset(self.log_end_offset, header.last_offset))
                    self.segments.active.write([batch.content], size, counts=False)
                self._note_stored(batch, now_ms)
        except (OSError, StorageError) as error:
            return self._on_write_failed(error)
        self.disk_full = False
        size_bytes = sum(len(batch.content) for batch in batches)
        return FollowerAppend(first.base_offset, self.log_end_offset - 1, size_bytes, removed)

    def _note_stored(self, batch: StoredBatch, now_ms: int) -> None:
        """Makes a batch count that was written behind the end of the active segment."""
        header, size, segment = batch.header, len(batch.content), self.segments.active
        base_offset, epoch = header.base_offset, header.partition_leader_epoch
        last_offset = base_offset + header.last_offset_delta
        position, segment.size = segment.size, segment.size + size
        segment.note_batch(
            last_offset, position, size, header.max_timestamp, self.config.index_interval_bytes, base_offset
        )
        if epoch != self.leader_epochs.latest:
            self.leader_epochs.assign(epoch, max(base_offset, self.log_start_offset))
        if header.is_control and header.producer_id < 0:
            record = stored_erasure(segment.path, batch.content)
            if record is not None:
                self._note_erasure(record, base_offset, epoch)
        elif header.producer_id >= 0:
            control = read_control_record(batch.content, max_bytes=CONTROL_BYTES_MAX) if header.is_control else None
            completed = self.producer_state.replay(header, now_ms=now_ms, control=control)
            if completed is not None:
                self._on_transaction_ended(segment, completed)
        self.move_log_end(last_offset + 1)

    def _note_erasure(self, record: ErasureRecord, offset: Offset, leader_epoch: LeaderEpoch) -> None:
        self.erasures.note(record, offset, leader_epoch)
        self.flush_wanted = True  # Its records stay in the files until it is on the disk.
        self.upkeep_queue[self] = None

    def read(
        self,
        offset: Offset,
        max_bytes: int,
        *,
        end_offset: Offset,
        minimum_one_batch: bool = True,
        seeks_records: bool = False,
    ) -> LogRead:
        """Reads batches from the one that holds `offset` on, as a slice of one segment's file.

        The slice has at most `max_bytes`, and nothing at or above `end_offset` (exclusive). The first batch is always
        whole, even if larger; without `minimum_one_batch` such a batch gives no slice. The last batch may be cut
        anywhere, as in Kafka, and the first may begin below `offset` and the log start. `seeks_records` skips segments
        of empty batches. Records that an erasure in effect names aren't returned. While an erasure isn't known to be
        committed, reads up to the high watermark end before its records. Errors: OFFSET_OUT_OF_RANGE in the result for
        an offset outside of the log. StorageError.
        """
        if offset < self.log_start_offset or offset > self.log_end_offset:
            return READ_OUT_OF_RANGE
        reader: SegmentList | ErasedReads = self.segments
        if self.erasures.filters_reads:
            reader, end_offset = around_erased(self.segments, self.erasures, self.high_watermark, end_offset)
        if offset >= end_offset or offset == self.log_end_offset:
            return NOTHING_READ
        return reader.read(offset, max_bytes, end_offset, self.log_end_offset, minimum_one_batch, seeks_records)

    def aborted_transactions(self, read: FileSlice, offset: Offset, end_offset: Offset) -> list[CompletedTransaction]:
        """Returns those aborted in a slice from `offset` to `end_offset` (exclusive), and maybe a few others."""
        aborted, segments = self.files.aborted, self.segments
        if not aborted.bases:
            return []
        first_base = segments.bases[max(segments.number_of(offset), 0)]
        end_offset = min(end_offset, segments.end_of(read, offset, self.log_end_offset))
        while True:
            try:
                return aborted.collect(first_base, offset, end_offset)
            except DamagedSegmentError as error:
                self.files.rebuild_aborted([aborted.base_of(error.path)], self.log_end_offset)

    def bytes_between(self, offset: Offset, end_offset: Offset, limit: int) -> int:
        """Counts the bytes of unerased records up to `end_offset` (exclusive), no further than about `limit`."""
        if self.erasures.filters_reads:
            offset = self.erasures.hidden(self.high_watermark).next_outside(offset)
            _, end_offset = around_erased(self.segments, self.erasures, self.high_watermark, end_offset)
        return self.segments.bytes_between(offset, end_offset, self.log_end_offset, limit)
