"""DescribeHistory: v0-v0.

Behaviour: Lowtide's own, not advertised. Returns the log start, log end and size of partitions with a replica on this
broker over the last hour, as sampled since the broker's start. A partition that was created within the last interval
has no sample yet.

Errors: INVALID_REQUEST for too many partitions; of single partitions TOPIC_AUTHORIZATION_FAILED,
UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR.

KIPs: 107.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from lowtide.broker.authorizer.authorizer import allowed_topics
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.observation.history import LogHistory
from lowtide.broker.pending import Answer
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_history import (
    DescribeHistoryRequest,
    DescribeHistoryResponse,
    HistoryOfPartition,
    HistoryOfTopic,
)

PARTITIONS_MAX: Final = 200
"""The most partitions of a request: up to 72,000 samples, two megabytes."""


def handler(broker: BrokerContext, history: LogHistory) -> HandlerSpec:
    """Returns the handler."""

    def row(topic: str, number: int, after_ms: int) -> HistoryOfPartition:
        found = broker.replicas.find(topic, number)
        if isinstance(found, ErrorCode):
            return HistoryOfPartition(partition_index=number, error_code=found)
        samples = history.samples(found.topic_id, number, after_ms)
        return HistoryOfPartition(partition_index=number, error_code=ErrorCode.NONE, samples=samples)

    def steps(
        request: DescribeHistoryRequest, wanted: dict[str, dict[int, None]], allowed: frozenset[str]
    ) -> Generator[None, None, DescribeHistoryResponse]:
        topics = []
        for name, numbers in wanted.items():
            rows = []
            for number in numbers:
                denied = HistoryOfPartition(partition_index=number, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                rows.append(row(name, number, request.after_ms) if name in allowed else denied)
                yield
            topics.append(HistoryOfTopic(name=name, partitions=rows))
        return DescribeHistoryResponse(
            error_code=ErrorCode.NONE,
            described_at_ms=broker.clock.wall_ms(),
            interval_ms=history.interval_ms,
            topics=topics,
        )

    def handle(request: DescribeHistoryRequest, context: RequestContext) -> Answer[DescribeHistoryResponse]:
        wanted = {topic.name: dict.fromkeys(topic.partitions) for topic in request.topics}
        if sum(map(len, wanted.values())) > PARTITIONS_MAX:
            return DescribeHistoryResponse(error_code=ErrorCode.INVALID_REQUEST)
        allowed = allowed_topics(broker.authorizer, context, Operation.DESCRIBE, wanted)
        return broker.turns.answer(steps(request, wanted, allowed))

    return HandlerSpec(key=ApiKey.DESCRIBE_HISTORY, guard=CHECKS_ITSELF, handle=handle)
