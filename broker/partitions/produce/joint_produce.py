"""The short form of Produce: one or several alike requests, each with one small batch for the same partition.

Most requests of most producers are like this. They arrive together on one connection, or at the same moment on several.
The compiled module reads them, validates their batches and writes the responses. The decisions are made here, in the
order of `ProduceAttempt.append`, which defines them. An unusual request is left to it before anything is changed: a
partition that this broker does not lead or that is offline, acks=all with too few replicas in sync, rules about more
than size and timestamps, a full segment, a wrong checksum, a transaction that must be verified first.

The figures with and without this form are in docs/adr/0015-quick-paths.md.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from lowtide.broker.network.routing.routes import JointForm
from lowtide.broker.partitions.produce.delayed_produce import DelayedProduce, ProduceParts, ProduceWait, delayed_produce
from lowtide.broker.partitions.produce.produce_attempt import (
    ADDS_SINCE,
    CURRENT_LEADER_SINCE,
)
from lowtide.broker.partitions.produce.transaction_question import AskedTransaction, Question, needs_no_question
from lowtide.broker.pending import Pending
from lowtide.protocol import native
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from lowtide.protocol.records import ATTRIBUTES_POSITION, MAGIC_POSITION
from lowtide.protocol.types import NO_TIMESTAMP, ZERO_TOPIC_ID
from lowtide.replication.partition import Partition
from lowtide.replication.purgatory import DelayedOperation
from lowtide.storage.log.validation.validator import ValidatedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.broker.request_context import Client
    from lowtide.protocol.native import CompiledWalk
    from lowtide.protocol.types import Offset, TopicPartition


class ReceivedBatch(msgspec.Struct, gc=False):
    """A valid batch whose checksum is not compared yet, and whose `tail` is still empty."""

    batch: ValidatedBatch
    start: int
    """The position of its first byte in the buffer."""
    crc: int
    begins: bool
    """Whether it is the first of its producer in the group. The others follow their predecessor without a gap."""


class ProduceGroup(msgspec.Struct, gc=False):
    """Produce requests for one partition that are appended together. Made by the compiled module (`produces.c`)."""

    version: int
    acks: int
    """1 or -1."""
    timeout_ms: int
    topic: str | bytes
    """The topic's name, or its id in versions with ids."""
    partition: int
    transactional_id: str | None
    """If set, the group is one request, whose batch belongs to a transaction."""
    earliest: int
    latest: int
    """The smallest and the largest timestamp of the records."""
    largest_bytes: int
    size_bytes: int
    """The sizes of the largest batch and of all batches."""
    stop: int
    """The end of the last frame in the buffer, exclusive."""
    correlation_ids: tuple[int, ...]
    places: tuple[int, ...]
    """The places of the group's requests among those that were read, from 0."""
    batches: list[ReceivedBatch]


TYPES = (ProduceGroup, ReceivedBatch, ValidatedBatch)


