"""DescribeRetention (key 32002): what keeps the oldest segment of partitions, and when it will go. Lowtide's own.

The leader of a partition answers for it: with the rules that it deletes by. What `lowtide topics explain` shows. Why it
isn't put together from requests of Kafka's is in docs/adr/0008-requests-of-our-own.md.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Int64, Message, String, Versions

UNKNOWN: Final = -1
"""In place of a time or a number of bytes that is not known."""


class DescribeRetentionTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: String
    partitions: list[Int32]


class DescribeRetentionRequest(ApiMessage, kw_only=True):
    """The partitions, which the broker that is asked should lead."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    topics: list[DescribeRetentionTopic]


class RetentionRule(Message, kw_only=True):
    """A rule that is on, and when it lets the oldest segment go.

    `goes_at_ms` is wall-clock time in milliseconds, in the past where the next check takes it, -1 where time alone doesn't do it: then
    `bytes_missing` more have to be written, or `group_id` has to come further than `consumed_offset`; where that is past the segment, a
    group that may delete has to commit.
    """

    reason: String
    goes_at_ms: Int64 = UNKNOWN
    bytes_missing: Int64 = UNKNOWN
    consumed_offset: Int64 = UNKNOWN
    group_id: String | None = None
    doubt: String | None = None
    """Why it is not known what the groups have consumed."""


class RetainedPartition(Message, kw_only=True):
    """One partition: its oldest segment, `[segment_start, segment_end)` in offsets, and what keeps that.

    `hold` is what keeps it whatever the rules say: `empty`, `not-replicated` or `compacted`; else empty.
    """

    partition_index: Int32
    error_code: Int16
    log_start_offset: Int64 = UNKNOWN
    high_watermark: Int64 = UNKNOWN
    log_end_offset: Int64 = UNKNOWN
    segment_count: Int32 = 0
    size_bytes: Int64 = 0
    segment_start: Int64 = UNKNOWN
    segment_end: Int64 = UNKNOWN
    segment_bytes: Int64 = 0
    is_active: Bool = False
    unfreed_bytes: Int64 = 0
    """Of `size_bytes`: below the log start, and not freed yet. An estimate by offsets."""
    unfreed_waits_for: String = ""
    """What for: `round`, `reader`, `batch`, `file-system`, `compacted`, `switched-off`."""
    hold: String = ""
    rules: list[RetentionRule] = msgspec.field(default_factory=list)


class RetainedTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: String
    partitions: list[RetainedPartition]


class DescribeRetentionResponse(ApiMessage, kw_only=True):
    """What was asked for.

    `checked_at_ms` is the broker's clock, `next_check_at_ms` when it will look again; -1 if it doesn't know.
    """

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    error_code: Int16
    checked_at_ms: Int64 = UNKNOWN
    next_check_at_ms: Int64 = UNKNOWN
    topics: list[RetainedTopic] = msgspec.field(default_factory=list)
