"""The state of one idempotent producer, and snapshots of all: entries to bytes and back. Touches no file.

A snapshot is byte for byte Kafka's (`ProducerSnapshot.json`), all big-endian:

| position | bytes | field                                                        |
|----------|-------|--------------------------------------------------------------|
| 0        | 2     | version, 1                                                   |
| 2        | 4     | CRC-32C of everything from position 6 on                     |
| 6        | 4     | number of entries                                            |
| 10       | 46    | each entry:                                                  |
| +0       | 8     | producer id                                                  |
| +8       | 2     | producer epoch                                               |
| +10      | 4     | last sequence, or -1                                         |
| +14      | 8     | last offset (inclusive), or -1                               |
| +22      | 4     | last offset minus base offset of that batch                  |
| +26      | 8     | timestamp in milliseconds                                    |
| +34      | 4     | coordinator epoch, or -1                                     |
| +38      | 8     | first offset of the open transaction, or -1                  |

A snapshot holds only the last batch of each producer. The log gives it its name, the offset after the last batch.

    >>> entry = ProducerEntry(0, [ProducedBatch(0, 1, 41, 1, 5)], 5, 5)
    >>> encode_snapshot({7: entry})[6:].hex(" ", 8)[:35]
    '0000 0001000000000000 0007000000000'

Source: Kafka's `ProducerStateManager`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Protocol

import msgspec

from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.types import NO_SEQUENCE, UNKNOWN_OFFSET, Offset, ProducerEpoch, ProducerId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.protocol.compression import Buffer
    from lowtide.protocol.types import ProducerId

_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


REMEMBERED_BATCHES = 5
"""Batches per producer (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`)."""

LARGEST_SEQUENCE = 0x7FFF_FFFF
"""The sequence after it is 0."""

NO_COORDINATOR_EPOCH = -1


class SequencedBatch(Protocol):
    """A batch of a producer: the header of a stored one, or a validated one."""

    @property
    def producer_id(self) -> ProducerId: ...
    @property
    def producer_epoch(self) -> ProducerEpoch: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def attributes(self) -> int: ...


class ProducedBatch(msgspec.Struct, gc=False):
    """One remembered batch. Sequences and `last_offset` are inclusive."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> Offset:
        return self.last_offset - self.offset_delta


class ProducerEntry(msgspec.Struct, gc=False):
    """One producer. `batches` is oldest first, at most five, all of `producer_epoch`.

    `last_timestamp` is the max timestamp of the last batch, for DescribeProducers; `last_append_ms` is the wall-clock
    time of that append, from which the entry expires. `transaction_first_offset` is -1 without an open transaction.
    """

    producer_epoch: int
    batches: list[ProducedBatch]
    last_timestamp: int
    last_append_ms: int
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    transaction_first_offset: int = UNKNOWN_OFFSET

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; -1 if no batch of this epoch is known."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class CorruptSnapshotError(ValueError):
    """The bytes are no snapshot. The log deletes the file and replays its batches instead."""


_NO_BATCH = ProducedBatch(NO_SEQUENCE, NO_SEQUENCE, UNKNOWN_OFFSET, 0, -1)


def encode_snapshot(entries: Mapping[ProducerId, ProducerEntry]) -> bytes:
    """Encodes these producers as a snapshot."""
    out = bytearray(_COUNT.pack(len(entries)))
    for producer_id, entry in entries.items():
        last = entry.batches[-1] if entry.batches else _NO_BATCH
        out += _ENTRY.pack(
            producer_id,
            entry.producer_epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.transaction_first_offset,
        )
    return _HEAD.pack(_VERSION, crc32c(out)) + out


def decode_snapshot(snapshot: Buffer, *, now_ms: int) -> dict[ProducerId, ProducerEntry]:
    """Decodes a snapshot of Kafka or ours, which has only the last batch of each producer.

    Errors: CorruptSnapshotError if it is cut, too long, of another version, or its CRC is wrong.
    """
    start = _HEAD.size + _COUNT.size
    if len(snapshot) < start:
        raise CorruptSnapshotError(f"a producer snapshot has at least {start} bytes, not {len(snapshot)}")
    version, crc = _HEAD.unpack_from(snapshot)
    if version != _VERSION:
        raise CorruptSnapshotError(f"producer snapshot version {version} is not known")
    body = memoryview(snapshot)[_HEAD.size :]
    if crc32c(body) != crc:
        raise CorruptSnapshotError("the producer snapshot's CRC is wrong")
    (count,) = _COUNT.unpack_from(body)
    if len(snapshot) - start != count * _ENTRY.size:
        raise CorruptSnapshotError(f"{len(snapshot) - start} bytes do not hold {count} producers")
    entries: dict[ProducerId, ProducerEntry] = {}
    for fields in _ENTRY.iter_unpack(memoryview(snapshot)[start:]):
        producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, first_offset = (
            fields
        )
        batches = []
        if last_offset != UNKNOWN_OFFSET:
            first_sequence = (last_sequence - offset_delta) & LARGEST_SEQUENCE if last_sequence >= 0 else NO_SEQUENCE
            batches.append(ProducedBatch(first_sequence, last_sequence, last_offset, offset_delta, timestamp))
        entries[producer_id] = ProducerEntry(epoch, batches, timestamp, now_ms, coordinator_epoch, first_offset)
    return entries
