"""Reads the log of a share partition for one member, and acquires the records.

Guards: the answer has whole batches, those of the acquired records; a read is bounded, whatever is in the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.broker.partitions.share.share_values import AcquiredRange, AcquireLimits, FetchedBatch
from lowtide.storage.log.segments.segment_file import FileSlice, batches_of

if TYPE_CHECKING:
    from lowtide.broker.partitions.share.share_partition import SharePartition
    from lowtide.protocol.records import BatchHeader
    from lowtide.protocol.types import Offset
    from lowtide.replication.partition import Partition
    from lowtide.storage.log.log import Log
    from lowtide.storage.log.producers.open_transactions import CompletedTransaction

READS_MAX: Final = 8
"""The most reads for one member while they find nothing to deliver: others' records, markers, aborted transactions."""

BATCHES_MAX: Final = 1_000
"""The most batches of one read: some two milliseconds. The others come with the next."""


class ShareRead(msgspec.Struct):
    """The records that one read has acquired for a member, in the whole batches of the log."""

    records: FileSlice | None = None
    acquired: list[AcquiredRange] = msgspec.field(default_factory=list)
    is_unfinished: bool = False
    """Whether nothing was acquired and there is more to read."""
    is_apart: bool = False
    """Whether these records failed often, so that the answer must have no others."""

    @property
    def count(self) -> int:
        """The number of acquired offsets."""
        return sum(each.last_offset - each.first_offset + 1 for each in self.acquired)


def readable_end(log: Log, *, committed: bool) -> Offset:
    """Returns the exclusive end of what members may read: for `committed` records the last stable offset."""
    return log.last_stable_offset if committed else log.high_watermark


def read_for_member(  # noqa: PLR0913  what is read, from where, and for whom
    share: SharePartition,
    partition: Partition,
    member_id: str,
    wanted: AcquireLimits,
    max_bytes: int,
    now_ms: int,
    *,
    committed: bool,
) -> ShareRead:
    """Reads from the offsets of available records, and acquires what it has read. Errors: StorageError."""
    log = partition.log
    share.move_start(log.log_start_offset)
    end_offset = readable_end(log, committed=committed)
    for _ in range(READS_MAX):
        offset = share.next_fetch_offset
        if offset >= end_offset or not share.may_acquire:
            return ShareRead()
        read = log.read(offset, max_bytes, end_offset=end_offset, seeks_records=True)
        if read.slice is None:
            return ShareRead()
        aborted = log.aborted_transactions(read.slice, offset, end_offset) if committed else []
        places, batches = _batches(read.slice, str(partition.topic_partition), aborted, offset)
        acquired = share.acquire(member_id, offset, batches, wanted, now_ms)
        if acquired:
            is_apart = acquired[0].delivery_count > share.limits.isolation_count
            return ShareRead(_cut(read.slice, places, acquired), acquired, is_apart=is_apart)
        if share.next_fetch_offset == offset:
            return ShareRead()
    return ShareRead(is_unfinished=True)


def _batches(
    read: FileSlice, name: str, aborted: list[CompletedTransaction], offset: Offset
) -> tuple[list[tuple[int, BatchHeader]], list[FetchedBatch]]:
    places, batches = [], []
    for position, header in batches_of(read, name):
        if header.last_offset < offset:
            continue
        places.append((position, header))
        batches.append(FetchedBatch(header.base_offset, header.last_offset, _is_hidden(header, aborted)))
        if len(batches) == BATCHES_MAX:
            break
    return places, batches


def _is_hidden(header: BatchHeader, aborted: list[CompletedTransaction]) -> bool:
    """Returns whether the batch is delivered to no member."""
    if header.is_control:
        return True
    if not aborted or not header.is_transactional:
        return False
    return any(
        each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
        for each in aborted
    )


def _cut(read: FileSlice, places: list[tuple[int, BatchHeader]], acquired: list[AcquiredRange]) -> FileSlice:
    """Returns the part of a slice with the batches of the acquired records."""
    first_offset, last_offset = acquired[0].first_offset, acquired[-1].last_offset
    held = [
        (position, header)
        for position, header in places
        if header.last_offset >= first_offset and header.base_offset <= last_offset
    ]
    position, (last_position, last) = held[0][0], held[-1]
    return FileSlice(read.file, position, last_position + last.size_bytes - position, read.token)
