"""What one partition remembers of its idempotent producers: epochs, last sequences, and the last five batches of each.

Invariant: of a producer's batches only the one that follows its last is appended. One that was appended before is recognised as a
duplicate while it is among the last five, which is why clients keep at most five requests in flight.

The state is a function of the log: it can be rebuilt by replaying batches, and a snapshot only shortens that. Producers stay known
when their records are deleted, so DeleteRecords makes no producer fail (KAFKA-7190).

Snapshot, byte for byte Kafka's (`ProducerSnapshot.json`), all big-endian:

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

A snapshot holds only the last batch of each producer. Its name, the offset behind the last batch it knows, is the log's business.

    >>> state = ProducerStateManager()
    >>> state.update(7, 0, 0, base_offset=40, record_count=2, max_timestamp=5, now_ms=5)
    >>> state.check(7, 0, 2, 1)
    Accepted()
    >>> state.check(7, 0, 0, 2)
    Duplicate(base_offset=40, last_offset=41, timestamp=5)
    >>> state.encode_snapshot()[6:].hex(" ", 8)[:35]
    '0000 0001000000000000 0007000000000'

Which transactions are open follows from the producers (`transactions`). Does not touch files. That a transaction knows the partition is
asked of its coordinator before a batch comes here.
Source: KIP-98, Kafka's `ProducerStateManager`, `ProducerStateEntry` and `ProducerAppendInfo`.
"""

from __future__ import annotations

import heapq
import struct
from collections import deque
from typing import TYPE_CHECKING

import msgspec
from crc32c import crc32c

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import ControlRecordType
from lowtide.protocol.types import NO_PRODUCER_EPOCH, NO_SEQUENCE, UNKNOWN_OFFSET
from lowtide.storage.log.open_transactions import CompletedTransaction, OpenTransactions
from lowtide.storage.log.verifications import Verifications

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lowtide.protocol.compression import Buffer
    from lowtide.protocol.records import BatchHeader, ControlRecord
    from lowtide.protocol.types import Offset, ProducerEpoch, ProducerId

REMEMBERED_BATCHES = 5
"""Batches per producer (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`)."""

DEFAULT_EXPIRATION_MS = 86_400_000
"""Kafka's `producer.id.expiration.ms`."""

DEFAULT_MAXIMUM_PRODUCERS = 10_000
"""Producers per partition. Kafka has no such bound, and clients that never reuse a producer id have exhausted its memory by it."""

VERIFICATIONS_MAX = 1_000
"""Producers per partition that come with their first batch at the same time."""

_EVICTED_FRACTION = 8
"""At the bound an eighth goes at once, so that finding the oldest costs little per append."""

_LARGEST_SEQUENCE = 0x7FFF_FFFF
_LAST_EPOCH = 0x7FFF
_NO_COORDINATOR_EPOCH = -1
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hI")
_SNAPSHOT_COUNT = struct.Struct(">i")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


class CorruptSnapshotError(ValueError):
    """The bytes are no snapshot. The log deletes the file and replays its batches instead."""


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The batch may be appended."""


class Duplicate(msgspec.Struct, gc=False):
    """The batch was appended before, at these offsets (both inclusive); `timestamp` is its max timestamp."""

    base_offset: int
    last_offset: int
    timestamp: int


ACCEPTED = Accepted()


class ProducedBatch(msgspec.Struct, gc=False):
    """One remembered batch. Sequences and `last_offset` are inclusive."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> Offset:
        """The offset of the first record."""
        return self.last_offset - self.offset_delta


