"""DeleteTopics: v1-v6.

Behaviour: deletes each topic and answers when its logs are out of the way, so that the name can be used again. Files are removed a little
later.

Version notes: v6 names topics by name or by id (KIP-516).

Errors: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INVALID_REQUEST (named twice, or by name and id), TOPIC_DELETION_DISABLED,
NOT_CONTROLLER, REQUEST_TIMED_OUT.

KIPs: 4, 516.
"""

from __future__ import annotations

from lowtide.broker.connection import RequestContext
from lowtide.broker.dispatcher import HandlerSpec
from lowtide.broker.topics import TopicAdministrator
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId
from lowtide.replication.controller import Refusal, TopicDeletion

_BY_ID_SINCE = 6


def handler(administrator: TopicAdministrator) -> HandlerSpec:
    """The handler over a broker's topics."""
    broker = administrator.broker

    async def delete(deletion: TopicDeletion, timeout_ms: int) -> DeletableTopicResult:
        refusal = deletion.refusal
        if refusal is None and not broker.config.delete_topic_enable:
            refusal = Refusal(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
        if refusal is None:
            refusal = await administrator.delete(deletion, timeout_ms)
        if refusal is None:
            broker.log.info("topic deleted", topic=deletion.name)
        return DeletableTopicResult(
            name=deletion.name,
            topic_id=deletion.topic_id,
            error_code=ErrorCode.NONE if refusal is None else refusal.error_code,
            error_message=None if refusal is None else refusal.message,
        )

    async def handle(request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
        wanted: list[tuple[str | None, TopicId]]
        if context.api_version >= _BY_ID_SINCE:
            wanted = [(topic.name, topic.topic_id) for topic in request.topics]
        else:
            wanted = [(name, ZERO_TOPIC_ID) for name in request.topic_names]
        rows = [await delete(deletion, request.timeout_ms) for deletion in administrator.resolve(wanted)]
        return DeleteTopicsResponse(throttle_time_ms=0, responses=rows)

    return HandlerSpec(key=ApiKey.DELETE_TOPICS, handle_later=handle)
