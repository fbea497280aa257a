"""Checks runs of records with the same layout, column by column.

Producers of equal-sized messages send such records. Only the plain form of the walk (`validator.walk_records`) uses it.
"""

# ruff: noqa: PLR2004 - the bits of varints are best read where they are used

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.protocol.errors import ProtocolError
from lowtide.storage.log.validation.validation_rules import HEADERS_MAX

if TYPE_CHECKING:
    from lowtide.protocol.compression import Buffer

SHORTEST_RUN = 12
"""The shortest run of equal layout that is worth checking as a table."""

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


def check_run(  # noqa: PLR0911 - one return per way to differ
    payload: bytes, position: int, index: int, count: int, walk: RecordWalk
) -> tuple[int, int]:
    """Checks as many records as possible with the layout of the one at `position`, all at once.

    Records of one size with lengths, deltas and counts in the same places form a table. Each column is a strided slice,
    and comparing one costs about a nanosecond per record. Records with headers are left to the plain walk. Returns
    `(records checked and added to walk, bytes of each)`, or `(0, 0)` if fewer than `SHORTEST_RUN` are alike; only then
    may something be wrong with them.
    """
    room = len(payload)
    length, body = finish_varint(payload, position, 0, 0)
    stride = body - position + (length >> 1)
    probe = position + (SHORTEST_RUN - 1) * stride
    if probe >= room or payload[probe] != payload[position]:
        return 0, 0
    timestamp_at = body + 1
    timestamp, offset_at = finish_varint(payload, timestamp_at, 0, 0)
    _, key_at = finish_varint(payload, offset_at, 0, 0)
    key, key_end = finish_varint(payload, key_at, 0, 0)
    value_at = key_end if key == 1 else key_end + (key >> 1)
    value, value_end = finish_varint(payload, value_at, 0, 0)
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
        if rows < SHORTEST_RUN:
            return 0, 0
        column = payload[at : at + rows * stride : stride]
        rows -= len(column.lstrip(column[:1]))
    column = payload[timestamp_at : timestamp_at + rows * stride : stride]
    rows -= len(column.translate(_EVEN_LAST if offset_at - timestamp_at == 1 else _EVEN_MORE).lstrip(b"\x00"))
    if rows < SHORTEST_RUN:
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


def finish_varint(payload: Buffer, position: int, raw: int, shift: int) -> tuple[int, int]:
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
