"""Forwards requests that only the controller can decide, and returns its answer.

So clients may send these requests to any broker. The controller gets the request in an envelope, in the same API
version, with the client's principal, address and id, so that its quotas and audit log apply to that client. The
client's broker checks permissions before it forwards (`guards/administration`). Forwarded requests are never forwarded
again. During an upgrade of the cluster, a controller of an old version may not know envelopes: it gets the plain
request.

Without a reachable controller, the forwarder waits for a new one. If none comes, the answer is NOT_CONTROLLER, or
REQUEST_TIMED_OUT if the request was sent but not answered, at the latest when the controller's registration has ended.

After a change the answer waits a short time until this broker's image shows it, because its clients ask this broker
next. Sources: KIP-590, Kafka's `ForwardingManager`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from lowtide.broker.administration.committing import newer_image
from lowtide.broker.administration.envelopes import OF_THE_BROKER, Origin, answer_in, seal_envelope
from lowtide.broker.client_waits import client_wait
from lowtide.broker.network.peer_client import PeerClients, PeerError
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.places import WaitingPlaces
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.broker_image import BrokerImage
from lowtide.metadata.image import ImageDelta, MetadataImage
from lowtide.metadata.records import LOG_START_REPORTING_LEVEL
from lowtide.metadata.session import MetadataSession
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.envelope import EnvelopeResponse
from lowtide.protocol.schema import ApiMessage
from lowtide.replication.refusal import Refusal

PURPOSE: Final = "forwarding"

CONTROLLER_WAIT_MS: Final = 10_000
"""The longest wait for a reachable controller, about two sessions of a broker."""

ANSWER_GRACE_MS: Final = 2_000
"""How much longer than its timeout a request may take: by then the controller has answered that it took too long."""

OWN_IMAGE_MS: Final = 1_000
"""How long an answer waits for this broker's own image."""

DEFAULT_TIMEOUT_MS: Final = 30_000
"""The time limit of requests that have no field for one."""

CONNECTIONS_MAX: Final = 16
CONNECTIONS_SHARE: Final = 8
"""The connections to the controller, and the most that one client may occupy until its requests are answered. Requests
without a place share the last connection."""

WITHOUT_ENVELOPES: Final = LOG_START_REPORTING_LEVEL
"""The metadata level of versions that close the connection at an envelope. They have no logins, so the sender of a
request doesn't matter to them. They recognize forwarded requests by the connection's client id, which ends in its
purpose."""

_RETRY_S: Final = 0.1

R = TypeVar("R", bound=ApiMessage)
A = TypeVar("A", bound=ApiMessage)


def _purpose(number: int) -> str:
    return f"{PURPOSE}-{number}"


