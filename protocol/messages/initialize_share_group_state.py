"""InitializeShareGroupState (key 83): a group coordinator initializes the state of share partitions (KIP-932)."""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Uuid, versions


class InitializeStatePartition(Message, kw_only=True):
    """`start_offset` is -1 if the partition's leader must find it."""

    partition: Int32
    state_epoch: Int32
    start_offset: Int64


class InitializeStateTopic(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[InitializeStatePartition]


@versions("0", flexible="0+")
class InitializeShareGroupStateRequest(ApiMessage, kw_only=True):
    group_id: String
    topics: list[InitializeStateTopic]


class InitializeStatePartitionResult(Message, kw_only=True):
    partition: Int32
    error_code: Int16 = 0
    error_message: String | None = None


class InitializeStateResult(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[InitializeStatePartitionResult]


@versions("0", flexible="0+")
class InitializeShareGroupStateResponse(ApiMessage, kw_only=True):
    results: list[InitializeStateResult]
