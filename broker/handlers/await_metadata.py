"""AwaitMetadata: v0-v0.

Behaviour: Lowtide's own, not advertised. Responds to another broker when this broker's image shows a revision of the
metadata store.

Errors: CLUSTER_AUTHORIZATION_FAILED; REQUEST_TIMED_OUT after the time in the request, at most `WAIT_MAX_MS`;
COORDINATOR_NOT_AVAILABLE if the session with the store ends; THROTTLING_QUOTA_EXCEEDED if too many requests wait.

KIPs: 140.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lowtide.broker.client_waits import client_wait
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import for_brokers
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.places import WaitingPlaces
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.errors import SessionError
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.await_metadata import AwaitMetadataRequest, AwaitMetadataResponse

WAITING_MAX: Final = 256
WAITING_SHARE: Final = 128
"""The number of requests that may wait, and of those from one principal: all brokers may have the same."""

WAIT_MAX_MS: Final = 10_000


def handler(broker: BrokerContext) -> HandlerSpec:
    """Returns the handler."""
    places = WaitingPlaces(WAITING_MAX, WAITING_SHARE)

    async def handle(request: AwaitMetadataRequest, context: RequestContext) -> AwaitMetadataResponse:
        if broker.metadata.image.revision >= request.revision:
            return AwaitMetadataResponse(error_code=ErrorCode.NONE)
        with places.taken_by(context.connection) as has_place:
            return AwaitMetadataResponse(
                error_code=await wait(request) if has_place else ErrorCode.THROTTLING_QUOTA_EXCEEDED
            )

    async def wait(request: AwaitMetadataRequest) -> ErrorCode:
        wait_s = min(max(request.timeout_ms, 0), WAIT_MAX_MS) / 1000
        try:
            async with client_wait(asyncio.get_running_loop().time() + wait_s):
                await broker.metadata.wait_for(request.revision)
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT
        except SessionError:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    return HandlerSpec(key=ApiKey.AWAIT_METADATA, guard=for_brokers(AwaitMetadataResponse), handle_later=handle)