class Forwarder:
    """Asks the controller."""

    def __init__(self, metadata: MetadataSession, peers: PeerClients) -> None:
        self._metadata = metadata
        self.peers = peers
        self._busy: set[int] = set()
        self._places = WaitingPlaces(CONNECTIONS_MAX - 1, CONNECTIONS_SHARE)
        metadata.on_image(self._on_image)

    def _on_image(self, old: MetadataImage, new: MetadataImage, delta: ImageDelta) -> None:
        """Releases requests to a controller whose lease has ended, even if it keeps its connections open."""
        self.peers.forget_ended(
            old, new, delta.brokers_changed, [_purpose(number) for number in range(CONNECTIONS_MAX)]
        )

    def wrap(self, spec: HandlerSpec) -> HandlerSpec:
        """Returns a handler that forwards requests unless this broker is the controller.

        A handler without `forwarding` is unchanged. A request's time limit is its `timeout_ms`, if it has that field.
        """
        forwarding, local = spec.forwarding, spec.handle_later
        if forwarding is None:
            return spec
        assert local is not None, f"{spec.key.name} has no handler that may wait"

        async def handle(request: Any, context: RequestContext) -> Any:
            timeout_ms = getattr(request, "timeout_ms", DEFAULT_TIMEOUT_MS)
            if self._metadata.is_controller or context.forwarded or timeout_ms <= 0:
                return await local(request, context)
            answer = await self.ask(spec.key, context.api_version, request, timeout_ms, Origin.of(context))
            if answer is None:
                return await local(request, context)
            if isinstance(answer, Refusal):
                return forwarding.refused(request, context.api_version, answer)
            if (shows := forwarding.shows) is not None:
                await self.wait_until(lambda image: shows(request, answer, image), OWN_IMAGE_MS)
            return answer

        return spec.wrapped(handle_later=handle)

    async def ask(
        self, key: ApiKey, version: int, request: ApiMessage, timeout_ms: int, origin: Origin = OF_THE_BROKER
    ) -> Any | Refusal | None:
        """Returns the controller's answer, or None if this broker has become the controller itself.

        Refusals: NOT_CONTROLLER, REQUEST_TIMED_OUT if the outcome is unknown, CLUSTER_AUTHORIZATION_FAILED if this
        broker lacks CLUSTER_ACTION.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + min(timeout_ms, CONTROLLER_WAIT_MS) / 1000
        reason = "there is no controller"
        while not self._metadata.is_controller:
            image = self._metadata.image
            controller = image.brokers.get(image.controller_id)
            if controller is not None and controller.broker_id != self._metadata.broker_id:
                try:
                    if controller.metadata_level == WITHOUT_ENVELOPES:
                        return await self._send(controller, (key, version, request), timeout_ms, origin)
                    envelope = seal_envelope(key, version, request, origin)
                    return _taken_out(
                        key, version, await self._send(controller, (ApiKey.ENVELOPE, 0, envelope), timeout_ms, origin)
                    )
                except PeerError as error:
                    reason = str(error)
                    if error.was_sent:
                        return Refusal(ErrorCode.REQUEST_TIMED_OUT, f"What became of the request isn't known: {reason}")
            if loop.time() >= give_up:
                return Refusal(ErrorCode.NOT_CONTROLLER, f"This is not the controller, and it can't be asked: {reason}")
            refusal = await newer_image(self._metadata, image.revision, min(give_up, loop.time() + _RETRY_S))
            if refusal is not None and refusal.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
                return refusal
        return None

    async def wait_until(self, shows: Callable[[MetadataImage], bool], wait_ms: int) -> bool:
        """Waits until this broker's image shows something. Returns False if it didn't in time."""
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        while not shows(self._metadata.image):
            if await newer_image(self._metadata, self._metadata.image.revision, deadline) is not None:
                return False
        return True

    async def _send(
        self, controller: BrokerImage, asked: tuple[ApiKey, int, ApiMessage], timeout_ms: int, origin: Origin
    ) -> Any:
        """Sends a request of an API in a version. Errors: PeerError."""
        with self._places.taken_by(origin) as has_place:
            number = (
                next(each for each in range(CONNECTIONS_MAX) if each not in self._busy)
                if has_place
                else CONNECTIONS_MAX - 1
            )
            client = self.peers.client_of(controller, _purpose(number))
            if has_place:
                self._busy.add(number)
            try:
                async with client_wait():
                    return await client.request(*asked, timeout_ms + ANSWER_GRACE_MS)
            except TimeoutError:
                if has_place:
                    client.disconnect(
                        "its client has gone"
                    )  # Ends the controller's wait too, so that later requests aren't queued behind it.
                raise PeerError("the client has gone", was_sent=True) from None
            finally:
                if has_place:
                    self._busy.discard(number)


def _taken_out(key: ApiKey, version: int, envelope: EnvelopeResponse) -> Any | Refusal:
    if envelope.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return Refusal(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            "The controller takes no request from this broker: it has no CLUSTER_ACTION",
        )
    if envelope.error_code != ErrorCode.NONE or envelope.response_data is None:
        return Refusal(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"The controller could not carry the request out: error {envelope.error_code}",
        )
    return answer_in(key, version, envelope.response_data)
