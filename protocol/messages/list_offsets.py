"""ListOffsets (key 2): the offset at a timestamp, or a special offset.

Special timestamps: -1 latest, -2 earliest, -3 the record with the largest timestamp (v7, KIP-734), -4 earliest local
(v8, KIP-405), -5 latest tiered (v9, KIP-1005).
"""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Int8, Int16, Int32, Int64, Message, String, Versions, versions
from lowtide.protocol.types import NO_LEADER_EPOCH, NO_TIMESTAMP, UNKNOWN_OFFSET


class ListOffsetsPartition(Message, kw_only=True):
    """A timestamp in milliseconds, or a special one."""

    partition_index: Int32
    current_leader_epoch: Annotated[Int32, Versions("4+")] = NO_LEADER_EPOCH
    timestamp: Int64


class ListOffsetsTopic(Message, kw_only=True):
    name: String
    partitions: list[ListOffsetsPartition]


@versions("1-11", flexible="6+")
class ListOffsetsRequest(ApiMessage, kw_only=True):
    """`replica_id` is -1 for a consumer; `timeout_ms` is for offsets in remote storage (KIP-1075)."""

    replica_id: Int32
    isolation_level: Annotated[Int8, Versions("2+")] = 0
    topics: list[ListOffsetsTopic]
    timeout_ms: Annotated[Int32, Versions("10+")] = 0


class ListOffsetsPartitionResponse(Message, kw_only=True):
    """The offset and the timestamp of its record, or -1 and -1."""

    partition_index: Int32
    error_code: Int16
    timestamp: Annotated[Int64, Versions("1+")] = NO_TIMESTAMP
    offset: Annotated[Int64, Versions("1+")] = UNKNOWN_OFFSET
    leader_epoch: Annotated[Int32, Versions("4+")] = NO_LEADER_EPOCH


class ListOffsetsTopicResponse(Message, kw_only=True):
    name: String
    partitions: list[ListOffsetsPartitionResponse]


@versions("1-11", flexible="6+")
class ListOffsetsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Annotated[Int32, Versions("2+")] = 0
    topics: list[ListOffsetsTopicResponse]
