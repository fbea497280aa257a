"""DescribeGroups: v0-v6.

Behaviour: returns state, protocol and members of classic groups. Metadata and protocol are returned for stable groups
only. A group that is listed twice is described once. Consumer groups are not found here (ConsumerGroupDescribe).

Version notes: v3 has the authorized operations. v4 has static members. v6 returns GROUP_ID_NOT_FOUND for an unknown
group; earlier versions describe it as Dead.

Errors: GROUP_ID_NOT_FOUND, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.

KIPs: 345, 430, 1043.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from lowtide.broker.authorizer.resources import ALL_GROUP_OPERATIONS
from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.classic.classic_member import ClassicMember
from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.guards import groups as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from lowtide.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from lowtide.replication.refusal import cut_message

_NOT_FOUND_SINCE = 6

MEMBERS_A_STEP = 100
"""Some two tenths of a millisecond's work."""

CUT: Final = Cut(levels=(("groups", "groups"),))


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def describe(group_id: str, version: int, operations: int) -> Generator[None, None, DescribedGroup]:
        shard = groups.find(group_id)
        if isinstance(shard, ErrorCode):
            return _failed(group_id, shard)
        group = shard.state.by_id.find_classic(group_id)
        if group is None:
            if version >= _NOT_FOUND_SINCE:
                return _failed(
                    group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.", GroupState.DEAD.value
                )
            return _failed(group_id, ErrorCode.NONE, state=GroupState.DEAD.value, operations=operations)
        described = yield from _described(group, operations)
        return described

    def steps(request: DescribeGroupsRequest, version: int) -> Generator[None, None, DescribeGroupsResponse]:
        operations = ALL_GROUP_OPERATIONS if request.include_authorized_operations else OPERATIONS_NOT_ASKED
        rows = []
        for group_id in dict.fromkeys(request.groups):
            rows.append((yield from describe(group_id, version, operations)))
            yield
        return DescribeGroupsResponse(groups=rows)

    def handle(request: DescribeGroupsRequest, context: RequestContext) -> Answer[DescribeGroupsResponse]:
        return groups.broker.turns.answer(steps(request, context.api_version))

    return HandlerSpec(key=ApiKey.DESCRIBE_GROUPS, guard=guards.describe_groups, handle=handle, cut=CUT)


def _described(group: ClassicGroup, operations: int) -> Generator[None, None, DescribedGroup]:
    """Returns the description of a group, in steps. The list of members, and each of them, is from one moment."""
    protocol = (group.protocol_name or "") if group.state is GroupState.STABLE else ""
    described = DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol,
        members=[],
        authorized_operations=operations,
    )
    for number, member in enumerate(list(group.members.values()), 1):
        described.members.append(_member(member, protocol))
        if number % MEMBERS_A_STEP == 0:
            yield
    return described


def _member(member: ClassicMember, protocol: str) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(protocol) if protocol else b"",
        member_assignment=member.assignment,
    )


def _failed(
    group_id: str, error: ErrorCode, message: str | None = None, state: str = "", operations: int = OPERATIONS_NOT_ASKED
) -> DescribedGroup:
    return DescribedGroup(
        error_code=error,
        error_message=cut_message(message),
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=operations,
    )
