"""DescribeSegments (key 32005): the segments of partitions, where each replica stands, and the boundaries of retention.

Lowtide's own. The leader of a partition answers, with the rules that it deletes by. No request of Kafka's says where
segments begin and end, or where a follower's log starts; docs/adr/0008-requests-of-our-own.md.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from lowtide.protocol.messages.describe_retention import UNKNOWN, RetainedPartition
from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Int64, Message, String, Versions


class DescribeSegmentsTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: String
    partitions: list[Int32]


class DescribeSegmentsRequest(ApiMessage, kw_only=True):
    """The partitions, which the broker that is asked should lead.

    Of each partition `segments_max` segments (1 to 10,000) that end above `first_offset`, the oldest first.
    """

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    topics: list[DescribeSegmentsTopic]
    segments_max: Int32 = 1_000
    first_offset: Int64 = 0


class DescribedSegment(Message, kw_only=True):
    """`[base_offset, end_offset)` in offsets. Timestamps are of records, -1 where none has one."""

    base_offset: Int64
    end_offset: Int64
    size_bytes: Int64
    bytes_below_start: Int64
    """Of records below the log start: they go with the segment. An estimate by the offset index, to a few kilobytes."""
    first_timestamp: Int64
    """The largest one of its first batch."""
    largest_timestamp: Int64
    is_active: Bool


class DescribedReplica(Message, kw_only=True):
    """A replica, as the leader knows it: offsets are -1 where it has not reported them in this leader epoch."""

    broker_id: Int32
    is_leader: Bool
    is_in_sync: Bool
    is_live: Bool
    """Deletes wait for it."""
    log_start_offset: Int64
    log_end_offset: Int64
    silent_ms: Int64
    """Since its last fetch; 0 for the leader, -1 where it has not fetched."""


class RetentionBoundary(Message, kw_only=True):
    """A rule that is on, and how far it alone would delete now: segments below `offset` (exclusive) go by it.

    `limit` is what it goes by: of `time` and `min-timestamp` the timestamp below which records are old enough, of `size` the bytes that
    stay, of `consumed` the offset that all groups have consumed (-1 where that is not known), with the group that is
    there.
    """

    reason: String
    offset: Int64
    limit: Int64
    group_id: String | None = None


class SegmentsOfPartition(Message, kw_only=True):
    """One partition. `retained` has its log start, high watermark and end, and what keeps the oldest segment."""

    partition_index: Int32
    error_code: Int16
    leader_epoch: Int32 = UNKNOWN
    last_stable_offset: Int64 = UNKNOWN
    retained: RetainedPartition
    segments: list[DescribedSegment] = msgspec.field(default_factory=list)
    replicas: list[DescribedReplica] = msgspec.field(default_factory=list)
    boundaries: list[RetentionBoundary] = msgspec.field(default_factory=list)


class SegmentsOfTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: String
    partitions: list[SegmentsOfPartition]


class DescribeSegmentsResponse(ApiMessage, kw_only=True):
    """What was asked for.

    `checked_at_ms` is the broker's clock, `next_check_at_ms` when retention looks again; -1 if that is unknown.
    """

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    error_code: Int16
    checked_at_ms: Int64 = UNKNOWN
    next_check_at_ms: Int64 = UNKNOWN
    topics: list[SegmentsOfTopic] = msgspec.field(default_factory=list)
