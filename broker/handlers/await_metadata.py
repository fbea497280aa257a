"""AwaitMetadata: v0-v0.

Behaviour: Lowtide's own, not advertised. Answers another broker when this one's image shows a revision of the metadata store.

Errors: CLUSTER_AUTHORIZATION_FAILED; REQUEST_TIMED_OUT after the time that the request gives, some seconds at most;
COORDINATOR_NOT_AVAILABLE when the session with the store ends; THROTTLING_QUOTA_EXCEEDED when too many requests wait.

KIPs: 140.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lowtide.broker.authorizer.resources import CLUSTER, Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.network.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.errors import SessionError
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.await_metadata import AwaitMetadataRequest, AwaitMetadataResponse

WAITING_MAX: Final = 256
"""Requests that may wait at once."""

WAIT_MAX_MS: Final = 10_000


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over a broker's image."""
    waiting = 0

    async def handle(request: AwaitMetadataRequest, context: RequestContext) -> AwaitMetadataResponse:
        nonlocal waiting
        if not broker.authorizer.authorize(context, Operation.CLUSTER_ACTION, CLUSTER):
            return AwaitMetadataResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if broker.metadata.image.revision >= request.revision:
            return AwaitMetadataResponse(error_code=ErrorCode.NONE)
        if waiting >= WAITING_MAX:
            return AwaitMetadataResponse(error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        waiting += 1
        try:
            async with asyncio.timeout(min(max(request.timeout_ms, 0), WAIT_MAX_MS) / 1000):
                await broker.metadata.wait_for(request.revision)
        except TimeoutError:
            return AwaitMetadataResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)
        except SessionError:
            return AwaitMetadataResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        finally:
            waiting -= 1
        return AwaitMetadataResponse(error_code=ErrorCode.NONE)

    return HandlerSpec(key=ApiKey.AWAIT_METADATA, handle_later=handle)
