"""DescribeQuorum (key 55): who decides on the metadata, and how far the others are (KIP-595, KIP-836, KIP-853).

Field by field this is Kafka's DescribeQuorumRequest/Response.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, UInt16, Uuid, Versions
from lowtide.protocol.types import ZERO_TOPIC_ID

OFFSET_UNKNOWN: Final = -1
"""In place of a log end offset that the leader doesn't know."""

TIMESTAMP_UNKNOWN: Final = -1
"""In place of a time that the leader doesn't know."""


class QuorumPartition(Message, kw_only=True):
    """A partition of a topic that is kept by a quorum."""

    partition_index: Int32


class QuorumTopic(Message, kw_only=True):
    """A topic that is kept by a quorum: there is only `__cluster_metadata`."""

    topic_name: String
    partitions: list[QuorumPartition]


class DescribeQuorumRequest(ApiMessage, kw_only=True):
    """Which partitions."""

    VERSIONS: ClassVar = Versions("0-2")
    FLEXIBLE: ClassVar = Versions("0+")

    topics: list[QuorumTopic]


class QuorumReplica(Message, kw_only=True):
    """How far a replica is.

    Times are in milliseconds of the leader's wall clock, and of the leader itself the time of the answer.
    """

    replica_id: Int32
    replica_directory_id: Annotated[Uuid, Versions("2+")] = ZERO_TOPIC_ID
    log_end_offset: Int64 = OFFSET_UNKNOWN
    last_fetch_timestamp: Annotated[Int64, Versions("1+")] = TIMESTAMP_UNKNOWN
    last_caught_up_timestamp: Annotated[Int64, Versions("1+")] = TIMESTAMP_UNKNOWN


class DescribedQuorumPartition(Message, kw_only=True):
    """The state of a partition, or the error in its place."""

    partition_index: Int32
    error_code: Int16 = 0
    error_message: Annotated[String | None, Versions("2+")] = None
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    high_watermark: Int64 = -1
    current_voters: list[QuorumReplica] = msgspec.field(default_factory=list)
    observers: list[QuorumReplica] = msgspec.field(default_factory=list)


class DescribedQuorumTopic(Message, kw_only=True):
    """The partitions of a topic."""

    topic_name: String
    partitions: list[DescribedQuorumPartition]


class QuorumListener(Message, kw_only=True):
    """Where a node listens."""

    name: String
    host: String
    port: UInt16


class QuorumNode(Message, kw_only=True):
    """A node that `current_voters` or `observers` name."""

    node_id: Int32
    listeners: list[QuorumListener]


class DescribeQuorumResponse(ApiMessage, kw_only=True):
    """The answer. `error_code` is for the request as a whole."""

    VERSIONS: ClassVar = Versions("0-2")
    FLEXIBLE: ClassVar = Versions("0+")

    error_code: Int16 = 0
    error_message: Annotated[String | None, Versions("2+")] = None
    topics: list[DescribedQuorumTopic] = msgspec.field(default_factory=list)
    nodes: Annotated[list[QuorumNode], Versions("2+")] = msgspec.field(default_factory=list)
