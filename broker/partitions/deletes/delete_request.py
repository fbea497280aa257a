"""What is kept of deletes of records: of those that wait and of the last ones that were answered.

A request notes a few integers and the names that it came with; rows for people are built by `described_deletes`. What
ended is kept for
`ROWS_KEPT` partitions, so a request of thousands of partitions leaves at most itself. Refusals whose topic is not known, or not allowed,
are not kept: their names come from the client alone.

Times are kept on the monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from lowtide.broker.security.principal import KafkaPrincipal
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_deletes import NOT_YET
from lowtide.protocol.types import UNKNOWN_OFFSET, LeaderEpoch, Offset, TopicPartition
from lowtide.replication.partition import Partition

ROWS_KEPT: Final = 1_000
"""Partitions of requests that ended; some 300 kilobytes."""

CLIENT_ID_KEPT: Final = 255
"""Characters of a client id, which may have 32,767."""

_TOLD_REFUSALS: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Refusals of partitions that there are."""


class DeleteRow(msgspec.Struct, kw_only=True):
    """One partition of a request: what was accepted under which leadership, or why it was refused.

    The offsets are what a row that is done tells. `durable_ms` is when the leader's disk had it, `replicated_ms` when
    all that must have it had it; on the monotonic clock.
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


class DeleteRequest(msgspec.Struct, kw_only=True):
    """One request: its rows, who sent it and when (monotonic clock)."""

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
    """By the wall clock."""
    last_number: int = 0
    """The number of its last row among those that ended."""


class DeleteTimes(msgspec.Struct):
    """How long rows took, since the start: at `n` those below 2^n ms, and not below 2^(n - 1)."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * 64)
    total_ms: int = 0


class RecentDeletes:
    """The requests that ended last, of at most `ROWS_KEPT` partitions together, or one request of more."""

    __slots__ = ("_requests", "_rows", "durable", "last_number", "replicated")

    def __init__(self) -> None:
        self._requests: deque[DeleteRequest] = deque()
        self._rows = 0
        self.durable, self.replicated = DeleteTimes(), DeleteTimes()
        """From the request until the leader's disk had a row, and until all that must have it had it."""
        self.last_number = 0
        """Of the newest row; rows are counted from 1."""

    def __iter__(self) -> Iterator[DeleteRequest]:
        """The last one first."""
        return reversed(self._requests)

    def note(self, request: DeleteRequest, now_ms: int, wall_ms: int, unfinished: ErrorCode) -> None:
        """A request has ended now. Rows that are not done ended with `unfinished`."""
        rows = [row for row in request.rows if row.offset != UNKNOWN_OFFSET or row.error_code in _TOLD_REFUSALS]
        if not rows:
            return
        for row in rows:
            for times, at_ms in ((self.durable, row.durable_ms), (self.replicated, row.replicated_ms)):
                if at_ms != NOT_YET:
                    times.counts[(at_ms - request.asked_ms).bit_length()] += 1
                    times.total_ms += at_ms - request.asked_ms
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
