"""DescribeDeletes (key 32004): waiting and recent deletes of records on a broker. Lowtide's own.

The leader of the partition answers, because it has the request. No request of Kafka's shows a waiting delete, or the
followers that it waits for; docs/adr/0008-requests-of-our-own.md.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Int64, Message, String, versions

NOT_YET: Final = -1
"""The event has not occurred."""


@versions("0", flexible="0+")
class DescribeDeletesRequest(ApiMessage, kw_only=True):
    """The maximum number of rows of each kind, and the last finished delete that is known; 0 for all."""

    waiting_max: Int32 = 1_000
    finished_max: Int32 = 1_000
    after_number: Int64 = 0
    """Only finished deletes with a larger number: `last_number` of the previous response."""


class AwaitedFollower(Message, kw_only=True):
    """A live follower that has not reported the delete.

    `log_start_offset` is its last report, -1 if none.
    """

    broker_id: Int32
    log_start_offset: Int64
    is_in_sync: Bool
    """Whether it is in the ISR. Other followers are awaited only while they are live."""
    silent_ms: Int64
    """The time since its last fetch."""


class DeleteOrigin(Message, kw_only=True):
    """The sender of a delete; null for other principals' deletes if the client lacks DESCRIBE on the cluster."""

    principal: String
    client_address: String
    client_id: String | None = None


class WaitingDelete(Message, kw_only=True):
    """A waiting delete of a partition. Times are wall-clock milliseconds, `offset` is exclusive."""

    topic: String
    partition_index: Int32
    offset: Int64
    log_start_offset: Int64
    """The leader's current value: below `offset` until the delete is durable."""
    low_watermark: Int64
    leader_only: Bool
    asked_at_ms: Int64
    durable_at_ms: Int64 = NOT_YET
    ends_at_ms: Int64 = NOT_YET
    """The time of its timeout."""
    followers: list[AwaitedFollower] = msgspec.field(default_factory=list)
    origin: DeleteOrigin | None = None


class FinishedDelete(Message, kw_only=True):
    """A completed delete of a partition. Times are wall-clock milliseconds, -1 if the event did not occur."""

    number: Int64
    """Increases from 1 in the order of completion since the broker's start, with gaps."""
    topic: String
    partition_index: Int32
    error_code: Int16
    offset: Int64
    """The resolved request; -1 for a rejected delete."""
    old_log_start_offset: Int64
    log_start_offset: Int64
    leader_only: Bool
    asked_at_ms: Int64
    durable_at_ms: Int64 = NOT_YET
    replicated_at_ms: Int64 = NOT_YET
    """When the low watermark reached `offset`."""
    answered_at_ms: Int64
    origin: DeleteOrigin | None = None


@versions("0", flexible="0+")
class DescribeDeletesResponse(ApiMessage, kw_only=True):
    """Only topics that the client can describe: waiting deletes oldest first, finished ones newest first."""

    error_code: Int16
    described_at_ms: Int64 = NOT_YET
    """The broker's clock."""
    last_number: Int64 = 0
    waiting_count: Int32 = 0
    """The number of waiting deletes that the client can describe, even if not all are returned."""
    waiting: list[WaitingDelete] = msgspec.field(default_factory=list)
    finished: list[FinishedDelete] = msgspec.field(default_factory=list)
