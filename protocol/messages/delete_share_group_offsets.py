"""DeleteShareGroupOffsets (key 92): deletes topics from an empty share group (KIP-932)."""

from __future__ import annotations

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Message, String, Uuid, versions


class DeleteShareOffsetsTopic(Message, kw_only=True):
    topic_name: String


@versions("0", flexible="0+")
class DeleteShareGroupOffsetsRequest(ApiMessage, kw_only=True):
    group_id: String
    topics: list[DeleteShareOffsetsTopic]


class DeletedShareOffsetsTopic(Message, kw_only=True):
    topic_name: String
    topic_id: Uuid
    error_code: Int16 = 0
    error_message: String | None = None


@versions("0", flexible="0+")
class DeleteShareGroupOffsetsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: list[DeletedShareOffsetsTopic] = msgspec.field(default_factory=list)
