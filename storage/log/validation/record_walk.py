"""The walk over a batch's uncompressed records: do they fill it exactly, and what do their deltas say?

This is the only per-record work of the produce path, so `walk_records` is written for speed: varints of one or two
bytes are read inline, no object is created per record, and a run of records with the same layout, as producers of
equal-sized messages send them, is checked column by column (see `_check_run`). `iterate_steps` is the slow, plain form,
used to name the records at fault; tests compare the two. The validator tries the compiled form (`protocol/native/`)
first; what that finds sound needs no other walk.

Raises `ProtocolError` for records that contradict themselves; the validator turns it into INVALID_RECORD. Source:
Kafka's `DefaultRecord.readFrom`.
"""

# ruff: noqa: PLR2004 - the bits of varints are best read where they are used

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import msgspec

from lowtide.protocol.batch_building import VARINTS
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import read_record, read_varint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lowtide.protocol.compression import Buffer

_COPY_BELOW_BYTES_PER_RECORD = 4096
"""`bytes` are read one by one faster than a view; above this mean size the copy costs more than it saves."""

_COPY_UP_TO_BYTES = 16 << 20
"""Copies above that would keep the interpreter's lock for milliseconds."""

HEADERS_MAX = 1_000_000
"""Headers of all records of a batch that the plain form reads at most: each takes half a microsecond."""

_NONE_LOW, _NONE_HIGH = 1 << 64, -(1 << 64)
"""The smallest and the largest timestamp delta of no records: outside of 64 bits."""

_SHORTEST_RUN = 12
"""The shortest run of equal layout that is worth checking as a table."""

_FIRST_BLOCK = 16
"""Records walked one by one before the next look for a run; doubled after each failed look."""

_NARROW_OFFSETS = 64
_TWO_BYTE_OFFSETS = 8192
"""The first offset deltas whose varints need two bytes, and three."""

_OFFSET_ONLY = bytes(range(0, 128, 2))
_OFFSET_LOW = bytes(range(128, 256, 2)) * 128
_OFFSET_HIGH = b"".join(bytes((high,)) * 64 for high in range(128))
"""The bytes of the varints of 0, 1, 2, ...: the only one, the first of two, the second of two."""

_EVEN_LAST = bytes(byte & 1 or byte > 0x7F for byte in range(256))
_EVEN_MORE = bytes(byte & 1 or byte < 0x80 for byte in range(256))
"""Zero for the first byte of a non-negative zigzag varint that ends with it, and that continues."""

_UP_TO = tuple(bytes(range(byte + 1)) for byte in range(256))
_FROM = tuple(bytes(range(byte, 256)) for byte in range(256))
"""All bytes up to, and from, one."""


class RecordWalk(msgspec.Struct, gc=False):
    """What the records of a batch say together. Timestamp deltas are relative to the base timestamp, in milliseconds.

    `max_timestamp_index` is the first record with the largest; `in_order` says that offset deltas are 0, 1, 2, ....
    """

    min_timestamp_delta: int
    max_timestamp_delta: int
    max_timestamp_index: int
    keyless: bool
    in_order: bool
    headers_left: int = HEADERS_MAX
    """How many more headers the plain form may read."""


class TooManyHeadersError(ProtocolError):
    """Records with more headers than the plain form may read."""


class RecordStep(msgspec.Struct, gc=False):
    """What the validator needs to know of one record."""

    timestamp_delta: int
    offset_delta: int
    keyless: bool


def walk_records(records: Buffer, count: int, headers_max: int = HEADERS_MAX) -> RecordWalk:
    """Walks `count` (at least 1) records that must fill `records` exactly.

    Errors: ProtocolError if they don't, or one of them contradicts its own length; TooManyHeadersError for more than
    `headers_max` headers.
    """
    size = len(records)
    payload = bytes(records) if size < min(count * _COPY_BELOW_BYTES_PER_RECORD, _COPY_UP_TO_BYTES) else records
    walk = RecordWalk(
        _NONE_LOW, _NONE_HIGH, 0, False, True, headers_max
    )  # Without names, which cost as much as the walk of a record.
    index = position = 0
    block = _FIRST_BLOCK
    try:
        while index < count:
            if count - index >= _SHORTEST_RUN and isinstance(payload, bytes):
                length, record_bytes = _check_run(payload, position, index, count, walk)
                if length:
                    index += length
                    position += length * record_bytes
                    block = _FIRST_BLOCK
                    continue
            # If records differ, looking for runs again and again would be wasted.
            stop = index + block
            if stop > count:  # noqa: PLR1730 - min() costs three times as much
                stop = count
            block *= 2
            position = _walk_block(payload, position, index, stop, walk)
            index = stop
    except IndexError:
        raise ProtocolError(f"the records end before the last of {count}") from None
    if position != size:
        raise ProtocolError(f"{size - position} bytes follow the last of {count} records")
    walk.headers_left = HEADERS_MAX  # As the compiled form leaves it.
    return walk


