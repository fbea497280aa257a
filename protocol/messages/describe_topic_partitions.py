"""DescribeTopicPartitions (key 75): topics and their partitions, a page at a time (KIP-966).

Topics are ordered by name. The cursor of the response names the first partition that did not fit, and the next request
repeats that cursor.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Message, String, Uuid, versions
from lowtide.protocol.types import ZERO_TOPIC_ID

OPERATIONS_NOT_ASKED: Final = -(2**31)
"""The broker does not return authorized operations (KIP-430)."""


class TopicRequest(Message, kw_only=True):
    name: String


class Cursor(Message, kw_only=True):
    """The first partition of a page."""

    topic_name: String
    partition_index: Int32


@versions("0", flexible="0+")
class DescribeTopicPartitionsRequest(ApiMessage, kw_only=True):
    """Null topics request all."""

    topics: list[TopicRequest]
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponsePartition(Message, kw_only=True):
    """A partition with its replicas, ISR and eligible leaders."""

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
    error_code: Int16
    name: String | None
    topic_id: Uuid = ZERO_TOPIC_ID
    is_internal: Bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = msgspec.field(default_factory=list)
    topic_authorized_operations: Int32 = OPERATIONS_NOT_ASKED


@versions("0", flexible="0+")
class DescribeTopicPartitionsResponse(ApiMessage, kw_only=True):
    """`next_cursor` is null on the last page."""

    throttle_time_ms: Int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic]
    next_cursor: Cursor | None = None
