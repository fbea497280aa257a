"""Guards of what is asked about share groups, and about their states, which only brokers ask.

Source: Kafka's `KafkaApis`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from lowtide.broker.authorizer.resources import ALL_GROUP_OPERATIONS, Operation, group, topic
from lowtide.broker.coordinator.modern.share_heartbeats import heartbeat_failed
from lowtide.broker.guards.guard import Asker, Guard, Verdict
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_share_group_offsets import (
    AlteredShareOffset,
    AlteredShareOffsetsTopic,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from lowtide.protocol.messages.delete_share_group_offsets import (
    DeletedShareOffsetsTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from lowtide.protocol.messages.describe_share_group_offsets import (
    DescribedShareOffset,
    DescribedShareOffsetsGroup,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    DescribeShareOffsetsGroup,
)
from lowtide.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from lowtide.protocol.messages.share_group_describe import (
    DescribedShareGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from lowtide.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from lowtide.protocol.types import ZERO_TOPIC_ID


def for_brokers(refused: Callable[[Any, ErrorCode], Any]) -> Guard:
    """CLUSTER_ACTION on the cluster; `refused` makes the answer to a request that is refused."""

    def guard(request: Any, asker: Asker) -> Verdict:
        if asker.may_cluster(Operation.CLUSTER_ACTION):
            return Verdict(request)
        return Verdict(answer=refused(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED))

    return guard


def for_members(failed: Callable[[ErrorCode], Any]) -> Guard:
    """READ on the group; the handler asks for READ on each topic.

    `failed` makes the answer to a request that is refused.
    """

    def guard(request: Any, asker: Asker) -> Verdict:
        if asker.may(Operation.READ, group(request.group_id or "")):
            return Verdict(request)
        return Verdict(answer=failed(ErrorCode.GROUP_AUTHORIZATION_FAILED))

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
        DescribedShareGroup(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id=name)
        for name in names
        if name not in set(allowed)
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


def describe_share_group_offsets(request: DescribeShareGroupOffsetsRequest, asker: Asker) -> Verdict:
    """DESCRIBE on each group, and on each topic: those that aren't named are left out, those that are get an error."""
    allowed = [each for each in request.groups if asker.may(Operation.DESCRIBE, group(each.group_id))]
    rows = [
        DescribedShareOffsetsGroup(group_id=each.group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        for each in request.groups
        if each not in allowed
    ]

    def shown(row: DescribedShareOffsetsGroup, asked: DescribeShareOffsetsGroup) -> DescribedShareOffsetsGroup:
        topics = []
        for each in row.topics:
            if asker.may(Operation.DESCRIBE, topic(each.topic_name)):
                topics.append(each)
            elif asked.topics is not None:
                denied = [_denied_offset(partition.partition_index) for partition in each.partitions]
                topics.append(replace(each, topic_id=ZERO_TOPIC_ID, partitions=denied))
        return replace(row, topics=topics)

    def merge(answer: DescribeShareGroupOffsetsResponse) -> DescribeShareGroupOffsetsResponse:
        return replace(answer, groups=[*rows, *map(shown, answer.groups, allowed)])

    return Verdict(replace(request, groups=allowed), merge)


def _denied_offset(number: int) -> DescribedShareOffset:
    return DescribedShareOffset(partition_index=number, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def alter_share_group_offsets(request: AlterShareGroupOffsetsRequest, asker: Asker) -> Verdict:
    """READ on the group, and on each topic."""
    if not asker.may(Operation.READ, group(request.group_id)):
        return Verdict(answer=AlterShareGroupOffsetsResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
    allowed, denied = asker.split(Operation.READ, request.topics, lambda each: each.topic_name)
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    rows = [
        AlteredShareOffsetsTopic(
            topic_name=each.topic_name,
            topic_id=ZERO_TOPIC_ID,
            partitions=[
                AlteredShareOffset(partition_index=row.partition_index, error_code=code) for row in each.partitions
            ],
        )
        for each in denied
    ]

    def merge(answer: AlterShareGroupOffsetsResponse) -> AlterShareGroupOffsetsResponse:
        return answer if answer.error_code != ErrorCode.NONE else replace(answer, responses=[*answer.responses, *rows])

    return Verdict(replace(request, topics=allowed), merge)


def delete_share_group_offsets(request: DeleteShareGroupOffsetsRequest, asker: Asker) -> Verdict:
    """DELETE on the group, READ on each topic."""
    if not asker.may(Operation.DELETE, group(request.group_id)):
        return Verdict(answer=DeleteShareGroupOffsetsResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
    allowed, denied = asker.split(Operation.READ, request.topics, lambda each: each.topic_name)
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    rows = [
        DeletedShareOffsetsTopic(topic_name=each.topic_name, topic_id=ZERO_TOPIC_ID, error_code=code) for each in denied
    ]

    def merge(answer: DeleteShareGroupOffsetsResponse) -> DeleteShareGroupOffsetsResponse:
        return answer if answer.error_code != ErrorCode.NONE else replace(answer, responses=[*answer.responses, *rows])

    return Verdict(replace(request, topics=allowed), merge)
