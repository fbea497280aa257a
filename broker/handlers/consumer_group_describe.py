"""ConsumerGroupDescribe: v0-v1.

Behaviour: returns state, epochs and members of consumer groups, with their assignments and targets. A group that is
listed twice is described once. Topics that were deleted are left out. The response waits until everything in it is
committed.

Version notes: v1 has the protocol of each member.

Errors: INVALID_GROUP_ID, GROUP_ID_NOT_FOUND (also for a group of another type), UNSUPPORTED_VERSION if consumer groups
are disabled, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 430, 848, 1099.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from lowtide.broker.authorizer.resources import ALL_GROUP_OPERATIONS
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.groups.group_descriptions import GroupDescriptions, assignment_rows
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.modern.modern_member import NOTHING, Assignment, ModernMember
from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.guards import groups as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedConsumerMember,
    DescribedTopicPartitions,
)
from lowtide.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from lowtide.replication.refusal import cut_message

_CLASSIC_MEMBER = 0
_CONSUMER_MEMBER = 1

CUT: Final = Cut(levels=(("group_ids", "groups"),))


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def describe(shard: Shard[Groups], group_id: str, operations: int) -> Generator[None, None, DescribedConsumerGroup]:
        group = shard.state.by_id.find_consumer(group_id)
        if group is None:
            return _failed(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        image = groups.broker.metadata.image
        described = DescribedConsumerGroup(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.group_epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=shard.state.consumers.assignor_of(group),
            members=[],
            authorized_operations=operations,
        )
        for member in list(group.members.values()):
            described.members.append(_member(member, group.targets.get(member.member_id, NOTHING), image))
            yield
        return described

    def respond(rows: list[DescribedConsumerGroup]) -> ConsumerGroupDescribeResponse:
        return ConsumerGroupDescribeResponse(groups=rows)

    descriptions = GroupDescriptions(groups, describe, _failed, respond)

    def handle(
        request: ConsumerGroupDescribeRequest, _context: RequestContext
    ) -> Answer[ConsumerGroupDescribeResponse]:
        if not groups.serves_consumer_groups:
            return respond([_failed(name, ErrorCode.UNSUPPORTED_VERSION) for name in dict.fromkeys(request.group_ids)])
        operations = ALL_GROUP_OPERATIONS if request.include_authorized_operations else OPERATIONS_NOT_ASKED
        return descriptions.answer(request.group_ids, operations)

    return HandlerSpec(key=ApiKey.CONSUMER_GROUP_DESCRIBE, guard=guards.consumer_group_describe, handle=handle, cut=CUT)


def _member(member: ModernMember, target: Assignment, image: MetadataImage) -> DescribedConsumerMember:
    return DescribedConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex or "",
        assignment=_assignment(member.held, image),
        target_assignment=_assignment(target, image),
        member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    )


def _assignment(assignment: Assignment, image: MetadataImage) -> DescribedAssignment:
    return DescribedAssignment(topic_partitions=assignment_rows(assignment, image, DescribedTopicPartitions))


def _failed(group_id: str, error: ErrorCode, message: str | None = None) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(error_code=error, error_message=cut_message(message), group_id=group_id)
