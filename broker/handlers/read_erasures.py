"""ReadErasures: v0-v0.

Behaviour: Lowtide's own, not advertised. Returns a part of the ledger of erasures that is about some partitions, to
another broker. Only committed records are returned.

Errors: CLUSTER_AUTHORIZATION_FAILED; INVALID_REQUEST for too many partitions; THROTTLING_QUOTA_EXCEEDED if too many
requests wait; NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR.

KIPs: 107.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.guards.guard import for_brokers
from lowtide.broker.ledger.erasure_ledger import ErasureLedger
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.places import WaitingPlaces
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.read_erasures import ReadErasuresRequest, ReadErasuresResponse

PARTITIONS_MAX: Final = 1_000
"""The most partitions of a request."""

WAITING_MAX: Final = 16
"""The number of requests that read at a time; all brokers may have the same principal."""


def handler(ledger: ErasureLedger) -> HandlerSpec:
    """Returns the handler."""
    places = WaitingPlaces(WAITING_MAX, WAITING_MAX)

    async def handle(request: ReadErasuresRequest, context: RequestContext) -> ReadErasuresResponse:
        if len(request.partitions) > PARTITIONS_MAX:
            return ReadErasuresResponse(error_code=ErrorCode.INVALID_REQUEST)
        with places.taken_by(context.connection) as has_place:
            if not has_place:
                return ReadErasuresResponse(error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            return await ledger.page(request)

    return HandlerSpec(
        key=ApiKey.READ_ERASURES, guard=for_brokers(ReadErasuresResponse), handle_later=handle, between_brokers=True
    )
