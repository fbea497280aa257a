"""Produce that waits for the disk: a topic with `flush.messages` acknowledges when what was appended is flushed.

A flush that was due with the append (Kafka syncs in the append itself) is waited for here, without holding the loop; a failed one takes
the directory offline, which answers KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lowtide.broker.delayed.queue import DelayedRequest
from lowtide.broker.pending import Pending
from lowtide.broker.replica_manager import ReplicaManager
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset, TopicPartition
from lowtide.replication.partition import Partition


class FlushWait(msgspec.Struct):
    """One appended batch: `end_offset` (exclusive) must be flushed before `answer` may be told."""

    partition: Partition
    end_offset: Offset
    answer: PartitionProduceResponse


class DelayedProduce(DelayedRequest):
    """See the module."""

    __slots__ = ("_deadline_ms", "_replicas", "_response", "_waits", "pending")

    def __init__(self, replicas: ReplicaManager, response: ProduceResponse, waits: list[FlushWait], deadline_ms: int) -> None:
        super().__init__()
        self._replicas = replicas
        self._response = response
        self._waits = waits
        self._deadline_ms = deadline_ms
        self.pending: Pending[ProduceResponse] = Pending()
        self.pending.on_abandoned = lambda: replicas.flushes.remove(self)

    @property
    def deadline_ms(self) -> int:
        """On the monotonic clock."""
        return self._deadline_ms

    def start(self) -> ProduceResponse | Pending[ProduceResponse]:
        """The answer if nothing has to be waited for, else a promise of it."""
        self._settle()
        if self._waits and self._replicas.flushes.watch(self):
            return self.pending
        self._give_up()
        return self._response

    def try_complete(self) -> bool:
        """Answer when all is flushed, or cannot be."""
        self._settle()
        if self._waits:
            return False
        self.pending.complete(self._response)
        return True

    def complete_late(self) -> None:
        """The time is up: what is not flushed is REQUEST_TIMED_OUT; it is in the log, and may yet be flushed."""
        self._settle()
        self._give_up()
        self.pending.complete(self._response)

    def fail(self) -> None:
        """Close the connection."""
        self.pending.fail()

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """The recovery points to reach."""
        return [(wait.partition.topic_partition, wait.end_offset) for wait in self._waits]

    def _settle(self) -> None:
        self._waits = [wait for wait in self._waits if not self._is_settled(wait)]

    def _is_settled(self, wait: FlushWait) -> bool:
        is_fenced = self._replicas.is_fenced
        if wait.partition.log.recovery_point >= wait.end_offset and (is_fenced is None or not is_fenced()):
            return True
        found = self._replicas.find(*wait.partition.topic_partition)
        if found is wait.partition:
            return False
        _fail(wait.answer, found if isinstance(found, ErrorCode) else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return True

    def _give_up(self) -> None:
        for wait in self._waits:
            _fail(wait.answer, ErrorCode.REQUEST_TIMED_OUT)
        self._waits = []


def _fail(answer: PartitionProduceResponse, error: ErrorCode) -> None:
    answer.error_code = error
    answer.base_offset = UNKNOWN_OFFSET
    answer.log_append_time_ms = -1