class ProducerEntry(msgspec.Struct, gc=False):
    """One producer. `batches` is oldest first, at most five, all of `producer_epoch`.

    `last_timestamp` is the max timestamp of the last batch, as DescribeProducers tells it; `last_append_ms` is the wall-clock
    time of that append, by which the entry expires. `transaction_first_offset` is -1 without an open transaction.
    """

    producer_epoch: int
    batches: list[ProducedBatch]
    last_timestamp: int
    last_append_ms: int
    coordinator_epoch: int = _NO_COORDINATOR_EPOCH
    transaction_first_offset: int = UNKNOWN_OFFSET

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, or -1 when no batch of this epoch is known."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class ProducerStateManager:
    """The producers of one partition. One writer: the event loop that appends to the partition."""

    __slots__ = ("_entries", "_maximum_producers", "expiration_ms", "transactions", "verifications")

    def __init__(self, *, expiration_ms: int = DEFAULT_EXPIRATION_MS, maximum_producers: int = DEFAULT_MAXIMUM_PRODUCERS) -> None:
        """Begin without producers. A producer is forgotten `expiration_ms` after its last append, or when there are too many."""
        assert expiration_ms > 0
        assert maximum_producers > 0
        self._entries: dict[ProducerId, ProducerEntry] = {}
        self.expiration_ms = expiration_ms
        self._maximum_producers = maximum_producers
        self.transactions = OpenTransactions()
        self.verifications = Verifications(min(maximum_producers, VERIFICATIONS_MAX))

    @property
    def producers(self) -> Mapping[ProducerId, ProducerEntry]:
        """All known producers. Not to be changed."""
        return self._entries

    def check(  # noqa: PLR0911 - one return per verdict
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        base_sequence: int,
        record_count: int,
        *,
        is_transactional: bool = False,
    ) -> Accepted | Duplicate | ErrorCode:
        """Whether a batch is the one that follows this producer's last. Changes nothing.

        An unknown producer may begin at any sequence, since its state may have expired, unless its transaction is being verified
        (`Verifications.may_begin_at`); a new epoch must begin at 0. The batches of a group's coordinator, which writes for a producer,
        have no sequence.
        Errors: INVALID_PRODUCER_EPOCH for an older epoch; OUT_OF_ORDER_SEQUENCE_NUMBER for a gap, and for a duplicate that is no
        longer remembered or has another size; INVALID_TXN_STATE for a plain batch within the producer's open transaction.
        """
        entry = self._entries.get(producer_id)
        if entry is None or producer_id < 0:
            may_begin = not self.verifications or self.verifications.may_begin_at(producer_id, base_sequence)
            return ACCEPTED if may_begin else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if producer_epoch != entry.producer_epoch:
            if producer_epoch < entry.producer_epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            if base_sequence > 0 and entry.producer_epoch != NO_PRODUCER_EPOCH:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        elif base_sequence != NO_SEQUENCE:
            last_sequence = (base_sequence + record_count - 1) & _LARGEST_SEQUENCE
            for batch in entry.batches:
                if batch.first_sequence == base_sequence and batch.last_sequence == last_sequence:
                    return Duplicate(batch.base_offset, batch.last_offset, batch.timestamp)
            # Without an epoch there is no order to keep. After a marker alone, the next sequence is 0: -1 + 1.
            expected = (entry.last_sequence + 1) & _LARGEST_SEQUENCE
            if base_sequence != expected and producer_epoch != NO_PRODUCER_EPOCH:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if entry.transaction_first_offset != UNKNOWN_OFFSET and not is_transactional:
            return ErrorCode.INVALID_TXN_STATE
        return ACCEPTED

    def is_in_transaction(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool:
        """Whether a producer of this epoch has a transaction open here."""
        entry = self._entries.get(producer_id)
        return entry is not None and entry.producer_epoch == producer_epoch and entry.transaction_first_offset != UNKNOWN_OFFSET

    def note_refused(self, header: BatchHeader, now_ms: int) -> None:
        """A batch was refused before it was looked at, and its producer will send it again: no later one may be its first here."""
        producer_id, sequence = header.producer_id, header.base_sequence
        if producer_id >= 0 and sequence >= 0 and producer_id not in self._entries:
            self.verifications.begin(producer_id, header.producer_epoch, sequence, adds_itself=False, now_ms=now_ms)

    def is_fenced(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool:
        """Whether a later epoch of this producer is known here."""
        entry = self._entries.get(producer_id)
        return entry is not None and producer_epoch < entry.producer_epoch

    def check_marker(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, coordinator_epoch: int, *, epoch_is_bumped: bool = False
    ) -> Accepted | ErrorCode:
        """Whether a coordinator may end this producer's transaction. Changes nothing.

        `epoch_is_bumped`: each transaction has an epoch of its own, and the marker that of the next one (KIP-890): a marker that comes late
        once more must not end the next one, except in the last epoch there is, which has no next one.
        Errors: INVALID_PRODUCER_EPOCH for an older epoch; TRANSACTION_COORDINATOR_FENCED for a coordinator that another has followed.
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            return ACCEPTED
        is_late = epoch_is_bumped and producer_epoch == entry.producer_epoch and entry.transaction_first_offset != UNKNOWN_OFFSET
        if producer_epoch < entry.producer_epoch or (is_late and producer_epoch != _LAST_EPOCH):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED if coordinator_epoch < entry.coordinator_epoch else ACCEPTED

    def update(  # noqa: PLR0913  fields of a batch, on the path of each append
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        base_sequence: int,
        *,
        base_offset: Offset,
        record_count: int,
        max_timestamp: int,
        now_ms: int,
        is_transactional: bool = False,
    ) -> None:
        """Remember a batch that was appended. Without a producer id (negative) nothing is remembered.

        `record_count` counts offsets, so for a compacted batch it is its last offset delta plus one. `now_ms` is wall-clock time.
        """
        if producer_id < 0:
            return
        offset_delta = record_count - 1
        last_offset = base_offset + offset_delta
        # Transactional offset commits carry a producer id but no sequence.
        last_sequence = (base_sequence + offset_delta) & _LARGEST_SEQUENCE if base_sequence >= 0 else NO_SEQUENCE
        batch = ProducedBatch(base_sequence, last_sequence, last_offset, offset_delta, max_timestamp)
        entry = self._entries.get(producer_id)
        if entry is None:
            self.verifications.on_batch(producer_id)
            entry = self._add(producer_id, ProducerEntry(producer_epoch, [batch], max_timestamp, now_ms))
        else:
            if entry.producer_epoch != producer_epoch:
                entry.producer_epoch = producer_epoch
                entry.batches.clear()
            entry.batches.append(batch)
            if len(entry.batches) > REMEMBERED_BATCHES:
                del entry.batches[0]
            entry.last_timestamp = max_timestamp
            entry.last_append_ms = now_ms
        if is_transactional:
            self.verifications.on_batch(producer_id)
            if entry.transaction_first_offset == UNKNOWN_OFFSET:
                entry.transaction_first_offset = base_offset
                self.transactions.begin(base_offset, producer_id)

    def replay(self, header: BatchHeader, *, now_ms: int, control: ControlRecord | None = None) -> CompletedTransaction | None:
        """Take in a batch of the log that a leader has checked: in recovery, and on a follower. Returns the transaction that it ended.

        `control` is the marker of a control batch, and None for one that ends no transaction. `now_ms` counts as the time of the
        append, for the log doesn't keep it; a producer is thus remembered a while longer after a restart.
        """
        if header.producer_id < 0:
            return None
        if not header.is_control:
            self.update(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                base_offset=header.base_offset,
                record_count=header.last_offset_delta + 1,
                max_timestamp=header.max_timestamp,
                now_ms=now_ms,
                is_transactional=header.is_transactional,
            )
            return None
        if control is None:
            return None
        return self.end_transaction(
            header.producer_id,
            header.producer_epoch,
            control,
            marker_offset=header.base_offset,
            timestamp=header.max_timestamp,
            now_ms=now_ms,
        )

    def end_transaction(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        control: ControlRecord,
        *,
        marker_offset: Offset,
        timestamp: int,
        now_ms: int,
    ) -> CompletedTransaction | None:
        """A marker was appended. Returns the transaction that it ended; None where the producer had none open here."""
        self.verifications.on_marker(producer_id, producer_epoch)
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._add(producer_id, ProducerEntry(producer_epoch, [], timestamp, now_ms))
        if entry.producer_epoch != producer_epoch:
            entry.producer_epoch = producer_epoch
            entry.batches.clear()
        entry.last_timestamp = timestamp
        entry.last_append_ms = now_ms
        entry.coordinator_epoch = control.coordinator_epoch
        first_offset, entry.transaction_first_offset = entry.transaction_first_offset, UNKNOWN_OFFSET
        if first_offset == UNKNOWN_OFFSET:
            return None
        return self.transactions.end(first_offset, marker_offset, is_aborted=control.type is ControlRecordType.ABORT)

    def recall(self, headers: Iterable[BatchHeader]) -> None:
        """Remember the batches before those of a snapshot, which has the last one of each producer; `headers` are in the log's order."""
        found: dict[ProducerId, deque[ProducedBatch]] = {}
        for header in headers:
            entry = self._entries.get(header.producer_id)
            if entry is None or header.is_control or header.producer_epoch != entry.producer_epoch or header.base_sequence < 0:
                continue
            if entry.batches and header.base_offset < entry.batches[0].base_offset:
                delta = header.last_offset_delta
                batch = ProducedBatch(
                    header.base_sequence,
                    (header.base_sequence + delta) & _LARGEST_SEQUENCE,
                    header.base_offset + delta,
                    delta,
                    header.max_timestamp,
                )
                found.setdefault(header.producer_id, deque(maxlen=REMEMBERED_BATCHES - 1)).append(batch)
        for producer_id, earlier in found.items():
            batches = self._entries[producer_id].batches
            while earlier and len(batches) < REMEMBERED_BATCHES:
                batch = earlier.pop()
                if (batch.last_sequence + 1) & _LARGEST_SEQUENCE != batches[0].first_sequence:
                    break
                batches.insert(0, batch)

    def remove_expired(self, now_ms: int) -> int:
        """Forget producers that appended nothing for the expiration time, open transactions aside; returns how many."""
        oldest = now_ms - self.expiration_ms
        self.verifications.remove_older(oldest)
        expired = [
            producer_id
            for producer_id, entry in self._entries.items()
            if entry.last_append_ms <= oldest and entry.transaction_first_offset == UNKNOWN_OFFSET
        ]
        for producer_id in expired:
            del self._entries[producer_id]
        return len(expired)

    def reset(self) -> None:
        """Forget everybody: the log was emptied, or is about to be replayed from another place."""
        self._entries.clear()
        self.transactions.restart()

    def encode_snapshot(self) -> bytes:
        """All producers in Kafka's snapshot format."""
        out = bytearray(_SNAPSHOT_COUNT.pack(len(self._entries)))
        for producer_id, entry in self._entries.items():
            last = entry.batches[-1] if entry.batches else _NO_BATCH
            out += _SNAPSHOT_ENTRY.pack(
                producer_id,
                entry.producer_epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c(out)) + out

    def load_snapshot(self, snapshot: Buffer, *, now_ms: int) -> None:
        """Replace the state by a snapshot's. `now_ms` counts as the time of each producer's last append.

        Errors: CorruptSnapshotError; the state is then as before.
        """
        entries = decode_snapshot(snapshot, now_ms=now_ms)
        self._entries = {}
        for producer_id, entry in entries.items():
            self._add(producer_id, entry)
        self.transactions.restart(
            (entry.transaction_first_offset, producer_id)
            for producer_id, entry in self._entries.items()
            if entry.transaction_first_offset != UNKNOWN_OFFSET
        )

    @property
    def knows_coordinators(self) -> bool:
        """Whether a transaction of any producer that is known has ended here."""
        return any(entry.coordinator_epoch != _NO_COORDINATOR_EPOCH for entry in self._entries.values())

    def _add(self, producer_id: ProducerId, entry: ProducerEntry) -> ProducerEntry:
        """Add a producer that isn't known, after making room. Open transactions are never evicted."""
        assert producer_id not in self._entries
        if len(self._entries) >= self._maximum_producers:
            idle = ((known.last_append_ms, key) for key, known in self._entries.items() if known.transaction_first_offset < 0)
            for _, key in heapq.nsmallest(max(1, self._maximum_producers // _EVICTED_FRACTION), idle):
                del self._entries[key]
        self._entries[producer_id] = entry
        return entry


_NO_BATCH = ProducedBatch(NO_SEQUENCE, NO_SEQUENCE, UNKNOWN_OFFSET, 0, -1)


def decode_snapshot(snapshot: Buffer, *, now_ms: int) -> dict[ProducerId, ProducerEntry]:
    """Read a snapshot of Kafka or ours. Each producer's last batch is all that is remembered in it.

    Errors: CorruptSnapshotError when it is cut, too long, of another version, or its CRC is wrong.
    """
    start = _SNAPSHOT_HEAD.size + _SNAPSHOT_COUNT.size
    if len(snapshot) < start:
        raise CorruptSnapshotError(f"a producer snapshot has at least {start} bytes, not {len(snapshot)}")
    version, crc = _SNAPSHOT_HEAD.unpack_from(snapshot)
    if version != _SNAPSHOT_VERSION:
        raise CorruptSnapshotError(f"producer snapshot version {version} is not known")
    body = memoryview(snapshot)[_SNAPSHOT_HEAD.size :]
    if crc32c(body) != crc:
        raise CorruptSnapshotError("the producer snapshot's CRC is wrong")
    (count,) = _SNAPSHOT_COUNT.unpack_from(body)
    if len(snapshot) - start != count * _SNAPSHOT_ENTRY.size:
        raise CorruptSnapshotError(f"{len(snapshot) - start} bytes do not hold {count} producers")
    entries: dict[ProducerId, ProducerEntry] = {}
    for fields in _SNAPSHOT_ENTRY.iter_unpack(memoryview(snapshot)[start:]):
        producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, first_offset = fields
        batches = []
        if last_offset != UNKNOWN_OFFSET:
            first_sequence = (last_sequence - offset_delta) & _LARGEST_SEQUENCE if last_sequence >= 0 else NO_SEQUENCE
            batches.append(ProducedBatch(first_sequence, last_sequence, last_offset, offset_delta, timestamp))
        entries[producer_id] = ProducerEntry(epoch, batches, timestamp, now_ms, coordinator_epoch, first_offset)
    return entries
