"""Batches that already have their offsets: what a follower gets from its leader."""

from __future__ import annotations

import msgspec

from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.records import BatchHeader, iterate_batches
from lowtide.storage.validator import validate_stored


class StoredBatch(msgspec.Struct, gc=False):
    """A batch, checked: its header, and its bytes as a view that lives as long as what it was taken from."""

    header: BatchHeader
    content: memoryview


def split_stored_batches(records: memoryview) -> list[StoredBatch] | ErrorCode:
    """The whole batches in `records`, checksums checked; a batch that is cut at the end is left out.

    Errors: CORRUPT_MESSAGE for bytes that aren't sound batches.
    """
    batches = []
    try:
        for position, header in iterate_batches(records):
            if validate_stored(records, position, header) is not None:
                return ErrorCode.CORRUPT_MESSAGE
            batches.append(StoredBatch(header, records[position : position + header.size_bytes]))
    except ProtocolError:
        return ErrorCode.CORRUPT_MESSAGE
    return batches
