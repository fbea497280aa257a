"""CreatePartitions: v0-v3.

Behaviour: checks each topic, adds partitions unless the request is only to be validated, and responds when they accept
records. The count is the topic's new total, which can only grow. New partitions have as many replicas as the topic's
first; without assignments the broker places them. A topic that is listed twice gets one error and does not grow. With a
`timeout_ms` of 0 or less nothing is done.

Version notes: v2 is flexible. v3 may return THROTTLING_QUOTA_EXCEEDED; older versions wait.

Errors: INVALID_REQUEST (listed twice), UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT,
INVALID_REPLICATION_FACTOR, POLICY_VIOLATION (ten thousand partitions in one request), NOT_CONTROLLER,
REQUEST_TIMED_OUT.

KIPs: 195, 599.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.administration.committing import check_timeout, outcome_fields
from lowtide.broker.administration.creation_limits import Throttle
from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.guards import administration as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import Forwarding, HandlerSpec
from lowtide.broker.quotas.mutation_quota import GROWTH
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from lowtide.replication.new_partitions import NewPartitions, TopicGrowth
from lowtide.replication.new_topics import MAX_REQUEST_PARTITIONS
from lowtide.replication.refusal import Refusal
from lowtide.replication.topic_names import repeated_names

_THROTTLING_SINCE: Final = 3
"""The first version with THROTTLING_QUOTA_EXCEEDED (KIP-599)."""

CUT: Final = Cut(levels=(("topics", "results"),), names=("name",), changes=True, sequential=True)


def handler(administrator: TopicAdministrator) -> HandlerSpec:
    """Returns the handler."""
    broker = administrator.broker

    async def grow(
        topic: CreatePartitionsTopic, request: CreatePartitionsRequest, room: int, throttle: Throttle
    ) -> TopicGrowth | Refusal:
        wanted = _new_partitions(topic)
        if (too_late := check_timeout(request.timeout_ms)) is not None:
            return too_late
        planned = administrator.plan_growth(wanted, room)
        if request.validate_only or isinstance(planned, Refusal):
            return planned  # Refused requests are not counted.
        if refusal := await throttle.before(planned.added):
            return refusal
        growth = await administrator.grow(wanted, request.timeout_ms, room)
        if isinstance(growth, TopicGrowth):
            broker.log.info("partitions added", topic=topic.name, partitions=topic.count, added=growth.added)
        return growth

    async def handle(request: CreatePartitionsRequest, context: RequestContext) -> CreatePartitionsResponse:
        twice = repeated_names(topic.name for topic in request.topics)
        results = [_result(name, Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")) for name in sorted(twice)]
        room = MAX_REQUEST_PARTITIONS
        throttle = Throttle(administrator.limits, request.timeout_ms, tells=context.api_version >= _THROTTLING_SINCE)
        for topic in request.topics:
            if topic.name not in twice:
                outcome = await grow(topic, request, room, throttle)
                room -= outcome.added if isinstance(outcome, TopicGrowth) else 0
                results.append(_result(topic.name, outcome))
        return CreatePartitionsResponse(throttle_time_ms=throttle.throttle_ms, results=results)

    return HandlerSpec(
        key=ApiKey.CREATE_PARTITIONS,
        guard=guards.create_partitions,
        handle_later=handle,
        cut=CUT,
        forwarding=Forwarding(refused, shows),
        partition_changes=GROWTH,
    )


def refused(request: CreatePartitionsRequest, _version: int, refusal: Refusal) -> CreatePartitionsResponse:
    """Returns the answer to a request that is refused as a whole."""
    names = dict.fromkeys(topic.name for topic in request.topics)
    return CreatePartitionsResponse(throttle_time_ms=0, results=[_result(name, refusal) for name in names])


def shows(request: CreatePartitionsRequest, answer: CreatePartitionsResponse, image: MetadataImage) -> bool:
    """Returns whether an image has the created partitions."""
    if request.validate_only:
        return True
    grown = {row.name for row in answer.results if row.error_code == ErrorCode.NONE}
    counts = {name: len(topic.partitions) for name, topic in image.topics.items() if name in grown}
    return all(counts.get(topic.name, topic.count) >= topic.count for topic in request.topics)


def _new_partitions(topic: CreatePartitionsTopic) -> NewPartitions:
    assignments = None if topic.assignments is None else [row.broker_ids for row in topic.assignments]
    return NewPartitions(topic.name, topic.count, assignments)


def _result(name: str, outcome: TopicGrowth | Refusal) -> CreatePartitionsTopicResult:
    refusal = outcome if isinstance(outcome, Refusal) else None
    return CreatePartitionsTopicResult(name=name, **outcome_fields(refusal))
