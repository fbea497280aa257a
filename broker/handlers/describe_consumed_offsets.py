"""DescribeConsumedOffsets: v1-v1.

Behaviour: Lowtide's own, not advertised. Returns to another broker, for the requested partitions, the smallest offset
that a group coordinated here has committed, and the group; or a group that consumes the partition and has not committed
yet. The response waits until all commits in it are committed. It lists the partitions of `__consumer_offsets` that it
covers, and the slowest group whose commits may delete, with its committer. One request at a time walks through the
groups.

Errors: CLUSTER_AUTHORIZATION_FAILED; INVALID_REQUEST for too many partitions; THROTTLING_QUOTA_EXCEEDED if too many
requests wait; COORDINATOR_LOAD_IN_PROGRESS.

KIPs: 68.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.client_waits import client_wait
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.groups.survey import survey
from lowtide.broker.guards.guard import for_brokers
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.places import WaitingPlaces
from lowtide.broker.request_context import RequestContext
from lowtide.broker.retention.consumption import PARTITIONS_PER_REQUEST
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_consumed_offsets import (
    DescribeConsumedOffsetsRequest,
    DescribeConsumedOffsetsResponse,
)

WAITING_MAX: Final = 64
WAITING_SHARE: Final = 32
"""The number of requests that may wait, and of those from one principal: more than there are brokers."""


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """Returns the handler."""
    places = WaitingPlaces(WAITING_MAX, WAITING_SHARE)

    async def handle(
        request: DescribeConsumedOffsetsRequest, context: RequestContext
    ) -> DescribeConsumedOffsetsResponse:
        if sum(len(topic.partitions) + 1 for topic in request.topics) > 2 * PARTITIONS_PER_REQUEST:
            return DescribeConsumedOffsetsResponse(error_code=ErrorCode.INVALID_REQUEST)
        with places.taken_by(context.connection) as has_place:
            if not has_place:
                return DescribeConsumedOffsetsResponse(error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            try:
                async with client_wait():
                    return await survey(groups, request.topics)
            except TimeoutError:  # The broker that asked has gone.
                return DescribeConsumedOffsetsResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)

    return HandlerSpec(
        key=ApiKey.DESCRIBE_CONSUMED_OFFSETS, guard=for_brokers(DescribeConsumedOffsetsResponse), handle_later=handle
    )
