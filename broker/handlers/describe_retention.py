"""DescribeRetention: v0-v0.

Behaviour: Lowtide's own, not advertised. Returns, for partitions that are led here, which rules keep the oldest segment
and when it will be deleted, as the next check would decide now. If consumed records may be deleted early, all
coordinators are asked what the groups have consumed: one such query runs at a time, and a few requests may wait for it.
Groups that the client may not describe are not named.

Errors: INVALID_REQUEST for too many partitions, THROTTLING_QUOTA_EXCEEDED if too many requests wait; of single
partitions TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR.

KIPs: 47, 68.
"""

from __future__ import annotations

from collections.abc import Iterator

from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.broker.retention.consumption import PARTITIONS_PER_REQUEST, Doubt, Outcome
from lowtide.broker.retention.explained import Explanations, PartitionOrError, refused
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_retention import (
    DescribeRetentionRequest,
    DescribeRetentionResponse,
    RetainedTopic,
)
from lowtide.protocol.types import TopicPartition


def handler(broker: BrokerContext, explanations: Explanations) -> HandlerSpec:
    """Returns the handler."""

    async def handle(request: DescribeRetentionRequest, context: RequestContext) -> DescribeRetentionResponse:
        wanted = {topic.name: dict.fromkeys(topic.partitions) for topic in request.topics}
        if sum(map(len, wanted.values())) > PARTITIONS_PER_REQUEST:
            return DescribeRetentionResponse(error_code=ErrorCode.INVALID_REQUEST)
        found = explanations.find(context, wanted)
        consumed = await explanations.ask(context.connection, found.values())
        if isinstance(consumed, ErrorCode):
            return DescribeRetentionResponse(error_code=consumed)
        topics: dict[str, RetainedTopic] = {}
        await broker.turns.walk(_rows(explanations, found, consumed, topics, context))
        return DescribeRetentionResponse(
            error_code=ErrorCode.NONE,
            checked_at_ms=broker.clock.wall_ms(),
            next_check_at_ms=explanations.next_check_at_ms,
            topics=list(topics.values()),
        )

    return HandlerSpec(key=ApiKey.DESCRIBE_RETENTION, guard=CHECKS_ITSELF, handle_later=handle)


def _rows(
    explanations: Explanations,
    found: dict[TopicPartition, PartitionOrError],
    consumed: Outcome | Doubt,
    topics: dict[str, RetainedTopic],
    context: RequestContext,
) -> Iterator[None]:
    for key, before in found.items():
        rows = topics.setdefault(key.topic, RetainedTopic(name=key.topic, partitions=[])).partitions
        partition = explanations.still(key, before)
        rows.append(
            refused(key, partition)
            if isinstance(partition, ErrorCode)
            else explanations.row(partition, consumed, context)
        )
        yield
