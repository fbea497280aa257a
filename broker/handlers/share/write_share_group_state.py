"""WriteShareGroupState: v0-v1.

Behaviour: the leader of a partition persists changes of its share partitions; each is answered when it is committed.

Version notes: v1 tells how many deliveries are complete.

Errors: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, also where the state hasn't begun, FENCED_LEADER_EPOCH,
FENCED_STATE_EPOCH, UNKNOWN_TOPIC_OR_PARTITION, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
COORDINATOR_NOT_AVAILABLE.

KIPs: 932, 1226.
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
from lowtide.protocol.messages.write_share_group_state import (
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteStatePartitionResult,
    WriteStateResult,
)
from lowtide.protocol.types import TopicId


def handler(coordinator: ShareCoordinator) -> HandlerSpec:
    """The handler over the share coordinator of a broker."""

    def handle(request: WriteShareGroupStateRequest, _context: RequestContext) -> Any:
        return answer_rows(coordinator, request, ShareStates.write, _refuse, _respond)

    return HandlerSpec(key=ApiKey.WRITE_SHARE_GROUP_STATE, handle=handle)


def refused(request: WriteShareGroupStateRequest, error: ErrorCode) -> WriteShareGroupStateResponse:
    """The answer to a request that is refused as a whole."""
    response: WriteShareGroupStateResponse = refuse_all(request, _refuse, _respond, error)
    return response


def _refuse(number: int, error: ErrorCode, message: str | None) -> WriteStatePartitionResult:
    return WriteStatePartitionResult(partition=number, error_code=error, error_message=message)


def _respond(topics: dict[TopicId, list[WriteStatePartitionResult]]) -> WriteShareGroupStateResponse:
    results = [WriteStateResult(topic_id=topic_id, partitions=rows) for topic_id, rows in topics.items()]
    return WriteShareGroupStateResponse(results=results)
