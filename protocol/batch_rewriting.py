"""Writes a batch again with only some of its records.

A batch keeps its first and last offset, epoch, producer, sequence, timestamp type, codec and flags, and each remaining
record its own offset. Source: Kafka's MemoryRecords.filterTo.
"""

from __future__ import annotations

import msgspec

from lowtide.protocol.batch_building import assemble_batch
from lowtide.protocol.compression import Buffer, Compression, compress, decompress
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.record_keys import RecordKeys, find_keys, timestamp_delta
from lowtide.protocol.records import (
    COMPRESSION_BITS,
    DELETE_HORIZON_BIT,
    RECORD_BATCH_OVERHEAD,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
)
from lowtide.protocol.types import NO_TIMESTAMP


def records_of(header: BatchHeader, batch: Buffer, limit: int) -> Buffer:
    """Returns the records of a batch, at most `limit` bytes, uncompressed. Errors: ProtocolError."""
    payload = memoryview(batch)[RECORD_BATCH_OVERHEAD : header.size_bytes]
    if header.compression is Compression.NONE or not header.record_count:
        return payload
    return decompress(header.compression, payload, max_bytes=limit)


def without_records(header: BatchHeader, batch: Buffer, erased: OffsetRanges, *, decompressed_bytes_max: int) -> Buffer:
    """Returns a batch without the records at the `erased` offsets, or the batch itself if it has none of these.

    Offsets, sequence numbers, timestamps, codec and flags are kept as in a compaction. A batch that loses all records
    keeps its offsets and its producer. Control batches have no erased records. Errors: ProtocolError.
    """
    if header.is_control or not header.record_count or not erased.intersects(header.base_offset, header.last_offset):
        return batch
    records = bytes(records_of(header, batch, decompressed_bytes_max))
    found = find_keys(records, 0, len(records), header.record_count)
    kept = [number for number, delta in enumerate(found.deltas) if not erased.contains(header.base_offset + delta)]
    if not kept:
        return empty_batch(header)
    if len(kept) == header.record_count:
        return batch
    starts = [0, *found.ends]
    newest = max(timestamp_delta(records, starts[number]) for number in kept)
    return with_records(header, copied_records(records, found, kept), len(kept), newest)


def empty_batch(header: BatchHeader) -> bytes:
    """Returns the batch without records, as Kafka writes it: no codec, no horizon, no base timestamp."""
    kept = header.attributes & ~(COMPRESSION_BITS | DELETE_HORIZON_BIT)
    return assemble_batch(
        msgspec.structs.replace(header, attributes=kept, base_timestamp=NO_TIMESTAMP, record_count=0), b""
    )


def copied_records(records: bytes, found: RecordKeys, kept: list[int] | range) -> bytes:
    """Returns the bytes of the `kept` records, given by their numbers, of which there is at least one."""
    starts = [0, *found.ends]
    out = bytearray()
    run = end = starts[kept[0]]
    for number in kept:
        if starts[number] != end:
            out += records[run:end]
            run = starts[number]
        end = found.ends[number]
    out += records[run:end]
    return bytes(out)


def with_records(
    header: BatchHeader, records: Buffer, count: int, max_timestamp_delta: int, new_horizon_ms: int | None = None
) -> bytes:
    """Returns the batch with these `count` uncompressed records. A new horizon becomes its base timestamp."""
    newest = header.base_timestamp + max_timestamp_delta
    changed = msgspec.structs.replace(
        header,
        attributes=header.attributes if new_horizon_ms is None else header.attributes | DELETE_HORIZON_BIT,
        base_timestamp=header.base_timestamp if new_horizon_ms is None else new_horizon_ms,
        max_timestamp=header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else newest,
        record_count=count,
    )
    return assemble_batch(changed, compress(header.compression, records))
