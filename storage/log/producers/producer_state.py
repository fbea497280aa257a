"""The idempotent producers of one partition: their epochs, last sequences, and the last five batches of each.

Invariant: of a producer's batches only the one that follows its last is appended. One that was appended before is
recognised as a duplicate while it is among the last five, which is why clients keep at most five requests in flight.

The state is a function of the log: it can be rebuilt by replaying batches, and a snapshot only shortens that. Producers
stay known when their records are deleted, so DeleteRecords makes no producer fail (KAFKA-7190).

    >>> state = ProducerStateManager()
    >>> from lowtide.protocol.batch_building import build_batch
    >>> from lowtide.protocol.records import read_batch_header
    >>> records = [(5, None, b"a", ()), (5, None, b"b", ())]
    >>> batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=0)
    >>> state.update(read_batch_header(batch), base_offset=40, now_ms=5)
    >>> state.check(7, 0, 2, 1)
    AcceptedBatch()
    >>> state.check(7, 0, 0, 2)
    DuplicateBatch(base_offset=40, last_offset=41, timestamp=5)

The producers determine which transactions are open (`transactions`). Does not touch files. Whether a transaction
includes the partition is verified with its coordinator before a batch comes here. Source: KIP-98, Kafka's
`ProducerStateManager`, `ProducerStateEntry` and `ProducerAppendInfo`.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from lowtide.protocol.control_records import ControlRecordType
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import TRANSACTIONAL_BIT
from lowtide.protocol.types import NO_PRODUCER_EPOCH, NO_SEQUENCE, UNKNOWN_OFFSET
from lowtide.storage.log.producers.open_transactions import CompletedTransaction, OpenTransactions
from lowtide.storage.log.producers.producer_snapshot import (
    LARGEST_SEQUENCE,
    NO_COORDINATOR_EPOCH,
    REMEMBERED_BATCHES,
    ProducedBatch,
    ProducerEntry,
    SequencedBatch,
    decode_snapshot,
    encode_snapshot,
)
from lowtide.storage.log.producers.verifications import Verifications

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lowtide.protocol.compression import Buffer
    from lowtide.protocol.control_records import ControlRecord
    from lowtide.protocol.records import BatchHeader
    from lowtide.protocol.types import Offset, ProducerEpoch, ProducerId

DEFAULT_EXPIRATION_MS = 86_400_000
"""Kafka's `producer.id.expiration.ms`."""

DEFAULT_MAXIMUM_PRODUCERS = 10_000
"""Producers per partition. Kafka has no such bound, and clients with ever new producer ids have exhausted its memory.
"""

VERIFICATIONS_MAX = 1_000
"""Producers per partition that may be sending their first batch."""

_EVICTED_FRACTION = 8
"""At the bound an eighth is evicted at once, so that finding the oldest costs little per append."""

_LAST_EPOCH = 0x7FFF


class AcceptedBatch(msgspec.Struct, frozen=True, gc=False):
    """The batch may be appended."""


class DuplicateBatch(msgspec.Struct, gc=False):
    """The batch was appended before, at these offsets (both inclusive); `timestamp` is its max timestamp."""

    base_offset: int
    last_offset: int
    timestamp: int


ACCEPTED = AcceptedBatch()


