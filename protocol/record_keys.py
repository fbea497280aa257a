"""Finds the keys of a batch's records without decoding the records; compaction spends much of its time in this walk.

Each record is `length | attributes | timestamp delta | offset delta | key | value | headers`. Lengths and deltas are
varints; those of one or two bytes, nearly all of them, are read in place. Guards: nothing outside of the given bytes is
read; records that don't fill them, or contradict themselves, are an error. Source: Kafka's DefaultRecord.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import read_varint

_ONE_BYTE: Final = 0x80
"""A varint's last byte is below it."""


class RecordKeys(NamedTuple):
    """Columns with an entry for each record, in their order."""

    keys: list[bytes]
    """Empty for a record without a key."""
    deltas: list[int]
    """The offsets relative to the batch's base offset."""
    ends: list[int]
    """The position after each record."""
    keyless: list[int]
    """The numbers of the records without a key."""
    tombstones: list[int]
    """The numbers of the records without a value."""


def find_keys(records: bytes, start: int, end: int, count: int) -> RecordKeys:  # noqa: PLR0912 - a call for each field costs twice as much
    """Returns the keys of the `count` uncompressed records that fill `records` from `start` to `end`.

    Errors: ProtocolError.
    """
    found = RecordKeys([], [], [], [], [])
    add_key, add_delta, add_end = found.keys.append, found.deltas.append, found.ends.append
    position, one_byte = start, _ONE_BYTE
    try:
        for number in range(count):
            size = records[position]
            if size < one_byte:
                at = position + 1
            elif (more := records[position + 1]) < one_byte:
                size, at = size & 127 | more << 7, position + 2
            else:
                size, at = _unsigned(records, position)
            position = at + (size >> 1)
            # The two deltas follow the attributes, which are one byte.
            at += 2 if records[at + 1] < one_byte else 3 if records[at + 2] < one_byte else _length(records, at + 1) + 1
            delta = records[at]
            if delta < one_byte:
                at += 1
            elif (more := records[at + 1]) < one_byte:
                delta, at = delta & 127 | more << 7, at + 2
            else:
                delta, at = _unsigned(records, at)
            key_size = records[at]
            if key_size < one_byte:
                at += 1
            elif (more := records[at + 1]) < one_byte:
                key_size, at = key_size & 127 | more << 7, at + 2
            else:
                key_size, at = _unsigned(records, at)
            if key_size & 1:
                found.keyless.append(number)
                key_size = 0
            key_end = at + (key_size >> 1)
            if records[key_end] == 1:
                found.tombstones.append(number)
            if size & 1 or delta & 1 or key_end >= position or position > end:
                break
            add_key(records[at:key_end])
            add_delta(delta >> 1)
            add_end(position)
    except IndexError:
        position = -1
    if position != end or len(found.ends) != count:
        raise ProtocolError(f"{count} records don't fill the {end - start} bytes of their batch")
    return found


def timestamp_delta(records: bytes, start: int) -> int:
    """Returns the timestamp delta of the record at `start`, which `find_keys` has checked."""
    return read_varint(records, start + _length(records, start) + 1)[0]


def after_timestamp(records: bytes, start: int) -> int:
    """Returns the place after the timestamp delta of the record at `start`."""
    at = start + _length(records, start) + 1
    return at + _length(records, at)


def attributes_of(records: bytes, start: int) -> int:
    """Returns the attributes of the record at `start`."""
    return records[start + _length(records, start)]


def _length(records: bytes, position: int) -> int:
    at = position
    while records[at] >= _ONE_BYTE:
        at += 1
    return at + 1 - position


def _unsigned(records: bytes, position: int) -> tuple[int, int]:
    """Returns a varint without zigzag decoding, its sign in the lowest bit, and the position after it."""
    value, at = read_varint(records, position)
    return (value << 1) ^ (value >> 63), at
