"""Guards of requests about share groups. Source: Kafka's `KafkaApis`."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from lowtide.broker.authorizer.resources import Operation, group, topic
from lowtide.broker.coordinator.modern.share_heartbeats import heartbeat_failed
from lowtide.broker.guards.groups import described_group, for_subscribers
from lowtide.broker.guards.guard import Asker, Verdict, with_rows
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
from lowtide.protocol.messages.share_group_describe import (
    DescribedShareGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from lowtide.protocol.types import ZERO_TOPIC_ID

share_group_heartbeat = for_subscribers(heartbeat_failed)


def share_group_describe(request: ShareGroupDescribeRequest, asker: Asker) -> Verdict:
    """Requires DESCRIBE on each group, and on each topic in an assignment of its members."""
    allowed, denied = asker.split_ids(Operation.DESCRIBE, group, dict.fromkeys(request.group_ids))
    rows = [DescribedShareGroup(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id=name) for name in denied]

    def merge(answer: ShareGroupDescribeResponse) -> ShareGroupDescribeResponse:
        return replace(answer, groups=[*rows, *(_shown(row, asker) for row in answer.groups)])

    return Verdict(replace(request, group_ids=allowed), merge)


def _shown(row: DescribedShareGroup, asker: Asker) -> Any:
    return described_group(row, (member.assignment for member in row.members), asker)


def describe_share_group_offsets(request: DescribeShareGroupOffsetsRequest, asker: Asker) -> Verdict:
    """Requires DESCRIBE on each group and topic. Topics that the request does not name are left out."""
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
    """Requires READ on the group and on each topic."""
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
    return with_rows(replace(request, topics=allowed), "responses", rows)


def delete_share_group_offsets(request: DeleteShareGroupOffsetsRequest, asker: Asker) -> Verdict:
    """Requires DELETE on the group and READ on each topic."""
    if not asker.may(Operation.DELETE, group(request.group_id)):
        return Verdict(answer=DeleteShareGroupOffsetsResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
    allowed, denied = asker.split(Operation.READ, request.topics, lambda each: each.topic_name)
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    rows = [
        DeletedShareOffsetsTopic(topic_name=each.topic_name, topic_id=ZERO_TOPIC_ID, error_code=code) for each in denied
    ]
    return with_rows(replace(request, topics=allowed), "responses", rows)
