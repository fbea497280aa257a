"""Compaction of a log, decided batch by batch: the last record of each key stays, what is older goes. No files, no clock.

First the dirty part of the log is read into an `OffsetMap`, which knows the last offset of each key; then all batches up to where the map
reaches are written anew by `compact_batch`. Guards:

- offsets never shift: a batch keeps its first and last offset, and a record its own, whatever is left of it;
- a record goes only if a later one of its key is in the map, it is a tombstone whose time is over, or its transaction was aborted;
- records of aborted transactions aren't put into the map: they mustn't replace committed ones;
- a producer's last batch stays as an empty one, so that its sequence numbers are still known after a start;
- epoch, producer, sequence, timestamp type, codec and flags of a batch are kept, and what isn't changed is copied byte for byte.

A tombstone, a record without value, stays for `delete.retention.ms` after the first compaction that meets it. That moment is kept in the
batch: bit 6 of the attributes says that the base timestamp is when its tombstones may go (KIP-534). Records without a key go.

Control batches stay: nobody here knows yet when nothing needs them any more. Source: Kafka's Cleaner and MemoryRecords.filterTo.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from lowtide.protocol.compression import Compression, compress, decompress
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import (
    COMPRESSION_BITS,
    DELETE_HORIZON_BIT,
    RECORD_BATCH_OVERHEAD,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    append_varint,
    assemble_batch,
    read_varint,
)
from lowtide.protocol.types import NO_TIMESTAMP, Offset, ProducerId

Buffer = bytes | bytearray | memoryview

ENTRY_BYTES: Final = 200
"""What a key takes in the map, measured: its digest, its offset, and its place in the table at its emptiest."""

_DIGEST_BYTES: Final = 20
_ONE_BYTE: Final = 0x80
"""A varint below it is that byte, zigzag."""


class OffsetMap:
    """The last offset of each key of a part of a log, with bounded memory (`log.cleaner.dedupe.buffer.size`)."""

    __slots__ = ("_entries_max", "_offsets", "latest_offset")

    def __init__(self, memory_bytes: int) -> None:
        """Errors: ValueError for memory that doesn't hold a single key."""
        self._entries_max = memory_bytes // ENTRY_BYTES
        if self._entries_max < 1:
            message = f"{memory_bytes} bytes don't hold a key: at least {ENTRY_BYTES} are needed"
            raise ValueError(message)
        self._offsets: dict[bytes, Offset] = {}
        self.latest_offset: Offset = -1
        """Of all records that were looked at, inclusive: what lies above it isn't compacted this time."""

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: bytes, offset: Offset) -> bool:
        """Note a record. Returns False, with nothing changed, for a new key where there is no room."""
        digest = _digest(key)
        if len(self._offsets) >= self._entries_max and digest not in self._offsets:
            return False
        self._offsets[digest] = offset
        self.latest_offset = offset
        return True

    def last_offset(self, key: bytes) -> Offset:
        """The last offset of a key, -1 if it isn't there."""
        return self._offsets.get(_digest(key), -1)


def _digest(key: bytes) -> bytes:
    """Stands for a key: a short one for itself; a digest is longer than those, and two keys don't share one."""
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()


class CompactionRules(NamedTuple):
    """What one compaction of a log goes by."""

    now_ms: int
    """Wall-clock time."""
    delete_retention_ms: int
    """`delete.retention.ms`"""
    last_offsets: Mapping[ProducerId, Offset]
    """Of each producer that isn't forgotten, the last offset of its newest batch with records."""
    decompressed_bytes_max: int


class RecordPlace(msgspec.Struct, gc=False):
    """A record within its batch's uncompressed records: `start` is that of its length, `end` is behind it."""

    start: int
    timestamp_end: int
    """Behind its timestamp delta: what follows depends on no field of the batch but the base offset."""
    end: int
    attributes: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool


def record_places(payload: bytes | bytearray, count: int) -> Iterator[RecordPlace]:
    """The records of a batch's uncompressed `payload`. Errors: ProtocolError where they don't fill it.

    A varint of one byte, as most are, is read in place: this walk is what compaction costs.
    """
    position, limit = 0, len(payload)
    try:
        for _ in range(count):
            size, body = _varint(payload, position)
            end = body + size
            if size <= 0 or end > limit:
                raise ProtocolError(f"a record at byte {position} ends outside of its batch")
            timestamp_delta, timestamp_end = _varint(payload, body + 1)
            if (first := payload[timestamp_end]) < _ONE_BYTE:
                offset_delta, at = first >> 1 if not first & 1 else -1, timestamp_end + 1
            else:
                offset_delta, at = read_varint(payload, timestamp_end)
            if (first := payload[at]) < _ONE_BYTE:
                key_size, at = (first >> 1) ^ -(first & 1), at + 1
            else:
                key_size, at = read_varint(payload, at)
            key = None
            if key_size >= 0:
                key = bytes(payload[at : at + key_size])
                at += key_size
            if (first := payload[at]) < _ONE_BYTE:
                value_size, at = (first >> 1) ^ -(first & 1), at + 1
            else:
                value_size, at = read_varint(payload, at)
            if offset_delta < 0 or at + max(value_size, 0) > end:
                raise ProtocolError(f"the record at byte {position} is longer than it says, or before its batch")
            yield RecordPlace(position, timestamp_end, end, payload[body], timestamp_delta, offset_delta, key, value_size >= 0)
            position = end
    except IndexError:
        raise ProtocolError(f"the record at byte {position} is cut") from None
    if position != limit:
        raise ProtocolError(f"{limit - position} bytes follow the last of {count} records")


