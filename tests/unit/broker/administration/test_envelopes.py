"""Envelopes: what goes in comes out, and what is no request for the controller, or comes from no broker, is refused."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.administration.envelopes import OF_THE_BROKER, Origin, answer_in, open_envelope, seal_envelope
from lowtide.broker.administration.forwarding import FORWARDED
from lowtide.broker.authorizer.resources import CLUSTER, Operation
from lowtide.broker.handlers import envelope
from lowtide.broker.network.routes import Route
from lowtide.broker.request_context import RequestContext
from lowtide.broker.security.principal import KafkaPrincipal
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from lowtide.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from lowtide.protocol.messages.list_groups import ListGroupsRequest

ALICE, BROKER = KafkaPrincipal("User", "alice"), KafkaPrincipal("User", "broker")
REQUEST = CreateTopicsRequest(
    topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])],
    timeout_ms=1,
    validate_only=False,
)
VERSIONS = range(CreateTopicsRequest.VERSIONS.low, CreateTopicsRequest.VERSIONS.high + 1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("address", ["10.0.0.7", "::1", "fe80::1", "a-host"])
def test_what_goes_in_comes_out(version: int, address: str) -> None:
    origin = Origin(ALICE, address, "me", 7)
    found = open_envelope(seal_envelope(ApiKey.CREATE_TOPICS, version, REQUEST, origin), FORWARDED)
    assert (found.key, found.version, found.origin) == (ApiKey.CREATE_TOPICS, version, origin)
    assert found.body.topics[0].name == "t"  # type: ignore[attr-defined]


def test_the_bytes_are_kafkas() -> None:
    sent = seal_envelope(ApiKey.CREATE_TOPICS, 7, REQUEST, Origin(ALICE, "10.0.0.7", "me", 7))
    assert sent.request_data[:13].hex(" ") == "00 13 00 07 00 00 00 07 00 02 6d 65 00"
    assert sent.request_principal is not None
    assert sent.request_principal.hex(" ") == "00 00 05 55 73 65 72 06 61 6c 69 63 65 00 00"
    assert sent.client_host_address == bytes([10, 0, 0, 7])


@pytest.mark.parametrize(
    "wrong",
    [
        EnvelopeRequest(request_data=b"", request_principal=None, client_host_address=b""),
        EnvelopeRequest(request_data=bytes(30), request_principal=None, client_host_address=b""),
        seal_envelope(ApiKey.LIST_GROUPS, 0, ListGroupsRequest(), OF_THE_BROKER),
        EnvelopeRequest(request_data=b"\0\x13\0\x63" + bytes(30), request_principal=None, client_host_address=b""),
        EnvelopeRequest(
            request_data=seal_envelope(ApiKey.CREATE_TOPICS, 7, REQUEST, OF_THE_BROKER).request_data,
            request_principal=b"\0\1",
            client_host_address=b"",
        ),
    ],
)
def test_what_is_no_request_for_the_controller_is_refused(wrong: EnvelopeRequest) -> None:
    with pytest.raises(ProtocolError):
        open_envelope(wrong, FORWARDED)
    assert asyncio.run(ask(wrong)).error_code == ErrorCode.INVALID_REQUEST


async def ask(
    request: EnvelopeRequest, *, listener: str = "BROKERS", allowed: bool = True, seen: list[Any] | None = None
) -> EnvelopeResponse:
    def authorize(requester: Any, operation: Operation, resource: Any) -> bool:
        assert (requester.principal, operation, resource) == (BROKER, Operation.CLUSTER_ACTION, CLUSTER)
        return allowed

    def carry_out(body: Any, context: RequestContext) -> CreateTopicsResponse:
        assert body == REQUEST
        context.connection.mute(5)
        if seen is not None:
            seen.append(context)
        return CreateTopicsResponse(topics=[], throttle_time_ms=5)

    broker: Any = SimpleNamespace(
        config=SimpleNamespace(inter_broker_listener="BROKERS"), authorizer=SimpleNamespace(authorize=authorize)
    )
    route: Any = SimpleNamespace(handle=carry_out)
    routes: dict[tuple[int, int], Route | None] = {(ApiKey.CREATE_TOPICS, version): route for version in VERSIONS}
    connection: Any = SimpleNamespace(
        listener_name=listener,
        principal=BROKER,
        client_address="10.0.0.1",
        peer="10.0.0.1:5",
        software=("", ""),
        mute=lambda _for_ms: None,
    )
    handle = envelope.handler(broker, routes).handle_later
    assert handle is not None
    answer: EnvelopeResponse = await handle(request, RequestContext(0, "broker-1-forwarding-0", connection))
    return answer


def test_a_request_is_carried_out_as_the_client_that_sent_it() -> None:
    seen: list[RequestContext] = []
    answer = asyncio.run(
        ask(seal_envelope(ApiKey.CREATE_TOPICS, 7, REQUEST, Origin(ALICE, "10.0.0.7", "me", 9)), seen=seen)
    )
    assert answer.response_data is not None
    assert answer_in(ApiKey.CREATE_TOPICS, 7, answer.response_data).throttle_time_ms == 5
    (context,) = seen
    assert (context.principal, context.client_address, context.client_id, context.correlation_id) == (
        ALICE,
        "10.0.0.7",
        "me",
        9,
    )
    assert (context.forwarded, context.of_a_broker) == (True, False)


def test_a_request_of_a_broker_itself_is_of_that_broker() -> None:
    seen: list[RequestContext] = []
    asyncio.run(ask(seal_envelope(ApiKey.CREATE_TOPICS, 7, REQUEST, OF_THE_BROKER), seen=seen))
    assert (seen[0].principal, seen[0].client_address, seen[0].forwarded, seen[0].of_a_broker) == (
        BROKER,
        "10.0.0.1",
        True,
        True,
    )


@pytest.mark.parametrize(("listener", "allowed"), [("CLIENTS", True), ("BROKERS", False)])
def test_only_brokers_send_envelopes(listener: str, allowed: bool) -> None:
    """At their own listener, and with CLUSTER_ACTION: else a client could take another one's name."""
    seen: list[Any] = []
    sent = seal_envelope(ApiKey.CREATE_TOPICS, 7, REQUEST, Origin(ALICE))
    answer = asyncio.run(ask(sent, listener=listener, allowed=allowed, seen=seen))
    assert (answer.error_code, answer.response_data, seen) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None, [])


def test_all_that_may_be_in_an_envelope_is_served() -> None:
    assert set(API) >= FORWARDED
