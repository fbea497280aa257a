"""DeleteRecords: what a delete is, how a request is carried out, and the requests that ended last.

A request waits twice, because the two times count differently: Kafka's timeout begins when the leader's disk is done.

1. Until every row's log start is durable in this broker's journal. A leader-only delete waits for nothing else.
2. Until the low watermark of each partition has reached the offset (rules DR3 and DR4).

A row succeeds only under the leader epoch and the topic id under which it was accepted (rule DR6), and only if its
condition holds, at the deadline too. It is answered with the offsets of that moment, the other rows with those of the
moment of the response.

Requests that ended are kept for at most `ROWS_KEPT` partitions, so a request of thousands of partitions leaves at most
itself. A refusal because the topic is unknown or not allowed is not kept: its name comes from the client alone.
`described_deletes` builds the rows for people. Times are of the monotonic clock.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.broker.pending import Pending, commit_deadline_ms
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from lowtide.protocol.messages.describe_deletes import NOT_YET
from lowtide.protocol.types import UNKNOWN_OFFSET, LeaderEpoch, Offset, TopicPartition
from lowtide.replication.purgatory import DelayedOperation
from lowtide.replication.topic_names import INTERNAL_TOPICS
from lowtide.storage.directory.log_starts import LogStartIncrement

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.broker.request_context import RequestContext
    from lowtide.broker.security.principal import KafkaPrincipal
    from lowtide.protocol.messages.delete_records import DeleteRecordsRequest
    from lowtide.replication.partition import Partition
    from lowtide.runtime.clock import Clock

ROWS_KEPT: Final = 1_000
"""The limit of partitions of ended requests, about 300 kB."""

CLIENT_ID_KEPT: Final = 255
"""The characters that are kept of a client id, which may have 32,767."""

_TOLD_REFUSALS: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Refusals of existing partitions."""


class DeleteRow(msgspec.Struct, kw_only=True, gc=False):
    """One partition of a request: the accepted offset and leader epoch, or the error.

    The other offsets are those of the response, once the row is `done`. `durable_ms` is when the leader's disk had the
    log start, `replicated_ms` when all replicas that must have it had it.
    """

    key: TopicPartition
    error_code: int = ErrorCode.NONE
    partition: Partition | None = None
    leader_epoch: LeaderEpoch = -1
    offset: Offset = UNKNOWN_OFFSET
    done: bool = False
    low_watermark: Offset = UNKNOWN_OFFSET
    log_start_offset: Offset = UNKNOWN_OFFSET
    old_log_start_offset: Offset = UNKNOWN_OFFSET
    durable_ms: int = NOT_YET
    replicated_ms: int = NOT_YET

    @property
    def is_durable(self) -> bool:
        return self.partition is not None and self.partition.log.log_start_offset >= self.offset


class DeleteRequest(msgspec.Struct, kw_only=True):
    """One request: its rows, its client and its times."""

    rows: list[DeleteRow]
    leader_only: bool
    timeout_ms: int
    asked_ms: int
    principal: KafkaPrincipal
    client_address: str
    client_id: str | None
    deadline_ms: int = 0
    answered_ms: int = NOT_YET
    answered_at_ms: int = NOT_YET
    """The same on the wall clock."""
    last_number: int = 0
    """The number of its last row among all ended rows."""


