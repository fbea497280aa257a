"""DescribeDeletes (key 32004): the deletes of records that wait at a broker now, and those that ended last.

Lowtide's own. The broker that led the partition answers: it has the request. No request of Kafka's names a delete that
waits, or which follower it waits for; docs/adr/0008-requests-of-our-own.md.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Int64, Message, String, Versions

NOT_YET: Final = -1
"""In place of a moment that did not come."""


class DescribeDeletesRequest(ApiMessage, kw_only=True):
    """How many rows are wanted of each kind, and after which finished one; 0 for all that are there."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    waiting_max: Int32 = 1_000
    finished_max: Int32 = 1_000
    after_number: Int64 = 0
    """Only finished deletes with a larger number: those that came since the last answer, whose `last_number` this is."""


class AwaitedFollower(Message, kw_only=True):
    """A follower that must have the delete and has not reported it.

    `log_start_offset` is what it has reported, -1: nothing.
    """

    broker_id: Int32
    log_start_offset: Int64
    is_in_sync: Bool
    """It is in the ISR. One that is not is awaited for as long as it is live."""
    silent_ms: Int64
    """Since its last fetch."""


class DeleteOrigin(Message, kw_only=True):
    """Who sent a delete. Null in the row of another principal's delete for a client without DESCRIBE on the cluster."""

    principal: String
    client_address: String
    client_id: String | None = None


class WaitingDelete(Message, kw_only=True):
    """A partition of a request that waits. Times are wall-clock milliseconds, `offset` is exclusive."""

    topic: String
    partition_index: Int32
    offset: Int64
    log_start_offset: Int64
    """The leader's, now: below `offset` while the delete is not on its disk."""
    low_watermark: Int64
    leader_only: Bool
    asked_at_ms: Int64
    durable_at_ms: Int64 = NOT_YET
    ends_at_ms: Int64 = NOT_YET
    """When its time-out passes."""
    followers: list[AwaitedFollower] = msgspec.field(default_factory=list)
    origin: DeleteOrigin | None = None


class FinishedDelete(Message, kw_only=True):
    """A partition of a request that was answered. Times are wall-clock milliseconds, -1 for what did not come."""

    number: Int64
    """Ascends from 1 in the order in which deletes were answered, since the broker started; there may be gaps."""
    topic: String
    partition_index: Int32
    error_code: Int16
    offset: Int64
    """What was asked for, resolved; -1 for a delete that was refused."""
    old_log_start_offset: Int64
    log_start_offset: Int64
    leader_only: Bool
    asked_at_ms: Int64
    durable_at_ms: Int64 = NOT_YET
    replicated_at_ms: Int64 = NOT_YET
    """When the low watermark had reached `offset`."""
    answered_at_ms: Int64
    origin: DeleteOrigin | None = None


class DescribeDeletesResponse(ApiMessage, kw_only=True):
    """Rows of topics that the client may describe: those that wait, the oldest first; those that ended, the last one first."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    error_code: Int16
    described_at_ms: Int64 = NOT_YET
    """The broker's clock."""
    last_number: Int64 = 0
    waiting_count: Int32 = 0
    """Of topics that the client may describe, also where more wait than rows are wanted."""
    waiting: list[WaitingDelete] = msgspec.field(default_factory=list)
    finished: list[FinishedDelete] = msgspec.field(default_factory=list)
