"""Orders the batches of one partition until they are acknowledged, with their sequences and retries.

It only decides: callers pass the time in and send the batches. Invariants:

- Batches are appended in the order in which they were added. A refused or lost batch is sent again in its place, and
  nothing else is sent to the partition until all batches in flight there are answered.
- The first batch of an epoch is sent alone. A broker that does not know the producer accepts any sequence: a new leader
  could refuse the first batch and accept the second one.
- A batch keeps its sequence over all retries, so that a broker that has it does not append it again (KIP-98). The
  sequence is the number of records before the batch, so a batch that is split keeps the range of the whole.
- A restarted broker remembers only the last batch, and refuses earlier ones as out of order although it has them. So
  all batches that may have been appended are sent again before such a refusal counts: if the broker accepts one, it
  has those before it.
- The partition continues with the next producer epoch, from sequence 0, only when a broker has lost the producer's
  state (KIP-360). As with Kafka's own clients, a batch without a known result may then be written twice.

Source: KIP-98, KIP-360, Kafka's `TransactionManager.canRetry` and `RecordAccumulator`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from lowtide.admin.errors import code_name
from lowtide.protocol.client.retries import is_retriable
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import ATTRIBUTES_POSITION, CRC_POSITION
from lowtide.protocol.types import NO_SEQUENCE, ProducerEpoch, ProducerId, TopicPartition

MAX_IN_FLIGHT: Final = 5
"""How many batches of a partition may be in flight: as many as a broker remembers of a producer. Source: KIP-98."""

PRODUCER_EPOCH_MAX: Final = 32_767

_SEQUENCE_MASK: Final = 0x7FFF_FFFF
_PRODUCER_POSITION: Final = 43
_PRODUCER_FIELDS: Final = struct.Struct(">qhi")
_CRC: Final = struct.Struct(">I")

_APPENDED: Final = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
_MAYBE_APPENDED: Final = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors by which a leader refuses a batch, or reports that its followers lack it. Source: Kafka's DelayedProduce."""

_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class ProduceError(Exception):
    """Records could not be written. The message names the partition, the code and what can be done."""

    def __init__(self, message: str, *, place: TopicPartition, code: int) -> None:
        super().__init__(message)
        self.place = place
        self.code = code


@dataclass(slots=True, kw_only=True, eq=False)
class ProducerBatch:
    """One record batch for one partition."""

    place: TopicPartition
    records: bytearray
    """The whole batch with its header. The producer fields are filled in when it is sent."""

    record_count: int
    deadline_ms: int
    first_record: int = 0
    """The number of records added to the partition before this batch."""

    attempts: int = 0
    last_error: str = "it was not sent"
    may_be_appended: bool = False
    """Whether the broker may have appended it: its answer was lost, or did not say."""

    is_out_of_order: bool = False
    """Whether the broker has refused it as out of order since then."""

    was_overtaken: bool = False
    """Whether a leader without the producer's state has acknowledged a later batch, so that later answers prove
    nothing."""


Backoff = Callable[[int], int]
"""How many milliseconds to wait after this number of failures in a row (from 1)."""


