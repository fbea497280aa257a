"""Decides which records of a batch a selector names. Pure.

A selector is personal data: it is never part of a log line, a metric, an error or a `repr`.

Guards: no record that matches is missed, in whatever form a client has written it. Control batches never match.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import msgspec

from lowtide.protocol import native
from lowtide.protocol.compression import Buffer, Compression, DecompressedTooLargeError, decompress_into
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.key_digest import DigestIndex, KeyDigests
from lowtide.protocol.offset_ranges import OffsetRange, OffsetRanges
from lowtide.protocol.record_keys import find_keys, timestamp_delta
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, TIMESTAMP_TYPE_BIT, BatchHeader, read_record

KEYS_MAX: Final = 1_000
KEY_BYTES_MAX: Final = 1 << 20
"""The most keys of a selector, and their bytes together. A header's name and value have the same bound."""

SELECTED_RANGES_MAX: Final = 100_000
"""The most ranges of offsets of a selector."""

_ROOM_BYTES: Final = 1 << 20
_ROOM_GROWTH: Final = 4

_KEYS_TO_LOOK_FOR: Final = 8
"""So many keys are looked for as plain bytes first, if there is no compiled module."""


class KeySelector(msgspec.Struct, frozen=True, tag="keys"):
    """Records with one of these keys."""

    keys: frozenset[bytes]

    def __repr__(self) -> str:
        return f"KeySelector({len(self.keys)} keys)"


class HeaderSelector(msgspec.Struct, frozen=True, tag="header"):
    """Records with a header of this name and value."""

    name: bytes
    value: bytes | None

    def __repr__(self) -> str:
        return "HeaderSelector()"


class OffsetSelector(msgspec.Struct, frozen=True, tag="offsets"):
    """Records at these offsets."""

    ranges: tuple[OffsetRange, ...]

    def __repr__(self) -> str:
        return f"OffsetSelector({len(self.ranges)} ranges)"


class DigestSelector(msgspec.Struct, frozen=True, tag="digests"):
    """Records with a key of which one of these groups has a digest. Brokers make it for standing erasures."""

    groups: tuple[KeyDigests, ...]

    def __repr__(self) -> str:
        return f"DigestSelector({sum(len(group.digests) for group in self.groups)} keys)"


RecordSelector: TypeAlias = KeySelector | HeaderSelector | OffsetSelector | DigestSelector


class FoundRecords(msgspec.Struct):
    """The records that were found, in ascending order of their offsets: columns of the same length."""

    offsets: array[int] = msgspec.field(default_factory=lambda: array("q"))
    timestamps: array[int] = msgspec.field(default_factory=lambda: array("q"))
    leader_epochs: array[int] = msgspec.field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self.offsets)

    def ranges(self) -> OffsetRanges:
        return OffsetRanges.of_offsets(self.offsets)


_Finder: TypeAlias = Callable[[BatchHeader, Buffer], list[int]]
"""Returns offset delta and timestamp delta of each record that matches, one after the other. Errors: ProtocolError."""


def why_invalid(selector: RecordSelector) -> str | None:  # noqa: PLR0911 - one return per reason
    """Returns why a selector is refused, in a sentence without its content; None if it is valid."""
    if isinstance(selector, KeySelector):
        size = sum(map(len, selector.keys))
        if not selector.keys:
            return "The selector has no key."
        if len(selector.keys) > KEYS_MAX or size > KEY_BYTES_MAX:
            return (
                f"The selector has {len(selector.keys)} keys of {size} bytes; "
                f"at most {KEYS_MAX} of {KEY_BYTES_MAX} bytes together are allowed."
            )
    elif isinstance(selector, HeaderSelector):
        if len(selector.name) + len(selector.value or b"") > KEY_BYTES_MAX:
            return f"The header of the selector has more than {KEY_BYTES_MAX} bytes."
    elif isinstance(selector, DigestSelector):
        return "A client selects no records by digests."
    elif not selector.ranges:
        return "The selector has no offset."
    elif len(selector.ranges) > SELECTED_RANGES_MAX:
        return f"The selector has {len(selector.ranges)} ranges of offsets; at most {SELECTED_RANGES_MAX} are allowed."
    elif any(not 0 <= first <= last for first, last in selector.ranges):
        return "The selector has a negative offset, or a range that ends before it starts."
    return None