class DeleteTimes(msgspec.Struct):
    """A histogram of durations since the start: place `n` counts those from 2^(n - 1) to below 2^n ms."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * 64)
    total_ms: int = 0

    def add(self, rows: Mapping[int, int], asked_ms: int) -> None:
        """Counts rows of a request, given by when they were done."""
        for at_ms, count in rows.items():
            if at_ms != NOT_YET:
                self.counts[(at_ms - asked_ms).bit_length()] += count
                self.total_ms += count * (at_ms - asked_ms)


class RecentDeletes:
    """The requests that ended last, with at most `ROWS_KEPT` rows together, or one request with more."""

    __slots__ = ("_requests", "_rows", "durable", "last_number", "replicated")

    def __init__(self) -> None:
        self._requests: deque[DeleteRequest] = deque()
        self._rows = 0
        self.durable, self.replicated = DeleteTimes(), DeleteTimes()
        """The times from the request until the leader's disk had a row, and until all replicas had it."""
        self.last_number = 0
        """The number of the newest row, from 1."""

    def __iter__(self) -> Iterator[DeleteRequest]:
        """Yields the requests, the last one first."""
        return reversed(self._requests)

    def note(self, request: DeleteRequest, now_ms: int, wall_ms: int, unfinished: ErrorCode) -> None:
        """Notes a request that ends now. Rows that are not done end with `unfinished`."""
        rows = [row for row in request.rows if row.offset != UNKNOWN_OFFSET or row.error_code in _TOLD_REFUSALS]
        if not rows:
            return
        self.durable.add(Counter([row.durable_ms for row in rows]), request.asked_ms)
        self.replicated.add(Counter([row.replicated_ms for row in rows]), request.asked_ms)
        for row in rows:
            if not row.done:
                row.error_code, row.done = unfinished, True
                if row.partition is not None:
                    row.log_start_offset = row.partition.log.log_start_offset
            row.partition = None  # It may leave this broker.
        if request.client_id is not None:
            request.client_id = request.client_id[:CLIENT_ID_KEPT]
        request.rows, request.answered_ms, request.answered_at_ms = rows, now_ms, wall_ms
        self.last_number += len(rows)
        request.last_number = self.last_number
        self._requests.append(request)
        self._rows += len(rows)
        while self._rows > ROWS_KEPT and len(self._requests) > 1:
            self._rows -= len(self._requests.popleft().rows)


class DeleteRecordsHandler(msgspec.Struct, frozen=True):
    """Handles DeleteRecords requests. One for each broker."""

    replicas: ReplicaManager
    clock: Clock
    recent: RecentDeletes
    allowed: Callable[[RequestContext, set[str]], Container[str]] | None
    """Returns the topics of which a client may delete records; None if all may delete everything."""

    def handle(
        self, request: DeleteRecordsRequest, context: RequestContext
    ) -> DeleteRecordsResponse | Pending[DeleteRecordsResponse]:
        """Returns the response, or a promise of it. If a partition is listed twice, the last entry wins."""
        offsets = {
            TopicPartition(topic.name, row.partition_index): row.offset
            for topic in request.topics
            for row in topic.partitions
        }
        allowed = None if self.allowed is None else self.allowed(context, {key.topic for key in offsets})
        client = context.connection
        asked = DeleteRequest(
            rows=[
                checked_row(self.replicas, key, offset, self.clock)
                if allowed is None or key.topic in allowed
                else DeleteRow(key=key, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, done=True)
                for key, offset in offsets.items()
            ],
            leader_only=request.leader_only,
            timeout_ms=max(request.timeout_ms, 0),
            asked_ms=self.clock.monotonic_ms(),
            principal=client.principal,
            client_address=client.client_address,
            client_id=context.client_id,
        )
        return DelayedDeleteRecords(self.replicas, self.clock, asked, self.recent).start()


def checked_row(replicas: ReplicaManager, key: TopicPartition, offset: Offset, clock: Clock) -> DeleteRow:
    """Returns the row of an accepted delete with its absolute offset, or of a refused one with its error."""
    partition = replicas.find(*key)
    if isinstance(partition, ErrorCode):
        return DeleteRow(key=key, error_code=partition, done=True)
    target = ErrorCode.INVALID_TOPIC_EXCEPTION if key.topic in INTERNAL_TOPICS else partition.check_delete(offset)
    config = partition.log.config
    if config.lowtide_hold_until > 0 and config.is_held(clock.wall_ms()) and not isinstance(target, ErrorCode):
        target = ErrorCode.POLICY_VIOLATION
    if isinstance(target, ErrorCode):
        return DeleteRow(key=key, error_code=target, done=True)
    return DeleteRow(
        key=key,
        partition=partition,
        leader_epoch=partition.leader_epoch,
        offset=target,
        old_log_start_offset=partition.log.log_start_offset,
    )


