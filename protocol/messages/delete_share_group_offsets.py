"""DeleteShareGroupOffsets (key 92): deletes topics from an empty share group (KIP-932)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Message, String, Uuid, Versions


class DeleteShareOffsetsTopic(Message, kw_only=True):
    topic_name: String


class DeleteShareGroupOffsetsRequest(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    group_id: String
    topics: list[DeleteShareOffsetsTopic]


class DeletedShareOffsetsTopic(Message, kw_only=True):
    topic_name: String
    topic_id: Uuid
    error_code: Int16 = 0
    error_message: String | None = None


class DeleteShareGroupOffsetsResponse(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: list[DeletedShareOffsetsTopic] = msgspec.field(default_factory=list)
