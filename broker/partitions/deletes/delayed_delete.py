"""A DeleteRecords request that waits, first for its own disk, then for its followers.

A request waits twice, one after the other, for the time of each is counted differently: Kafka's time-out begins when
the leader's disk is done. The first wait ends when every row's own log start is durable, and is all that a leader-only
delete waits for. In the second each partition waits until its low watermark has reached the offset (rules DR3 and DR4).
A row is a success only under the leader epoch and the topic id under which it was accepted (rule DR6), and only if the
condition holds, at the deadline too. It has the offsets of that moment; the others have those of the moment of the
answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.broker.partitions.deletes.delete_request import DeleteRow
from lowtide.broker.pending import DelayedRequest, Pending, commit_deadline_ms
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from lowtide.replication.topic_names import INTERNAL_TOPICS
from lowtide.storage.directory.log_starts import LogStartIncrement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowtide.broker.partitions.deletes.delete_request import DeleteRequest, RecentDeletes
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.protocol.types import Offset, TopicPartition
    from lowtide.runtime.clock import Clock


def checked_row(replicas: ReplicaManager, key: TopicPartition, offset: Offset) -> DeleteRow:
    """Returns the row of a delete that may be carried out, with the offset that is meant, or else with its error."""
    partition = replicas.find(*key)
    if isinstance(partition, ErrorCode):
        return DeleteRow(key=key, error_code=partition, done=True)
    target = ErrorCode.INVALID_TOPIC_EXCEPTION if key.topic in INTERNAL_TOPICS else partition.check_delete(offset)
    if isinstance(target, ErrorCode):
        return DeleteRow(key=key, error_code=target, done=True)
    return DeleteRow(
        key=key,
        partition=partition,
        leader_epoch=partition.leader_epoch,
        offset=target,
        old_log_start_offset=partition.log.log_start_offset,
    )


class DelayedDeleteRecords(DelayedRequest):
    """A DeleteRecords request that waits, first for its own disk, then for its followers."""

    __slots__ = (
        "_clock",
        "_commit_deadline_ms",
        "_leader_only",
        "_pending",
        "_queue",
        "_recent",
        "_replicas",
        "_rows",
        "asked",
    )

    def __init__(self, replicas: ReplicaManager, clock: Clock, asked: DeleteRequest, recent: RecentDeletes) -> None:
        """The time-out of the request, not negative, begins now; `recent` is where it is noted when it has ended."""
        super().__init__()
        self._replicas = replicas
        self._clock = clock
        self._recent = recent
        self.asked = asked
        self._rows = asked.rows
        self._leader_only = asked.leader_only
        self._commit_deadline_ms = asked.deadline_ms = commit_deadline_ms(clock, asked.timeout_ms)
        self._queue = replicas.waiting.log_starts
        """Where it waits: first for the leader's own disk, then for the followers."""
        self._pending: Pending[DeleteRecordsResponse] = Pending()

    @property
    def deadline_ms(self) -> int:
        """On the monotonic clock."""
        return self.asked.deadline_ms

    def start(self) -> DeleteRecordsResponse | Pending[DeleteRecordsResponse]:
        """Asks the journals for the rows that were accepted. Returns the answer if nothing has to be waited for, else a promise of it."""
        increments = [
            LogStartIncrement(row.partition.log, row.offset)
            for row in self._rows
            if row.partition is not None and row.offset > row.partition.log.log_start_pending
        ]
        if increments:
            self._replicas.request_log_starts(increments)
        if self._settle_rows() or not self._watch():
            return self._end()
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
        self._pending.complete(self._end())
        return True

    def on_complete(self) -> None:
        """Answer with what holds now; the rest is REQUEST_TIMED_OUT."""
        self._settle_rows()
        self._pending.complete(self._end())

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
        if self._queue is self._replicas.waiting.deletes:
            self._replicas.led.await_slow_ones(row.key for row in self._rows if not row.done)

    def _forget(self) -> None:
        self._queue.remove(self)  # The other one knows nothing of it, and would fail.
        self._note(ErrorCode.NETWORK_EXCEPTION)

    def _settle_rows(self) -> bool:
        """Settle the rows that can be settled; go over to the second wait when the others are durable.

        Returns whether all are settled.
        """
        waiting, durable, now_ms = False, True, self._clock.monotonic_ms()
        for row in self._rows:
            if not row.done:
                self._settle(row)
                is_durable = row.partition is not None and row.partition.log.log_start_offset >= row.offset
                if is_durable and row.durable_ms < 0:
                    row.durable_ms = now_ms
                if row.low_watermark >= row.offset:
                    row.replicated_ms = now_ms
                if not row.done:
                    waiting = True
                    durable = durable and is_durable
        if waiting and durable and not self._leader_only and self._queue is self._replicas.waiting.log_starts:
            self._queue = self._replicas.waiting.deletes
            self.asked.deadline_ms = min(self._commit_deadline_ms, now_ms + self.asked.timeout_ms)
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

    def _end(self) -> DeleteRecordsResponse:
        response = self._response()
        self._note(ErrorCode.REQUEST_TIMED_OUT)
        return response

    def _note(self, unfinished: ErrorCode) -> None:
        self._recent.note(self.asked, self._clock.monotonic_ms(), self._clock.wall_ms(), unfinished)

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
            low_watermark, log_start_offset = (
                self._replicas.low_watermark(row.partition),
                row.partition.log.log_start_offset,
            )
        return DeleteRecordsPartitionResult(
            partition_index=row.key.partition,
            low_watermark=low_watermark,
            leader_log_start_offset=log_start_offset,
            error_code=row.error_code if row.done else ErrorCode.REQUEST_TIMED_OUT,
        )
