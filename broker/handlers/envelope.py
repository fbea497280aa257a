"""Envelope: v0-v0.

Behaviour: carries out a controller request that another broker received, on behalf of the client that sent it: its
quotas apply, and the audit log names it. The other broker has checked the client's permissions. A request of the broker
itself has no client. The request is never forwarded again, so brokers with different images can't pass it back and
forth. Envelopes are accepted on the inter-broker listener only, from a principal with CLUSTER_ACTION. As in Kafka, the
API is not advertised.

Version notes: v0 is flexible.

Errors: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST for anything but a controller request, UNKNOWN_SERVER_ERROR for a
request without a response. Errors of the request are in its own response.

KIPs: 590.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowtide.broker.administration.envelopes import answered, open_envelope
from lowtide.broker.authorizer.resources import CLUSTER, Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.network.routing.routes import HandlerSpec, Route
from lowtide.broker.pending import NO_ANSWER, Pending
from lowtide.broker.promises import answer_of
from lowtide.broker.request_context import Client, RequestContext
from lowtide.broker.security.principal import KafkaPrincipal, ShownBy
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse


class DistantClient:
    """A client whose request another broker forwarded."""

    def __init__(self, by: Client, principal: KafkaPrincipal, client_address: str) -> None:
        self.listener_name = by.listener_name
        self.peer = f"{client_address} by way of {by.peer}"
        self.client_address = client_address
        self.principal = principal
        self.shown_by = ShownBy.NOTHING  # What asks for it, delegation tokens, is never passed on.
        self.write_grants: Any = None
        self.of_a_follower = False
        self.local_address: tuple[str, int] | None = None
        self.software = by.software
        self._by = by

    @property
    def closed(self) -> bool:
        """Whether the connection of the other broker has ended."""
        return self._by.closed

    def mute(self, for_ms: int) -> None:
        """Does nothing: the other broker mutes its client, for the time in the answer."""

    def close(self, reason: str) -> None:
        """Closes the connection of the other broker."""
        self._by.close(reason)


def handler(broker: BrokerContext, routes: Mapping[tuple[int, int], Route | None]) -> HandlerSpec:
    """Returns the handler."""

    def is_forwarded(key: int, version: int) -> bool:
        route = routes[(key, version)]
        return route is not None and route.is_forwarded

    async def handle(request: EnvelopeRequest, context: RequestContext) -> EnvelopeResponse:
        between = context.connection.listener_name == broker.config.inter_broker_listener
        if not between or not broker.authorizer.authorize(context, Operation.CLUSTER_ACTION, CLUSTER):
            return EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        try:
            asked = open_envelope(request, is_forwarded)
        except ProtocolError:
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        route, origin = routes[(asked.key, asked.version)], asked.origin
        assert route is not None, "it was opened"
        client: Client = context.connection
        if origin.principal is not None:
            client = DistantClient(context.connection, origin.principal, origin.client_address)
        inner = RequestContext(
            asked.version,
            origin.client_id,
            client,
            None,
            origin.correlation_id,
            forwarded=True,
            of_a_broker=origin.principal is None,
        )
        answer = route.handle(asked.body, inner)
        if isinstance(answer, Pending):
            answer = await answer_of(answer, for_client=True)
        if answer is None or answer is NO_ANSWER:
            return EnvelopeResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        return answered(asked, answer)

    return HandlerSpec(key=ApiKey.ENVELOPE, guard=CHECKS_ITSELF, handle_later=handle, between_brokers=True)
