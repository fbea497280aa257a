"""Reading a log: slices of its files, what was aborted in them, sizes, and the search for timestamps."""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.protocol.types import Offset
from lowtide.storage.errors import DamagedSegmentError
from lowtide.storage.log.log_moving import MovableLog
from lowtide.storage.log.log_values import NOTHING_READ, READ_OUT_OF_RANGE, LogRead
from lowtide.storage.log.open_transactions import CompletedTransaction
from lowtide.storage.log.segment_file import FileSlice
from lowtide.storage.log.timestamps import Found, TimestampedOffset, search_max_timestamp, search_timestamp
from lowtide.storage.log.transaction_recovery import rebuild_aborted


class ReadableLog(MovableLog):
    """A log that is read. Nothing here changes what is in it."""

    __slots__ = ()

    def read(
        self,
        offset: Offset,
        max_bytes: int,
        *,
        end_offset: Offset,
        minimum_one_batch: bool = True,
        seeks_records: bool = False,
    ) -> LogRead:
        """Batches from the one that holds `offset` on, as a slice of at most `max_bytes` of one segment's file.

        Nothing at or above `end_offset` (exclusive) is in it. The first batch is always whole, also when it is larger
        than `max_bytes`; without `minimum_one_batch` there is then no slice. The last one may be cut anywhere (Kafka
        does that too), and the first one may begin below `offset` and below the log start. `seeks_records` passes over
        segments of which only empty batches are left. Errors: OFFSET_OUT_OF_RANGE in the result below the log start and
        above the log end. StorageError when the disk fails.
        """
        if offset < self.log_start_offset or offset > self.log_end_offset:
            return READ_OUT_OF_RANGE
        if offset >= end_offset or offset == self.log_end_offset:
            return NOTHING_READ
        return self._segments.read(offset, max_bytes, end_offset, self.log_end_offset, minimum_one_batch, seeks_records)

    def aborted_transactions(self, read: FileSlice, offset: Offset, end_offset: Offset) -> list[CompletedTransaction]:
        """Those with records in a slice read at `offset` up to `end_offset` (exclusive), and maybe a few others.

        Errors: StorageError.
        """
        if not self._aborted.bases:
            return []
        first_base = self._segments.bases[max(self._segments.number_of(offset), 0)]
        end_offset = min(end_offset, self._segments.end_of(read, offset, self.log_end_offset))
        while True:
            try:
                return self._aborted.collect(first_base, offset, end_offset)
            except DamagedSegmentError as error:
                self.rebuild_aborted([self._aborted.base_of(error.path)])

    def rebuild_aborted(self, base_offsets: Sequence[Offset]) -> None:
        """Finds out from the batches which transactions were aborted in these segments, which rise.

        Errors: StorageError.
        """
        self._sync.note_written(
            rebuild_aborted(self._aborted, base_offsets, self._segments, self._snapshots, self.log_end_offset)
        )

    def bytes_between(self, offset: Offset, end_offset: Offset, limit: int) -> int:
        """The bytes from `offset` up to `end_offset` (exclusive), counting no further than about `limit`.

        Errors: StorageError.
        """
        return self._segments.bytes_between(offset, end_offset, self.log_end_offset, limit)

    def search_timestamp(self, timestamp_ms: int, start_offset: Offset = 0) -> Found:
        """The first record at or above the log start and `start_offset` with at least that timestamp.

        Errors: StorageError.
        """
        return search_timestamp(self._segments, timestamp_ms, max(start_offset, self.log_start_offset))

    def search_max_timestamp(self, start_offset: Offset = 0, largest: TimestampedOffset | None = None) -> Found:
        """The first record with the largest timestamp at or above the log start, as `timestamps.search_max_timestamp` has it.

        Errors: StorageError.
        """
        return search_max_timestamp(self._segments, self.log_start_offset, start_offset, largest)
