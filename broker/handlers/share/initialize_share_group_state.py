"""InitializeShareGroupState: v0-v0.

Behaviour: begins the state of share partitions for a group coordinator, or begins it again in a later epoch. What is
asked for in the epoch that there is has been done before, and stays.

Errors: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, FENCED_STATE_EPOCH, UNKNOWN_TOPIC_OR_PARTITION, POLICY_VIOLATION
where there are too many states, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

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
from lowtide.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    InitializeStatePartitionResult,
    InitializeStateResult,
)
from lowtide.protocol.types import TopicId


def handler(coordinator: ShareCoordinator) -> HandlerSpec:
    """The handler over the share coordinator of a broker."""

    def handle(request: InitializeShareGroupStateRequest, _context: RequestContext) -> Any:
        return answer_rows(coordinator, request, ShareStates.initialize, _refuse, _respond)

    return HandlerSpec(key=ApiKey.INITIALIZE_SHARE_GROUP_STATE, handle=handle)


def refused(request: InitializeShareGroupStateRequest, error: ErrorCode) -> InitializeShareGroupStateResponse:
    """The answer to a request that is refused as a whole."""
    response: InitializeShareGroupStateResponse = refuse_all(request, _refuse, _respond, error)
    return response


def _refuse(number: int, error: ErrorCode, message: str | None) -> InitializeStatePartitionResult:
    return InitializeStatePartitionResult(partition=number, error_code=error, error_message=message)


def _respond(topics: dict[TopicId, list[InitializeStatePartitionResult]]) -> InitializeShareGroupStateResponse:
    return InitializeShareGroupStateResponse(
        results=[InitializeStateResult(topic_id=topic_id, partitions=rows) for topic_id, rows in topics.items()]
    )
