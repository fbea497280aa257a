"""ShareGroupHeartbeat (key 76): a member joins a share group, sets its subscription, and leaves (KIP-932).

Version 0 was an early access version of Kafka 4.0.
"""

from __future__ import annotations

from typing import Final

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Message, String, Uuid, versions

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1


@versions("1", flexible="0+")
class ShareGroupHeartbeatRequest(ApiMessage, kw_only=True):
    """Null fields have not changed since the last heartbeat."""

    group_id: String
    member_id: String
    member_epoch: Int32
    rack_id: String | None = None
    subscribed_topic_names: list[String] | None = None


class ShareHeartbeatTopicPartitions(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[Int32]


class ShareHeartbeatAssignment(Message, kw_only=True):
    topic_partitions: list[ShareHeartbeatTopicPartitions]


@versions("1", flexible="0+")
class ShareGroupHeartbeatResponse(ApiMessage, kw_only=True):
    """The member's epoch, and its assignment if that changed."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: ShareHeartbeatAssignment | None = None
