"""StreamsGroupHeartbeat (key 88): a member joins a streams group, reports its tasks, and leaves (KIP-1071).

Fields that have not changed since the last heartbeat can be null.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

import msgspec

from lowtide.protocol.schema import (
    ApiMessage,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Nullable,
    String,
    UInt16,
    Versions,
    versions,
)

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
"""The member's place is kept for its instance id until its session expires."""


class StreamsStatus(IntEnum):
    """What a response says about the group besides an error. Source: `StreamsGroupHeartbeatResponse.Status`."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


class StreamsKeyValue(Message, kw_only=True):
    key: String
    value: String


class StreamsTopicInfo(Message, kw_only=True):
    """An internal topic. `partitions` and `replication_factor` are 0 if the broker decides."""

    name: String
    partitions: Int32
    replication_factor: Int16
    topic_configs: list[StreamsKeyValue]


class StreamsEndpoint(Message, kw_only=True):
    """Where an application serves interactive queries."""

    host: String
    port: UInt16


class StreamsTaskOffset(Message, kw_only=True):
    """The sum of the changelog offsets of a task."""

    subtopology_id: String
    partition: Int32
    offset: Int64


class StreamsTaskIds(Message, kw_only=True):
    """Tasks of one subtopology."""

    subtopology_id: String
    partitions: list[Int32]


class HeartbeatCopartitionGroup(Message, kw_only=True):
    """Topics with equal partition counts, as positions in the lists of the subtopology."""

    source_topics: list[Int16]
    source_topic_regex: list[Int16]
    repartition_source_topics: list[Int16]


class HeartbeatSubtopology(Message, kw_only=True):
    subtopology_id: String
    source_topics: list[String]
    source_topic_regex: list[String]
    state_changelog_topics: list[StreamsTopicInfo]
    repartition_sink_topics: list[String]
    repartition_source_topics: list[StreamsTopicInfo]
    copartition_groups: list[HeartbeatCopartitionGroup]


class HeartbeatTopology(Message, kw_only=True):
    epoch: Int32
    subtopologies: list[HeartbeatSubtopology]


@versions("0-1", flexible="0+")
class StreamsGroupHeartbeatRequest(ApiMessage, kw_only=True):
    """The member, its topology and its tasks."""

    group_id: String
    member_id: String
    member_epoch: Int32
    endpoint_information_epoch: Int32
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    topology: Annotated[HeartbeatTopology | None, Nullable("0+")] = None
    active_tasks: list[StreamsTaskIds] | None = None
    standby_tasks: list[StreamsTaskIds] | None = None
    warmup_tasks: list[StreamsTaskIds] | None = None
    process_id: String | None = None
    user_endpoint: Annotated[StreamsEndpoint | None, Nullable("0+")] = None
    client_tags: list[StreamsKeyValue] | None = None
    task_offsets: list[StreamsTaskOffset] | None = None
    task_end_offsets: list[StreamsTaskOffset] | None = None
    shutdown_application: Bool = False


class HeartbeatStatus(Message, kw_only=True):
    status_code: Int8
    status_detail: String


class HeartbeatTopicPartition(Message, kw_only=True):
    topic: String
    partitions: list[Int32]


class EndpointToPartitions(Message, kw_only=True):
    """The partitions of the tasks at one endpoint."""

    user_endpoint: StreamsEndpoint
    active_partitions: list[HeartbeatTopicPartition]
    standby_partitions: list[HeartbeatTopicPartition]


@versions("0-1", flexible="0+")
class StreamsGroupHeartbeatResponse(ApiMessage, kw_only=True):
    """The member's epoch, and its tasks if they changed."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String = ""
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    acceptable_recovery_lag_legacy: Annotated[Int32, Versions("0")] = 0
    task_offset_interval_ms: Int32 = 0
    acceptable_recovery_lag: Annotated[Int64, Versions("1+")] = -1
    status: list[HeartbeatStatus] | None = msgspec.field(default_factory=list)
    active_tasks: list[StreamsTaskIds] | None = None
    standby_tasks: list[StreamsTaskIds] | None = None
    warmup_tasks: list[StreamsTaskIds] | None = None
    topology_description_required: Annotated[Bool, Versions("1+")] = False
    endpoint_information_epoch: Int32 = 0
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = None
