"""ShareGroupDescribe: v1-v1.

Behaviour: returns state, epochs and members of share groups, with their assignments. A group that is listed twice is
described once. Topics that were deleted are left out. The response waits until everything in it is committed.

Errors: INVALID_GROUP_ID, GROUP_ID_NOT_FOUND (also for a group of another type), NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 430, 932.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from lowtide.broker.authorizer.resources import ALL_GROUP_OPERATIONS
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.groups.group_descriptions import GroupDescriptions, assignment_rows
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.modern.modern_member import Assignment, ModernMember
from lowtide.broker.coordinator.modern.share_groups import ASSIGNOR
from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.guards import share_groups as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from lowtide.protocol.messages.share_group_describe import (
    DescribedShareAssignment,
    DescribedShareGroup,
    DescribedShareMember,
    DescribedShareTopicPartitions,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from lowtide.replication.refusal import cut_message

CUT: Final = Cut(levels=(("group_ids", "groups"),))


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def describe(shard: Shard[Groups], group_id: str, operations: int) -> Generator[None, None, DescribedShareGroup]:
        group = shard.state.by_id.find_share(group_id)
        if group is None:
            return _failed(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
        image = groups.broker.metadata.image
        described = DescribedShareGroup(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.group_epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=ASSIGNOR,
            members=[],
            authorized_operations=operations,
        )
        for member in list(group.members.values()):
            described.members.append(_member(member, image))
            yield
        return described

    def respond(rows: list[DescribedShareGroup]) -> ShareGroupDescribeResponse:
        return ShareGroupDescribeResponse(groups=rows)

    descriptions = GroupDescriptions(groups, describe, _failed, respond)

    def handle(request: ShareGroupDescribeRequest, _context: RequestContext) -> Answer[ShareGroupDescribeResponse]:
        operations = ALL_GROUP_OPERATIONS if request.include_authorized_operations else OPERATIONS_NOT_ASKED
        return descriptions.answer(request.group_ids, operations)

    return HandlerSpec(key=ApiKey.SHARE_GROUP_DESCRIBE, guard=guards.share_group_describe, handle=handle, cut=CUT)


def _member(member: ModernMember, image: MetadataImage) -> DescribedShareMember:
    return DescribedShareMember(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        assignment=_assignment(member.assigned, image),
    )


def _assignment(assignment: Assignment, image: MetadataImage) -> DescribedShareAssignment:
    return DescribedShareAssignment(topic_partitions=assignment_rows(assignment, image, DescribedShareTopicPartitions))


def _failed(group_id: str, error: ErrorCode, message: str | None = None) -> DescribedShareGroup:
    return DescribedShareGroup(error_code=error, error_message=cut_message(message), group_id=group_id)
