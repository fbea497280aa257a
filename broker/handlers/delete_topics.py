"""DeleteTopics: v1-v6.

Behaviour: deletes topics, small ones together, and responds when their names can be used again. Files are removed a
little later.

Version notes: v6 has topic names or ids (KIP-516).

Errors: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INVALID_REQUEST (listed twice, or by name and id),
TOPIC_DELETION_DISABLED, POLICY_VIOLATION while a topic is held, NOT_CONTROLLER, REQUEST_TIMED_OUT.

KIPs: 4, 516.
"""

from __future__ import annotations

import msgspec

from lowtide.broker.administration.committing import outcome_fields
from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.config.topic_config import log_config
from lowtide.broker.guards import administration as guards
from lowtide.broker.guards.audited_requests import DELETED_TOPICS
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import Forwarding, HandlerSpec
from lowtide.broker.quotas.mutation_quota import DELETIONS
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId
from lowtide.replication.deletions import TopicDeletion
from lowtide.replication.refusal import Refusal

_BY_ID_SINCE = 6


def cut(version: int) -> Cut:
    """Returns how a large request is cut."""
    if version < _BY_ID_SINCE:
        return Cut(levels=(("topic_names", "responses"),), names=(), changes=True, sequential=True)
    return Cut(levels=(("topics", "responses"),), names=("name", "topic_id"), changes=True, sequential=True)


def handler(administrator: TopicAdministrator) -> HandlerSpec:
    """Returns the handler."""
    broker = administrator.broker

    def unless_held(deletion: TopicDeletion) -> TopicDeletion:
        topic = deletion.topic
        if deletion.refusal is None and topic is not None:
            config = log_config(broker.config, topic.configs)
            if config.is_held(broker.clock.wall_ms()):
                refusal = Refusal(ErrorCode.POLICY_VIOLATION, config.hold_sentence)
                return msgspec.structs.replace(deletion, refusal=refusal)
        return deletion

    async def delete(deletions: list[TopicDeletion], timeout_ms: int) -> list[Refusal | None]:
        if not broker.config.delete_topic_enable:
            return [Refusal(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")] * len(deletions)
        return await administrator.delete(deletions, timeout_ms) if deletions else []

    def row(deletion: TopicDeletion, refusal: Refusal | None) -> DeletableTopicResult:
        if refusal is None:
            broker.log.info("topic deleted", topic=deletion.name)
        return DeletableTopicResult(name=deletion.name, topic_id=deletion.topic_id, **outcome_fields(refusal))

    async def handle(request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
        resolved = [unless_held(each) for each in administrator.resolve(_wanted(request, context.api_version))]
        outcomes = iter(
            await delete([deletion for deletion in resolved if deletion.refusal is None], request.timeout_ms)
        )
        rows = [
            row(deletion, next(outcomes) if deletion.refusal is None else deletion.refusal) for deletion in resolved
        ]
        return DeleteTopicsResponse(throttle_time_ms=0, responses=rows)

    return HandlerSpec(
        key=ApiKey.DELETE_TOPICS,
        guard=guards.delete_topics,
        handle_later=handle,
        cut=cut,
        forwarding=Forwarding(refused, shows),
        audit=DELETED_TOPICS,
        partition_changes=DELETIONS,
    )


def refused(request: DeleteTopicsRequest, version: int, refusal: Refusal) -> DeleteTopicsResponse:
    """Returns the answer to a request that is refused as a whole."""
    rows = [
        DeletableTopicResult(name=name, topic_id=topic_id, **outcome_fields(refusal))
        for name, topic_id in dict.fromkeys(_wanted(request, version))
    ]
    return DeleteTopicsResponse(throttle_time_ms=0, responses=rows)


def shows(_request: DeleteTopicsRequest, answer: DeleteTopicsResponse, image: MetadataImage) -> bool:
    """Returns whether an image no longer has the deleted topics."""
    deleted = [row for row in answer.responses if row.error_code == ErrorCode.NONE]
    return not any(
        row.topic_id in image.topic_names or (row.topic_id == ZERO_TOPIC_ID and row.name in image.topics)
        for row in deleted
    )


def _wanted(request: DeleteTopicsRequest, version: int) -> list[tuple[str | None, TopicId]]:
    if version >= _BY_ID_SINCE:
        return [(topic.name, topic.topic_id) for topic in request.topics]
    return [(name, ZERO_TOPIC_ID) for name in request.topic_names]
