"""A batch as two of half its records: for a topic that takes smaller ones than we make.

Slow, and rare: an object for each record.
"""

from __future__ import annotations

from typing import Final

from lowtide.pipeline.partition_batches import ProducerBatch
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.records import iterate_records, read_batch_header

_DECOMPRESSED_BYTES_MAX: Final = 1 << 30
"""Our own batch: whatever it was made of, it was in memory."""


def split_batch(batch: ProducerBatch) -> list[ProducerBatch]:
    """The same records in the same order, in two batches. There are at least two records."""
    compression = read_batch_header(batch.records).compression
    rows = [
        (record.timestamp, record.key, record.value, record.headers)
        for record in iterate_records(batch.records, max_bytes=_DECOMPRESSED_BYTES_MAX)
    ]
    half = len(rows) // 2
    return [
        ProducerBatch(
            place=batch.place,
            records=bytearray(build_batch(part, compression=compression)),
            record_count=len(part),
            deadline_ms=batch.deadline_ms,
            last_error=batch.last_error,
        )
        for part in (rows[:half], rows[half:])
    ]
