"""Waiting within this process until what was appended is committed: coordinators, whose records are their state, and markers.

Where a flush is due (`flush.messages`), which Kafka carries out in the append itself, it is waited for as well, after the high watermark:
that doesn't wait for the leader's own disk.
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
    """The exclusive end of what is committed, and flushed where that is due."""
    return min(log.high_watermark, log.recovery_point) if log.flush_is_due else log.high_watermark


class CommittingReplicas(Protocol):
    """The partitions of this broker, and who waits for them."""

    waiting: Waiting

    def find(self, topic: str, partition: int) -> Partition | ErrorCode:
        """The partition, or why it isn't here."""
        ...

    def flush(self, partition: Partition) -> None:
        """Have what was appended synced."""
        ...


class CommitWait(DelayedOperation):
    """Waits for the high watermark of one partition, and its flush if that is due, within the leadership that created it."""

    __slots__ = ("_callback", "_deadline_ms", "_led_since", "_offset", "_partition", "_queue", "_replicas")

    def __init__(
        self,
        replicas: CommittingReplicas,
        partition: Partition,
        offset: Offset,
        callback: Callable[[ErrorCode], None],
        deadline_ms: int,
    ) -> None:
        """`offset` is an exclusive end."""
        super().__init__()
        self._replicas = replicas
        self._partition = partition
        self._led_since = partition.led_since
        self._offset = offset
        self._callback = callback
        self._deadline_ms = deadline_ms
        self._queue: DelayedQueue | None = None
        """Where it waits."""

    @property
    def deadline_ms(self) -> int:
        """On the monotonic clock."""
        return self._deadline_ms

    def start(self) -> None:
        """Call back now, or wait."""
        if self._partition.log.flush_is_due:
            self._replicas.flush(self._partition)
        self.try_complete()

    def try_complete(self) -> bool:
        """Call back if it is committed, or can no longer be by this leadership; or wait on, first for the others, then for the disk."""
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
        """Call back, with REQUEST_TIMED_OUT where it isn't committed."""
        error = self._error()
        self._callback(ErrorCode.REQUEST_TIMED_OUT if error is None else error)

    def fail(self) -> None:
        """A bug came in between, in the callback itself; it isn't called again."""

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """The high watermark, or the recovery point, to reach."""
        return ((self._partition.topic_partition, self._offset),)

    def _error(self) -> ErrorCode | None:
        """NONE when committed, None while it isn't."""
        partition = self._partition
        found = self._replicas.find(*partition.topic_partition)
        if isinstance(found, ErrorCode):
            return found
        if found is not partition or not partition.is_leader or partition.led_since != self._led_since:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE if committed_end(partition.log) >= self._offset else None
