"""A worker's connection negotiates versions, takes large and pipelined answers, and reports failures in time."""

from __future__ import annotations

import socket
import struct

import pytest

from lowtide.admin.blocking_connection import BlockingConnection
from lowtide.admin.errors import AuthenticationFailedError, ConnectionFailedError, UnsupportedVersionError
from lowtide.admin.settings import Address, ClientSaslSettings, ClientSettings
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.client.opening import FIRST_TRIED
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from lowtide.protocol.messages.delete_records import DeleteRecordsRequest
from lowtide.protocol.messages.fetch import FetchRequest
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeResponse
from lowtide.runtime.clock import SystemClock

from .scripted_broker import ScriptedBroker

CLOCK = SystemClock()
NO_TOPICS = MetadataRequest(topics=[])


def soon(ms: int = 30_000) -> int:
    return CLOCK.monotonic_ms() + ms


def opened(port: int, **settings: object) -> BlockingConnection:
    address = Address("127.0.0.1", port)
    return BlockingConnection.open(address, ClientSettings(bootstrap_servers=(address,), **settings), soon())


def framed(*parts: bytes) -> bytes:
    whole = b"".join(parts)
    return struct.pack(">i", len(whole)) + whole


def versions(correlation_id: int, version: int, table: dict[int, tuple[int, int]], error_code: int = 0) -> bytes:
    keys = [ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in table.items()]
    answer = ApiVersionsResponse(error_code=error_code, api_keys=keys)
    return framed(struct.pack(">i", correlation_id), codec_for(ApiVersionsResponse, version).encode(answer))


def metadata(correlation_id: int, hosts: int = 1) -> bytes:
    brokers = [MetadataResponseBroker(node_id=i, host="h" * 100, port=1) for i in range(hosts)]
    return framed(
        struct.pack(">i", correlation_id),
        codec_for(MetadataResponse, 1).encode(MetadataResponse(brokers=brokers, topics=[])),
    )


def answering(body, table=None):
    """A script: the table of versions, then the result of `body` for the correlation id."""

    def answer(api_key: int, version: int, correlation_id: int, _: bytes) -> bytes | None:
        if api_key == ApiKey.API_VERSIONS:
            return versions(correlation_id, version, {ApiKey.METADATA: (0, 1)} if table is None else table)
        return body(correlation_id)

    return answer


def test_a_broker_is_asked_in_a_version_that_it_supports(lowtide):
    host, _, port = lowtide.bootstrap.rpartition(":")
    with opened(int(port)) as connection:
        answer = connection.request(NO_TOPICS, soon())
        assert [(broker.host, broker.port) for broker in answer.brokers] == [(host, int(port))]
        assert connection.version(FetchRequest, newest=12) == 12


def test_a_broker_that_knows_only_old_versions_of_the_first_question_is_asked_again():
    def answer(api_key: int, version: int, correlation_id: int, _: bytes) -> bytes:
        if api_key != ApiKey.API_VERSIONS:
            return metadata(correlation_id)
        table = {ApiKey.API_VERSIONS: (0, 2), ApiKey.METADATA: (0, 1)}
        return (
            versions(correlation_id, 0, table, error_code=35)
            if version > 2
            else versions(correlation_id, version, table)
        )

    with ScriptedBroker(answer) as broker, opened(broker.port) as connection:
        assert len(connection.request(NO_TOPICS, soon()).brokers) == 1
        assert broker.requests == [(ApiKey.API_VERSIONS, FIRST_TRIED), (ApiKey.API_VERSIONS, 2), (ApiKey.METADATA, 1)]


def test_an_api_that_the_broker_does_not_serve_is_refused_before_anything_is_sent():
    with ScriptedBroker(answering(metadata)) as broker, opened(broker.port) as connection:
        with pytest.raises(
            UnsupportedVersionError, match=f"broker 127.0.0.1:{broker.port}: the broker does not support DeleteRecords"
        ):
            connection.version(DeleteRecordsRequest)
        assert connection.version(MetadataRequest) == 1


