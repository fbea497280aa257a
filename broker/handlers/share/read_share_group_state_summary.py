"""ReadShareGroupStateSummary: v0-v1.

Behaviour: tells a group coordinator how far share partitions are; the start is -1 where it isn't known yet.

Version notes: v1 tells how many deliveries are complete.

Errors: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, FENCED_LEADER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION, NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

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
from lowtide.protocol.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    SummaryStatePartitionResult,
    SummaryStateResult,
)
from lowtide.protocol.types import TopicId


def handler(coordinator: ShareCoordinator) -> HandlerSpec:
    """The handler over the share coordinator of a broker."""

    def handle(request: ReadShareGroupStateSummaryRequest, _context: RequestContext) -> Any:
        return answer_rows(coordinator, request, ShareStates.summarize, _refuse, _respond)

    return HandlerSpec(key=ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, handle=handle)


def refused(request: ReadShareGroupStateSummaryRequest, error: ErrorCode) -> ReadShareGroupStateSummaryResponse:
    """The answer to a request that is refused as a whole."""
    response: ReadShareGroupStateSummaryResponse = refuse_all(request, _refuse, _respond, error)
    return response


def _refuse(number: int, error: ErrorCode, message: str | None) -> SummaryStatePartitionResult:
    return SummaryStatePartitionResult(partition=number, error_code=error, error_message=message)


def _respond(topics: dict[TopicId, list[SummaryStatePartitionResult]]) -> ReadShareGroupStateSummaryResponse:
    return ReadShareGroupStateSummaryResponse(
        results=[SummaryStateResult(topic_id=topic_id, partitions=rows) for topic_id, rows in topics.items()]
    )
