"""Produce requests that wait for the disk or for followers.

If `flush.messages` makes a flush due at the append, the response waits for it without holding the event loop. (Kafka
syncs within the append.) A failed flush takes the log directory offline and answers KAFKA_STORAGE_ERROR. With acks=all
the response then waits for the high watermark, within the leadership that appended the batch: a later leader may have
truncated it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from lowtide.broker.network.endpoints import endpoints_for
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import DelayedQueue, Pending, commit_deadline_ms
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, ProduceResponse
from lowtide.protocol.types import UNKNOWN_OFFSET, ZERO_TOPIC_ID, BrokerId, LeaderEpoch, Offset, TopicPartition
from lowtide.replication.partition import Partition
from lowtide.replication.purgatory import DelayedOperation
from lowtide.runtime.clock import Clock

if TYPE_CHECKING:
    from lowtide.broker.partitions.batch_lane import BatchLane
    from lowtide.broker.partitions.produce.slow_batches import KeptBytes
    from lowtide.broker.partitions.produce.transaction_question import Verifier


class CurrentLeaders:
    """Adds the leaders of partitions that another broker leads to a response (KIP-951)."""

    __slots__ = ("_replicas",)

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def tell(self, listener_name: str, response: ProduceResponse) -> None:
        """Adds the leader of each row with NOT_LEADER_OR_FOLLOWER, and its address for clients of that listener."""
        image = self._replicas.image
        if image is None:
            return
        leaders: set[BrokerId] = set()
        for topic in response.responses:
            name = topic.name if topic.topic_id == ZERO_TOPIC_ID else image.topic_names.get(topic.topic_id, "")
            for row in topic.partition_responses:
                leader = (
                    self._replicas.leader_elsewhere(name, row.index)
                    if row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                    else None
                )
                if leader is not None:
                    row.current_leader = LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
                    leaders.add(leader[0])
        if leaders:
            response.node_endpoints = [
                NodeEndpoint(
                    node_id=broker_id, host=endpoint.host, port=endpoint.port, rack=image.brokers[broker_id].rack
                )
                for broker_id, endpoint in endpoints_for(image, listener_name).items()
                if broker_id in leaders
            ]


class ProduceParts(msgspec.Struct, frozen=True):
    """The broker's parts that all attempts use."""

    replicas: ReplicaManager
    clock: Clock
    verifier: Verifier
    leaders: CurrentLeaders
    lane: BatchLane
    decompressed_bytes_max: int
    kept: KeptBytes
    log: Any


class ProduceWait(msgspec.Struct):
    """An appended batch, whose `answer` waits until `end_offset` (exclusive) is flushed or committed, or both."""

    partition: Partition
    led_since: LeaderEpoch
    end_offset: Offset
    answer: PartitionProduceResponse
    flushes: bool
    commits: bool


class DelayedProduce(DelayedOperation):
    """A Produce request that waits for a flush or for followers."""

    __slots__ = ("_flushing", "_replicas", "_response", "_waits", "on_misdirected", "pending")

    def __init__(
        self,
        replicas: ReplicaManager,
        clock: Clock,
        response: ProduceResponse,
        waits: list[ProduceWait],
        timeout_ms: int,
    ) -> None:
        """`timeout_ms` is the request's and begins now."""
        self._flushing = any(wait.flushes for wait in waits)
        super().__init__(
            commit_deadline_ms(clock, timeout_ms) if self._flushing else clock.monotonic_ms() + max(timeout_ms, 0)
        )
        self._replicas = replicas
        self._response = response
        self._waits = waits
        self.on_misdirected: Callable[[ProduceResponse], None] | None = None
        """Adds the leaders to a response with NOT_LEADER_OR_FOLLOWER."""
        self.pending: Pending[ProduceResponse] = Pending()
        self.pending.on_abandoned = self._forget

    def start(self) -> ProduceResponse | Pending[ProduceResponse]:
        """Returns the response, or a promise of it if it must wait."""
        self._settle()
        if self._waits and self._queue.watch(self):
            return self.pending
        self._give_up()
        return self._final()

    def try_complete(self) -> bool:
        """Answers if all batches are flushed and committed, or cannot be. Waits for the commit after the flush."""
        flushing = self._flushing
        self._settle()
        if self._waits:
            if self._flushing == flushing:
                return False
            if self._queue.watch(self):
                return True
            self._give_up()
        self.pending.complete(self._final())
        return True

    def still_waits(self) -> bool:
        """Tests the condition as `try_complete` does, without an answer. Returns whether the request must wait."""
        self._settle()
        return bool(self._waits)

    def on_complete(self) -> None:
        """Answers now, with REQUEST_TIMED_OUT for batches that are in the log and may still be committed."""
        self._settle()
        self._give_up()
        self.pending.complete(self._final())

    def fail(self) -> None:
        """Closes the connection."""
        self.pending.fail()

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """Returns the recovery points or high watermarks to reach."""
        return [
            (wait.partition.topic_partition, wait.end_offset)
            for wait in self._waits
            if wait.flushes or not self._flushing
        ]

    @property
    def _queue(self) -> DelayedQueue:
        return self._replicas.waiting.flushes if self._flushing else self._replicas.waiting.commits

    def _forget(self) -> None:
        self._queue.remove(self)

    def _final(self) -> ProduceResponse:
        if self.on_misdirected is not None:
            rows = (row for topic in self._response.responses for row in topic.partition_responses)
            if any(row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER for row in rows):
                self.on_misdirected(self._response)
        return self._response

    def _settle(self) -> None:
        self._waits = [wait for wait in self._waits if not self._is_settled(wait)]
        self._flushing = any(wait.flushes for wait in self._waits)

    def _is_settled(self, wait: ProduceWait) -> bool:
        partition = wait.partition
        found = self._replicas.find(*partition.topic_partition)
        if wait.flushes and not _waits_for_disk(wait):
            wait.flushes = False
            if not wait.commits and (self._replicas.is_fenced is None or not self._replicas.is_fenced()):
                return True
        if found is not partition or (
            wait.commits and not (partition.is_leader and partition.led_since == wait.led_since)
        ):
            _fail(wait.answer, found if isinstance(found, ErrorCode) else ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return True
        if wait.commits and partition.log.high_watermark >= wait.end_offset:
            wait.commits = False
            if not partition.may_have_enough_in_sync:
                _fail(wait.answer, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
                return True
        return not (wait.flushes or wait.commits)

    def _give_up(self) -> None:
        for wait in self._waits:
            _fail(wait.answer, ErrorCode.REQUEST_TIMED_OUT)
        self._waits = []


def _waits_for_disk(wait: ProduceWait) -> bool:
    """Returns whether the batch waits for a flush. A batch that was truncated waits too, until its deadline."""
    log = wait.partition.log
    return log.recovery_point < wait.end_offset and (log.flush_is_due or log.log_end_offset < wait.end_offset)


def _fail(answer: PartitionProduceResponse, error: ErrorCode) -> None:
    answer.error_code = error
    answer.base_offset = UNKNOWN_OFFSET
    answer.log_append_time_ms = -1


def delayed_produce(
    parts: ProduceParts, response: ProduceResponse, waits: list[ProduceWait], timeout_ms: int, listener_name: str | None
) -> DelayedProduce:
    """Returns the operation that completes `response` when nothing is waited for any more.

    `listener_name` is the listener of the client, for the address of a new leader; None for versions without one.
    """
    delayed = DelayedProduce(parts.replicas, parts.clock, response, waits, timeout_ms)
    delayed.on_misdirected = None if listener_name is None else partial(parts.leaders.tell, listener_name)
    return delayed