def test_a_broker_with_only_newer_versions_is_reported_with_both_ranges():
    table = {ApiKey.METADATA: (100, 101)}
    with ScriptedBroker(answering(metadata, table)) as broker, opened(broker.port) as connection:  # noqa: SIM117
        with pytest.raises(UnsupportedVersionError, match="the broker supports Metadata in versions 100 to 101"):
            connection.request(NO_TOPICS, soon())


def test_answers_come_in_the_order_of_the_requests_and_may_be_larger_than_the_buffer():
    sizes = iter((1, 3000, 2))
    with (
        ScriptedBroker(answering(lambda correlation_id: metadata(correlation_id, next(sizes)))) as broker,
        opened(broker.port) as connection,
    ):
        for _ in range(3):
            connection.send(NO_TOPICS, soon())
        assert connection.waiting_count == 3
        assert [len(connection.receive(soon()).brokers) for _ in range(3)] == [1, 3000, 2]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda _: None, "it closed the connection"),
        (lambda _: struct.pack(">i", -1), "its response is invalid: a frame of -1 bytes"),
        (lambda _: struct.pack(">i", 2**31 - 1), "its response is invalid: a frame of 2147483647 bytes"),
        (lambda _: framed(b"\0"), "its response is invalid"),
        (lambda correlation_id: metadata(correlation_id + 1), "its response is invalid: response"),
        (lambda correlation_id: framed(struct.pack(">i", correlation_id), b"\0\0\0\7"), "its response is invalid"),
        (lambda _: b"", "it did not answer in time"),
    ],
    ids=["hangs up", "negative size", "too large", "no header", "another answer", "cut short", "silence"],
)
def test_a_failure_names_the_broker_and_ends_the_connection(body, reason):
    with ScriptedBroker(answering(body)) as broker, opened(broker.port) as connection:
        with pytest.raises(ConnectionFailedError, match=f"broker 127.0.0.1:{broker.port}: {reason}") as failed:
            connection.request(NO_TOPICS, soon(300 if "in time" in reason else 30_000))
        assert failed.value.was_sent
        assert connection.closed
        with pytest.raises(ConnectionFailedError, match="is closed") as again:
            connection.request(NO_TOPICS, soon())
        assert not again.value.was_sent


def test_a_peer_that_is_no_broker_is_reported_so():
    with (
        ScriptedBroker(lambda *_: framed(b"HTTP/1.1 400")) as broker,
        pytest.raises(ConnectionFailedError, match="its response is invalid"),
    ):
        opened(broker.port)


def test_a_port_without_listener_is_reported_at_once():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(ConnectionFailedError, match=f"broker 127.0.0.1:{port}: connection refused"):
        opened(port)


def test_a_broker_that_accepts_and_stays_silent_times_out():
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        pytest.raises(ConnectionFailedError, match="it did not answer in time"),
    ):
        opened(mute.getsockname()[1], connection_setup_timeout_ms=300)


@pytest.mark.parametrize("password", ["right", "wrong"])
def test_a_worker_authenticates(password):
    """With the exchange of the admin client, here over a blocking socket."""
    table = {ApiKey.SASL_HANDSHAKE: (1, 1), ApiKey.SASL_AUTHENTICATE: (0, 0), ApiKey.METADATA: (0, 1)}

    def answer(api_key: int, version: int, correlation_id: int, request: bytes) -> bytes:
        if api_key == ApiKey.API_VERSIONS:
            return versions(correlation_id, version, table)
        if api_key == ApiKey.METADATA:
            return metadata(correlation_id)
        if api_key == ApiKey.SASL_HANDSHAKE:
            body = SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"])
        elif request.endswith(b"\0ada\0right"):
            body = SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b"")
        else:
            body = SaslAuthenticateResponse(error_code=58, error_message="who is that?", auth_bytes=b"")
        return framed(struct.pack(">i", correlation_id), codec_for(type(body), version).encode(body))

    sasl = ClientSaslSettings(mechanism="PLAIN", username="ada", password=password)
    with ScriptedBroker(answer) as broker:
        if password == "wrong":
            with pytest.raises(AuthenticationFailedError, match="ada cannot log in with PLAIN: who is that?"):
                opened(broker.port, sasl=sasl)
            return
        with opened(broker.port, sasl=sasl) as connection:
            assert len(connection.request(NO_TOPICS, soon()).brokers) == 1
