"""Waits within the broker until appended records are committed: those of coordinators, and transaction markers.

The high watermark does not wait for the leader's own disk. So if a flush is due (`flush.messages`), which Kafka runs in
the append itself, the wait continues until that is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from lowtide.broker.pending import DelayedQueue
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import Offset, TopicPartition
from lowtide.replication.purgatory import DelayedOperation

if TYPE_CHECKING:
    from lowtide.broker.partitions.waiting import Waiting
    from lowtide.replication.partition import Partition
    from lowtide.storage.log.log import Log


def committed_end(log: Log) -> Offset:
    """Returns the exclusive end of the committed records, of those that are flushed if a flush is due."""
    return min(log.high_watermark, log.recovery_point) if log.flush_is_due else log.high_watermark


class CommittingReplicas(Protocol):
    """The part of `ReplicaManager` that a wait needs."""

    waiting: Waiting

    def find(self, topic: str, partition: int) -> Partition | ErrorCode: ...
    def flush(self, partition: Partition) -> None: ...


class CommitWait(DelayedOperation):
    """Waits for the high watermark of a partition, and a due flush, within the leadership that appended."""

    __slots__ = ("_callback", "_led_since", "_offset", "_partition", "_queue", "_replicas")

    def __init__(
        self,
        replicas: CommittingReplicas,
        partition: Partition,
        offset: Offset,
        callback: Callable[[ErrorCode], None],
        deadline_ms: int,
    ) -> None:
        """`offset` is an exclusive end."""
        super().__init__(deadline_ms)
        self._replicas = replicas
        self._partition = partition
        self._led_since = partition.led_since
        self._offset = offset
        self._callback = callback
        self._queue: DelayedQueue | None = None
        """Where it waits."""

    def start(self) -> None:
        """Calls the callback now, or waits."""
        if self._partition.log.flush_is_due:
            self._replicas.flush(self._partition)
        self.try_complete()

    def try_complete(self) -> bool:
        """Calls the callback if the records are committed or can no longer be; else waits for followers or the disk."""
        error = self._error()
        if error is None:
            is_committed = self._partition.log.high_watermark >= self._offset
            queue = self._replicas.waiting.flushes if is_committed else self._replicas.waiting.commits
            if queue is self._queue:
                return False
            self._queue = queue
            if queue.watch(self):
                return True
            error = ErrorCode.REQUEST_TIMED_OUT
        self._callback(error)
        return True

    def on_complete(self) -> None:
        """Calls the callback, with REQUEST_TIMED_OUT if the records are not committed."""
        error = self._error()
        self._callback(ErrorCode.REQUEST_TIMED_OUT if error is None else error)

    def fail(self) -> None:
        """Does nothing: the callback itself has raised."""

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """Returns the high watermark, or the recovery point, to reach."""
        return ((self._partition.topic_partition, self._offset),)

    def _error(self) -> ErrorCode | None:
        """Returns NONE if the records are committed, None if they may still be, or why they no longer can be."""
        partition = self._partition
        found = self._replicas.find(*partition.topic_partition)
        if isinstance(found, ErrorCode):
            return found
        if found is not partition or not partition.is_leader or partition.led_since != self._led_since:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE if committed_end(partition.log) >= self._offset else None
