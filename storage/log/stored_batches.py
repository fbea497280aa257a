"""Batches that already have their offsets, as a follower receives them from its leader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.protocol.compression import Buffer
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER_STRUCT,
    CURRENT_MAGIC,
    LOG_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    SMALLEST_BATCH_LENGTH,
    BatchHeader,
)
from lowtide.protocol.types import LeaderEpoch, Offset
from lowtide.storage.errors import is_passing
from lowtide.storage.log.segments.index import MAX_RELATIVE_OFFSET

if TYPE_CHECKING:
    from lowtide.storage.log.segments.roll_limits import RollLimits
    from lowtide.storage.log.segments.segment import Segment


_MAX_INT64 = 2**63 - 1


class StoredBatch(msgspec.Struct, gc=False):
    """A checked batch: its header, and its bytes as a view of what was received."""

    header: BatchHeader
    content: memoryview


LEADER_EPOCH_MAX: Final[LeaderEpoch] = 2**31 - 1

_unpack = BATCH_HEADER_STRUCT.unpack_from


def validate_stored(  # noqa: PLR0911 - one return per fault
    buffer: Buffer, position: int, header: BatchHeader, *, max_bytes: int = _MAX_INT64
) -> str | None:
    """Checks the batch at `position` of a segment or of a leader's answer; its header was read from there.

    Returns None if it is sound, otherwise what is wrong with it, for the log. `max_bytes` bounds the whole batch,
    inclusive. Checks size, magic, CRC and the order of header fields, not the records: a leader has walked those.
    Unlike a producer's batch, a stored one may have fewer records than offsets, for compaction removes records.
    """
    length = header.batch_length
    end = position + length + LOG_OVERHEAD
    if length < SMALLEST_BATCH_LENGTH:
        return f"batch length {length} is below {SMALLEST_BATCH_LENGTH}"
    if header.magic != CURRENT_MAGIC:
        return f"magic is {header.magic} instead of {CURRENT_MAGIC}"
    if end - position > max_bytes:
        return f"the batch has {end - position} bytes, at most {max_bytes} are allowed"
    if end > len(buffer):
        return f"the batch has {end - position} bytes, {len(buffer) - position} are there"
    if crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end]) != header.crc:
        return "the CRC is wrong"
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.record_count < 0:
        return (
            f"base offset {header.base_offset}, last delta {header.last_offset_delta} or count {header.record_count} "
            "is negative"
        )
    return None


def split_stored_batches(
    records: memoryview, maximum_epoch: LeaderEpoch = LEADER_EPOCH_MAX
) -> list[StoredBatch] | ErrorCode:
    """Returns the whole, checked batches in `records`, before the first of an epoch above `maximum_epoch`.

    Leaves out a batch that is cut at the end. Errors: CORRUPT_MESSAGE for bytes that aren't sound batches.
    """
    batches, position, end = [], 0, len(records)
    while end - position >= RECORD_BATCH_OVERHEAD:
        header = BatchHeader(*_unpack(records, position))
        length = header.batch_length
        stop = position + length + LOG_OVERHEAD
        if length < SMALLEST_BATCH_LENGTH or header.magic != CURRENT_MAGIC:
            return ErrorCode.CORRUPT_MESSAGE
        if stop > end or header.partition_leader_epoch > maximum_epoch:
            break
        if validate_stored(records, position, header) is not None:
            return ErrorCode.CORRUPT_MESSAGE
        batches.append(StoredBatch(header, records[position:stop]))
        position = stop
    return batches


def follow_each_other(batches: Sequence[StoredBatch], offset: Offset) -> bool:
    """Returns whether the offsets of batches rise, from `offset` or a later one on."""
    for batch in batches:
        if batch.header.base_offset < offset:
            return False
        offset = batch.header.last_offset + 1
    return True


def write_together(
    segment: Segment, records: memoryview, batches: Sequence[StoredBatch], limits: RollLimits, now_ms: int
) -> bool:
    """Writes the batches at the beginning of `records` at once, if all fit into the segment. They don't count yet.

    Returns False if nothing was written: for a single batch, if some need another segment, or without room for all.
    Errors: those of `Segment.write`, except those that pass.
    """
    count = len(batches)
    if count == 1:
        return False
    size, max_timestamp = (
        sum(len(batch.content) for batch in batches),
        max(batch.header.max_timestamp for batch in batches),
    )
    if not segment.has_room_for(count, size, batches[-1].header.last_offset, max_timestamp, limits, now_ms):
        return False
    try:
        segment.write([records[:size]], size, counts=False)
    except OSError as error:
        if is_passing(error):
            return False
        raise
    return True


def next_base_offset(log_end_offset: Offset, last_offset: Offset) -> Offset:
    """Returns where a segment begins whose first batch ends at `last_offset` (inclusive): at the log end, if possible.

    So the segments of a follower join, also if its leader's log is compacted: a gap between them means a loss.
    """
    return max(log_end_offset, Offset(last_offset - MAX_RELATIVE_OFFSET))
