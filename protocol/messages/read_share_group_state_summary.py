"""ReadShareGroupStateSummary (key 87): a group coordinator reads the start offsets of share partitions (KIP-932)."""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Uuid, Versions, versions


class SummaryStatePartition(Message, kw_only=True):
    partition: Int32
    leader_epoch: Int32


class SummaryStateTopic(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[SummaryStatePartition]


@versions("0-1", flexible="0+")
class ReadShareGroupStateSummaryRequest(ApiMessage, kw_only=True):
    group_id: String
    topics: list[SummaryStateTopic]


class SummaryStatePartitionResult(Message, kw_only=True):
    partition: Int32
    error_code: Int16 = 0
    error_message: String | None = None
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, Versions("1+")] = -1


class SummaryStateResult(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[SummaryStatePartitionResult]


@versions("0-1", flexible="0+")
class ReadShareGroupStateSummaryResponse(ApiMessage, kw_only=True):
    results: list[SummaryStateResult]