class JointProduce:
    """Appends groups of small Produce requests. One for each broker; keeps no state of a request."""

    def __init__(self, parts: ProduceParts, compiled: CompiledWalk) -> None:
        self._parts = parts
        self._replicas = parts.replicas
        self._wall_ns = parts.clock.wall_ns
        self._monotonic_ms = parts.clock.monotonic_ms
        self._write = compiled.produce_answers

    def answer(self, group: ProduceGroup, buffer: memoryview, clients: list[Client]) -> list[Any] | None:
        """Appends the batches with one write. Returns the frame of each response, or a promise of it.

        Returns None and changes nothing if a request is unusual.
        """
        replicas, image, now_ms, topic = self._replicas, self._replicas.image, self._wall_ns() // 1_000_000, group.topic
        name = topic if isinstance(topic, str) else "" if image is None else image.topic_names.get(topic, "")
        partition = replicas.find(name, group.partition)
        if (
            not isinstance(partition, Partition)
            or not partition.is_leader
            or group.largest_bytes > partition.small_batch_bytes
            or group.earliest < now_ms - partition.rules.timestamp_before_max_ms
            or group.latest > now_ms + partition.rules.timestamp_after_max_ms
            or (group.acks != 1 and not partition.has_enough_in_sync)
        ):
            return None
        batches = []
        for received in group.batches:
            start, batch = received.start, received.batch
            stop = start + batch.size_bytes
            if crc32c(buffer[start + ATTRIBUTES_POSITION : stop]) != received.crc:
                return None
            batch.tail = (buffer[start + MAGIC_POSITION : stop],)
            batches.append(batch)
        if group.transactional_id is not None and not self._may_join(group, batches[0], partition, now_ms):
            return None
        deciding = [received.batch for received in group.batches if received.begins] if len(batches) > 1 else batches
        base_offsets = replicas.append_together(
            partition, batches, group.size_bytes, deciding, now_ms, is_awaited=group.acks != 1
        )
        if base_offsets is None:
            return None
        partition.traffic.produce_requests += len(batches)
        log_start_offset = partition.log.log_start_offset
        answers = self._write(
            group.version,
            group.correlation_ids,
            topic,
            group.partition,
            base_offsets,
            NO_TIMESTAMP,
            log_start_offset,
        )
        assert answers is not None, group
        if group.acks == 1 or partition.leadership is None:
            return answers
        return [
            self._when_committed(group, partition, (base_offset, batch), log_start_offset, answer, client)
            for base_offset, batch, answer, client in zip(base_offsets, batches, answers, clients, strict=True)
        ]

    def _when_committed(
        self,
        group: ProduceGroup,
        partition: Partition,
        appended: tuple[Offset, ValidatedBatch],
        log_start_offset: Offset,
        answer: bytes,
        client: Client,
    ) -> bytes | ProduceResponse | Pending[Any]:
        """Returns the response of one request with acks=all, or a promise of it."""
        base_offset, batch = appended
        end_offset = base_offset + batch.last_offset_delta + 1
        if partition.log.high_watermark >= end_offset:
            return answer
        led_since, listener_name = partition.led_since, client.listener_name

        def plainly() -> DelayedProduce:
            row = PartitionProduceResponse(
                index=group.partition,
                error_code=ErrorCode.NONE,
                base_offset=base_offset,
                log_append_time_ms=NO_TIMESTAMP,
                log_start_offset=log_start_offset,
            )
            wait = ProduceWait(partition, led_since, end_offset, row, flushes=False, commits=True)
            listener = listener_name if group.version >= CURRENT_LEADER_SINCE else None
            return delayed_produce(self._parts, _response(group, row), [wait], group.timeout_ms, listener)

        deadline_ms = self._monotonic_ms() + max(group.timeout_ms, 0)
        delayed = DelayedJointProduce(self._replicas, partition, end_offset, answer, deadline_ms, plainly)
        return delayed.pending if self._replicas.waiting.commits.watch(delayed) else plainly().start()

    def _may_join(self, group: ProduceGroup, batch: ValidatedBatch, partition: Partition, now_ms: int) -> bool:
        """Returns whether the transaction allows the append, as `ProduceAttempt` decides it.

        Returns False if it does not, or if the decision takes longer; `ProduceAttempt` then decides again. Begins the
        verification, which an append by an unknown producer needs.
        """
        state, verifier, adds = partition.log.producer_state, self._parts.verifier, group.version >= ADDS_SINCE
        producer_id, producer_epoch = batch.producer_id, batch.producer_epoch
        if needs_no_question(state, verifier, (producer_id, producer_epoch), adds=adds):
            return True
        if adds or state.is_fenced(producer_id, producer_epoch):
            return False
        assert group.transactional_id is not None, "the caller has looked"
        asked = AskedTransaction(group.transactional_id, producer_id, producer_epoch, adds)
        if verifier.answer_now(Question(asked, partition.topic_partition)) != ErrorCode.NONE:
            return False
        state.verifications.begin(producer_id, producer_epoch, batch.base_sequence, adds_itself=adds, now_ms=now_ms)
        return True


class DelayedJointProduce(DelayedOperation):
    """A request with one small batch that waits for followers. Its response is encoded when the wait begins.

    An unusual end of the wait (another leader epoch, a shrunken ISR, a timeout) is left to `DelayedProduce`, which
    completes the same promise.
    """

    __slots__ = (
        "_answer",
        "_end_offset",
        "_led_since",
        "_partition",
        "_plainly",
        "_replicas",
        "pending",
    )

    def __init__(
        self,
        replicas: ReplicaManager,
        partition: Partition,
        end_offset: Offset,
        answer: bytes,
        deadline_ms: int,
        plainly: Callable[[], DelayedProduce],
    ) -> None:
        """`answer` is the frame if all in-sync replicas reach `end_offset`. `plainly` makes the `DelayedProduce`."""
        super().__init__(deadline_ms)
        self._replicas = replicas
        self._partition = partition
        self._led_since = partition.led_since
        self._end_offset = end_offset
        self._answer = answer
        self._plainly = plainly
        self.pending: Pending[Any] = Pending()
        self.pending.on_abandoned = self._forget

    def try_complete(self) -> bool:
        """Answers if the batch is committed, or cannot be."""
        partition = self._partition
        if (
            partition.log.high_watermark >= self._end_offset
            and partition.is_leader
            and partition.led_since == self._led_since
            and partition.may_have_enough_in_sync
            and self._replicas.find(*partition.topic_partition) is partition
        ):
            self.pending.complete(self._answer)
            return True
        plain = self._plain()
        if plain.still_waits():
            return False
        plain.on_complete()
        return True

    def on_complete(self) -> None:
        """Answers now."""
        self._plain().on_complete()

    def fail(self) -> None:
        """Closes the connection."""
        self.pending.fail()

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """Returns the high watermark to reach."""
        return ((self._partition.topic_partition, self._end_offset),)

    def _plain(self) -> DelayedProduce:
        plain = self._plainly()
        plain.pending = self.pending
        return plain

    def _forget(self) -> None:
        self._replicas.waiting.commits.remove(self)


def _response(group: ProduceGroup, row: PartitionProduceResponse) -> ProduceResponse:
    topic = group.topic
    name, topic_id = (topic, ZERO_TOPIC_ID) if isinstance(topic, str) else ("", topic)
    return ProduceResponse(responses=[TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=[row])])


def joint_produce(parts: ProduceParts) -> JointForm | None:
    """Returns the joint form over a broker's partitions; None without the compiled module."""
    compiled = native.compiled
    if compiled is None:
        return None
    return JointForm(partial(compiled.read_produce, TYPES), JointProduce(parts, compiled).answer)
