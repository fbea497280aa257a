"""Batches of producers as their headers, for tests of what is remembered of them."""

from __future__ import annotations

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.records import BatchHeader, read_batch_header


def header_of(
    producer_id: int,
    epoch: int,
    sequence: int,
    count: int = 1,
    *,
    max_timestamp: int = 1,
    is_transactional: bool = False,
) -> BatchHeader:
    """The header of a batch with `count` offsets; its base offset is 0."""
    records = [(max_timestamp, None, None, ())]
    header = read_batch_header(
        build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
    )
    header.last_offset_delta = count - 1
    return header
