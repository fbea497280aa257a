"""The walk over a batch's uncompressed records: do they fill it exactly, and what do their deltas say?

This is the only per-record work of the produce path, so `walk_records` is written for speed: varints of one or two bytes are read
inline, and no object is made per record. `iterate_steps` is the slow, plain form, used to name the records at fault; a test holds
the two against each other.

Raises `ProtocolError` for records that contradict themselves; the validator turns it into INVALID_RECORD.
Source: Kafka's `DefaultRecord.readFrom`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import append_varint, read_record, read_varint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lowtide.protocol.compression import Buffer

_COPY_BELOW_BYTES_PER_RECORD = 4096
"""Bytes are read one by one faster from `bytes` than from a view; above this mean size the copy costs more than it saves."""


class RecordWalk(msgspec.Struct, gc=False):
    """What the records of a batch say together. Timestamp deltas are relative to the base timestamp, in milliseconds.

    `max_timestamp_index` is the first record that has the largest; `in_order` says that offset deltas are 0, 1, 2, ....
    """

    min_timestamp_delta: int
    max_timestamp_delta: int
    max_timestamp_index: int
    keyless: bool
    in_order: bool


class RecordStep(msgspec.Struct, gc=False):
    """What the validator wants to know of one record."""

    timestamp_delta: int
    offset_delta: int
    keyless: bool


def walk_records(records: Buffer, count: int) -> RecordWalk:
    """Walk `count` (at least 1) records that must fill `records` exactly.

    Errors: ProtocolError when they do not, or when one of them contradicts its own length.
    """
    size = len(records)
    payload = bytes(records) if size < count * _COPY_BELOW_BYTES_PER_RECORD else records
    lowest, highest, highest_index, last_raw = 1 << 64, -(1 << 64), 0, -1
    keyless, in_order = False, True
    position = 0
    try:
        for index in range(count):
            length = payload[position]
            position += 1
            if length > 0x7F:
                more = payload[position]
                position += 1
                length += (more << 7) - 0x80
                if more > 0x7F:
                    length, position = _finish_varint(payload, position, length - 0x4000, 14)
            start = position
            raw = payload[position + 1]
            position += 2
            if raw > 0x7F:
                raw, position = _finish_varint(payload, position, raw - 0x80, 7)
            if raw != last_raw:
                last_raw = raw
                delta = -(raw >> 1) - 1 if raw & 1 else raw >> 1
                if delta > highest:
                    highest, highest_index = delta, index
                if delta < lowest:
                    lowest = delta
            raw = payload[position]
            position += 1
            if raw > 0x7F:
                raw, position = _finish_varint(payload, position, raw - 0x80, 7)
            if raw != index << 1:
                in_order = False
            raw = payload[position]
            position += 1
            if raw > 0x7F:
                raw, position = _finish_varint(payload, position, raw - 0x80, 7)
            if raw & 1:
                _check_null(raw)
                keyless = True
            else:
                position += raw >> 1
            raw = payload[position]
            position += 1
            if raw > 0x7F:
                raw, position = _finish_varint(payload, position, raw - 0x80, 7)
            if raw & 1:
                _check_null(raw)
            else:
                position += raw >> 1
            raw = payload[position]
            position += 1
            if raw:
                position = _skip_headers(payload, position - 1)
            if (position - start) << 1 != length:
                raise ProtocolError(f"record {index} has the length {length / 2} in zigzag form, but {position - start} bytes")
    except IndexError:
        raise ProtocolError(f"the records end before the last of {count}") from None
    if position != size:
        raise ProtocolError(f"{size - position} bytes follow the last of {count} records")
    return RecordWalk(lowest, highest, highest_index, keyless, in_order)


def _finish_varint(payload: Buffer, position: int, raw: int, shift: int) -> tuple[int, int]:
    """Go on with a varint whose lower `shift` bits are in `raw`: `(unsigned value, position behind it)`."""
    while True:
        byte = payload[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw, position
        shift += 7
        if shift > 63:
            raise ProtocolError(f"the varint that ends at {position} is longer than ten bytes")


def _check_null(raw: int) -> None:
    if raw != 1:
        raise ProtocolError(f"a key or value has the length {-(raw >> 1) - 1}")


def _skip_headers(payload: Buffer, position: int) -> int:
    """Check the headers that begin, with their count, at `position`, and return where they end."""
    count, position = _finish_varint(payload, position, 0, 0)
    if count & 1:
        raise ProtocolError(f"a record has {-(count >> 1) - 1} headers")
    for _ in range(count >> 1):
        raw, position = _finish_varint(payload, position, 0, 0)
        if raw & 1:
            raise ProtocolError("a header has no name")
        position += raw >> 1
        raw, position = _finish_varint(payload, position, 0, 0)
        if raw & 1:
            _check_null(raw)
        else:
            position += raw >> 1
    return position


def iterate_steps(records: Buffer, count: int) -> Iterator[RecordStep]:
    """Yield what each record says, slowly. The records were walked before: they are sound."""
    position = 0
    for _ in range(count):
        record, position = read_record(records, position, 0, 0)
        yield RecordStep(record.timestamp, record.offset, record.key is None)


def renumber_records(records: Buffer, count: int) -> bytes:
    """Rewrite records that were walked before, so that their offset deltas are 0, 1, 2, ...; all else stays."""
    out = bytearray()
    position = 0
    for index in range(count):
        length, start = read_varint(records, position)
        position = start + length
        _, offset_start = read_varint(records, start + 1)
        _, offset_end = read_varint(records, offset_start)
        body = bytearray(records[start:offset_start])
        append_varint(body, index)
        body += records[offset_end:position]
        append_varint(out, len(body))
        out += body
    return bytes(out)
