"""OffsetForLeaderEpoch (key 23): the end of a leader epoch in the leader's log (KIP-101, KIP-279, KIP-320)."""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Versions, versions
from lowtide.protocol.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET

DEBUGGING_REPLICA_ID = -2
"""The replica id of a client that is neither a consumer (-1) nor a follower."""


class OffsetForLeaderPartition(Message, kw_only=True):
    """The requested epoch, and the client's current one."""

    partition: Int32
    current_leader_epoch: Annotated[Int32, Versions("2+")] = NO_LEADER_EPOCH
    leader_epoch: Int32


class OffsetForLeaderTopic(Message, kw_only=True):
    topic: String
    partitions: list[OffsetForLeaderPartition]


@versions("2-4", flexible="4+")
class OffsetForLeaderEpochRequest(ApiMessage, kw_only=True):
    replica_id: Annotated[Int32, Versions("3+")] = DEBUGGING_REPLICA_ID
    topics: list[OffsetForLeaderTopic]


class EpochEndOffset(Message, kw_only=True):
    """The largest epoch not above the requested one, and its end offset (exclusive); -1 and -1 if there is none."""

    error_code: Int16
    partition: Int32
    leader_epoch: Annotated[Int32, Versions("1+")] = NO_LEADER_EPOCH
    end_offset: Int64 = UNKNOWN_OFFSET


class OffsetForLeaderTopicResult(Message, kw_only=True):
    topic: String
    partitions: list[EpochEndOffset]


@versions("2-4", flexible="4+")
class OffsetForLeaderEpochResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Annotated[Int32, Versions("2+")] = 0
    topics: list[OffsetForLeaderTopicResult]