def stamp(batch: bytearray, producer_id: ProducerId, producer_epoch: ProducerEpoch, base_sequence: int) -> None:
    """Writes the producer and the sequence into the header of a batch, and its new CRC."""
    _PRODUCER_FIELDS.pack_into(batch, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    with memoryview(batch) as view:
        _CRC.pack_into(batch, CRC_POSITION, crc32c(view[ATTRIBUTES_POSITION:]))


@dataclass(slots=True, kw_only=True, eq=False)
class PartitionBatches:
    """The batches of one partition, in the order of their sequence numbers."""

    place: TopicPartition
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    backoff: Backoff
    not_before_ms: int = 0
    wants_producer_id: bool = False
    """Whether all epochs of the producer id are used."""

    _waiting: deque[ProducerBatch] = field(default_factory=deque)
    _in_flight: deque[ProducerBatch] = field(default_factory=deque)
    _records_added: int = 0
    _epoch_begins_at: int = 0
    _is_known: bool = False
    """Whether a batch of this epoch was acknowledged, so that the broker accepts only the next sequence."""

    _is_held: bool = False
    """Whether to wait for the batches in flight, because one of them failed."""

    _wants_bump: bool = False
    _failures: int = 0
    """The number of failures in a row."""

    @property
    def is_empty(self) -> bool:
        """Whether everything that was added is acknowledged."""
        return not self._waiting and not self._in_flight

    @property
    def oldest(self) -> ProducerBatch | None:
        """The first unacknowledged batch."""
        heads = [queue[0] for queue in (self._waiting, self._in_flight) if queue]
        return min(heads, key=_position, default=None)

    def add(self, batch: ProducerBatch) -> None:
        """Adds a batch after all others of the partition."""
        batch.first_record = self._records_added
        self._records_added += batch.record_count
        self._waiting.append(batch)

    def sequence_of(self, batch: ProducerBatch) -> int:
        """Returns the sequence of its first record in the present epoch. After 2^31-1 comes 0."""
        return (batch.first_record - self._epoch_begins_at) & _SEQUENCE_MASK

    def ready(self, now_ms: int) -> bool:
        """Returns whether `take` has a batch."""
        free = self._next() is not None and not self._is_held and not self.wants_producer_id
        return free and len(self._in_flight) < (MAX_IN_FLIGHT if self._is_known else 1) and now_ms >= self.not_before_ms

    def take(self) -> ProducerBatch:
        """Returns the next batch to send, which is now in flight. Call only if `ready`."""
        batch = self._next()
        assert batch is not None, "nothing waits"
        self._waiting.remove(batch)
        self._in_flight.append(batch)
        batch.attempts += 1
        if self.producer_id >= 0:
            stamp(batch.records, self.producer_id, self.producer_epoch, self.sequence_of(batch))
        else:
            stamp(batch.records, self.producer_id, self.producer_epoch, NO_SEQUENCE)
        return batch

    def renew_producer_id(self, producer_id: ProducerId) -> None:
        """Continues with another producer id, from epoch and sequence 0."""
        self.producer_id, self.producer_epoch = producer_id, 0
        self.wants_producer_id = self._is_known = False
        oldest = self.oldest
        self._epoch_begins_at = self._records_added if oldest is None else oldest.first_record

    def on_answer(
        self, batch: ProducerBatch, code: int, *, log_start_offset: int, message: str | None, now_ms: int
    ) -> list[ProducerBatch]:
        """Handles the answer for a batch. Returns the batches that are done; others will be sent again.

        Errors: ProduceError when the batch is refused for good; BatchTooLargeError when it must be split (`replace`).
        """
        if code in _APPENDED:
            self._is_known = True
            self._in_flight.remove(batch)
            done = [batch, *self._appended_before(batch)]
            for earlier in (*self._in_flight, *self._waiting):
                earlier.was_overtaken |= earlier.first_record < batch.first_record
            self._failures = 0
            self._after_answer()
            return done
        batch.last_error = f"{code_name(code)}: {message}" if message else code_name(code)
        if code in _TOO_LARGE and batch.record_count > 1:
            self._put_back(batch)
            raise BatchTooLargeError(batch)
        is_first = batch is self.oldest
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # After a failed batch the broker had to refuse it. If it is the first, the broker lacks those before.
            batch.is_out_of_order = True
            self._wants_bump |= is_first
        elif code == ErrorCode.UNKNOWN_PRODUCER_ID:
            # Without a log start offset the leader has changed, and the next answer is clearer.
            self._wants_bump |= is_first and log_start_offset >= 0
        elif not is_retriable(code):
            raise _refused(batch, code)
        elif code in _MAYBE_APPENDED:
            batch.may_be_appended, batch.is_out_of_order = True, False
        self._retry(batch, now_ms)
        return []

    def on_lost(self, batch: ProducerBatch, why: str, now_ms: int) -> None:
        """Handles a lost answer: the batch may have been appended or not."""
        batch.last_error = why
        batch.may_be_appended, batch.is_out_of_order = True, False
        self._retry(batch, now_ms)

    def replace(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Replaces a batch by its parts, which have the same records, order and sequences."""
        assert sum(part.record_count for part in parts) == batch.record_count, "a split loses no record"
        self._waiting.remove(batch)
        first = batch.first_record
        for part in parts:
            part.first_record = first
            first += part.record_count
            self._insert(part)

    def _next(self) -> ProducerBatch | None:
        """Returns the next batch to send: before a new epoch, only one that the broker may have."""
        if self._wants_bump:
            return next((batch for batch in self._waiting if batch.may_be_appended and not batch.is_out_of_order), None)
        return self._waiting[0] if self._waiting else None

    def _appended_before(self, taken: ProducerBatch) -> list[ProducerBatch]:
        """Removes and returns the batches that the broker must have, because it has accepted a later one.

        Their answers were lost, and the broker has refused them as out of order since, so it knows the producer. It
        accepts sequences only in order, so it has appended the batches before and forgotten them.
        """
        done = [
            batch
            for batch in self._waiting
            if batch.first_record < taken.first_record
            and batch.may_be_appended
            and batch.is_out_of_order
            and not batch.was_overtaken
        ]
        for batch in done:
            self._waiting.remove(batch)
        if done:
            self._wants_bump = False
        return done

    def _retry(self, batch: ProducerBatch, now_ms: int) -> None:
        if not self._is_held:
            self._failures += 1
            self.not_before_ms = now_ms + self.backoff(self._failures)
        self._put_back(batch)

    def _put_back(self, batch: ProducerBatch) -> None:
        self._in_flight.remove(batch)
        self._insert(batch)
        self._is_held = True
        self._after_answer()

    def _insert(self, batch: ProducerBatch) -> None:
        place = sum(_position(other) < batch.first_record for other in self._waiting)
        self._waiting.insert(place, batch)

    def _after_answer(self) -> None:
        if self._in_flight:
            return
        self._is_held = False
        if self._wants_bump and self._next() is None:
            self._wants_bump = False
            for batch in self._waiting:
                batch.may_be_appended = batch.is_out_of_order = batch.was_overtaken = False
            if self.producer_epoch >= PRODUCER_EPOCH_MAX:
                self.wants_producer_id = True
                return
            self.producer_epoch += 1
            self._is_known = False
            self._epoch_begins_at = self._waiting[0].first_record


class BatchTooLargeError(Exception):
    """The broker refused a batch because of its size. Its records can be sent in smaller batches."""

    def __init__(self, batch: ProducerBatch) -> None:
        super().__init__(f"{batch.place} does not accept a batch of {len(batch.records)} bytes")
        self.batch = batch


def _position(batch: ProducerBatch) -> int:
    return batch.first_record


def _refused(batch: ProducerBatch, code: int) -> ProduceError:
    what = f"{batch.record_count} records" if batch.record_count > 1 else "a record"
    text = f"{batch.place} refused {what} ({len(batch.records)} bytes) with {batch.last_error}"
    if code in _TOO_LARGE:
        text += "; the topic's max.message.bytes limits the size of one record with the 61 bytes of its batch"
    return ProduceError(text, place=batch.place, code=code)


def expired(batch: ProducerBatch, timeout_ms: int) -> ProduceError:
    """Returns the error for a batch that was not acknowledged in time."""
    text = (
        f"{batch.place} has not acknowledged {batch.record_count} records within "
        f"kafka.delivery.timeout.ms={timeout_ms}, after {batch.attempts} attempts; the last error: {batch.last_error}"
    )
    return ProduceError(text, place=batch.place, code=ErrorCode.REQUEST_TIMED_OUT)