def _walk_block(  # noqa: PLR0912, PLR0915 - unrolled: a call per field would double its time
    payload: Buffer, position: int, index: int, stop: int, walk: RecordWalk
) -> int:
    """Walks the records from `index` to `stop` (exclusive), adds them to `walk`, and returns where they end.

    Errors: ProtocolError, or IndexError if they go beyond the payload's end.
    """
    lowest, highest, last_raw = walk.min_timestamp_delta, walk.max_timestamp_delta, -1
    for number in range(index, stop):
        length = payload[position]
        position += 1
        if length > 0x7F:
            more = payload[position]
            position += 1
            length += (more << 7) - 0x80
            if more > 0x7F:
                length, position = _finish_varint(payload, position, length - 0x4000, 14)
        start = position
        raw = payload[position + 1]  # Before it are attributes without a meaning.
        position += 2
        if raw > 0x7F:
            more = payload[position]
            position += 1
            raw += (more << 7) - 0x80
            if more > 0x7F:
                raw, position = _finish_varint(payload, position, raw - 0x4000, 14)
        if raw != last_raw:
            last_raw = raw
            delta = -(raw >> 1) - 1 if raw & 1 else raw >> 1
            if delta > highest:
                highest = walk.max_timestamp_delta = delta
                walk.max_timestamp_index = number
            if delta < lowest:  # noqa: PLR1730 - min() costs three times as much
                lowest = delta
        raw = payload[position]
        position += 1
        if raw > 0x7F:
            raw, position = _finish_varint(payload, position, raw - 0x80, 7)
        if raw != number << 1:
            walk.in_order = False
        raw = payload[position]
        position += 1
        if raw > 0x7F:
            raw, position = _finish_varint(payload, position, raw - 0x80, 7)
        if raw & 1:
            if raw != 1:
                _refuse_length(raw)
            walk.keyless = True
        else:
            position += raw >> 1
        raw = payload[position]
        position += 1
        if raw > 0x7F:
            more = payload[position]
            position += 1
            raw += (more << 7) - 0x80
            if more > 0x7F:
                raw, position = _finish_varint(payload, position, raw - 0x4000, 14)
        if not raw & 1:
            position += raw >> 1
        elif raw != 1:
            _refuse_length(raw)
        raw = payload[position]
        position += 1
        if raw:
            position = _skip_headers(payload, position - 1, walk)
        if (position - start) << 1 != length:
            raise ProtocolError(
                f"record {number} is {position - start} bytes long, its length in zigzag form is {length}"
            )
    walk.min_timestamp_delta = lowest
    return position


