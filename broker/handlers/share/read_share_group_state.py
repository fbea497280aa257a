"""ReadShareGroupState: v0-v0.

Behaviour: the leader of a partition reads the state of its share partitions. A leader of a later epoch than the last
one fences those before.

Errors: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, also where the state hasn't begun, FENCED_LEADER_EPOCH,
UNKNOWN_TOPIC_OR_PARTITION, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

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
from lowtide.protocol.messages.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStatePartitionResult,
    ReadStateResult,
)
from lowtide.protocol.types import TopicId


def handler(coordinator: ShareCoordinator) -> HandlerSpec:
    """The handler over the share coordinator of a broker."""

    def handle(request: ReadShareGroupStateRequest, _context: RequestContext) -> Any:
        return answer_rows(coordinator, request, ShareStates.read, _refuse, _respond)

    return HandlerSpec(key=ApiKey.READ_SHARE_GROUP_STATE, handle=handle)


def refused(request: ReadShareGroupStateRequest, error: ErrorCode) -> ReadShareGroupStateResponse:
    """The answer to a request that is refused as a whole."""
    response: ReadShareGroupStateResponse = refuse_all(request, _refuse, _respond, error)
    return response


def _refuse(number: int, error: ErrorCode, message: str | None) -> ReadStatePartitionResult:
    return ReadStatePartitionResult(partition=number, error_code=error, error_message=message)


def _respond(topics: dict[TopicId, list[ReadStatePartitionResult]]) -> ReadShareGroupStateResponse:
    results = [ReadStateResult(topic_id=topic_id, partitions=rows) for topic_id, rows in topics.items()]
    return ReadShareGroupStateResponse(results=results)
