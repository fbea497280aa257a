"""Batches that already have their offsets, as a follower receives them from its leader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import (
    BATCH_HEADER_STRUCT,
    CURRENT_MAGIC,
    LOG_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    SMALLEST_BATCH_LENGTH,
    BatchHeader,
)
from lowtide.protocol.types import LeaderEpoch, Offset
from lowtide.storage.errors import is_passing
from lowtide.storage.log.validation.validator import validate_stored

if TYPE_CHECKING:
    from lowtide.storage.log.segments.roll_limits import RollLimits
    from lowtide.storage.log.segments.segment import Segment


class StoredBatch(msgspec.Struct, gc=False):
    """A checked batch: its header, and its bytes as a view of what was received."""

    header: BatchHeader
    content: memoryview


LEADER_EPOCH_MAX: Final[LeaderEpoch] = 2**31 - 1

_unpack = BATCH_HEADER_STRUCT.unpack_from


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
