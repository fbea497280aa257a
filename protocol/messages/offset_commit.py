"""OffsetCommit (key 8): a group's progress is kept.

Generation -1 with an empty member id is a commit from outside of the group. Version 10 names topics by their ids. Field
by field this is Kafka's OffsetCommitRequest/Response.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, Nullable, String, Uuid, Versions
from lowtide.protocol.types import ZERO_TOPIC_ID


class OffsetCommitRequestPartition(Message, kw_only=True):
    """The next offset to be read, with the leader epoch of the last record read and a note."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Versions("6+")] = -1
    committed_metadata: String | None


class OffsetCommitRequestTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: Annotated[String, Versions("0-9")] = ""
    topic_id: Annotated[Uuid, Versions("10+")] = ZERO_TOPIC_ID
    partitions: list[OffsetCommitRequestPartition]


class OffsetCommitRequest(ApiMessage, kw_only=True):
    """Offsets of a group. `retention_time_ms`, which only versions 2 to 4 have, is how long to keep them."""

    VERSIONS: ClassVar = Versions("2-10")
    FLEXIBLE: ClassVar = Versions("8+")

    group_id: String
    generation_id_or_member_epoch: Int32 = -1
    member_id: String
    group_instance_id: Annotated[String | None, Versions("7+"), Nullable("7+")] = None
    retention_time_ms: Annotated[Int64, Versions("2-4")] = -1
    topics: list[OffsetCommitRequestTopic]


class OffsetCommitResponsePartition(Message, kw_only=True):
    """Kept, or why not."""

    partition_index: Int32
    error_code: Int16


class OffsetCommitResponseTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: Annotated[String, Versions("0-9")] = ""
    topic_id: Annotated[Uuid, Versions("10+")] = ZERO_TOPIC_ID
    partitions: list[OffsetCommitResponsePartition]


class OffsetCommitResponse(ApiMessage, kw_only=True):
    """The answer, partition by partition."""

    VERSIONS: ClassVar = Versions("2-10")
    FLEXIBLE: ClassVar = Versions("8+")

    throttle_time_ms: Annotated[Int32, Versions("3+")] = 0
    topics: list[OffsetCommitResponseTopic]
