"""DescribeTopicPartitions (key 75): topics and their partitions, a page at a time (KIP-966).

No topics in the request asks for all. Topics come in the order of their names; where a page ends, the answer's cursor
names the first partition that it has no room for, and the next request brings that cursor. Field by field this is
Kafka's DescribeTopicPartitionsRequest/Response.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Message, String, Uuid, Versions
from lowtide.protocol.types import ZERO_TOPIC_ID

OPERATIONS_NOT_ASKED: Final = -(2**31)
"""In place of a bit set of authorized operations: the broker doesn't tell them (KIP-430)."""


class TopicRequest(Message, kw_only=True):
    """A topic that the client asks about."""

    name: String


class Cursor(Message, kw_only=True):
    """The first partition of a page."""

    topic_name: String
    partition_index: Int32


class DescribeTopicPartitionsRequest(ApiMessage, kw_only=True):
    """Topics, or all, and how many partitions the answer may have."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    topics: list[TopicRequest]
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponsePartition(Message, kw_only=True):
    """Who leads, who follows, and who could lead besides those in sync."""

    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32]
    isr_nodes: list[Int32]
    eligible_leader_replicas: list[Int32] | None = None
    last_known_elr: list[Int32] | None = None
    offline_replicas: list[Int32]


class DescribeTopicPartitionsResponseTopic(Message, kw_only=True):
    """A topic with the partitions of this page, or why it cannot be described."""

    error_code: Int16
    name: String | None
    topic_id: Uuid = ZERO_TOPIC_ID
    is_internal: Bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = msgspec.field(default_factory=list)
    topic_authorized_operations: Int32 = OPERATIONS_NOT_ASKED


class DescribeTopicPartitionsResponse(ApiMessage, kw_only=True):
    """The answer. `next_cursor` is null when nothing is left."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    throttle_time_ms: Int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic]
    next_cursor: Cursor | None = None
