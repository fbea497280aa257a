"""Guards of what is asked about share groups, and about their states, which only brokers ask. Source: Kafka's `KafkaApis`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from lowtide.broker.authorizer.resources import ALL_GROUP_OPERATIONS, Operation, group, topic
from lowtide.broker.coordinator.consumer.share_groups import heartbeat_failed
from lowtide.broker.guards.guard import Asker, Guard, Verdict
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from lowtide.protocol.messages.share_group_describe import DescribedShareGroup, ShareGroupDescribeRequest, ShareGroupDescribeResponse
from lowtide.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest


def for_brokers(refused: Callable[[Any, ErrorCode], Any]) -> Guard:
    """CLUSTER_ACTION on the cluster; `refused` makes the answer to a request that is refused."""

    def guard(request: Any, asker: Asker) -> Verdict:
        if asker.may_cluster(Operation.CLUSTER_ACTION):
            return Verdict(request)
        return Verdict(answer=refused(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED))

    return guard


def share_group_heartbeat(request: ShareGroupHeartbeatRequest, asker: Asker) -> Verdict:
    """READ on the group, DESCRIBE on each topic that is named."""
    if not asker.may(Operation.READ, group(request.group_id)):
        return Verdict(answer=heartbeat_failed(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    if all(asker.may(Operation.DESCRIBE, topic(name)) for name in request.subscribed_topic_names or ()):
        return Verdict(request)
    return Verdict(answer=heartbeat_failed(ErrorCode.TOPIC_AUTHORIZATION_FAILED))


def share_group_describe(request: ShareGroupDescribeRequest, asker: Asker) -> Verdict:
    """DESCRIBE on each group, and on each topic that its members have."""
    names = list(dict.fromkeys(request.group_ids))
    allowed = [name for name in names if asker.may(Operation.DESCRIBE, group(name))]
    rows = [
        DescribedShareGroup(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id=name) for name in names if name not in set(allowed)
    ]

    def merge(answer: ShareGroupDescribeResponse) -> ShareGroupDescribeResponse:
        return replace(answer, groups=[*rows, *(_shown(row, asker) for row in answer.groups)])

    return Verdict(replace(request, group_ids=allowed), merge)


def _shown(row: DescribedShareGroup, asker: Asker) -> DescribedShareGroup:
    """What may be shown of a group: nothing, if any of its topics mayn't be described."""
    names = {rows.topic_name for member in row.members for rows in member.assignment.topic_partitions}
    if not all(asker.may(Operation.DESCRIBE, topic(name)) for name in sorted(names)):
        return DescribedShareGroup(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, group_id=row.group_id)
    if row.authorized_operations == OPERATIONS_NOT_ASKED:
        return row
    return replace(row, authorized_operations=asker.operations(group(row.group_id), ALL_GROUP_OPERATIONS))