class DelayedDeleteRecords(DelayedOperation):
    """A DeleteRecords request that waits, first for its own disk, then for its followers."""

    __slots__ = ("_clock", "_commit_deadline_ms", "_pending", "_queue", "_recent", "_replicas", "_rows", "asked")

    def __init__(self, replicas: ReplicaManager, clock: Clock, asked: DeleteRequest, recent: RecentDeletes) -> None:
        """The timeout of the request begins now. `recent` notes the request when it ends."""
        self._replicas = replicas
        self._clock = clock
        self._recent = recent
        self.asked = asked
        self._rows = asked.rows
        self._commit_deadline_ms = asked.deadline_ms = commit_deadline_ms(clock, asked.timeout_ms)
        super().__init__(self._commit_deadline_ms)
        self._queue = replicas.waiting.log_starts
        """The queue in which it waits: for the leader's own disk, then for the followers."""
        self._pending: Pending[DeleteRecordsResponse] = Pending()

    def start(self) -> DeleteRecordsResponse | Pending[DeleteRecordsResponse]:
        """Journals the accepted rows. Returns the response, or a promise of it if it must wait."""
        increments = [
            LogStartIncrement(row.partition.log, row.offset)
            for row in self._rows
            if row.partition is not None and row.offset > row.partition.log.log_start_pending
        ]
        if increments:
            self._replicas.request_log_starts(increments)
        # Rows that were just sent to the journal are not durable yet, so they can only be settled if the write failed.
        may_settle = not increments or any(log.offline for log, _ in increments)
        if (may_settle and self._settle_rows()) or not self._watch():
            return self._end()
        self._pending.on_abandoned = self._forget
        return self._pending

    def try_complete(self) -> bool:
        """Answers if no partition must wait any more, or moves on from the first wait to the second."""
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
        """Answers now, with REQUEST_TIMED_OUT for rows that still wait."""
        self._settle_rows()
        self._pending.complete(self._end())

    def fail(self) -> None:
        """Closes the connection."""
        self._pending.fail()

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """Returns the offset that each waiting partition must reach. One write makes all durable, so one will do."""
        if self._queue is self._replicas.waiting.log_starts:
            some = [*islice(((row.key, row.offset) for row in self._rows if not (row.done or row.is_durable)), 1)]
            if some:
                return some
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
        self._queue.remove(self)  # The other queue does not have it, and would fail.
        self._note(ErrorCode.NETWORK_EXCEPTION)

    def _settle_rows(self) -> bool:
        """Settles the rows that can be settled. Moves on to the second wait when all others are durable.

        Returns whether all are settled.
        """
        waiting, durable, now_ms = False, True, self._clock.monotonic_ms()
        # Nothing happens between two rows: if the broker may act for one, it may for all.
        may_act = bool(self._rows) and not isinstance(self._replicas.find(*self._rows[0].key), ErrorCode)
        for row in self._rows:
            if not row.done:
                self._settle(row, now_ms, may_act=may_act)
                if not row.done:
                    waiting = True
                    durable = durable and row.is_durable
        if waiting and durable and not self.asked.leader_only and self._queue is self._replicas.waiting.log_starts:
            self._queue = self._replicas.waiting.deletes
            self.deadline_ms = self.asked.deadline_ms = min(self._commit_deadline_ms, now_ms + self.asked.timeout_ms)
        return not waiting

    def _settle(self, row: DeleteRow, now_ms: int, *, may_act: bool) -> None:
        replicas, key = self._replicas, row.key
        current = replicas.partitions.get(key) if may_act else None
        if row.durable_ms < 0 and row.is_durable:
            row.durable_ms = now_ms
        if current is None or current.log.offline:
            found = replicas.find(*key)
            if isinstance(found, ErrorCode):
                row.error_code, row.done = found, True
                return
            current = found
        if current is not row.partition or not current.is_leader or current.leader_epoch != row.leader_epoch:
            row.error_code, row.done = ErrorCode.NOT_LEADER_OR_FOLLOWER, True
            return
        own = current.log.log_start_offset
        if own < row.offset:
            return
        low_watermark = replicas.low_watermark(current)
        if self.asked.leader_only or (low_watermark >= row.offset and replicas.reports_log_starts):
            row.done, row.low_watermark, row.log_start_offset = True, low_watermark, own
            if low_watermark >= row.offset:
                row.replicated_ms = now_ms
            if not self.asked.leader_only and current.leadership is not None:
                current.leadership.note_acknowledged(row.offset)

    def _end(self) -> DeleteRecordsResponse:
        response = self._response()
        self._note(ErrorCode.REQUEST_TIMED_OUT)
        return response

    def _note(self, unfinished: ErrorCode) -> None:
        self._recent.note(self.asked, self._clock.monotonic_ms(), self._clock.wall_ns() // 1_000_000, unfinished)

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
            low_watermark = self._replicas.low_watermark(row.partition)
            log_start_offset = row.partition.log.log_start_offset
        return DeleteRecordsPartitionResult(
            partition_index=row.key.partition,
            low_watermark=low_watermark,
            leader_log_start_offset=log_start_offset,
            error_code=row.error_code if row.done else ErrorCode.REQUEST_TIMED_OUT,
        )