class ProducerStateManager:
    """The producers of one partition. One writer: the event loop that appends to the partition."""

    __slots__ = ("_entries", "_expiration_ms", "_maximum_producers", "transactions", "verifications")

    def __init__(
        self,
        *,
        expiration_ms: Callable[[], int] = lambda: DEFAULT_EXPIRATION_MS,
        maximum_producers: int = DEFAULT_MAXIMUM_PRODUCERS,
    ) -> None:
        """A producer is forgotten `expiration_ms()` after its last append, or when there are too many."""
        assert maximum_producers > 0
        self._entries: dict[ProducerId, ProducerEntry] = {}
        self._expiration_ms = expiration_ms
        self._maximum_producers = maximum_producers
        self.transactions = OpenTransactions()
        self.verifications = Verifications(min(maximum_producers, VERIFICATIONS_MAX))

    @property
    def producers(self) -> Mapping[ProducerId, ProducerEntry]:
        return self._entries

    def check(  # noqa: PLR0911 - one return per verdict
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        base_sequence: int,
        record_count: int,
        *,
        is_transactional: bool = False,
    ) -> AcceptedBatch | DuplicateBatch | ErrorCode:
        """Checks whether a batch is the next one of this producer. Changes nothing.

        An unknown producer may begin at any sequence, because its state may have expired, unless its transaction is
        being verified (`Verifications.may_begin_at`). A new epoch must begin at 0. Batches that a group's coordinator
        writes for a producer have no sequence. Errors: INVALID_PRODUCER_EPOCH for an older epoch;
        OUT_OF_ORDER_SEQUENCE_NUMBER for a gap, and for a duplicate that is no longer remembered or has another size;
        INVALID_TXN_STATE for a plain batch within the producer's open transaction.
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
            last_sequence = (base_sequence + record_count - 1) & LARGEST_SEQUENCE
            for batch in entry.batches:
                if batch.first_sequence == base_sequence and batch.last_sequence == last_sequence:
                    return DuplicateBatch(batch.base_offset, batch.last_offset, batch.timestamp)
            # Without an epoch there is no order to keep. After a marker alone, the next sequence is 0: -1 + 1.
            expected = (entry.batches[-1].last_sequence + 1) & LARGEST_SEQUENCE if entry.batches else 0
            if base_sequence != expected and producer_epoch != NO_PRODUCER_EPOCH:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if entry.transaction_first_offset != UNKNOWN_OFFSET and not is_transactional:
            return ErrorCode.INVALID_TXN_STATE
        return ACCEPTED

    def is_in_transaction(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool:
        """Returns whether a producer of this epoch has a transaction open here."""
        entry = self._entries.get(producer_id)
        return (
            entry is not None
            and entry.producer_epoch == producer_epoch
            and entry.transaction_first_offset != UNKNOWN_OFFSET
        )

    def note_refused(self, header: BatchHeader, now_ms: int) -> None:
        """Records a batch refused for now: its producer will send it again, and no later one may come first."""
        producer_id, sequence = header.producer_id, header.base_sequence
        if producer_id >= 0 and sequence >= 0 and producer_id not in self._entries:
            self.verifications.note_refused(producer_id, header.producer_epoch, sequence, now_ms=now_ms)

    def is_behind_refused(self, header: BatchHeader) -> bool:
        """Returns whether a batch is out of order only because one before it was refused for now (`Verifications`)."""
        producer_id = header.producer_id
        if producer_id in self._entries:
            return False
        return self.verifications.is_behind_refused(producer_id, header.producer_epoch, header.base_sequence)

    def is_fenced(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool:
        """Returns whether a later epoch of this producer is known here."""
        entry = self._entries.get(producer_id)
        return entry is not None and producer_epoch < entry.producer_epoch

    def check_marker(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        coordinator_epoch: int,
        *,
        epoch_is_bumped: bool = False,
    ) -> AcceptedBatch | ErrorCode:
        """Checks whether a coordinator may end this producer's transaction. Changes nothing.

        `epoch_is_bumped`: each transaction has its own epoch, and its marker that of the next one (KIP-890). A repeated
        late marker must not end the next transaction, except in the last epoch, which has no next one. Errors:
        INVALID_PRODUCER_EPOCH for an older epoch; TRANSACTION_COORDINATOR_FENCED for an outdated coordinator.
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            return ACCEPTED
        is_late = (
            epoch_is_bumped
            and producer_epoch == entry.producer_epoch
            and entry.transaction_first_offset != UNKNOWN_OFFSET
        )
        if producer_epoch < entry.producer_epoch or (is_late and producer_epoch != _LAST_EPOCH):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED if coordinator_epoch < entry.coordinator_epoch else ACCEPTED

    def update(self, batch: SequencedBatch, *, base_offset: Offset, now_ms: int) -> None:
        """Records a batch that was appended at `base_offset`, unless it has no producer id (negative).

        Its sequences follow from its last offset delta, which compaction doesn't change. `now_ms` is wall-clock time.
        """
        producer_id, producer_epoch, base_sequence = batch.producer_id, batch.producer_epoch, batch.base_sequence
        if producer_id < 0:
            return
        offset_delta, max_timestamp = batch.last_offset_delta, batch.max_timestamp
        last_offset = base_offset + offset_delta
        # Transactional offset commits carry a producer id but no sequence.
        last_sequence = (base_sequence + offset_delta) & LARGEST_SEQUENCE if base_sequence >= 0 else NO_SEQUENCE
        produced = ProducedBatch(base_sequence, last_sequence, last_offset, offset_delta, max_timestamp)
        entry = self._entries.get(producer_id)
        if entry is None:
            self.verifications.on_batch(producer_id)
            entry = self._add(producer_id, ProducerEntry(producer_epoch, [produced], max_timestamp, now_ms))
        else:
            if entry.producer_epoch != producer_epoch:
                entry.producer_epoch = producer_epoch
                entry.batches.clear()
            entry.batches.append(produced)
            if len(entry.batches) > REMEMBERED_BATCHES:
                del entry.batches[0]
            entry.last_timestamp = max_timestamp
            entry.last_append_ms = now_ms
        if batch.attributes & TRANSACTIONAL_BIT:
            self.verifications.on_batch(producer_id)
            if entry.transaction_first_offset == UNKNOWN_OFFSET:
                entry.transaction_first_offset = base_offset
                self.transactions.begin(base_offset, producer_id)

    def replay(
        self, header: BatchHeader, *, now_ms: int, control: ControlRecord | None = None
    ) -> CompletedTransaction | None:
        """Records a batch of the log that a leader has checked, in recovery and on a follower.

        Returns the transaction that it ended. `control` is the marker of a control batch; None if it ends no
        transaction. `now_ms` counts as the time of the append, which the log doesn't have. So after a restart a
        producer is remembered longer.
        """
        if header.producer_id < 0:
            return None
        if not header.is_control:
            self.update(header, base_offset=header.base_offset, now_ms=now_ms)
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
        """Records an appended marker. Returns the transaction that it ended; None if none was open here."""
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
        """Adds the batches before those of a snapshot, the last of each producer; `headers` are in log order."""
        found: dict[ProducerId, deque[ProducedBatch]] = {}
        for header in headers:
            entry = self._entries.get(header.producer_id)
            if (
                entry is None
                or header.is_control
                or header.producer_epoch != entry.producer_epoch
                or header.base_sequence < 0
            ):
                continue
            if entry.batches and header.base_offset < entry.batches[0].base_offset:
                delta = header.last_offset_delta
                batch = ProducedBatch(
                    header.base_sequence,
                    (header.base_sequence + delta) & LARGEST_SEQUENCE,
                    header.base_offset + delta,
                    delta,
                    header.max_timestamp,
                )
                found.setdefault(header.producer_id, deque(maxlen=REMEMBERED_BATCHES - 1)).append(batch)
        for producer_id, earlier in found.items():
            batches = self._entries[producer_id].batches
            while earlier and len(batches) < REMEMBERED_BATCHES:
                batch = earlier.pop()
                if (batch.last_sequence + 1) & LARGEST_SEQUENCE != batches[0].first_sequence:
                    break
                batches.insert(0, batch)

    @property
    def expiration_ms(self) -> int:
        """How long an idle producer is remembered."""
        return self._expiration_ms()

    def remove_expired(self, now_ms: int) -> int:
        """Forgets producers that were idle for the expiration time, unless in a transaction; returns how many."""
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
        """Forgets all producers, because the log was emptied or is about to be replayed from another offset."""
        self._entries.clear()
        self.transactions.restart()

    def encode_snapshot(self) -> bytes:
        return encode_snapshot(self._entries)

    def load_snapshot(self, snapshot: Buffer, *, now_ms: int) -> None:
        """Replaces the state by a snapshot's. `now_ms` counts as the time of each producer's last append.

        Errors: CorruptSnapshotError; the state is then unchanged.
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
        """Whether any known producer has ended a transaction here."""
        return any(entry.coordinator_epoch != NO_COORDINATOR_EPOCH for entry in self._entries.values())

    def _add(self, producer_id: ProducerId, entry: ProducerEntry) -> ProducerEntry:
        """Adds an unknown producer, after making room. Open transactions are never evicted."""
        assert producer_id not in self._entries
        if len(self._entries) >= self._maximum_producers:
            idle = (
                (known.last_append_ms, key)
                for key, known in self._entries.items()
                if known.transaction_first_offset < 0
            )
            for _, key in heapq.nsmallest(max(1, self._maximum_producers // _EVICTED_FRACTION), idle):
                del self._entries[key]
        self._entries[producer_id] = entry
        return entry