def _check_run(  # noqa: PLR0911 - one return per way to differ
    payload: bytes, position: int, index: int, count: int, walk: RecordWalk
) -> tuple[int, int]:
    """Checks as many records as possible with the layout of the one at `position`, all at once.

    Records of one size with lengths, deltas and counts in the same places form a table. Each column is a strided slice,
    and comparing one costs about a nanosecond per record. Records with headers are left to the plain walk. Returns
    `(records checked and added to walk, bytes of each)`, or `(0, 0)` if fewer than `_SHORTEST_RUN` are alike; only then
    may something be wrong with them.
    """
    room = len(payload)
    length, body = _finish_varint(payload, position, 0, 0)
    stride = body - position + (length >> 1)
    probe = position + (_SHORTEST_RUN - 1) * stride
    if probe >= room or payload[probe] != payload[position]:
        return 0, 0
    timestamp_at = body + 1
    timestamp, offset_at = _finish_varint(payload, timestamp_at, 0, 0)
    _, key_at = _finish_varint(payload, offset_at, 0, 0)
    key, key_end = _finish_varint(payload, key_at, 0, 0)
    value_at = key_end if key == 1 else key_end + (key >> 1)
    value, value_end = _finish_varint(payload, value_at, 0, 0)
    end = value_end + 1 if value == 1 else value_end + (value >> 1) + 1
    wide = index >= _NARROW_OFFSETS
    negative = (key & 1 and key != 1) or (value & 1 and value != 1)
    if negative or (end - body) << 1 != length or payload[end - 1] or key_at - offset_at != 1 + wide:
        return 0, 0
    limit = _TWO_BYTE_OFFSETS if wide else _NARROW_OFFSETS
    rows = min(count - index, (room - position) // stride, limit - index)
    # All other bytes of these ranges are the same in each row; the first of the timestamp and the offset's are checked
    # apart.
    constant = (
        *range(position, body),
        *range(timestamp_at + 1, offset_at),
        *range(key_at, key_end),
        *range(value_at, value_end),
        end - 1,
    )
    for at in constant:
        if rows < _SHORTEST_RUN:
            return 0, 0
        column = payload[at : at + rows * stride : stride]
        rows -= len(column.lstrip(column[:1]))
    column = payload[timestamp_at : timestamp_at + rows * stride : stride]
    rows -= len(column.translate(_EVEN_LAST if offset_at - timestamp_at == 1 else _EVEN_MORE).lstrip(b"\x00"))
    if rows < _SHORTEST_RUN:
        return 0, 0
    low = payload[offset_at : offset_at + rows * stride : stride]
    if low != (_OFFSET_LOW if wide else _OFFSET_ONLY)[index : index + rows]:
        return 0, 0
    if wide and payload[offset_at + 1 : offset_at + 1 + rows * stride : stride] != _OFFSET_HIGH[index : index + rows]:
        return 0, 0
    _add_timestamps(column[:rows], timestamp, index, walk)
    if key == 1:
        walk.keyless = True
    return rows, stride


def _add_timestamps(column: bytes, first: int, index: int, walk: RecordWalk) -> None:
    """Adds a run's timestamp deltas to `walk`. They differ from `first`, in zigzag form, in their lowest byte only.

    All are positive, and as clocks go forward the last is nearly always the largest and the first the smallest.
    """
    newest, oldest = column[-1], column[0]
    if column.translate(None, _UP_TO[newest]):
        newest = max(column)
    if column.translate(None, _FROM[oldest]):
        oldest = min(column)
    # Zigzag doubles non-negative numbers.
    highest = (first + newest - column[0]) >> 1
    lowest = (first + oldest - column[0]) >> 1
    if highest > walk.max_timestamp_delta:
        walk.max_timestamp_delta = highest
        walk.max_timestamp_index = index + column.index(newest)
    walk.min_timestamp_delta = min(walk.min_timestamp_delta, lowest)


def _finish_varint(payload: Buffer, position: int, raw: int, shift: int) -> tuple[int, int]:
    """Continues a varint whose lower `shift` bits are in `raw`. Returns `(unsigned value, position behind it)`."""
    while True:
        byte = payload[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw, position
        shift += 7
        if shift > 63:
            raise ProtocolError(f"the varint that ends at {position} is longer than ten bytes")


def _refuse_length(raw: int) -> NoReturn:
    raise ProtocolError(f"a key or value has the length {-(raw >> 1) - 1}")


def _skip_headers(payload: Buffer, position: int, walk: RecordWalk) -> int:
    """Checks the headers that begin, with their count, at `position`, and returns where they end."""
    count, position = _finish_varint(payload, position, 0, 0)
    if count & 1:
        raise ProtocolError(f"a record has {-(count >> 1) - 1} headers")
    walk.headers_left -= count >> 1
    if walk.headers_left < 0:
        raise TooManyHeadersError("the headers are too many to be checked")
    for _ in range(count >> 1):
        raw, position = _finish_varint(payload, position, 0, 0)
        if raw & 1:
            raise ProtocolError("a header has no name")
        position += raw >> 1
        raw, position = _finish_varint(payload, position, 0, 0)
        if not raw & 1:
            position += raw >> 1
        elif raw != 1:
            _refuse_length(raw)
    return position


def iterate_steps(records: Buffer, count: int) -> Iterator[RecordStep]:
    """Yields what each record says, slowly. The records were walked before, so they are sound."""
    position = 0
    for _ in range(count):
        record, position = read_record(records, position, 0, 0)
        yield RecordStep(record.timestamp, record.offset, record.key is None)


def renumber_records(records: Buffer, count: int) -> bytes:
    """Rewrites records that were walked before, with offset deltas 0, 1, 2, ...; the rest stays."""
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
