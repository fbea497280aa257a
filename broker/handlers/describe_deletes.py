"""DescribeDeletes: v0-v0.

Behaviour: Lowtide's own, not advertised. Returns the record deletes that wait at this broker, with the followers that
each waits for, and the deletes that finished last, with the times at which the leader's disk and all replicas had them.
A delete whose client disconnected ends with NETWORK_EXCEPTION. Topics that the client may not describe are left out.
The sender of a delete is shown to itself, and to clients with DESCRIBE on the cluster.

Errors: INVALID_REQUEST for a number of rows out of range, THROTTLING_QUOTA_EXCEEDED if too many such requests are in
progress.

KIPs: 107, 1343.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import cache
from typing import Final, cast

from lowtide.broker.authorizer.authorizer import Audit
from lowtide.broker.authorizer.resources import CLUSTER, Operation, topic
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.observation.described_deletes import Now, Viewer, finished, waiting
from lowtide.broker.partitions.deletes.delayed_delete import DelayedDeleteRecords, DeleteRequest
from lowtide.broker.pending import Answer
from lowtide.broker.places import WaitingPlaces
from lowtide.broker.request_context import Client, RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_deletes import DescribeDeletesRequest, DescribeDeletesResponse

ROWS_MAX: Final = 10_000
"""The most rows of each kind in an answer: some megabytes."""

UNDER_WAY_MAX: Final = 16
UNDER_WAY_SHARE: Final = 8
"""The number of requests that are answered at a time, and of those from one client."""


def handler(broker: BrokerContext) -> HandlerSpec:
    """Returns the handler."""
    replicas = broker.replicas
    places = WaitingPlaces(UNDER_WAY_MAX, UNDER_WAY_SHARE)

    def viewer(context: RequestContext) -> Viewer:
        @cache
        def may_describe(name: str) -> bool:
            return broker.authorizer.authorize(context, Operation.DESCRIBE, topic(name), Audit.NOTHING)

        sees_all = broker.authorizer.authorize(context, Operation.DESCRIBE, CLUSTER, Audit.NOTHING)
        return Viewer(may_describe, sees_all, context.principal)

    def steps(
        request: DescribeDeletesRequest, viewer: Viewer, client: Client
    ) -> Generator[None, None, DescribeDeletesResponse]:
        with places.taken_by(client) as has_place:
            if not has_place:
                return DescribeDeletesResponse(error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            now = Now(broker.clock.monotonic_ms(), broker.clock.wall_ms())
            last_number = broker.recent_deletes.last_number
            waits = yield from waiting(list(waiting_requests(broker)), replicas.image, viewer, now, request.waiting_max)
            ended = yield from finished(
                broker.recent_deletes, viewer, after_number=request.after_number, rows_max=request.finished_max
            )
        return DescribeDeletesResponse(
            error_code=ErrorCode.NONE,
            described_at_ms=now.wall_ms,
            last_number=last_number,
            waiting_count=waits.count,
            waiting=waits.rows,
            finished=ended,
        )

    def handle(request: DescribeDeletesRequest, context: RequestContext) -> Answer[DescribeDeletesResponse]:
        if not 0 <= request.waiting_max <= ROWS_MAX or not 0 <= request.finished_max <= ROWS_MAX:
            return DescribeDeletesResponse(error_code=ErrorCode.INVALID_REQUEST)
        return broker.turns.answer(steps(request, viewer(context), context.connection))

    return HandlerSpec(key=ApiKey.DESCRIBE_DELETES, guard=CHECKS_ITSELF, handle=handle)


def waiting_requests(broker: BrokerContext) -> Iterator[DeleteRequest]:
    """Yields the requests that wait for the disk or for followers."""
    for queue in (broker.replicas.waiting.log_starts, broker.replicas.waiting.deletes):
        for waits in queue.waiting():
            yield cast("DelayedDeleteRecords", waits).asked