class RecordMatcher:
    """Applies one selector to batches."""

    def __init__(self, selector: RecordSelector, *, decompressed_bytes_max: int) -> None:
        self._decompressed_bytes_max = decompressed_bytes_max
        self._room = memoryview(bytearray(min(_ROOM_BYTES, decompressed_bytes_max)))
        """For decompressed records: new memory for each batch would take twice as long as the decompression."""
        self._offsets = OffsetRanges(selector.ranges) if isinstance(selector, OffsetSelector) else None
        if isinstance(selector, KeySelector):
            self._find: _Finder = partial(_with_key, selector.keys, _lengths(selector.keys))
        elif isinstance(selector, HeaderSelector):
            self._find = partial(_with_header, selector.name, selector.value)
        elif isinstance(selector, DigestSelector):
            self._find = partial(_with_digest, DigestIndex(selector.groups))
        else:
            self._find = partial(_with_offset, OffsetRanges(selector.ranges))

    def may_match(self, first_offset: int, last_offset: int) -> bool:
        """Returns whether a record from `first_offset` to `last_offset`, both inclusive, may match."""
        return self._offsets is None or self._offsets.intersects(first_offset, last_offset)

    def records(self, header: BatchHeader, batch: Buffer) -> Buffer:
        """Returns the uncompressed records of a batch, valid until the next call. Errors: ProtocolError."""
        payload = memoryview(batch)[RECORD_BATCH_OVERHEAD : header.size_bytes]
        if header.compression is Compression.NONE:
            return payload
        while True:
            try:
                return decompress_into(header.compression, payload, self._room)
            except DecompressedTooLargeError:
                if len(self._room) >= self._decompressed_bytes_max:
                    raise
                self._room = memoryview(bytearray(min(_ROOM_GROWTH * len(self._room), self._decompressed_bytes_max)))

    def search(self, header: BatchHeader, records: Buffer, found: FoundRecords) -> None:
        """Adds the matching ones of the uncompressed `records` of a batch. Errors: ProtocolError."""
        deltas = self._find(header, records)
        if not deltas:
            return
        append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else None
        for offset_delta, delta in zip(deltas[::2], deltas[1::2], strict=True):
            found.offsets.append(header.base_offset + offset_delta)
            found.timestamps.append(_int64(header.base_timestamp + delta) if append_time is None else append_time)
            found.leader_epochs.append(header.partition_leader_epoch)


def has_records(header: BatchHeader) -> bool:
    """Returns whether a batch has records of clients."""
    return header.record_count > 0 and not header.is_control


def _int64(number: int) -> int:
    """Returns a sum of two int64, which wraps as in Kafka."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _lengths(keys: frozenset[bytes]) -> int:
    bits = 0
    for key in keys:
        bits |= 1 << (len(key) & 63)
    return bits - (1 << 64) if bits >> 63 else bits


def _with_key(keys: frozenset[bytes], lengths: int, header: BatchHeader, payload: Buffer) -> list[int]:
    if native.compiled is not None:
        matched = native.compiled.match_keys(payload, header.record_count, keys, lengths)
        if matched is not None:
            return matched
    records = bytes(payload)
    if native.compiled is None and len(keys) <= _KEYS_TO_LOOK_FOR and not any(key in records for key in keys):
        return []
    found = find_keys(records, 0, len(records), header.record_count)
    keyless = set(found.keyless)
    return _deltas(
        records,
        found.deltas,
        found.ends,
        [number for number, key in enumerate(found.keys) if key in keys and number not in keyless],
    )


def _with_digest(index: DigestIndex, header: BatchHeader, payload: Buffer) -> list[int]:
    records = bytes(payload)
    found = find_keys(records, 0, len(records), header.record_count)
    keyless = set(found.keyless)
    numbers = [number for number, key in enumerate(found.keys) if index.groups_of(key) and number not in keyless]
    return _deltas(records, found.deltas, found.ends, numbers)


def _with_offset(ranges: OffsetRanges, header: BatchHeader, payload: Buffer) -> list[int]:
    records = bytes(payload)
    found = find_keys(records, 0, len(records), header.record_count)
    base_offset = header.base_offset
    wanted = [number for number, delta in enumerate(found.deltas) if ranges.contains(base_offset + delta)]
    return _deltas(records, found.deltas, found.ends, wanted)


def _deltas(records: bytes, deltas: list[int], ends: list[int], numbers: list[int]) -> list[int]:
    found: list[int] = []
    for number in numbers:
        found += (deltas[number], timestamp_delta(records, ends[number - 1] if number else 0))
    return found


def _with_header(name: bytes, value: bytes | None, header: BatchHeader, payload: Buffer) -> list[int]:
    if native.compiled is not None:
        matched = native.compiled.match_header(payload, header.record_count, name, value)
        if matched is not None:
            return matched
    records = bytes(payload)
    if name not in records or (value is not None and value not in records):
        return []
    found: list[int] = []
    position, wanted = 0, (name, value)
    for _ in range(header.record_count):
        record, position = read_record(records, position, 0, 0)
        if wanted in record.headers:
            found += (record.offset, record.timestamp)
    if position != len(records):
        raise ProtocolError(f"{len(records) - position} bytes follow the last of {header.record_count} records")
    return found
