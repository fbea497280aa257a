"""DescribeQuorum (key 55): the leader and the replicas of the metadata quorum (KIP-595, KIP-836, KIP-853)."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, UInt16, Uuid, Versions, versions
from lowtide.protocol.types import ZERO_TOPIC_ID

OFFSET_UNKNOWN: Final = -1
"""The leader does not know the log end offset."""

TIMESTAMP_UNKNOWN: Final = -1
"""The leader does not know the time."""


class QuorumPartition(Message, kw_only=True):
    """A partition of a topic that is replicated by a quorum."""

    partition_index: Int32


class QuorumTopic(Message, kw_only=True):
    """There is only `__cluster_metadata`."""

    topic_name: String
    partitions: list[QuorumPartition]


@versions("0-2", flexible="0+")
class DescribeQuorumRequest(ApiMessage, kw_only=True):
    topics: list[QuorumTopic]


class QuorumReplica(Message, kw_only=True):
    """The progress of a replica. Times are in milliseconds of the leader's wall clock."""

    replica_id: Int32
    replica_directory_id: Annotated[Uuid, Versions("2+")] = ZERO_TOPIC_ID
    log_end_offset: Int64 = OFFSET_UNKNOWN
    last_fetch_timestamp: Annotated[Int64, Versions("1+")] = TIMESTAMP_UNKNOWN
    last_caught_up_timestamp: Annotated[Int64, Versions("1+")] = TIMESTAMP_UNKNOWN


class DescribedQuorumPartition(Message, kw_only=True):
    partition_index: Int32
    error_code: Int16 = 0
    error_message: Annotated[String | None, Versions("2+")] = None
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    high_watermark: Int64 = -1
    current_voters: list[QuorumReplica] = msgspec.field(default_factory=list)
    observers: list[QuorumReplica] = msgspec.field(default_factory=list)


class DescribedQuorumTopic(Message, kw_only=True):
    topic_name: String
    partitions: list[DescribedQuorumPartition]


class QuorumListener(Message, kw_only=True):
    name: String
    host: String
    port: UInt16


class QuorumNode(Message, kw_only=True):
    """A node in `current_voters` or `observers`."""

    node_id: Int32
    listeners: list[QuorumListener]


@versions("0-2", flexible="0+")
class DescribeQuorumResponse(ApiMessage, kw_only=True):
    """`error_code` applies to the whole request."""

    error_code: Int16 = 0
    error_message: Annotated[String | None, Versions("2+")] = None
    topics: list[DescribedQuorumTopic] = msgspec.field(default_factory=list)
    nodes: Annotated[list[QuorumNode], Versions("2+")] = msgspec.field(default_factory=list)
