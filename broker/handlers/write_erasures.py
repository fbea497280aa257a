"""WriteErasures: v0-v0.

Behaviour: Lowtide's own, not advertised. Appends records to the ledger of erasures, for another broker. The response is
sent when they are committed.

Errors: CLUSTER_AUTHORIZATION_FAILED; INVALID_REQUEST for a record that is not of the ledger, INVALID_RECORD for damaged
bytes; THROTTLING_QUOTA_EXCEEDED if too many requests wait; NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS,
UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE, REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR.

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
from lowtide.protocol.erasure_ledger_records import decode_entry
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.write_erasures import WriteErasuresRequest, WriteErasuresResponse

WAITING_MAX: Final = 256
WAITING_SHARE: Final = 128
"""The number of requests that may wait, and of those from one principal: all brokers may have the same."""


def handler(ledger: ErasureLedger) -> HandlerSpec:
    """Returns the handler."""
    places = WaitingPlaces(WAITING_MAX, WAITING_SHARE)

    async def handle(request: WriteErasuresRequest, context: RequestContext) -> WriteErasuresResponse:
        error = _refusal(request)
        if error != ErrorCode.NONE:
            return WriteErasuresResponse(error_code=error)
        with places.taken_by(context.connection) as has_place:
            if not has_place:
                return WriteErasuresResponse(error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            return await ledger.append(request)

    return HandlerSpec(
        key=ApiKey.WRITE_ERASURES, guard=for_brokers(WriteErasuresResponse), handle_later=handle, between_brokers=True
    )


def _refusal(request: WriteErasuresRequest) -> ErrorCode:
    """Returns what is wrong with the records of a request."""
    try:
        known = [decode_entry(each.key, each.value) for each in request.records]
    except ProtocolError:
        return ErrorCode.INVALID_RECORD
    return ErrorCode.NONE if known and None not in known else ErrorCode.INVALID_REQUEST
