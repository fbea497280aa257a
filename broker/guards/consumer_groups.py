"""Guards of what is asked about groups whose partitions the broker assigns. Source: Kafka's `KafkaApis`."""

from __future__ import annotations

from msgspec.structs import replace

from lowtide.broker.authorizer.resources import ALL_GROUP_OPERATIONS, Operation, group, topic
from lowtide.broker.coordinator.modern.consumer_heartbeats import heartbeat_failed
from lowtide.broker.guards.guard import Asker, Verdict
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from lowtide.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from lowtide.protocol.messages.metadata import OPERATIONS_NOT_ASKED

GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def consumer_group_heartbeat(request: ConsumerGroupHeartbeatRequest, asker: Asker) -> Verdict:
    """READ on the group, DESCRIBE on each topic that is named."""
    if not asker.may(Operation.READ, group(request.group_id)):
        return Verdict(answer=heartbeat_failed(GROUP_DENIED))
    if all(asker.may(Operation.DESCRIBE, topic(name)) for name in request.subscribed_topic_names or ()):
        return Verdict(request)
    return Verdict(answer=heartbeat_failed(TOPIC_DENIED))


def consumer_group_describe(request: ConsumerGroupDescribeRequest, asker: Asker) -> Verdict:
    """DESCRIBE on each group, and on each topic that its members have or are to have."""
    allowed = [name for name in request.group_ids if asker.may(Operation.DESCRIBE, group(name))]
    denied = [name for name in dict.fromkeys(request.group_ids) if name not in allowed]
    rows = [DescribedConsumerGroup(error_code=GROUP_DENIED, group_id=name) for name in denied]

    def merge(answer: ConsumerGroupDescribeResponse) -> ConsumerGroupDescribeResponse:
        return replace(answer, groups=[*rows, *(_shown(row, asker) for row in answer.groups)])

    return Verdict(replace(request, group_ids=allowed), merge)


def _shown(row: DescribedConsumerGroup, asker: Asker) -> DescribedConsumerGroup:
    """What may be shown of a group: nothing, if any of its topics mayn't be described."""
    names = {
        rows.topic_name
        for member in row.members
        for assignment in (member.assignment, member.target_assignment)
        for rows in assignment.topic_partitions
    }
    if not all(asker.may(Operation.DESCRIBE, topic(name)) for name in sorted(names)):
        return DescribedConsumerGroup(error_code=TOPIC_DENIED, group_id=row.group_id)
    if row.authorized_operations == OPERATIONS_NOT_ASKED:
        return row
    return replace(row, authorized_operations=asker.operations(group(row.group_id), ALL_GROUP_OPERATIONS))
