"""ShareGroupDescribe (key 77): the state and members of share groups (KIP-932).

Version 0 was an early access version of Kafka 4.0.
"""

from __future__ import annotations

import msgspec

from lowtide.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Message, String, Uuid, versions


@versions("1", flexible="0+")
class ShareGroupDescribeRequest(ApiMessage, kw_only=True):
    group_ids: list[String]
    include_authorized_operations: Bool


class DescribedShareTopicPartitions(Message, kw_only=True):
    topic_id: Uuid
    topic_name: String
    partitions: list[Int32]


class DescribedShareAssignment(Message, kw_only=True):
    topic_partitions: list[DescribedShareTopicPartitions]


class DescribedShareMember(Message, kw_only=True):
    member_id: String
    rack_id: String | None = None
    member_epoch: Int32
    client_id: String
    client_host: String
    subscribed_topic_names: list[String]
    assignment: DescribedShareAssignment


class DescribedShareGroup(Message, kw_only=True):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[DescribedShareMember] = msgspec.field(default_factory=list)
    authorized_operations: Int32 = OPERATIONS_NOT_ASKED


@versions("1", flexible="0+")
class ShareGroupDescribeResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedShareGroup]
