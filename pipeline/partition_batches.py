"""The batches of one partition between their creation and their acknowledgement: their order, their sequences, their retries.

Decides only; time is passed in, and nothing is sent from here. Invariants:

- Batches are appended in the order in which they were added. What was refused or lost is sent again in its place, and nothing else is sent
  to the partition until all that was in flight there is answered.
- The first batch of an epoch goes alone: a broker that doesn't know the producer takes any sequence, and would begin with the second one
  where it has refused the first, as one does that is about to lead a new partition.
- A batch keeps its sequence over all its retries, so that a broker that has it already doesn't append it again (KIP-98). A sequence follows
  from the number of records before it, so a batch that is split keeps the range of the whole.
- A broker that was restarted remembers the last batch only, and refuses those before it, which it has, as out of order. So what may have
  been appended is sent again to the last, before such a refusal is believed: if one is taken, the broker has those before it.
- Only when a broker has lost the producer's state does the partition continue with the next producer epoch, from sequence 0 (KIP-360).
  As with Kafka's own clients a batch whose fate wasn't known at that moment may then be there twice.

Source: KIP-98, KIP-360, Kafka's `TransactionManager.canRetry` and `RecordAccumulator`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from lowtide.admin.errors import code_name
from lowtide.protocol.client.retries import is_retriable
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import ATTRIBUTES_POSITION, CRC_POSITION
from lowtide.protocol.types import NO_SEQUENCE, ProducerEpoch, ProducerId, TopicPartition

MAX_IN_FLIGHT: Final = 5
"""Batches of a partition that may be under way: as many as a broker remembers of a producer. Source: KIP-98."""

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
"""A leader says so of what it refuses, and also of what it has appended, and the others have not. Source: Kafka's DelayedProduce."""

_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class ProduceError(Exception):
    """Records that could not be written; the text names the partition, the code, and what may be done."""

    def __init__(self, message: str, *, place: TopicPartition, code: int) -> None:
        super().__init__(message)
        self.place = place
        self.code = code


@dataclass(slots=True, kw_only=True, eq=False)
class ProducerBatch:
    """One record batch that is to be appended to one partition."""

    place: TopicPartition
    records: bytearray
    """The whole batch, header included; what identifies the producer is filled in when it's sent."""

    record_count: int
    deadline_ms: int
    first_record: int = 0
    """How many records were added to the partition before this batch's."""

    attempts: int = 0
    last_error: str = "it was not sent"
    may_be_appended: bool = False
    """An answer was lost, or left it open."""

    is_out_of_order: bool = False
    """The broker has said so since."""

    was_overtaken: bool = False
    """A later batch was acknowledged, by a leader that knows nothing of the producer: nothing follows from what is taken behind it."""


Backoff = Callable[[int], int]
"""How many milliseconds to rest after so many failures in a row (from 1)."""


