"""The control record of an erasure: which offsets of this partition are erased.

The leader appends it as the only record of a control batch without a producer. Clients skip control batches of unknown
types. All integers are big-endian:

| key   | bytes  | content                                                              |
| ----- | ------ | -------------------------------------------------------------------- |
|       | 2      | version, 0                                                           |
|       | 2      | type, 0x4C54                                                         |

| value | bytes  | content                                                              |
| ----- | ------ | -------------------------------------------------------------------- |
|       | 2      | version, 0                                                           |
|       | 16     | id of the erasure                                                    |
|       | 2      | flags; bit 0: every live replica was searched                        |
|       | 8      | first erased offset                                                  |
|       | 4      | number of ranges, at least 1                                         |
|       | varies | for each range, in ascending order: gap and length, unsigned varints |

The gap counts the offsets between a range and the one before it. The first one has the gap 0, all others at least 1.
Varints have at most nine bytes of seven bits, lowest first. Validity: nothing follows the last range, no flag but bit 0
is set, and no offset exceeds 2^63 - 2, so that the next one is an offset too. A new field needs a new version. A
replica that doesn't know a version refuses to read it, because it can't tell what is erased.

    >>> record = ErasureRecord(UUID(int=7), EVERY_REPLICA_SEARCHED, (OffsetRange(40, 41), OffsetRange(60, 60)))
    >>> key, value = encode_erasure(record)
    >>> key.hex(), value[18:].hex()
    ('00004c54', '000100000000000000280000000200021201')

Source: docs/adr/0023-erasures-in-the-log.md.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.offset_ranges import OffsetRange
from lowtide.protocol.primitives import unsigned_varint
from lowtide.protocol.records import VARINT_CONTINUES, Record, iterate_records, read_batch_header

if TYPE_CHECKING:
    from lowtide.protocol.primitives import Buffer
    from lowtide.protocol.types import Offset

ERASURE_TYPE: Final = 0x4C54
"""The type of the control record: "LT"."""

EVERY_REPLICA_SEARCHED: Final = 1
"""Every live replica has searched its own log, because the log was compacted."""

_VERSION: Final = 0
_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">h16shqi")
_VARINT_BITS_MAX: Final = 63
_OFFSET_MAX: Final = (1 << 63) - 2


class UnknownErasureError(ProtocolError):
    """The erasure has a version that this broker can't read, so it doesn't know what is erased."""


class EraseGoal(msgspec.Struct, frozen=True):
    """Which records must be in no file: what a client asks for, and what a broker works towards."""

    offset: Offset
    """Those below it, which is at or below the log start."""
    erasures_end: Offset = 0
    """Those that erasures below it name."""

    @property
    def files_end(self) -> Offset:
        """The exclusive end of the offsets at which such records may lie."""
        return max(self.offset, self.erasures_end)


class ErasureRecord(msgspec.Struct, frozen=True):
    """The offsets that are erased. The ranges are in ascending order, disjoint and not adjacent."""

    erasure_id: UUID
    flags: int
    ranges: tuple[OffsetRange, ...]


def encode_erasure(erasure: ErasureRecord) -> tuple[bytes, bytes]:
    """Returns the key and the value of the control record."""
    assert erasure.ranges, "an erasure covers at least one offset"
    assert not erasure.flags & ~EVERY_REPLICA_SEARCHED, erasure.flags
    next_offset = first_offset = erasure.ranges[0].first
    assert first_offset >= 0, first_offset
    assert erasure.ranges[-1].last <= _OFFSET_MAX, erasure.ranges[-1]
    pieces = [
        _VALUE.pack(_VERSION, erasure.erasure_id.bytes, erasure.flags, first_offset, len(erasure.ranges)),
    ]
    for first, last in erasure.ranges:
        assert last >= first, (first, last)
        assert first > next_offset or len(pieces) == 1, f"the range at {first} isn't behind the one before it"
        pieces += (unsigned_varint(first - next_offset), unsigned_varint(last - first + 1))
        next_offset = last + 1
    return _KEY.pack(_VERSION, ERASURE_TYPE), b"".join(pieces)


def read_erasure(batch: Buffer, *, max_bytes: int) -> ErasureRecord | None:
    """Reads the erasure of a control batch; returns None for another type, or without records.

    Decompresses at most `max_bytes`. Doesn't check the CRC. Errors: UnknownErasureError for an unknown version,
    ProtocolError if the batch or the erasure is invalid.
    """
    if not read_batch_header(batch).record_count:
        return None
    records = list(islice(iterate_records(batch, max_bytes=max_bytes), 2))
    key = records[0].key if records else None
    if key is None or len(key) < _KEY.size:
        raise ProtocolError("a control batch without a control record")
    version, control_type = _KEY.unpack_from(key)
    if control_type != ERASURE_TYPE:
        return None
    if version != _VERSION:
        raise UnknownErasureError(f"an erasure has a key of the unknown version {version}")
    if len(records) > 1 or len(key) != _KEY.size:
        raise ProtocolError("an erasure is not the only record of its batch, or has a longer key")
    return _decoded(records[0])


def _decoded(record: Record) -> ErasureRecord:
    value = record.value
    if value is None or len(value) < 2:  # noqa: PLR2004 - the size of a version
        raise ProtocolError("an erasure without a version")
    if (version := int.from_bytes(value[:2], "big", signed=True)) != _VERSION:
        raise UnknownErasureError(f"an erasure has the unknown version {version}")
    if len(value) < _VALUE.size:
        raise ProtocolError(f"an erasure of {len(value)} bytes ends before its ranges")
    _, erasure_id, flags, first_offset, count = _VALUE.unpack_from(value)
    if flags & ~EVERY_REPLICA_SEARCHED:
        raise ProtocolError(f"an erasure has the unknown flags {flags:#x}")
    if first_offset < 0 or not 1 <= count <= (len(value) - _VALUE.size) // 2:
        raise ProtocolError(f"an erasure has {count} ranges from offset {first_offset}")
    return ErasureRecord(UUID(bytes=erasure_id), flags, _ranges(value, first_offset, count))


def _ranges(value: bytes, next_offset: Offset, count: int) -> tuple[OffsetRange, ...]:
    ranges = []
    position, gap_min, gap_max = _VALUE.size, 0, 0
    for _ in range(count):
        gap, position = _varint(value, position)
        length, position = _varint(value, position)
        first, last = next_offset + gap, next_offset + gap + length - 1
        if not gap_min <= gap <= gap_max or not length or last > _OFFSET_MAX:
            raise ProtocolError(f"an erasure has a range of {length} offsets after a gap of {gap} from {next_offset}")
        ranges.append(OffsetRange(first, last))
        next_offset, gap_min, gap_max = last + 1, 1, _OFFSET_MAX
    if position != len(value):
        raise ProtocolError(f"{len(value) - position} bytes follow the last of {count} ranges")
    return tuple(ranges)


def _varint(value: bytes, position: int) -> tuple[int, int]:
    """Returns an unsigned varint of at most 63 bits, and its end. Errors: ProtocolError."""
    number = shift = 0
    while shift < _VARINT_BITS_MAX:
        if position >= len(value):
            break
        byte = value[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < VARINT_CONTINUES:
            return number, position
        shift += 7
    raise ProtocolError(f"a varint of an erasure that ends at byte {position} is cut or too long")
