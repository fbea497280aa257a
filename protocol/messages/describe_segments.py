"""DescribeSegments (key 32005): segments, replicas and retention boundaries of partitions. Lowtide's own.

The leader of a partition answers, because it applies the rules. No request of Kafka's shows segments, or a follower's
log start offset; docs/adr/0008-requests-of-our-own.md.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.messages.describe_retention import UNKNOWN, RetainedPartition
from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Int64, Message, String, Tagged, versions


class ProposedConfig(Message, kw_only=True):
    """A setting of a topic as it might be; null stands for the default."""

    name: String
    value: String | None


class DescribeSegmentsTopic(Message, kw_only=True):
    name: String
    partitions: list[Int32]
    delete_offsets: Annotated[list[Int64], Tagged(0, "0+")] = msgspec.field(default_factory=list)
    """For each of `partitions`, the offset (exclusive) of a delete whose freed bytes are asked for; -1 for none."""
    proposed: Annotated[list[ProposedConfig], Tagged(1, "0+")] = msgspec.field(default_factory=list)
    """Settings whose effect on the next retention pass is asked for."""


@versions("0", flexible="0+")
class DescribeSegmentsRequest(ApiMessage, kw_only=True):
    """The broker should be the leader of these partitions.

    For each, the oldest `segments_max` segments (1 to 10,000) that end above `first_offset`.
    """

    topics: list[DescribeSegmentsTopic]
    segments_max: Int32 = 1_000
    first_offset: Int64 = 0


class DescribedSegment(Message, kw_only=True):
    """`[base_offset, end_offset)` in offsets. Timestamps are those of records, -1 if none has one."""

    base_offset: Int64
    end_offset: Int64
    size_bytes: Int64
    bytes_below_start: Int64
    """The bytes below the log start offset, estimated with the offset index."""
    first_timestamp: Int64
    """The largest timestamp of its first batch."""
    largest_timestamp: Int64
    is_active: Bool


class DescribedReplica(Message, kw_only=True):
    """A replica as the leader knows it; offsets are -1 until it reports them in this leader epoch."""

    broker_id: Int32
    is_leader: Bool
    is_in_sync: Bool
    is_live: Bool
    """Whether deletes wait for it."""
    log_start_offset: Int64
    log_end_offset: Int64
    silent_ms: Int64
    """The time since its last fetch; 0 for the leader, -1 if it has not fetched."""


class RetentionBoundary(Message, kw_only=True):
    """An active rule, and how far it alone would delete now: segments below `offset` (exclusive).

    `limit` is the timestamp of `time` and `min-timestamp` below which records are old enough, the bytes that `size`
    keeps, or the offset that all groups have consumed for `consumed` (-1 if unknown), with the slowest group.
    """

    reason: String
    offset: Int64
    limit: Int64
    group_id: String | None = None


class FreedByDelete(Message, kw_only=True):
    """The bytes that a delete would free on the leader, computed by what frees them."""

    file_count: Int32
    """The segments that are removed whole, `delay_ms` after the delete (0: they are emptied at once)."""
    file_bytes: Int64
    delay_ms: Int64
    hole_bytes: Int64
    """The bytes that are freed in the segment that stays, about a second after the delete."""
    kept_bytes: Int64
    """The deleted bytes that stay there, an estimate, and why (`UnfreedReason`; empty without such bytes)."""
    waits_for: String


class ForecastDeletion(Message, kw_only=True):
    """Segments that a retention pass would delete for one reason; they end at `end_offset` (exclusive)."""

    reason: String
    segment_count: Int32
    size_bytes: Int64
    end_offset: Int64


class RetentionForecast(Message, kw_only=True):
    """What a retention pass would delete now, as it decides it: with the proposed settings, and with the present ones.

    The deletions follow each other, the oldest segments first.
    """

    proposed: list[ForecastDeletion]
    present: list[ForecastDeletion]


class SegmentsOfPartition(Message, kw_only=True):
    """`retained` has the log start, high watermark and end, and what keeps the oldest segment."""

    partition_index: Int32
    error_code: Int16
    leader_epoch: Int32 = UNKNOWN
    last_stable_offset: Int64 = UNKNOWN
    retained: RetainedPartition
    segments: list[DescribedSegment] = msgspec.field(default_factory=list)
    replicas: list[DescribedReplica] = msgspec.field(default_factory=list)
    boundaries: list[RetentionBoundary] = msgspec.field(default_factory=list)
    freed: Annotated[list[FreedByDelete], Tagged(0, "0+")] = msgspec.field(default_factory=list)
    """One, if the request has a delete offset for the partition; else none."""
    forecast: Annotated[list[RetentionForecast], Tagged(1, "0+")] = msgspec.field(default_factory=list)
    """One, if the request has proposed settings for the topic; else none."""


class SegmentsOfTopic(Message, kw_only=True):
    name: String
    partitions: list[SegmentsOfPartition]


@versions("0", flexible="0+")
class DescribeSegmentsResponse(ApiMessage, kw_only=True):
    """`checked_at_ms` is the broker's clock, `next_check_at_ms` the time of the next retention check; -1 if unknown."""

    error_code: Int16
    checked_at_ms: Int64 = UNKNOWN
    next_check_at_ms: Int64 = UNKNOWN
    topics: list[SegmentsOfTopic] = msgspec.field(default_factory=list)
