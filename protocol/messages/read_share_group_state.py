"""ReadShareGroupState (key 84): the leader of a partition reads the state of its share partitions (KIP-932)."""

from __future__ import annotations

import msgspec

from lowtide.protocol.schema import ApiMessage, Int8, Int16, Int32, Int64, Message, String, Uuid, versions


class ShareStateBatch(Message, kw_only=True):
    """The state of a range of records; both offsets are inclusive.

    `delivery_state` is 0 available, 2 acknowledged, 4 archived.
    """

    first_offset: Int64
    last_offset: Int64
    delivery_state: Int8
    delivery_count: Int16


class ReadStatePartition(Message, kw_only=True):
    partition: Int32
    leader_epoch: Int32


class ReadStateTopic(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[ReadStatePartition]


@versions("0", flexible="0+")
class ReadShareGroupStateRequest(ApiMessage, kw_only=True):
    group_id: String
    topics: list[ReadStateTopic]


class ReadStatePartitionResult(Message, kw_only=True):
    partition: Int32
    error_code: Int16 = 0
    error_message: String | None = None
    state_epoch: Int32 = 0
    start_offset: Int64 = 0
    state_batches: list[ShareStateBatch] = msgspec.field(default_factory=list)


class ReadStateResult(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[ReadStatePartitionResult]


@versions("0", flexible="0+")
class ReadShareGroupStateResponse(ApiMessage, kw_only=True):
    results: list[ReadStateResult]
