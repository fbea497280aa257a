"""DeleteShareGroupState (key 86): a group coordinator deletes the state of share partitions (KIP-932)."""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Message, String, Uuid, versions


class DeleteStatePartition(Message, kw_only=True):
    partition: Int32


class DeleteStateTopic(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[DeleteStatePartition]


@versions("0", flexible="0+")
class DeleteShareGroupStateRequest(ApiMessage, kw_only=True):
    group_id: String
    topics: list[DeleteStateTopic]


class DeleteStatePartitionResult(Message, kw_only=True):
    partition: Int32
    error_code: Int16 = 0
    error_message: String | None = None


class DeleteStateResult(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[DeleteStatePartitionResult]


@versions("0", flexible="0+")
class DeleteShareGroupStateResponse(ApiMessage, kw_only=True):
    results: list[DeleteStateResult]
