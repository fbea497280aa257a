"""Guards of requests about groups. Source: Kafka's `KafkaApis`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from lowtide.broker.authorizer.authorizer import Audit
from lowtide.broker.authorizer.resources import (
    ALL_GROUP_OPERATIONS,
    CLUSTER,
    Operation,
    Resource,
    ResourceType,
    group,
    topic,
)
from lowtide.broker.coordinator.classic.rebalancing import join_failed, sync_failed
from lowtide.broker.coordinator.modern.consumer_heartbeats import heartbeat_failed
from lowtide.broker.guards.guard import Asker, Guard, Verdict, for_members, with_rows
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from lowtide.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest
from lowtide.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from lowtide.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from lowtide.protocol.messages.heartbeat import HeartbeatResponse
from lowtide.protocol.messages.leave_group import LeaveGroupResponse
from lowtide.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from lowtide.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED

_COMMIT_TOPIC_IDS_SINCE = 10
_MANY_KEYS_SINCE = 4
_SHARE = 2
_SHARE_SINCE = 6
_COORDINATOR_RIGHTS = {
    0: (ResourceType.GROUP, Operation.DESCRIBE, GROUP_DENIED, "Group authorization failed."),
    1: (
        ResourceType.TRANSACTIONAL_ID,
        Operation.DESCRIBE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "Transactional Id authorization failed.",
    ),
    _SHARE: (
        ResourceType.CLUSTER,
        Operation.CLUSTER_ACTION,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        "Cluster authorization failed.",
    ),
}
"""The permission that each type of key requires, and the error without it."""

_NULL_PROTOCOL_SINCE = 7


def join_group(request: Any, asker: Asker) -> Verdict:
    """Requires READ on the group."""
    if asker.may(Operation.READ, group(request.group_id)):
        return Verdict(request)
    answer = join_failed(GROUP_DENIED)
    return Verdict(
        answer=answer if asker.context.api_version >= _NULL_PROTOCOL_SINCE else replace(answer, protocol_name="")
    )


sync_group = for_members(sync_failed)
heartbeat = for_members(lambda error: HeartbeatResponse(error_code=error))
leave_group = for_members(lambda error: LeaveGroupResponse(error_code=error))


def _commit_rows(topics: list[Any], error: ErrorCode) -> list[OffsetCommitResponseTopic]:
    return [
        OffsetCommitResponseTopic(
            name=each.name,
            topic_id=each.topic_id,
            partitions=[
                OffsetCommitResponsePartition(partition_index=row.partition_index, error_code=error)
                for row in each.partitions
            ],
        )
        for each in topics
    ]


def offset_commit(request: OffsetCommitRequest, asker: Asker) -> Verdict:
    """Requires READ on the group and on each topic."""
    if not asker.may(Operation.READ, group(request.group_id)):
        return Verdict(answer=OffsetCommitResponse(topics=_commit_rows(request.topics, GROUP_DENIED)))
    by_id = asker.context.api_version >= _COMMIT_TOPIC_IDS_SINCE
    allowed, denied = asker.split(
        Operation.READ, request.topics, lambda each: asker.name_of(each.name, each.topic_id, by_id=by_id)
    )
    return with_rows(replace(request, topics=allowed), "topics", _commit_rows(denied, TOPIC_DENIED))


def offset_delete(request: OffsetDeleteRequest, asker: Asker) -> Verdict:
    """Requires DELETE on the group and READ on each topic."""
    if not asker.may(Operation.DELETE, group(request.group_id)):
        return Verdict(answer=OffsetDeleteResponse(error_code=GROUP_DENIED, topics=[]))
    allowed, denied = asker.split(Operation.READ, request.topics, lambda each: each.name)
    rows = [
        OffsetDeleteResponseTopic(
            name=each.name,
            partitions=[
                OffsetDeleteResponsePartition(partition_index=row.partition_index, error_code=TOPIC_DENIED)
                for row in each.partitions
            ],
        )
        for each in denied
    ]
    return with_rows(replace(request, topics=allowed), "topics", rows)


def describe_groups(request: DescribeGroupsRequest, asker: Asker) -> Verdict:
    """Requires DESCRIBE on each group."""
    allowed, denied = asker.split_ids(Operation.DESCRIBE, group, request.groups)
    rows = [
        DescribedGroup(
            error_code=GROUP_DENIED, group_id=name, group_state="", protocol_type="", protocol_data="", members=[]
        )
        for name in denied
    ]

    def merge(answer: DescribeGroupsResponse) -> DescribeGroupsResponse:
        described = (asker.with_operations(row, group(row.group_id), ALL_GROUP_OPERATIONS) for row in answer.groups)
        return replace(answer, groups=[*described, *rows])

    return Verdict(replace(request, groups=allowed), merge)


def list_groups(request: ListGroupsRequest, asker: Asker) -> Verdict:
    """Leaves out groups that the client may not describe, unless it may describe the cluster."""
    if asker.may_cluster(Operation.DESCRIBE, Audit.ALLOWED):
        return Verdict(request)

    def merge(answer: ListGroupsResponse) -> ListGroupsResponse:
        return replace(
            answer,
            groups=[row for row in answer.groups if asker.may(Operation.DESCRIBE, group(row.group_id), Audit.ALLOWED)],
        )

    return Verdict(request, merge)


def delete_groups(request: DeleteGroupsRequest, asker: Asker) -> Verdict:
    """Requires DELETE on each group."""
    allowed, denied = asker.split_ids(Operation.DELETE, group, request.groups_names)
    rows = [DeletableGroupResult(group_id=name, error_code=GROUP_DENIED) for name in denied]
    return with_rows(replace(request, groups_names=allowed), "results", rows)


def find_coordinator(request: FindCoordinatorRequest, asker: Asker) -> Verdict:
    """Requires DESCRIBE on each group or transactional id, and CLUSTER_ACTION for share partitions."""
    version = asker.context.api_version
    needed = _COORDINATOR_RIGHTS.get(request.key_type)
    if needed is None or (request.key_type == _SHARE and version < _SHARE_SINCE):
        return Verdict(request)
    kind, operation, error, message = needed

    def may(key: str) -> bool:
        return asker.may(operation, CLUSTER if kind is ResourceType.CLUSTER else Resource(kind, key))

    if version < _MANY_KEYS_SINCE:
        if may(request.key):
            return Verdict(request)
        return Verdict(answer=FindCoordinatorResponse(error_code=error, error_message=message, node_id=-1, port=-1))
    denied = {key for key in dict.fromkeys(request.coordinator_keys) if not may(key)}
    rows = [
        Coordinator(key=key, node_id=-1, port=-1, error_code=error) for key in request.coordinator_keys if key in denied
    ]
    allowed = [key for key in request.coordinator_keys if key not in denied]
    if rows and not allowed:
        return Verdict(answer=FindCoordinatorResponse(coordinators=rows))
    return with_rows(replace(request, coordinator_keys=allowed), "coordinators", rows)


def for_subscribers(failed: Callable[[ErrorCode], Any]) -> Guard:
    """Returns a guard that requires READ on the group, and DESCRIBE on each topic that the member subscribes to.

    `failed` makes the answer to a refused request.
    """

    def guard(request: Any, asker: Asker) -> Verdict:
        if not asker.may(Operation.READ, group(request.group_id)):
            return Verdict(answer=failed(GROUP_DENIED))
        if all(asker.may(Operation.DESCRIBE, topic(name)) for name in request.subscribed_topic_names or ()):
            return Verdict(request)
        return Verdict(answer=failed(TOPIC_DENIED))

    return guard


consumer_group_heartbeat = for_subscribers(heartbeat_failed)


def consumer_group_describe(request: ConsumerGroupDescribeRequest, asker: Asker) -> Verdict:
    """Requires DESCRIBE on each group, and on each topic in an assignment or target of its members."""
    allowed, denied = asker.split_ids(Operation.DESCRIBE, group, request.group_ids)
    rows = [DescribedConsumerGroup(error_code=GROUP_DENIED, group_id=name) for name in denied]

    def merge(answer: ConsumerGroupDescribeResponse) -> ConsumerGroupDescribeResponse:
        return replace(answer, groups=[*rows, *(_shown(row, asker) for row in answer.groups)])

    return Verdict(replace(request, group_ids=allowed), merge)


def _shown(row: DescribedConsumerGroup, asker: Asker) -> Any:
    assignments = (each for member in row.members for each in (member.assignment, member.target_assignment))
    return described_group(row, assignments, asker)


def described_group(row: Any, assignments: Iterable[Any], asker: Asker) -> Any:
    """Returns the description of a group, or an error if the client may not describe one of its assigned topics."""
    names = {rows.topic_name for assignment in assignments for rows in assignment.topic_partitions}
    if not all(asker.may(Operation.DESCRIBE, topic(name)) for name in sorted(names)):
        return type(row)(error_code=TOPIC_DENIED, group_id=row.group_id)
    return asker.with_operations(row, group(row.group_id), ALL_GROUP_OPERATIONS)
