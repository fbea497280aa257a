"""ShareGroupHeartbeat (key 76): a member of a share group joins, shows what it subscribes to, and leaves.

Field by field this is Kafka's ShareGroupHeartbeatRequest/Response (KIP-932). Version 0 was of Kafka 4.0's early access.
"""

from __future__ import annotations

from typing import ClassVar, Final

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Message, String, Uuid, Versions

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1


class ShareGroupHeartbeatRequest(ApiMessage, kw_only=True):
    """Who the member is and what it wants; None is what hasn't changed since the last heartbeat."""

    VERSIONS: ClassVar = Versions("1")
    FLEXIBLE: ClassVar = Versions("0+")

    group_id: String
    member_id: String
    member_epoch: Int32
    rack_id: String | None = None
    subscribed_topic_names: list[String] | None = None


class ShareHeartbeatTopicPartitions(Message, kw_only=True):
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: list[Int32]


class ShareHeartbeatAssignment(Message, kw_only=True):
    """What the member is to fetch."""

    topic_partitions: list[ShareHeartbeatTopicPartitions]


class ShareGroupHeartbeatResponse(ApiMessage, kw_only=True):
    """The member's epoch, and its assignment where that is new."""

    VERSIONS: ClassVar = Versions("1")
    FLEXIBLE: ClassVar = Versions("0+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: ShareHeartbeatAssignment | None = None
