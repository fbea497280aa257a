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
|       | 2      | flags; bit 0: the replicas have searched, so the next three follow   |
|       | 16     | id of their search, only with bit 0                                  |
|       | 2      | number of brokers that took part, at least 1, only with bit 0        |
|       | varies | 4 bytes for the id of each of them, only with bit 0                  |
|       | 8      | first erased offset, 0 without ranges                                |
|       | 4      | number of ranges, at least 1 without bit 0                           |
|       | varies | for each range, in ascending order: gap and length, unsigned varints |

With bit 0 the log was compacted, so its replicas may differ: those named have searched their own logs. A replica that
has not noted the search, or isn't named, starts over. Such an erasure may have no ranges.

The gap counts the offsets between a range and the one before it. The first one has the gap 0, all others at least 1.
Varints have at most nine bytes of seven bits, lowest first. Validity: nothing follows the last range, no flag but bit 0
is set, broker ids ascend from 0, and no offset exceeds 2^63 - 2, so that the next one is an offset too. A new field
needs a new version. A replica that doesn't know a version refuses to read it, because it can't tell what is erased.

    >>> record = ErasureRecord(UUID(int=7), (OffsetRange(40, 41), OffsetRange(60, 60)))
    >>> key, value = encode_erasure(record)
    >>> key.hex(), value[18:].hex()
    ('00004c54', '000000000000000000280000000200021201')

Source: docs/adr/0023-erasures-in-the-log.md.
"""

from __future__ import annotations

import struct
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.offset_ranges import OffsetRange
from lowtide.protocol.primitives import unsigned_varint
from lowtide.protocol.records import VARINT_CONTINUES, Record, iterate_records, read_batch_header
from lowtide.protocol.types import BrokerId, Offset

if TYPE_CHECKING:
    from lowtide.protocol.primitives import Buffer

ERASURE_TYPE: Final = 0x4C54
"""The type of the control record: "LT"."""

BROKERS_MAX: Final = 1_000
"""The most brokers that a search names."""

_SEARCHED: Final = 1
"""The flag of an erasure with a search."""

_VERSION: Final = 0
_KEY: Final = struct.Struct(">hh")
_HEAD: Final = struct.Struct(">h16sh")
_SEARCH: Final = struct.Struct(">16sh")
_RANGES: Final = struct.Struct(">qi")
_BROKER_BYTES: Final = 4
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


class ReplicaSearch(msgspec.Struct, frozen=True):
    """The search of a compacted log: each attempt has an id of its own."""

    search_id: UUID
    brokers: tuple[BrokerId, ...]
    """Those that have searched their replicas, in ascending order."""


class ErasureRecord(msgspec.Struct, frozen=True):
    """The offsets that are erased. The ranges are in ascending order, disjoint and not adjacent."""

    erasure_id: UUID
    ranges: tuple[OffsetRange, ...]
    search: ReplicaSearch | None = None
    """None if the log was never compacted: all its replicas have the same records."""


def encode_erasure(erasure: ErasureRecord) -> tuple[bytes, bytes]:
    """Returns the key and the value of the control record."""
    search, ranges = erasure.search, erasure.ranges
    assert ranges or search is not None, "an erasure without a search covers at least one offset"
    next_offset = first_offset = ranges[0].first if ranges else Offset(0)
    assert first_offset >= 0, first_offset
    assert not ranges or ranges[-1].last <= _OFFSET_MAX, ranges[-1]
    pieces = [_HEAD.pack(_VERSION, erasure.erasure_id.bytes, 0 if search is None else _SEARCHED)]
    if search is not None:
        brokers = search.brokers
        assert 0 < len(brokers) <= BROKERS_MAX, brokers
        pieces.append(_SEARCH.pack(search.search_id.bytes, len(brokers)))
        pieces.append(struct.pack(f">{len(brokers)}i", *brokers))
    pieces.append(_RANGES.pack(first_offset, len(ranges)))
    for first, last in ranges:
        assert last >= first, (first, last)
        assert first > next_offset or first == first_offset, f"the range at {first} isn't behind the one before it"
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
    if len(value) < _HEAD.size:
        raise _cut(value)
    _, erasure_id, flags = _HEAD.unpack_from(value)
    if flags & ~_SEARCHED:
        raise ProtocolError(f"an erasure has the unknown flags {flags:#x}")
    search, position = _search(value, _HEAD.size) if flags else (None, _HEAD.size)
    if len(value) < position + _RANGES.size:
        raise _cut(value)
    first_offset, count = _RANGES.unpack_from(value, position)
    position += _RANGES.size
    least, most = int(search is None), (len(value) - position) // 2
    if first_offset < 0 or not least <= count <= most or (not count and first_offset):
        raise ProtocolError(f"an erasure has {count} ranges from offset {first_offset}")
    return ErasureRecord(UUID(bytes=erasure_id), _ranges(value, position, first_offset, count), search)


def _cut(value: bytes) -> ProtocolError:
    return ProtocolError(f"an erasure of {len(value)} bytes ends before its ranges")


def _search(value: bytes, position: int) -> tuple[ReplicaSearch, int]:
    """Returns the search at `position`, and its end. Errors: ProtocolError."""
    start = position + _SEARCH.size
    if len(value) < start:
        raise _cut(value)
    search_id, count = _SEARCH.unpack_from(value, position)
    if not 0 < count <= BROKERS_MAX:
        raise ProtocolError(f"an erasure names {count} brokers that have searched")
    if len(value) < start + _BROKER_BYTES * count:
        raise _cut(value)
    brokers = struct.unpack_from(f">{count}i", value, start)
    if any(later <= earlier for earlier, later in pairwise((-1, *brokers))):
        raise ProtocolError("an erasure names brokers that are not in ascending order")
    return ReplicaSearch(UUID(bytes=search_id), brokers), start + _BROKER_BYTES * count


def _ranges(value: bytes, position: int, next_offset: Offset, count: int) -> tuple[OffsetRange, ...]:
    ranges = []
    gap_min, gap_max = 0, 0
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
