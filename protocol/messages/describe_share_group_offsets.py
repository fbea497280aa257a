"""DescribeShareGroupOffsets (key 90): how far share groups are.

Field by field this is Kafka's DescribeShareGroupOffsetsRequest/Response (KIP-932, KIP-1226).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Uuid, Versions


class DescribeShareOffsetsTopic(Message, kw_only=True):
    """Partitions of one topic."""

    topic_name: String
    partitions: list[Int32]


class DescribeShareOffsetsGroup(Message, kw_only=True):
    """One group, and which of its topics: None for all."""

    group_id: String
    topics: list[DescribeShareOffsetsTopic] | None


class DescribeShareGroupOffsetsRequest(ApiMessage, kw_only=True):
    """Which groups."""

    VERSIONS: ClassVar = Versions("0-1")
    FLEXIBLE: ClassVar = Versions("0+")

    groups: list[DescribeShareOffsetsGroup]


class DescribedShareOffset(Message, kw_only=True):
    """One share partition. `start_offset` and `lag` (KIP-1226) are -1 where they are unknown."""

    partition_index: Int32
    start_offset: Int64 = -1
    leader_epoch: Int32 = 0
    lag: Annotated[Int64, Versions("1+")] = -1
    error_code: Int16 = 0
    error_message: String | None = None


class DescribedShareOffsetsTopic(Message, kw_only=True):
    """One topic."""

    topic_name: String
    topic_id: Uuid
    partitions: list[DescribedShareOffset]


class DescribedShareOffsetsGroup(Message, kw_only=True):
    """One group."""

    group_id: String
    topics: list[DescribedShareOffsetsTopic] = msgspec.field(default_factory=list)
    error_code: Int16 = 0
    error_message: String | None = None


class DescribeShareGroupOffsetsResponse(ApiMessage, kw_only=True):
    """The answer, group by group."""

    VERSIONS: ClassVar = Versions("0-1")
    FLEXIBLE: ClassVar = Versions("0+")

    throttle_time_ms: Int32 = 0
    groups: list[DescribedShareOffsetsGroup]
