"""ConsumerGroupDescribe (key 69): the state and members of consumer groups (KIP-848)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from lowtide.protocol.schema import ApiMessage, Bool, Int8, Int16, Int32, Message, String, Uuid, Versions, versions


@versions("0-1", flexible="0+")
class ConsumerGroupDescribeRequest(ApiMessage, kw_only=True):
    group_ids: list[String]
    include_authorized_operations: Bool


class DescribedTopicPartitions(Message, kw_only=True):
    topic_id: Uuid
    topic_name: String
    partitions: list[Int32]


class DescribedAssignment(Message, kw_only=True):
    topic_partitions: list[DescribedTopicPartitions]


class DescribedConsumerMember(Message, kw_only=True):
    """`member_type` is 0 for a member with the classic protocol, 1 for one with the consumer protocol."""

    member_id: String
    instance_id: String | None = None
    rack_id: String | None = None
    member_epoch: Int32
    client_id: String
    client_host: String
    subscribed_topic_names: list[String]
    subscribed_topic_regex: String | None = None
    assignment: DescribedAssignment
    target_assignment: DescribedAssignment
    member_type: Annotated[Int8, Versions("1+")] = -1


class DescribedConsumerGroup(Message, kw_only=True):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[DescribedConsumerMember] = msgspec.field(default_factory=list)
    authorized_operations: Int32 = OPERATIONS_NOT_ASKED


@versions("0-1", flexible="0+")
class ConsumerGroupDescribeResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedConsumerGroup]
