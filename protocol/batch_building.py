"""Builds record batches from records, for tools, tests and rewritten batches. Slow: it handles one object per record.

A broker builds its own batches with `plain_batches`.

    >>> from lowtide.protocol.records import read_batch_header
    >>> batch = build_batch([(1_600_000_000_000, b"k", b"v", ())])
    >>> read_batch_header(batch).record_count, len(batch)
    (1, 70)
    >>> batch[61:].hex(" ")
    '10 00 00 00 02 6b 02 76 00'

Source: Kafka's `DefaultRecordBatch` and `DefaultRecord`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeAlias

from lowtide.protocol.compression import Buffer, Compression, compress
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.records import (
    CURRENT_MAGIC,
    SMALLEST_BATCH_LENGTH,
    VARINT_CONTINUES,
    BatchHeader,
    Header,
    TimestampType,
    read_varint,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowtide.protocol.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId

AFTER_CRC_STRUCT = struct.Struct(">hiqqqhii")
"""The forty bytes from the attributes to the record count."""

_BEFORE_CRC_STRUCT = struct.Struct(">qiibI")

UnplacedRecord: TypeAlias = "tuple[int, bytes | None, bytes | None, Sequence[Header]]"
"""A record without an offset: timestamp in milliseconds, key, value, headers."""


def _encode_varint(value: int) -> bytes:
    assert -(2**63) <= value < 2**63, value
    out = bytearray()
    raw = (value << 1) ^ (value >> 63)
    while raw >= VARINT_CONTINUES:
        out.append(raw & 0x7F | VARINT_CONTINUES)
        raw >>= 7
    out.append(raw)
    return bytes(out)


class _Varints(dict[int, bytes]):
    """Zigzag varints of signed 64-bit numbers. Those of small numbers, which are most, are stored."""

    def __missing__(self, value: int) -> bytes:
        return _encode_varint(value)


VARINTS: Final = _Varints({value: _encode_varint(value) for value in range(-1, 1024)})


def append_record(
    out: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    *,
    headers: Sequence[Header] = (),
) -> None:
    """Appends one record in the batch's format."""
    fields = [b"\0", VARINTS[timestamp_delta], VARINTS[offset_delta]]
    _append_bytes(fields, key)
    _append_bytes(fields, value)
    fields.append(VARINTS[len(headers)])
    for name, content in headers:
        _append_bytes(fields, name)
        _append_bytes(fields, content)
    body = b"".join(fields)
    out += VARINTS[len(body)]
    out += body


def _append_bytes(fields: list[bytes], content: bytes | None) -> None:
    if content is None:
        fields.append(VARINTS[-1])
    else:
        fields += (VARINTS[len(content)], content)


def build_batch(  # noqa: PLR0913  fields of the header
    records: Sequence[UnplacedRecord],
    *,
    base_offset: Offset = 0,
    compression: Compression = Compression.NONE,
    producer_id: ProducerId = -1,
    producer_epoch: ProducerEpoch = -1,
    base_sequence: int = -1,
    leader_epoch: LeaderEpoch = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> bytes:
    """Builds a batch of at least one record, with consecutive offsets and the first timestamp as base."""
    assert records, "a batch has at least one record"
    base_timestamp = records[0][0]
    payload = bytearray()
    for delta, (timestamp, key, value, headers) in enumerate(records):
        append_record(payload, timestamp - base_timestamp, delta, key, value, headers=headers)
    attributes = compression | timestamp_type << 3 | is_transactional << 4 | is_control << 5
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        partition_leader_epoch=leader_epoch,
        magic=CURRENT_MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max(record[0] for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return assemble_batch(header, compress(compression, payload))


def assemble_batch(header: BatchHeader, payload: Buffer) -> bytes:
    """Joins a header and its (compressed) records. Computes the batch length and CRC, whatever the header has."""
    after_crc = AFTER_CRC_STRUCT.pack(
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )
    before_crc = _BEFORE_CRC_STRUCT.pack(
        header.base_offset,
        SMALLEST_BATCH_LENGTH + len(payload),
        header.partition_leader_epoch,
        header.magic,
        crc32c(payload, crc32c(after_crc)),
    )
    return b"".join((before_crc, after_crc, payload))


def renumber_records(records: Buffer, count: int) -> bytes:
    """Rewrites the offset deltas of valid records as 0, 1, 2, ...."""
    out = bytearray()
    position = 0
    for index in range(count):
        length, start = read_varint(records, position)
        position = start + length
        _, offset_start = read_varint(records, start + 1)
        _, offset_end = read_varint(records, offset_start)
        body = bytearray(records[start:offset_start])
        body += VARINTS[index]
        body += records[offset_end:position]
        out += VARINTS[len(body)]
        out += body
    return bytes(out)
