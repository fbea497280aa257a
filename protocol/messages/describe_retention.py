"""DescribeRetention (key 32002): what keeps the oldest segment of partitions, and until when. Lowtide's own.

The leader of a partition answers, because it applies the rules. `lowtide topics explain` shows it.
docs/adr/0008-requests-of-our-own.md says why no request of Kafka's fits.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Int64, Message, String, versions

UNKNOWN: Final = -1
"""The time or number of bytes is unknown."""


class DescribeRetentionTopic(Message, kw_only=True):
    name: String
    partitions: list[Int32]


@versions("0", flexible="0+")
class DescribeRetentionRequest(ApiMessage, kw_only=True):
    """The broker should be the leader of these partitions."""

    topics: list[DescribeRetentionTopic]


class RetentionRule(Message, kw_only=True):
    """An active rule, and when it deletes the oldest segment.

    `goes_at_ms` is a wall-clock time in milliseconds, in the past if the next check deletes the segment, and -1 if time
    alone does not: then `bytes_missing` more bytes must be written, or `group_id` must consume past `consumed_offset`;
    if that is already past the segment, a group that may delete must commit.
    """

    reason: String
    goes_at_ms: Int64 = UNKNOWN
    bytes_missing: Int64 = UNKNOWN
    consumed_offset: Int64 = UNKNOWN
    group_id: String | None = None
    doubt: String | None = None
    """Why the consumed offset is unknown."""


class RetainedPartition(Message, kw_only=True):
    """A partition: its oldest segment, `[segment_start, segment_end)` in offsets, and what keeps it.

    `hold` overrides all rules: `empty`, `not-replicated`, `compacted`, or an empty text.
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
    """The part of `size_bytes` below the log start offset, estimated by offsets."""
    unfreed_waits_for: String = ""
    """The cause: `round`, `reader`, `batch`, `file-system`, `compacted`, `switched-off`."""
    hold: String = ""
    erasures_waiting: Int32 = 0
    """Erasures in the log whose records may still be in a file of the leader."""
    records_to_erase: Int64 = 0
    """The offsets that they name."""
    erasing_since_ms: Int64 = UNKNOWN
    """When the first of them began to wait, or the leader started."""
    erasing_waits_for: String = ""
    """The reason, in words."""
    rules: list[RetentionRule] = msgspec.field(default_factory=list)


class RetainedTopic(Message, kw_only=True):
    name: String
    partitions: list[RetainedPartition]


@versions("0", flexible="0+")
class DescribeRetentionResponse(ApiMessage, kw_only=True):
    """`checked_at_ms` is the broker's clock, `next_check_at_ms` the time of the next check; -1 if unknown."""

    error_code: Int16
    checked_at_ms: Int64 = UNKNOWN
    next_check_at_ms: Int64 = UNKNOWN
    topics: list[RetainedTopic] = msgspec.field(default_factory=list)
