"""WriteShareGroupState (key 85): the leader of a partition writes changes of its share partitions' state (KIP-932)."""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.messages.read_share_group_state import ShareStateBatch
from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Uuid, Versions, versions


class WriteStatePartition(Message, kw_only=True):
    """`start_offset` is -1 if it is not written.

    `delivery_complete_count` is the number of offsets from the start whose delivery is complete (KIP-1226), -1 if
    unknown.
    """

    partition: Int32
    state_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    delivery_complete_count: Annotated[Int32, Versions("1+")] = -1
    state_batches: list[ShareStateBatch]


class WriteStateTopic(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[WriteStatePartition]


@versions("0-1", flexible="0+")
class WriteShareGroupStateRequest(ApiMessage, kw_only=True):
    group_id: String
    topics: list[WriteStateTopic]


class WriteStatePartitionResult(Message, kw_only=True):
    partition: Int32
    error_code: Int16 = 0
    error_message: String | None = None


class WriteStateResult(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[WriteStatePartitionResult]


@versions("0-1", flexible="0+")
class WriteShareGroupStateResponse(ApiMessage, kw_only=True):
    results: list[WriteStateResult]
