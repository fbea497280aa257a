"""Batches that already have their offsets: what a follower gets from its leader."""

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
    """A batch, checked: its header, and its bytes as a view that lives as long as what it was taken from."""

    header: BatchHeader
    content: memoryview


LEADER_EPOCH_MAX: Final[LeaderEpoch] = 2**31 - 1

_unpack = BATCH_HEADER_STRUCT.unpack_from


def split_stored_batches(
    records: memoryview, maximum_epoch: LeaderEpoch = LEADER_EPOCH_MAX
) -> list[StoredBatch] | ErrorCode:
    """The whole batches in `records`, checksums checked, up to the first one of a leader epoch above `maximum_epoch`.

    A batch that is cut at the end is left out.

    Errors: CORRUPT_MESSAGE for bytes that aren't sound batches.
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
    """Whether the offsets of batches rise, from `offset` or a later one on."""
    for batch in batches:
        if batch.header.base_offset < offset:
            return False
        offset = batch.header.last_offset + 1
    return True


def write_together(
    segment: Segment, records: memoryview, batches: Sequence[StoredBatch], limits: RollLimits, now_ms: int
) -> bool:
    """Writes the batches, which `records` begins with, at once if all of them belong into the segment.

    None of them counts in it yet. Returns False where nothing was written: one batch, another segment for some, or no
    room, of which there may be enough for some. Errors: those of `Segment.write`, but for what passes.
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
