"""AlterShareGroupOffsets (key 91): sets the start offsets of an empty share group (KIP-932)."""

from __future__ import annotations

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Uuid, versions


class AlterShareOffsetsPartition(Message, kw_only=True):
    partition_index: Int32
    start_offset: Int64


class AlterShareOffsetsTopic(Message, kw_only=True):
    topic_name: String
    partitions: list[AlterShareOffsetsPartition]


@versions("0", flexible="0+")
class AlterShareGroupOffsetsRequest(ApiMessage, kw_only=True):
    group_id: String
    topics: list[AlterShareOffsetsTopic]


class AlteredShareOffset(Message, kw_only=True):
    partition_index: Int32
    error_code: Int16 = 0
    error_message: String | None = None


class AlteredShareOffsetsTopic(Message, kw_only=True):
    topic_name: String
    topic_id: Uuid
    partitions: list[AlteredShareOffset]


@versions("0", flexible="0+")
class AlterShareGroupOffsetsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: list[AlteredShareOffsetsTopic] = msgspec.field(default_factory=list)
