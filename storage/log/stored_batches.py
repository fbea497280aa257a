"""Batches that already have their offsets: what a follower gets from its leader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.records import BatchHeader, iterate_batches
from lowtide.protocol.types import LeaderEpoch, Offset
from lowtide.storage.log.validator import validate_stored


class StoredBatch(msgspec.Struct, gc=False):
    """A batch, checked: its header, and its bytes as a view that lives as long as what it was taken from."""

    header: BatchHeader
    content: memoryview


LEADER_EPOCH_MAX: Final[LeaderEpoch] = 2**31 - 1


def split_stored_batches(records: memoryview, maximum_epoch: LeaderEpoch = LEADER_EPOCH_MAX) -> list[StoredBatch] | ErrorCode:
    """The whole batches in `records`, checksums checked, up to the first one of a leader epoch above `maximum_epoch`.

    A batch that is cut at the end is left out.

    Errors: CORRUPT_MESSAGE for bytes that aren't sound batches.
    """
    batches = []
    try:
        for position, header in iterate_batches(records):
            if header.partition_leader_epoch > maximum_epoch:
                break
            if validate_stored(records, position, header) is not None:
                return ErrorCode.CORRUPT_MESSAGE
            batches.append(StoredBatch(header, records[position : position + header.size_bytes]))
    except ProtocolError:
        return ErrorCode.CORRUPT_MESSAGE
    return batches


def follow_each_other(batches: Sequence[StoredBatch], offset: Offset) -> bool:
    """Whether the offsets of batches rise, from `offset` or a later one on."""
    for batch in batches:
        if batch.header.base_offset < offset:
            return False
        offset = batch.header.last_offset + 1
    return True
