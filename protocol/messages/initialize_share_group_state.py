"""InitializeShareGroupState (key 83): a group coordinator initializes the state of share partitions (KIP-932)."""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Uuid, Versions


class InitializeStatePartition(Message, kw_only=True):
    """`start_offset` is -1 if the partition's leader must find it."""

    partition: Int32
    state_epoch: Int32
    start_offset: Int64


class InitializeStateTopic(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[InitializeStatePartition]


class InitializeShareGroupStateRequest(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    group_id: String
    topics: list[InitializeStateTopic]


class InitializeStatePartitionResult(Message, kw_only=True):
    partition: Int32
    error_code: Int16 = 0
    error_message: String | None = None


class InitializeStateResult(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[InitializeStatePartitionResult]


class InitializeShareGroupStateResponse(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    results: list[InitializeStateResult]
