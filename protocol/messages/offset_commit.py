"""OffsetCommit (key 8): commits the offsets of a group.

Generation -1 with an empty member id is a commit from outside the group. Version 10 identifies topics by id.
"""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, Nullable, String, Uuid, Versions, versions
from lowtide.protocol.types import ZERO_TOPIC_ID


class OffsetCommitRequestPartition(Message, kw_only=True):
    """The next offset to be read, with the leader epoch of the last record read and metadata."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Versions("6+")] = -1
    committed_metadata: String | None


class OffsetCommitRequestTopic(Message, kw_only=True):
    name: Annotated[String, Versions("0-9")] = ""
    topic_id: Annotated[Uuid, Versions("10+")] = ZERO_TOPIC_ID
    partitions: list[OffsetCommitRequestPartition]


@versions("2-10", flexible="8+")
class OffsetCommitRequest(ApiMessage, kw_only=True):
    """`retention_time_ms`, in versions 2 to 4, is the time to keep the offsets."""

    group_id: String
    generation_id_or_member_epoch: Int32 = -1
    member_id: String
    group_instance_id: Annotated[String | None, Versions("7+"), Nullable("7+")] = None
    retention_time_ms: Annotated[Int64, Versions("2-4")] = -1
    topics: list[OffsetCommitRequestTopic]


class OffsetCommitResponsePartition(Message, kw_only=True):
    partition_index: Int32
    error_code: Int16


class OffsetCommitResponseTopic(Message, kw_only=True):
    name: Annotated[String, Versions("0-9")] = ""
    topic_id: Annotated[Uuid, Versions("10+")] = ZERO_TOPIC_ID
    partitions: list[OffsetCommitResponsePartition]


@versions("2-10", flexible="8+")
class OffsetCommitResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Annotated[Int32, Versions("3+")] = 0
    topics: list[OffsetCommitResponseTopic]
