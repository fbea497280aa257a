"""OffsetForLeaderEpoch (key 23): where a leader epoch ends in the leader's log (KIP-101, KIP-279, KIP-320).

Field by field this is Kafka's OffsetForLeaderEpochRequest/Response.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Versions
from lowtide.protocol.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET

DEBUGGING_REPLICA_ID = -2
"""The replica id of an asker that is neither consumer (-1) nor follower."""


class OffsetForLeaderPartition(Message, kw_only=True):
    """The epoch asked for, and the asker's idea of the present one."""

    partition: Int32
    current_leader_epoch: Annotated[Int32, Versions("2+")] = NO_LEADER_EPOCH
    leader_epoch: Int32


class OffsetForLeaderTopic(Message, kw_only=True):
    """Partitions of one topic."""

    topic: String
    partitions: list[OffsetForLeaderPartition]


class OffsetForLeaderEpochRequest(ApiMessage, kw_only=True):
    """Which epochs."""

    VERSIONS: ClassVar = Versions("2-4")
    FLEXIBLE: ClassVar = Versions("4+")

    replica_id: Annotated[Int32, Versions("3+")] = DEBUGGING_REPLICA_ID
    topics: list[OffsetForLeaderTopic]


class EpochEndOffset(Message, kw_only=True):
    """The largest epoch not above the asked one, and its end offset (exclusive); -1 and -1 when there is none."""

    error_code: Int16
    partition: Int32
    leader_epoch: Annotated[Int32, Versions("1+")] = NO_LEADER_EPOCH
    end_offset: Int64 = UNKNOWN_OFFSET


class OffsetForLeaderTopicResult(Message, kw_only=True):
    """Partitions of one topic."""

    topic: String
    partitions: list[EpochEndOffset]


class OffsetForLeaderEpochResponse(ApiMessage, kw_only=True):
    """The answer, partition by partition."""

    VERSIONS: ClassVar = Versions("2-4")
    FLEXIBLE: ClassVar = Versions("4+")

    throttle_time_ms: Annotated[Int32, Versions("2+")] = 0
    topics: list[OffsetForLeaderTopicResult]
