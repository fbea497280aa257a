"""Produce that waits: for the disk, where `flush.messages` says so, and with acks=all for the in-sync replicas.

A flush that was due with the append (Kafka syncs in the append itself) is waited for here, without holding the loop; a
failed one takes the directory offline, which answers KAFKA_STORAGE_ERROR. What must be committed waits for the high
watermark, within the leadership that appended it: another one may have taken it back. The two waits follow one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import DelayedQueue, DelayedRequest, Pending, commit_deadline_ms
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from lowtide.protocol.types import UNKNOWN_OFFSET, LeaderEpoch, Offset, TopicPartition
from lowtide.replication.partition import Partition
from lowtide.runtime.clock import Clock


class ProduceWait(msgspec.Struct):
    """One appended batch: `end_offset` (exclusive) must be flushed, or committed, or both, before `answer` may be sent."""

    partition: Partition
    led_since: LeaderEpoch
    end_offset: Offset
    answer: PartitionProduceResponse
    flushes: bool
    commits: bool


class DelayedProduce(DelayedRequest):
    """A Produce request that waits for flushes or followers."""

    __slots__ = ("_deadline_ms", "_flushing", "_replicas", "_response", "_waits", "on_misdirected", "pending")

    def __init__(
        self,
        replicas: ReplicaManager,
        clock: Clock,
        response: ProduceResponse,
        waits: list[ProduceWait],
        timeout_ms: int,
    ) -> None:
        """`timeout_ms` is the request's, which begins now."""
        super().__init__()
        self._replicas = replicas
        self._response = response
        self._waits = waits
        self._flushing = any(wait.flushes for wait in waits)
        self._deadline_ms = (
            commit_deadline_ms(clock, timeout_ms) if self._flushing else clock.monotonic_ms() + max(timeout_ms, 0)
        )
        self.on_misdirected: Callable[[ProduceResponse], None] | None = None
        """Completes an answer of which a row says NOT_LEADER_OR_FOLLOWER."""
        self.pending: Pending[ProduceResponse] = Pending()
        self.pending.on_abandoned = self._forget

    @property
    def deadline_ms(self) -> int:
        """On the monotonic clock."""
        return self._deadline_ms

    def start(self) -> ProduceResponse | Pending[ProduceResponse]:
        """The answer if nothing has to be waited for, else a promise of it."""
        self._settle()
        if self._waits and self._queue.watch(self):
            return self.pending
        self._give_up()
        return self._final()

    def try_complete(self) -> bool:
        """Answer when all is flushed and committed, or cannot be; or go over from the first wait to the second."""
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
        """Look at it as `try_complete` does, and answer nothing. Returns whether anything is waited for."""
        self._settle()
        return bool(self._waits)

    def on_complete(self) -> None:
        """Answer with what there is: what is not there is REQUEST_TIMED_OUT; it is in the log, and may yet come about."""
        self._settle()
        self._give_up()
        self.pending.complete(self._final())

    def fail(self) -> None:
        """Close the connection."""
        self.pending.fail()

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """The recovery points, or high watermarks, to reach."""
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
    """Whether its batch isn't flushed yet, and a flush is due still. One that a truncation took waits in vain."""
    log = wait.partition.log
    return log.recovery_point < wait.end_offset and (log.flush_is_due or log.log_end_offset < wait.end_offset)


def _fail(answer: PartitionProduceResponse, error: ErrorCode) -> None:
    answer.error_code = error
    answer.base_offset = UNKNOWN_OFFSET
    answer.log_append_time_ms = -1
