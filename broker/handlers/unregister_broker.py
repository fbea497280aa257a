"""UnregisterBroker: v0-v0.

Behaviour: forgets a broker that won't come back, so that no new partition is placed on it; answers when the change is
in the metadata. What replicas it has stay assigned to it until they are reassigned. It may register again at any time,
and is known again then.

Errors: CLUSTER_AUTHORIZATION_FAILED, BROKER_ID_NOT_REGISTERED, INVALID_REQUEST for a broker that is alive (Kafka
unregisters it, though it continues to serve), NOT_CONTROLLER, REQUEST_TIMED_OUT.

KIPs: 631.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lowtide.broker.administration.committing import decide_and_commit
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards import administration as guards
from lowtide.broker.network.routing.routes import Forwarding, HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from lowtide.replication.refusal import Refusal
from lowtide.replication.unregistration import plan_unregistration

TIMEOUT_MS: Final = 30_000
"""How long it may take: the request doesn't say."""


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over a broker's state."""

    async def handle(request: UnregisterBrokerRequest, context: RequestContext) -> UnregisterBrokerResponse:
        metadata = broker.metadata
        deadline = asyncio.get_running_loop().time() + TIMEOUT_MS / 1000
        outcome = await decide_and_commit(
            metadata, lambda: plan_unregistration(metadata.image, request.broker_id), deadline
        )
        if isinstance(outcome, Refusal):
            return refused(request, context.api_version, outcome)
        broker.log.info("broker unregistered", broker_id=request.broker_id)
        return UnregisterBrokerResponse()

    return HandlerSpec(
        key=ApiKey.UNREGISTER_BROKER,
        guard=guards.unregister_broker,
        handle_later=handle,
        forwarding=Forwarding(refused, shows),
    )


def refused(_request: UnregisterBrokerRequest, _version: int, refusal: Refusal) -> UnregisterBrokerResponse:
    """The answer to a request that is refused."""
    return UnregisterBrokerResponse(error_code=refusal.error_code, error_message=refusal.message)


def shows(request: UnregisterBrokerRequest, answer: UnregisterBrokerResponse, image: MetadataImage) -> bool:
    """Whether an image shows that the broker is forgotten."""
    return answer.error_code != ErrorCode.NONE or not image.is_known(request.broker_id)
