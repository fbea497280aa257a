"""StreamsGroupDescribe: v0-v1.

Behaviour: returns state, epochs, topology and members of streams groups, with their tasks and targets. A group that is
listed twice is described once. The topology has the partition counts of internal topics once the group is ready. The
response waits until everything in it is committed.

Version notes: v1 has the assignor, and the description of the topology, which is never stored here.

Errors: INVALID_GROUP_ID, GROUP_ID_NOT_FOUND (also for a group of another type), UNSUPPORTED_VERSION if streams groups
are disabled, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 430, 1071.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final

from lowtide.broker.authorizer.resources import ALL_GROUP_OPERATIONS
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.groups.group_descriptions import GroupDescriptions
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.coordinator.streams.streams_group import NO_OFFSETS, StreamsGroup
from lowtide.broker.coordinator.streams.streams_member import AssignedTasks, StreamsThreadMember, task_rows
from lowtide.broker.coordinator.streams.tasks import EMPTY_TASKS, TaskId, Tasks
from lowtide.broker.coordinator.streams.topology_records import described_topology
from lowtide.broker.guards import streams_groups as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from lowtide.protocol.messages.streams_group_describe import (
    DescribedStreamsAssignment,
    DescribedStreamsGroup,
    DescribedStreamsMember,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from lowtide.protocol.messages.streams_group_heartbeat import StreamsEndpoint, StreamsKeyValue, StreamsTaskOffset
from lowtide.replication.refusal import cut_message

CUT: Final = Cut(levels=(("group_ids", "groups"),))

ASSIGNOR: Final = "sticky"

NOT_STORED: Final = 1
"""A topology description was asked for, and there is none. Source: `StreamsGroupTopologyDescriptionStatus`."""


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def describe(shard: Shard[Groups], group_id: str, operations: int) -> Generator[None, None, DescribedStreamsGroup]:
        group = shard.state.streams.find(group_id)
        if group is None:
            is_other = group_id in shard.state.by_id
            message = f"Group {group_id} is not a streams group." if is_other else f"Group {group_id} not found."
            return _failed(group_id, ErrorCode.GROUP_ID_NOT_FOUND, message)
        record, parsed = group.topology.record, group.topology.parsed
        configured = None if parsed is None else shard.state.streams.targets.configure(group, parsed)
        described = DescribedStreamsGroup(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.group_epoch,
            assignment_epoch=group.target_epoch,
            topology=None if record is None else described_topology(record, configured),
            assignor_name=ASSIGNOR,
            members=[],
            authorized_operations=operations,
        )
        for member in list(group.members.values()):
            described.members.append(_member(group, member))
            yield
        return described

    def respond(rows: list[DescribedStreamsGroup]) -> StreamsGroupDescribeResponse:
        return StreamsGroupDescribeResponse(groups=rows)

    def respond_without_description(rows: list[DescribedStreamsGroup]) -> StreamsGroupDescribeResponse:
        for row in rows:
            row.topology_description_status = 0 if row.error_code else NOT_STORED
        return respond(rows)

    descriptions = GroupDescriptions(groups, describe, _failed, respond)
    asked_for_topology = GroupDescriptions(groups, describe, _failed, respond_without_description)

    def handle(request: StreamsGroupDescribeRequest, _context: RequestContext) -> Answer[StreamsGroupDescribeResponse]:
        if not groups.serves_streams_groups:
            return respond([_failed(name, ErrorCode.UNSUPPORTED_VERSION) for name in request.group_ids])
        operations = ALL_GROUP_OPERATIONS if request.include_authorized_operations else OPERATIONS_NOT_ASKED
        chosen = asked_for_topology if request.include_topology_description else descriptions
        return chosen.answer(request.group_ids, operations)

    return HandlerSpec(key=ApiKey.STREAMS_GROUP_DESCRIBE, guard=guards.streams_group_describe, handle=handle, cut=CUT)


def _member(group: StreamsGroup, member: StreamsThreadMember) -> DescribedStreamsMember:
    endpoint, reported = member.user_endpoint, group.reports.task_offsets.get(member.member_id, NO_OFFSETS)
    return DescribedStreamsMember(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else StreamsEndpoint(host=endpoint[0], port=endpoint[1]),
        client_tags=[StreamsKeyValue(key=key, value=value) for key, value in member.client_tags],
        task_offsets=_offsets(reported.offsets),
        task_end_offsets=_offsets(reported.end_offsets),
        assignment=_assignment(member.assigned),
        target_assignment=_assignment(group.targets.get(member.member_id, EMPTY_TASKS)),
    )


def _assignment(tasks: AssignedTasks | Tasks) -> DescribedStreamsAssignment:
    return DescribedStreamsAssignment(
        active_tasks=task_rows(tasks.active),
        standby_tasks=task_rows(tasks.standby),
        warmup_tasks=task_rows(tasks.warmup),
    )


def _offsets(offsets: Mapping[TaskId, int]) -> list[StreamsTaskOffset]:
    return [
        StreamsTaskOffset(subtopology_id=name, partition=number, offset=offsets[name, number])
        for name, number in sorted(offsets)
    ]


def _failed(group_id: str, error: ErrorCode, message: str | None = None) -> DescribedStreamsGroup:
    return DescribedStreamsGroup(error_code=error, error_message=cut_message(message), group_id=group_id)
