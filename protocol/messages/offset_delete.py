"""OffsetDelete (key 47): deletes committed offsets of a group (KIP-496)."""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Message, String, versions


class OffsetDeleteRequestPartition(Message, kw_only=True):
    partition_index: Int32


class OffsetDeleteRequestTopic(Message, kw_only=True):
    name: String
    partitions: list[OffsetDeleteRequestPartition]


@versions("0-0", flexible="1+")
class OffsetDeleteRequest(ApiMessage, kw_only=True):
    group_id: String
    topics: list[OffsetDeleteRequestTopic]


class OffsetDeleteResponsePartition(Message, kw_only=True):
    partition_index: Int32
    error_code: Int16


class OffsetDeleteResponseTopic(Message, kw_only=True):
    name: String
    partitions: list[OffsetDeleteResponsePartition]


@versions("0-0", flexible="1+")
class OffsetDeleteResponse(ApiMessage, kw_only=True):
    """`error_code` applies to the whole group."""

    error_code: Int16
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic]
