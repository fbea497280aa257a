"""DeleteRecords that waits: first for the leader's own disk, then for every replica that must have the delete.

Each partition waits until its low watermark has reached the offset; for a leader-only delete (KIP-1343) until the leader's log start
offset has. When that holds, or the time is up, everything is checked again: the answer is success only under the leader epoch and
the topic id under which the delete was accepted, and at the deadline too if the condition holds.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lowtide.broker.delayed.queue import DelayedRequest
from lowtide.broker.pending import Pending
from lowtide.broker.replica_manager import ReplicaManager
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import DeleteRecordsPartitionResult, DeleteRecordsResponse, DeleteRecordsTopicResult
from lowtide.protocol.types import UNKNOWN_OFFSET, LeaderEpoch, Offset, TopicPartition
from lowtide.replication.partition import Partition


class DeleteRow(msgspec.Struct, kw_only=True):
    """One partition of a request: what was accepted under which leadership, or why it was refused."""

    key: TopicPartition
    error_code: int = ErrorCode.NONE
    partition: Partition | None = None
    leader_epoch: LeaderEpoch = -1
    offset: Offset = UNKNOWN_OFFSET
    done: bool = False


class DelayedDeleteRecords(DelayedRequest):
    """See the module."""

    __slots__ = ("_deadline_ms", "_leader_only", "_pending", "_replicas", "_rows")

    def __init__(self, replicas: ReplicaManager, rows: list[DeleteRow], *, leader_only: bool, deadline_ms: int) -> None:
        super().__init__()
        self._replicas = replicas
        self._rows = rows
        self._leader_only = leader_only
        self._deadline_ms = deadline_ms
        self._pending: Pending[DeleteRecordsResponse] = Pending()

    @property
    def deadline_ms(self) -> int:
        """On the monotonic clock."""
        return self._deadline_ms

    def start(self) -> DeleteRecordsResponse | Pending[DeleteRecordsResponse]:
        """The answer if nothing has to be waited for, else a promise of it."""
        if self._test():
            return self._response()
        self._pending.on_abandoned = lambda: self._replicas.deletes.remove(self)
        if not self._replicas.deletes.watch(self):
            return self._response()
        return self._pending

    def try_complete(self) -> bool:
        """Answer when no partition has to wait any more."""
        if not self._test():
            return False
        self._pending.complete(self._response())
        return True

    def complete_late(self) -> None:
        """The time is up: what holds now is told, the rest is REQUEST_TIMED_OUT."""
        self._test()
        self._pending.complete(self._response())

    def fail(self) -> None:
        """Close the connection."""
        self._pending.fail()

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """What each waiting partition has to reach."""
        return [(row.key, row.offset) for row in self._rows if not row.done]

    def _test(self) -> bool:
        """Settle the rows that can be settled. Returns whether all are."""
        waiting = False
        for row in self._rows:
            if not row.done:
                self._settle(row)
                waiting = waiting or not row.done
        return not waiting

    def _settle(self, row: DeleteRow) -> None:
        current = self._replicas.find(*row.key)
        if isinstance(current, ErrorCode):
            row.error_code, row.done = current, True
        elif current is not row.partition or not current.is_leader or current.leader_epoch != row.leader_epoch:
            row.error_code, row.done = ErrorCode.NOT_LEADER_OR_FOLLOWER, True
        else:
            reached = current.log.log_start_offset if self._leader_only else current.low_watermark
            row.done = reached >= row.offset

    def _response(self) -> DeleteRecordsResponse:
        topics: dict[str, DeleteRecordsTopicResult] = {}
        for row in self._rows:
            topic = topics.get(row.key.topic)
            if topic is None:
                topic = topics[row.key.topic] = DeleteRecordsTopicResult(name=row.key.topic, partitions=[])
            topic.partitions.append(_result(row))
        return DeleteRecordsResponse(throttle_time_ms=0, topics=list(topics.values()))


def _result(row: DeleteRow) -> DeleteRecordsPartitionResult:
    error_code = row.error_code if row.done else ErrorCode.REQUEST_TIMED_OUT
    if error_code not in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT) or row.partition is None:
        return DeleteRecordsPartitionResult(
            partition_index=row.key.partition, low_watermark=UNKNOWN_OFFSET, leader_log_start_offset=UNKNOWN_OFFSET, error_code=error_code
        )
    return DeleteRecordsPartitionResult(
        partition_index=row.key.partition,
        low_watermark=row.partition.low_watermark,
        leader_log_start_offset=row.partition.log.log_start_offset,
        error_code=error_code,
    )
