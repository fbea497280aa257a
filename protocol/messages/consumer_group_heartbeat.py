"""ConsumerGroupHeartbeat (key 68): a member joins a consumer group, reports its partitions, and leaves (KIP-848).

Fields that have not changed since the last heartbeat can be null.
"""

from __future__ import annotations

from typing import Annotated, Final

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Message, String, Uuid, Versions, versions

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
"""The member's place is kept for its instance id until its session expires."""


class HeartbeatTopicPartitions(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[Int32]


@versions("0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest(ApiMessage, kw_only=True):
    """The member, its subscription and its partitions."""

    group_id: String
    member_id: String
    member_epoch: Int32
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[String] | None = None
    subscribed_topic_regex: Annotated[String | None, Versions("1+")] = None
    server_assignor: String | None = None
    topic_partitions: list[HeartbeatTopicPartitions] | None = None


class HeartbeatAssignment(Message, kw_only=True):
    topic_partitions: list[HeartbeatTopicPartitions]


@versions("0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse(ApiMessage, kw_only=True):
    """The member's epoch, and its assignment if that changed."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: HeartbeatAssignment | None = None
