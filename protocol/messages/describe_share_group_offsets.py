"""DescribeShareGroupOffsets (key 90): the progress of share groups (KIP-932, KIP-1226)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Uuid, Versions, versions


class DescribeShareOffsetsTopic(Message, kw_only=True):
    topic_name: String
    partitions: list[Int32]


class DescribeShareOffsetsGroup(Message, kw_only=True):
    """A group and its topics; null for all."""

    group_id: String
    topics: list[DescribeShareOffsetsTopic] | None


@versions("0-1", flexible="0+")
class DescribeShareGroupOffsetsRequest(ApiMessage, kw_only=True):
    groups: list[DescribeShareOffsetsGroup]


class DescribedShareOffset(Message, kw_only=True):
    """`start_offset` and `lag` (KIP-1226) are -1 if unknown."""

    partition_index: Int32
    start_offset: Int64 = -1
    leader_epoch: Int32 = 0
    lag: Annotated[Int64, Versions("1+")] = -1
    error_code: Int16 = 0
    error_message: String | None = None


class DescribedShareOffsetsTopic(Message, kw_only=True):
    topic_name: String
    topic_id: Uuid
    partitions: list[DescribedShareOffset]


class DescribedShareOffsetsGroup(Message, kw_only=True):
    group_id: String
    topics: list[DescribedShareOffsetsTopic] = msgspec.field(default_factory=list)
    error_code: Int16 = 0
    error_message: String | None = None


@versions("0-1", flexible="0+")
class DescribeShareGroupOffsetsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedShareOffsetsGroup]
