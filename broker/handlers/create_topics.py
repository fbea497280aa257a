"""CreateTopics: v2-v7.

Behaviour: checks each topic, creates it unless the request is only to be validated, and responds when its partitions
accept records. -1 partitions or replicas stand for the broker's defaults, in every version. A topic that is listed
twice gets one error and is not created.

Version notes: v5 returns the topic's effective configuration (KIP-525). v7 returns topic ids (KIP-516).

Errors: INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS, INVALID_CONFIG, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR,
INVALID_REPLICA_ASSIGNMENT, INVALID_REQUEST, POLICY_VIOLATION, THROTTLING_QUOTA_EXCEEDED (v6+), NOT_CONTROLLER,
REQUEST_TIMED_OUT.

KIPs: 4, 464, 516, 525.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lowtide.broker.administration.committing import check_timeout, outcome_fields
from lowtide.broker.administration.creation_limits import Throttle
from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.config.topic_config import describe_topic_configs
from lowtide.broker.guards import administration as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import Forwarding, HandlerSpec
from lowtide.broker.quotas.mutation_quota import CREATIONS
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from lowtide.replication.new_topics import TopicCreation, TopicSpec, check_new_topics
from lowtide.replication.refusal import Refusal
from lowtide.replication.topic_names import repeated_names

_THROTTLING_SINCE: Final = 6
"""The first version with THROTTLING_QUOTA_EXCEEDED (KIP-599)."""

CUT: Final = Cut(levels=(("topics", "topics"),), names=("name",), changes=True, sequential=True)


def handler(administrator: TopicAdministrator) -> HandlerSpec:
    """Returns the handler."""
    broker = administrator.broker

    async def create(topic: CreatableTopic, request: CreateTopicsRequest, throttle: Throttle) -> CreatableTopicResult:
        configs = [(config.name, config.value) for config in topic.configs]
        creation = check_timeout(request.timeout_ms) or administrator.plan_creation(_new_topic(topic), configs)
        if not request.validate_only and not isinstance(creation, Refusal):  # Refused requests are not counted.
            throttled = await throttle.before(creation.partition_count)
            creation = throttled or await administrator.create_here(_new_topic(topic), configs, request.timeout_ms)
        if isinstance(creation, Refusal):
            return _refused(topic.name, creation)
        if not request.validate_only:
            broker.log.info("topic created", topic=topic.name, partitions=creation.partition_count)
        overrides = {name: value for name, value in configs if value is not None}
        return _made(topic.name, creation, overrides, validate_only=request.validate_only)

    def _made(
        name: str, creation: TopicCreation, overrides: Mapping[str, str], *, validate_only: bool
    ) -> CreatableTopicResult:
        result = CreatableTopicResult(
            name=name,
            error_code=ErrorCode.NONE,
            num_partitions=creation.partition_count,
            replication_factor=creation.replication_factor,
            configs=[
                CreatableTopicConfigs(
                    name=entry.name, value=entry.value, read_only=False, config_source=entry.source, is_sensitive=False
                )
                for entry in describe_topic_configs(broker.config, overrides)
            ],
        )
        if not validate_only:
            result.topic_id = creation.topic_id
        return result

    async def handle(request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
        twice = repeated_names(topic.name for topic in request.topics)
        wanted = {topic.name: topic for topic in request.topics}
        topics = [topic for topic in wanted.values() if topic.name not in twice]
        too_many = check_new_topics(
            [_new_topic(topic) for topic in topics], default_partition_count=broker.config.num_partitions
        )
        throttle = Throttle(administrator.limits, request.timeout_ms, tells=context.api_version >= _THROTTLING_SINCE)
        repeated = Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        results = [_refused(name, repeated) for name in sorted(twice)]
        results += [
            _refused(topic.name, too_many) if too_many is not None else await create(topic, request, throttle)
            for topic in topics
        ]
        return CreateTopicsResponse(throttle_time_ms=throttle.throttle_ms, topics=results)

    return HandlerSpec(
        key=ApiKey.CREATE_TOPICS,
        guard=guards.create_topics,
        handle_later=handle,
        cut=CUT,
        forwarding=Forwarding(refused, shows),
        partition_changes=CREATIONS,
    )


def refused(request: CreateTopicsRequest, _version: int, refusal: Refusal) -> CreateTopicsResponse:
    """Returns the answer to a request that is refused as a whole."""
    return CreateTopicsResponse(
        throttle_time_ms=0,
        topics=[_refused(name, refusal) for name in dict.fromkeys(each.name for each in request.topics)],
    )


def shows(request: CreateTopicsRequest, answer: CreateTopicsResponse, image: MetadataImage) -> bool:
    """Returns whether an image has the created topics."""
    return request.validate_only or all(
        row.error_code != ErrorCode.NONE or row.name in image.topics for row in answer.topics
    )


def _new_topic(topic: CreatableTopic) -> TopicSpec:
    return TopicSpec(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(row.partition_index, row.broker_ids) for row in topic.assignments],
    )


def _refused(name: str, refusal: Refusal) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, **outcome_fields(refusal), configs=None)
