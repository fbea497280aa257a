"""Keeps the unacknowledged batches of one producer, and decides which of them to send to which broker next.

It only decides: callers pass in the time, the leaders and the answers. Callers ask `has_room` before they add a batch,
to keep to `Limits.memory_bytes`. A request has at most one batch of a partition, as Kafka requires.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from lowtide.pipeline.partition_batches import Backoff, BatchTooLargeError, PartitionBatches, ProducerBatch, expired
from lowtide.protocol.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    BrokerId,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a producer, each with its key in Kafka."""

    memory_bytes: int = 32 << 20
    """`buffer.memory`"""

    request_bytes: int = 8 << 20
    """The size of one request to a broker; a single batch may be larger."""

    requests_in_flight: int = 5
    """`max.in.flight.requests.per.connection`"""

    delivery_timeout_ms: int = 120_000
    """`delivery.timeout.ms`: the time between adding a batch and its acknowledgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceAnswer:
    """The answer of a broker for one batch. `log_start_offset` is -1 if it is unknown."""

    code: int
    log_start_offset: int = -1
    message: str | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Outbox:
    """The batches of all partitions that wait, are in flight, or must be sent again."""

    limits: Limits
    split: Callable[[ProducerBatch], list[ProducerBatch]]
    """Splits a batch into smaller ones with the same records in the same order."""

    backoff: Backoff

    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    unacknowledged_bytes: int = 0
    acknowledged_records: int = 0
    retries: int = 0
    """How many batches were sent again."""

    _partitions: dict[TopicPartition, PartitionBatches] = field(default_factory=dict)
    _busy: dict[TopicPartition, PartitionBatches] = field(default_factory=dict)
    """The partitions with unacknowledged batches, in the order in which they are sent to."""

    def has_room(self, size_bytes: int) -> bool:
        """Returns whether a batch of this size may be added now. A batch larger than all memory is added alone."""
        return not self.unacknowledged_bytes or self.unacknowledged_bytes + size_bytes <= self.limits.memory_bytes

    def add(self, place: TopicPartition, records: bytearray, record_count: int, now_ms: int) -> None:
        """Adds a batch."""
        partition = self._partitions.get(place)
        if partition is None:
            partition = self._partitions[place] = PartitionBatches(
                place=place, producer_id=self.producer_id, producer_epoch=self.producer_epoch, backoff=self.backoff
            )
        deadline_ms = now_ms + self.limits.delivery_timeout_ms
        partition.add(ProducerBatch(place=place, records=records, record_count=record_count, deadline_ms=deadline_ms))
        self._busy[place] = partition
        self.unacknowledged_bytes += len(records)

    @property
    def is_empty(self) -> bool:
        """Whether everything that was added is acknowledged."""
        return not self._busy

    @property
    def places(self) -> Collection[TopicPartition]:
        """The partitions with unacknowledged batches."""
        return self._busy.keys()

    def takes(self, broker: BrokerId, leaders: Mapping[TopicPartition, BrokerId], now_ms: int) -> list[ProducerBatch]:
        """Returns the batches of the next request to a broker, one for each of its partitions that is ready."""
        taken: list[ProducerBatch] = []
        size = 0
        for place, partition in list(self._busy.items()):
            if leaders.get(place) != broker or not partition.ready(now_ms):
                continue
            batch = partition.take()
            taken.append(batch)
            self.retries += batch.attempts > 1
            size += len(batch.records)
            # The next request begins with the partitions that do not fit into this one.
            del self._busy[place]
            self._busy[place] = partition
            if size >= self.limits.request_bytes:
                break
        return taken

    def check_deadlines(self, now_ms: int) -> None:
        """Checks the deadlines. Errors: ProduceError for a batch that is late."""
        for partition in self._busy.values():
            oldest = partition.oldest
            if oldest is not None and now_ms >= oldest.deadline_ms:
                raise expired(oldest, self.limits.delivery_timeout_ms)

    def wait_ms(self, now_ms: int) -> int:
        """Returns how long to wait for the next retry or deadline; 0 if one is due."""
        due = [now_ms + self.limits.delivery_timeout_ms]
        for partition in self._busy.values():
            oldest = partition.oldest
            if oldest is not None:
                due.append(oldest.deadline_ms)
            if partition.not_before_ms > now_ms:
                due.append(partition.not_before_ms)
        return max(0, min(due) - now_ms)

    def on_answer(self, batch: ProducerBatch, answer: ProduceAnswer, now_ms: int) -> bool:
        """Handles the answer for a batch. Returns whether the batch is done. Errors: ProduceError."""
        partition = self._partitions[batch.place]
        try:
            done = partition.on_answer(
                batch, answer.code, log_start_offset=answer.log_start_offset, message=answer.message, now_ms=now_ms
            )
        except BatchTooLargeError:
            parts = self.split(batch)
            self.unacknowledged_bytes += sum(len(part.records) for part in parts) - len(batch.records)
            partition.replace(batch, parts)
            return False
        for each in done:
            self.unacknowledged_bytes -= len(each.records)
            self.acknowledged_records += each.record_count
        if partition.is_empty:
            del self._busy[batch.place]
        return bool(done)

    def on_lost(self, batches: Iterable[ProducerBatch], why: str, now_ms: int) -> None:
        """Handles lost answers. `why` becomes part of the error if retries do not help."""
        for batch in batches:
            self._partitions[batch.place].on_lost(batch, why, now_ms)

    @property
    def wants_producer_id(self) -> bool:
        """Whether a partition has used all epochs of its producer id."""
        return any(partition.wants_producer_id for partition in self._busy.values())

    def renew_producer_id(self, producer_id: ProducerId) -> None:
        """Gives a new producer id to the partitions that need one."""
        for partition in self._busy.values():
            if partition.wants_producer_id:
                partition.renew_producer_id(producer_id)
