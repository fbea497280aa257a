"""DeleteRecords that waits: first for the leader's own disk, then for every replica that must have the delete.

Two waits, one after the other, for their time is counted differently: Kafka's time-out begins when the leader's disk is done. The first
ends when every row's own log start is durable, and is all that a leader-only delete (KIP-1343) waits for. In the second each partition
waits until its low watermark has reached the offset (rules DR3 and DR4).

A row is a success only under the leader epoch and the topic id under which it was accepted (rule DR6), and only if the condition holds, at
the deadline too. It has the offsets of that moment; the others have those of the moment of the answer.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lowtide.broker.partitions.delayed.queue import DelayedRequest, commit_deadline_ms
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import Pending
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import DeleteRecordsPartitionResult, DeleteRecordsResponse, DeleteRecordsTopicResult
from lowtide.protocol.types import UNKNOWN_OFFSET, LeaderEpoch, Offset, TopicPartition
from lowtide.replication.partition import Partition
from lowtide.runtime.clock import Clock


class DeleteRow(msgspec.Struct, kw_only=True):
    """One partition of a request: what was accepted under which leadership, or why it was refused.

    The offsets are what a row that is done tells.
    """

    key: TopicPartition
    error_code: int = ErrorCode.NONE
    partition: Partition | None = None
    leader_epoch: LeaderEpoch = -1
    offset: Offset = UNKNOWN_OFFSET
    done: bool = False
    low_watermark: Offset = UNKNOWN_OFFSET
    log_start_offset: Offset = UNKNOWN_OFFSET


class DelayedDeleteRecords(DelayedRequest):
    """A DeleteRecords request that waits, first for its own disk, then for its followers."""

    __slots__ = (
        "_clock",
        "_commit_deadline_ms",
        "_deadline_ms",
        "_leader_only",
        "_pending",
        "_queue",
        "_replicas",
        "_rows",
        "_timeout_ms",
    )

    def __init__(self, replicas: ReplicaManager, clock: Clock, rows: list[DeleteRow], *, leader_only: bool, timeout_ms: int) -> None:
        """`timeout_ms` is the request's, which begins now."""
        super().__init__()
        self._replicas = replicas
        self._clock = clock
        self._rows = rows
        self._leader_only = leader_only
        self._timeout_ms = max(timeout_ms, 0)
        self._commit_deadline_ms = self._deadline_ms = commit_deadline_ms(clock, timeout_ms)
        self._queue = replicas.log_starts
        """Where it waits: first for the leader's own disk, then for the followers."""
        self._pending: Pending[DeleteRecordsResponse] = Pending()

    @property
    def deadline_ms(self) -> int:
        """On the monotonic clock."""
        return self._deadline_ms

    def start(self) -> DeleteRecordsResponse | Pending[DeleteRecordsResponse]:
        """The answer if nothing has to be waited for, else a promise of it."""
        if self._settle_rows() or not self._watch():
            return self._response()
        self._pending.on_abandoned = self._forget
        return self._pending

    def try_complete(self) -> bool:
        """Answer when no partition has to wait any more, or go over from the first wait to the second."""
        phase = self._queue
        if not self._settle_rows():
            if self._queue is phase:
                self._await_slow_ones()
                return False
            if self._watch():
                return True
        self._pending.complete(self._response())
        return True

    def on_complete(self) -> None:
        """Answer with what holds now; the rest is REQUEST_TIMED_OUT."""
        self._settle_rows()
        self._pending.complete(self._response())

    def fail(self) -> None:
        """Close the connection."""
        self._pending.fail()

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """What each waiting partition has to reach."""
        return [(row.key, row.offset) for row in self._rows if not row.done]

    def _watch(self) -> bool:
        if not self._queue.watch(self):
            return False
        self._await_slow_ones()
        return True

    def _await_slow_ones(self) -> None:
        if self._queue is self._replicas.deletes:
            self._replicas.led.await_slow_ones(row.key for row in self._rows if not row.done)

    def _forget(self) -> None:
        self._queue.remove(self)  # The other one knows nothing of it, and would fail.

    def _settle_rows(self) -> bool:
        """Settle the rows that can be settled; go over to the second wait when the others are durable. Returns whether all are settled."""
        waiting, durable = False, True
        for row in self._rows:
            if not row.done:
                self._settle(row)
                if not row.done:
                    waiting = True
                    durable = durable and row.partition is not None and row.partition.log.log_start_offset >= row.offset
        if waiting and durable and not self._leader_only and self._queue is self._replicas.log_starts:
            self._queue = self._replicas.deletes
            self._deadline_ms = min(self._commit_deadline_ms, self._clock.monotonic_ms() + self._timeout_ms)
        return not waiting

    def _settle(self, row: DeleteRow) -> None:
        current = self._replicas.find(*row.key)
        if isinstance(current, ErrorCode):
            row.error_code, row.done = current, True
            return
        if current is not row.partition or not current.is_leader or current.leader_epoch != row.leader_epoch:
            row.error_code, row.done = ErrorCode.NOT_LEADER_OR_FOLLOWER, True
            return
        own = current.log.log_start_offset
        if own < row.offset:
            return
        low_watermark = self._replicas.low_watermark(current)
        if self._leader_only or (low_watermark >= row.offset and self._replicas.reports_log_starts):
            row.done, row.low_watermark, row.log_start_offset = True, low_watermark, own
            if not self._leader_only and current.leadership is not None:
                current.leadership.note_acknowledged(row.offset)

    def _response(self) -> DeleteRecordsResponse:
        topics: dict[str, DeleteRecordsTopicResult] = {}
        for row in self._rows:
            topic = topics.get(row.key.topic)
            if topic is None:
                topic = topics[row.key.topic] = DeleteRecordsTopicResult(name=row.key.topic, partitions=[])
            topic.partitions.append(self._result(row))
        return DeleteRecordsResponse(throttle_time_ms=0, topics=list(topics.values()))

    def _result(self, row: DeleteRow) -> DeleteRecordsPartitionResult:
        low_watermark, log_start_offset = row.low_watermark, row.log_start_offset
        if not row.done and row.partition is not None:
            low_watermark, log_start_offset = self._replicas.low_watermark(row.partition), row.partition.log.log_start_offset
        return DeleteRecordsPartitionResult(
            partition_index=row.key.partition,
            low_watermark=low_watermark,
            leader_log_start_offset=log_start_offset,
            error_code=row.error_code if row.done else ErrorCode.REQUEST_TIMED_OUT,
        )
