"""AlterShareGroupOffsets (key 91): sets where an empty share group goes on.

Field by field this is Kafka's AlterShareGroupOffsetsRequest/Response (KIP-932).
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Uuid, Versions


class AlterShareOffsetsPartition(Message, kw_only=True):
    """One share partition and its new start."""

    partition_index: Int32
    start_offset: Int64


class AlterShareOffsetsTopic(Message, kw_only=True):
    """One topic."""

    topic_name: String
    partitions: list[AlterShareOffsetsPartition]


class AlterShareGroupOffsetsRequest(ApiMessage, kw_only=True):
    """Which group, and where it is to go on."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    group_id: String
    topics: list[AlterShareOffsetsTopic]


class AlteredShareOffset(Message, kw_only=True):
    """The answer about one share partition."""

    partition_index: Int32
    error_code: Int16 = 0
    error_message: String | None = None


class AlteredShareOffsetsTopic(Message, kw_only=True):
    """The answer about one topic."""

    topic_name: String
    topic_id: Uuid
    partitions: list[AlteredShareOffset]


class AlterShareGroupOffsetsResponse(ApiMessage, kw_only=True):
    """The answer, share partition by share partition."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: list[AlteredShareOffsetsTopic] = msgspec.field(default_factory=list)
