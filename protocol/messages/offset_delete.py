"""OffsetDelete (key 47): deletes committed offsets of a group (KIP-496)."""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Message, String, Versions


class OffsetDeleteRequestPartition(Message, kw_only=True):
    partition_index: Int32


class OffsetDeleteRequestTopic(Message, kw_only=True):
    name: String
    partitions: list[OffsetDeleteRequestPartition]


class OffsetDeleteRequest(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0-0")
    FLEXIBLE: ClassVar = Versions("1+")

    group_id: String
    topics: list[OffsetDeleteRequestTopic]


class OffsetDeleteResponsePartition(Message, kw_only=True):
    partition_index: Int32
    error_code: Int16


class OffsetDeleteResponseTopic(Message, kw_only=True):
    name: String
    partitions: list[OffsetDeleteResponsePartition]


class OffsetDeleteResponse(ApiMessage, kw_only=True):
    """`error_code` applies to the whole group."""

    VERSIONS: ClassVar = Versions("0-0")
    FLEXIBLE: ClassVar = Versions("1+")

    error_code: Int16
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic]
