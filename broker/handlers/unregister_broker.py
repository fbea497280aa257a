"""UnregisterBroker: v0-v0.

Behaviour: removes a broker that won't return, so that no new partitions are placed on it. The response is sent when the
change is in the metadata. Its replicas stay assigned to it until they are reassigned. The broker may register again at
any time.

Errors: CLUSTER_AUTHORIZATION_FAILED, BROKER_ID_NOT_REGISTERED, INVALID_REQUEST for a live broker (Kafka unregisters it,
though it continues to serve), NOT_CONTROLLER, REQUEST_TIMED_OUT.

KIPs: 631.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lowtide.broker.administration.committing import decide_and_commit, outcome_fields
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import on_cluster
from lowtide.broker.network.routing.routes import Forwarding, HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from lowtide.replication.refusal import Refusal
from lowtide.replication.unregistration import plan_unregistration

TIMEOUT_MS: Final = 30_000
"""How long it may take: the request does not say."""


def handler(broker: BrokerContext) -> HandlerSpec:
    """Returns the handler."""

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
        guard=on_cluster(Operation.ALTER, refused),
        handle_later=handle,
        forwarding=Forwarding(refused, shows),
    )


def refused(_request: UnregisterBrokerRequest, _version: int, refusal: Refusal) -> UnregisterBrokerResponse:
    """Returns the answer to a request that is refused."""
    return UnregisterBrokerResponse(**outcome_fields(refusal))


def shows(request: UnregisterBrokerRequest, answer: UnregisterBrokerResponse, image: MetadataImage) -> bool:
    """Returns whether an image shows that the broker is forgotten."""
    return answer.error_code != ErrorCode.NONE or not image.is_known(request.broker_id)
