"""TxnOffsetCommit (key 28): commits the offsets of a group with a transaction (KIP-98, KIP-447).

From version 3 requests include the member and generation; version 6 identifies topics by id.
"""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, Nullable, String, Uuid, Versions, versions
from lowtide.protocol.types import ZERO_TOPIC_ID


class TxnOffsetCommitRequestPartition(Message, kw_only=True):
    """The next offset to be read, with the leader epoch of the last record read and metadata."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Versions("2+")] = -1
    committed_metadata: String | None


class TxnOffsetCommitRequestTopic(Message, kw_only=True):
    name: Annotated[String, Versions("0-5")] = ""
    topic_id: Annotated[Uuid, Versions("6+")] = ZERO_TOPIC_ID
    partitions: list[TxnOffsetCommitRequestPartition]


@versions("0-6", flexible="3+")
class TxnOffsetCommitRequest(ApiMessage, kw_only=True):
    transactional_id: String
    group_id: String
    producer_id: Int64
    producer_epoch: Int16
    generation_id_or_member_epoch: Annotated[Int32, Versions("3+")] = -1
    member_id: Annotated[String, Versions("3+")] = ""
    group_instance_id: Annotated[String | None, Versions("3+"), Nullable("3+")] = None
    topics: list[TxnOffsetCommitRequestTopic]


class TxnOffsetCommitResponsePartition(Message, kw_only=True):
    partition_index: Int32
    error_code: Int16


class TxnOffsetCommitResponseTopic(Message, kw_only=True):
    name: Annotated[String, Versions("0-5")] = ""
    topic_id: Annotated[Uuid, Versions("6+")] = ZERO_TOPIC_ID
    partitions: list[TxnOffsetCommitResponsePartition]


@versions("0-6", flexible="3+")
class TxnOffsetCommitResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic]
