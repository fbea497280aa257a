"""OffsetFetch (key 9): the committed offsets of groups.

Null topics request all committed offsets. Version 8 requests many groups at once (KIP-709), version 10 identifies
topics by id.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.schema import (
    ApiMessage,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    Nullable,
    String,
    Uuid,
    Versions,
    versions,
)
from lowtide.protocol.types import ZERO_TOPIC_ID


class OffsetFetchRequestTopic(Message, kw_only=True):
    name: Annotated[String, Versions("0-7")] = ""
    partition_indexes: Annotated[list[Int32], Versions("0-7")] = msgspec.field(default_factory=list)


class OffsetFetchRequestTopics(Message, kw_only=True):
    name: Annotated[String, Versions("8-9")] = ""
    topic_id: Annotated[Uuid, Versions("10+")] = ZERO_TOPIC_ID
    partition_indexes: Annotated[list[Int32], Versions("8+")] = msgspec.field(default_factory=list)


class OffsetFetchRequestGroup(Message, kw_only=True):
    """With a member id and epoch the member requests its own offsets (KIP-848)."""

    group_id: Annotated[String, Versions("8+")] = ""
    member_id: Annotated[String | None, Versions("9+"), Nullable("9+")] = None
    member_epoch: Annotated[Int32, Versions("9+")] = -1
    topics: Annotated[list[OffsetFetchRequestTopics] | None, Versions("8+"), Nullable("8+")] = msgspec.field(
        default_factory=list
    )


@versions("1-10", flexible="6+")
class OffsetFetchRequest(ApiMessage, kw_only=True):
    """One group, or many from version 8.

    `require_stable` excludes offsets that a transaction can still change (KIP-447).
    """

    group_id: Annotated[String, Versions("0-7")] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, Versions("0-7"), Nullable("2-7")] = msgspec.field(
        default_factory=list
    )
    groups: Annotated[list[OffsetFetchRequestGroup], Versions("8+")] = msgspec.field(default_factory=list)
    require_stable: Annotated[Bool, Versions("7+")] = False


class OffsetFetchResponsePartition(Message, kw_only=True):
    """A committed offset, or -1."""

    partition_index: Annotated[Int32, Versions("0-7")] = 0
    committed_offset: Annotated[Int64, Versions("0-7")] = 0
    committed_leader_epoch: Annotated[Int32, Versions("5-7")] = -1
    metadata: Annotated[String | None, Versions("0-7"), Nullable("0-7")] = None
    error_code: Annotated[Int16, Versions("0-7")] = 0


class OffsetFetchResponseTopic(Message, kw_only=True):
    name: Annotated[String, Versions("0-7")] = ""
    partitions: Annotated[list[OffsetFetchResponsePartition], Versions("0-7")] = msgspec.field(default_factory=list)


class OffsetFetchResponsePartitions(Message, kw_only=True):
    """A committed offset, or -1."""

    partition_index: Annotated[Int32, Versions("8+")] = 0
    committed_offset: Annotated[Int64, Versions("8+")] = 0
    committed_leader_epoch: Annotated[Int32, Versions("8+")] = -1
    metadata: Annotated[String | None, Versions("8+"), Nullable("8+")] = None
    error_code: Annotated[Int16, Versions("8+")] = 0


class OffsetFetchResponseTopics(Message, kw_only=True):
    name: Annotated[String, Versions("8-9")] = ""
    topic_id: Annotated[Uuid, Versions("10+")] = ZERO_TOPIC_ID
    partitions: Annotated[list[OffsetFetchResponsePartitions], Versions("8+")] = msgspec.field(default_factory=list)


class OffsetFetchResponseGroup(Message, kw_only=True):
    group_id: Annotated[String, Versions("8+")] = ""
    topics: Annotated[list[OffsetFetchResponseTopics], Versions("8+")] = msgspec.field(default_factory=list)
    error_code: Annotated[Int16, Versions("8+")] = 0


@versions("1-10", flexible="6+")
class OffsetFetchResponse(ApiMessage, kw_only=True):
    """One group; from version 8 one row per group."""

    throttle_time_ms: Annotated[Int32, Versions("3+")] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], Versions("0-7")] = msgspec.field(default_factory=list)
    error_code: Annotated[Int16, Versions("2-7")] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], Versions("8+")] = msgspec.field(default_factory=list)
