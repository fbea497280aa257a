"""StreamsGroupDescribe (key 89): the state, topology and members of streams groups (KIP-1071)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from lowtide.protocol.messages.streams_group_heartbeat import (
    StreamsEndpoint,
    StreamsKeyValue,
    StreamsTaskIds,
    StreamsTaskOffset,
    StreamsTopicInfo,
)
from lowtide.protocol.messages.streams_group_topology_description_update import TopologyDescription
from lowtide.protocol.schema import (
    ApiMessage,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    Nullable,
    String,
    Versions,
    versions,
)


@versions("0-1", flexible="0+")
class StreamsGroupDescribeRequest(ApiMessage, kw_only=True):
    group_ids: list[String]
    include_authorized_operations: Bool
    include_topology_description: Annotated[Bool, Versions("1+")] = False


class DescribedSubtopology(Message, kw_only=True):
    subtopology_id: String
    source_topics: list[String]
    repartition_sink_topics: list[String]
    state_changelog_topics: list[StreamsTopicInfo]
    repartition_source_topics: list[StreamsTopicInfo]


class DescribedTopology(Message, kw_only=True):
    epoch: Int32
    subtopologies: list[DescribedSubtopology] | None = None


class DescribedStreamsAssignment(Message, kw_only=True):
    active_tasks: list[StreamsTaskIds]
    standby_tasks: list[StreamsTaskIds]
    warmup_tasks: list[StreamsTaskIds]


class DescribedStreamsMember(Message, kw_only=True):
    member_id: String
    member_epoch: Int32
    instance_id: String | None = None
    rack_id: String | None = None
    client_id: String
    client_host: String
    topology_epoch: Int32
    process_id: String
    user_endpoint: Annotated[StreamsEndpoint | None, Nullable("0+")] = None
    client_tags: list[StreamsKeyValue]
    task_offsets: list[StreamsTaskOffset]
    task_end_offsets: list[StreamsTaskOffset]
    assignment: DescribedStreamsAssignment
    target_assignment: DescribedStreamsAssignment
    is_classic: Bool = False


class DescribedStreamsGroup(Message, kw_only=True):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    topology: Annotated[DescribedTopology | None, Nullable("0+")] = None
    members: list[DescribedStreamsMember] = msgspec.field(default_factory=list)
    authorized_operations: Int32 = OPERATIONS_NOT_ASKED
    topology_description: Annotated[TopologyDescription | None, Versions("1+"), Nullable("1+")] = None
    topology_description_status: Annotated[Int8, Versions("1+")] = 0
    assignor_name: Annotated[String | None, Versions("1+")] = None


@versions("0-1", flexible="0+")
class StreamsGroupDescribeResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedStreamsGroup]
