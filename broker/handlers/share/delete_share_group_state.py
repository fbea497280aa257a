"""DeleteShareGroupState: v0-v0.

Behaviour: forgets the state of share partitions for a group coordinator. Where there is none that is done.

Errors: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
COORDINATOR_NOT_AVAILABLE.

KIPs: 932.
"""

from __future__ import annotations

from typing import Any

from lowtide.broker.coordinator.share_state.share_coordinator import ShareCoordinator
from lowtide.broker.coordinator.share_state.share_states import ShareStates
from lowtide.broker.handlers.share.state_rows import answer_rows, refuse_all
from lowtide.broker.network.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    DeleteStatePartitionResult,
    DeleteStateResult,
)
from lowtide.protocol.types import TopicId


def handler(coordinator: ShareCoordinator) -> HandlerSpec:
    """The handler over the share coordinator of a broker."""

    def handle(request: DeleteShareGroupStateRequest, _context: RequestContext) -> Any:
        return answer_rows(coordinator, request, ShareStates.delete, _refuse, _respond)

    return HandlerSpec(key=ApiKey.DELETE_SHARE_GROUP_STATE, handle=handle)


def refused(request: DeleteShareGroupStateRequest, error: ErrorCode) -> DeleteShareGroupStateResponse:
    """The answer to a request that is refused as a whole."""
    response: DeleteShareGroupStateResponse = refuse_all(request, _refuse, _respond, error)
    return response


def _refuse(number: int, error: ErrorCode, message: str | None) -> DeleteStatePartitionResult:
    return DeleteStatePartitionResult(partition=number, error_code=error, error_message=message)


def _respond(topics: dict[TopicId, list[DeleteStatePartitionResult]]) -> DeleteShareGroupStateResponse:
    return DeleteShareGroupStateResponse(
        results=[DeleteStateResult(topic_id=topic_id, partitions=rows) for topic_id, rows in topics.items()]
    )