def stamp(batch: bytearray, producer_id: ProducerId, producer_epoch: ProducerEpoch, base_sequence: int) -> None:
    """Write who sends the batch, and where it stands in the order, into its header; the CRC follows."""
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
    """The epochs of the present one are used up."""

    _waiting: deque[ProducerBatch] = field(default_factory=deque)
    _in_flight: deque[ProducerBatch] = field(default_factory=deque)
    _records_added: int = 0
    _epoch_begins_at: int = 0
    _is_known: bool = False
    """A batch of this epoch was acknowledged: the broker has its sequence, and takes the next one only."""

    _is_held: bool = False
    """Something failed; what is in flight is waited for."""

    _wants_bump: bool = False
    _failures: int = 0
    """In a row."""

    @property
    def is_empty(self) -> bool:
        """Whether everything that was added is acknowledged."""
        return not self._waiting and not self._in_flight

    @property
    def oldest(self) -> ProducerBatch | None:
        """The first batch that isn't acknowledged."""
        heads = [queue[0] for queue in (self._waiting, self._in_flight) if queue]
        return min(heads, key=_position, default=None)

    def add(self, batch: ProducerBatch) -> None:
        """Put a batch behind all others of the partition."""
        batch.first_record = self._records_added
        self._records_added += batch.record_count
        self._waiting.append(batch)

    def sequence_of(self, batch: ProducerBatch) -> int:
        """The sequence of its first record in the present epoch; sequences go from 2^31-1 to 0."""
        return (batch.first_record - self._epoch_begins_at) & _SEQUENCE_MASK

    def ready(self, now_ms: int) -> bool:
        """Whether `take` would give a batch."""
        free = self._next() is not None and not self._is_held and not self.wants_producer_id
        return free and len(self._in_flight) < (MAX_IN_FLIGHT if self._is_known else 1) and now_ms >= self.not_before_ms

    def take(self) -> ProducerBatch:
        """The next batch to be sent, from now on in flight. Only where `ready`."""
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
        """Continue with another producer id, from epoch and sequence 0."""
        self.producer_id, self.producer_epoch = producer_id, 0
        self.wants_producer_id = self._is_known = False
        oldest = self.oldest
        self._epoch_begins_at = self._records_added if oldest is None else oldest.first_record

    def on_answer(
        self, batch: ProducerBatch, code: int, *, log_start_offset: int, message: str | None, now_ms: int
    ) -> list[ProducerBatch]:
        """A broker has answered for a batch. Returns those that are done with by that; what isn't will be sent again.

        Errors: ProduceError when it never will be; BatchTooLargeError when it must be split (`replace`).
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
            # Behind a batch that failed it had to be refused. The first one is next in order: the broker doesn't know
            # those before it.
            batch.is_out_of_order = True
            self._wants_bump |= is_first
        elif code == ErrorCode.UNKNOWN_PRODUCER_ID:
            # Without a log start offset the partition has moved on meanwhile, and the next answer says more.
            self._wants_bump |= is_first and log_start_offset >= 0
        elif not is_retriable(code):
            raise _refused(batch, code)
        elif code in _MAYBE_APPENDED:
            batch.may_be_appended, batch.is_out_of_order = True, False
        self._retry(batch, now_ms)
        return []

    def on_lost(self, batch: ProducerBatch, why: str, now_ms: int) -> None:
        """No answer came, and none will: the batch may have been appended, or not."""
        batch.last_error = why
        batch.may_be_appended, batch.is_out_of_order = True, False
        self._retry(batch, now_ms)

    def replace(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Put the parts of a batch in its place: the same records in the same order, with the same sequences."""
        assert sum(part.record_count for part in parts) == batch.record_count, "a split loses no record"
        self._waiting.remove(batch)
        first = batch.first_record
        for part in parts:
            part.first_record = first
            first += part.record_count
            self._insert(part)

    def _next(self) -> ProducerBatch | None:
        """What to send next: the first that waits, or, where a new epoch is wanted, the first that the broker may have after all."""
        if self._wants_bump:
            return next((batch for batch in self._waiting if batch.may_be_appended and not batch.is_out_of_order), None)
        return self._waiting[0] if self._waiting else None

    def _appended_before(self, taken: ProducerBatch) -> list[ProducerBatch]:
        """Take out what the broker must have, since it has taken a later batch.

        That is one whose answer was lost, and that it has refused as out of order since, so it knows the producer: an
        epoch's sequences are taken in their order only, and those before it were appended, and forgotten.
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
    """The broker doesn't take a batch of this size; its records may be sent in smaller ones."""

    def __init__(self, batch: ProducerBatch) -> None:
        super().__init__(f"{batch.place} doesn't take a batch of {len(batch.records)} bytes")
        self.batch = batch


def _position(batch: ProducerBatch) -> int:
    return batch.first_record


def _refused(batch: ProducerBatch, code: int) -> ProduceError:
    what = f"{batch.record_count} records" if batch.record_count > 1 else "a record"
    text = f"{batch.place} refused {what} ({len(batch.records)} bytes) with {batch.last_error}"
    if code in _TOO_LARGE:
        text += "; the topic's max.message.bytes says how large one record, with its batch's 61 bytes, may be"
    return ProduceError(text, place=batch.place, code=code)


def expired(batch: ProducerBatch, timeout_ms: int) -> ProduceError:
    """The error of a batch that wasn't acknowledged in time."""
    text = (
        f"{batch.place} has not acknowledged {batch.record_count} records within kafka.delivery.timeout.ms={timeout_ms}, "
        f"after {batch.attempts} attempts; the last one ended so: {batch.last_error}"
    )
    return ProduceError(text, place=batch.place, code=ErrorCode.REQUEST_TIMED_OUT)