def _varint(payload: bytes | bytearray, position: int) -> tuple[int, int]:
    if (first := payload[position]) < _ONE_BYTE:
        return (first >> 1) ^ -(first & 1), position + 1
    return read_varint(payload, position)


def _payload(header: BatchHeader, batch: Buffer, limit: int) -> bytes | bytearray:
    payload = memoryview(batch)[RECORD_BATCH_OVERHEAD : header.size_bytes]
    return bytes(payload) if header.compression is Compression.NONE else decompress(header.compression, payload, max_bytes=limit)


def note_batch(
    offsets: OffsetMap, header: BatchHeader, batch: Buffer, first_dirty_offset: Offset, *, aborted: bool, decompressed_bytes_max: int
) -> bool:
    """Read a batch of the dirty part into the map; `aborted` says that its transaction was. Returns False when the map is full.

    The part then ends with the last record that was taken in. Errors: ProtocolError.
    """
    if not header.is_control and not aborted and header.record_count:
        for record in record_places(_payload(header, batch, decompressed_bytes_max), header.record_count):
            offset = header.base_offset + record.offset_delta
            if record.key is not None and offset >= first_dirty_offset and not offsets.put(record.key, offset):
                return False
    if header.last_offset >= first_dirty_offset:
        offsets.latest_offset = header.last_offset
    return True


def compact_batch(offsets: OffsetMap, header: BatchHeader, batch: Buffer, rules: CompactionRules, *, aborted: bool) -> Buffer | None:
    """What is left of a batch: itself, the same with fewer records, an empty one, or nothing. Errors: ProtocolError."""
    if header.is_control:
        return batch
    horizon_ms = header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None
    payload = _payload(header, batch, rules.decompressed_bytes_max) if header.record_count else b""
    kept: list[RecordPlace] = []
    has_tombstones = False
    if not aborted:
        for record in record_places(payload, header.record_count):
            offset = header.base_offset + record.offset_delta
            if offset <= offsets.latest_offset:
                if record.key is None or offsets.last_offset(record.key) > offset:
                    continue
                if not record.has_value and horizon_ms is not None and rules.now_ms >= horizon_ms:
                    continue
            kept.append(record)
            has_tombstones = has_tombstones or not record.has_value
    if not kept:
        is_last = header.producer_id >= 0 and rules.last_offsets.get(header.producer_id) == header.last_offset
        return _empty(header) if is_last else None
    sets_horizon = has_tombstones and horizon_ms is None
    if len(kept) == header.record_count and not sets_horizon:
        return batch
    return _rewritten(header, payload, kept, rules.now_ms + rules.delete_retention_ms if sets_horizon else None)


def _empty(header: BatchHeader) -> bytes:
    """A batch without records that says what it said of its producer, as Kafka writes it: no codec, no horizon, no base timestamp."""
    kept = header.attributes & ~(COMPRESSION_BITS | DELETE_HORIZON_BIT)
    return assemble_batch(msgspec.structs.replace(header, attributes=kept, base_timestamp=NO_TIMESTAMP, record_count=0), b"")


def _rewritten(header: BatchHeader, payload: Buffer, kept: Collection[RecordPlace], new_horizon_ms: int | None) -> bytes:
    """The batch with the records that are kept. A new horizon becomes the base timestamp, to which the records' own relate."""
    out = bytearray()
    base_timestamp = header.base_timestamp if new_horizon_ms is None else new_horizon_ms
    shift = header.base_timestamp - base_timestamp
    for record in kept:
        if shift == 0:
            out += payload[record.start : record.end]
        else:
            fields = bytearray([record.attributes])
            append_varint(fields, record.timestamp_delta + shift)
            fields += payload[record.timestamp_end : record.end]
            append_varint(out, len(fields))
            out += fields
    attributes = header.attributes if new_horizon_ms is None else header.attributes | DELETE_HORIZON_BIT
    newest = header.base_timestamp + max(record.timestamp_delta for record in kept)
    changed = msgspec.structs.replace(
        header,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else newest,
        record_count=len(kept),
    )
    return assemble_batch(changed, compress(header.compression, out))
