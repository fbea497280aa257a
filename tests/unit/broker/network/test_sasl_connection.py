"""A connection before its login: no request passes, failures are delayed, and memory and time are bounded."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.guards.guard import FOR_EVERYONE
from lowtide.broker.handlers import api_versions, sasl_authenticate, sasl_handshake
from lowtide.broker.network.admission.admission import ConnectionLimits
from lowtide.broker.network.admission.login_memory import LOGIN_MEMORY_BYTES
from lowtide.broker.network.connection.connection_host import ConnectionHost
from lowtide.broker.network.connection.listener_security import ListenerSecurity
from lowtide.broker.network.connection.sasl_connection import FREE_FRAME_BYTES, ListenerSasl
from lowtide.broker.network.connection.server import Server
from lowtide.broker.network.routing.dispatcher import Dispatcher
from lowtide.broker.network.routing.routes import HandlerSpec, JointForm
from lowtide.broker.pending import AnswerRounds
from lowtide.broker.security.login import Mechanism
from lowtide.broker.security.plain import PlainExchange, PlainUsers
from lowtide.broker.turns import Turns
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.client.versions import exchange_of
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.headers import read_response_header, request_header
from lowtide.protocol.messages.api_versions import ApiVersionsRequest
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest
from lowtide.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeRequest
from lowtide.protocol.schema import ApiMessage
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.runtime.worker import SimulatedWorker

RIGHT, WRONG = b"\0alice\0pencil", b"\0alice\0wrong"
DELAY_MS = 100
RECEIVE_BYTES = 524_288
LOGIN_TIMEOUT_MS = 30_000


class Log:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def warning(self, event: str, **values: Any) -> None:
        self.reasons.append(f"{event}: {values.get('reason')}")

    exception = error = warning


class World:
    """A server with a listener of SASL/PLAIN, and one request behind it."""

    def __init__(self, loop: SimulatedLoop, lifetime_ms: int = 0) -> None:
        self.loop, self.log, self.clock = loop, Log(), SimulatedClock(loop)
        self.served: list[str] = []
        dispatcher = Dispatcher(spawn=lambda *_args, **_names: None, maximum_versions={})
        specs = [
            api_versions.handler(
                dispatcher.advertised, MetadataImage, SimpleNamespace(replicas=SimpleNamespace(broker_id=1))
            ),
            sasl_handshake.handler(),
            sasl_authenticate.handler(),
        ]
        dispatcher.register([*specs, HandlerSpec(key=ApiKey.LIST_GROUPS, guard=FOR_EVERYONE, handle=self._serve)])
        self.host = ConnectionHost(
            dispatcher=dispatcher,
            clock=self.clock,
            worker=SimulatedWorker(loop, random.Random(0)),
            log=self.log,
            maximum_frame_bytes=1 << 22,
            request_memory_bytes=1 << 24,
            answer_memory_bytes=1 << 30,
            follower_fetch_bytes=1 << 20,
            limits=ConnectionLimits(1000, "", 1000),
            request_rows_max=100_000,
            turns=Turns(loop, self.clock),
            rounds=AnswerRounds(loop),
        )
        mechanism = Mechanism(partial(PlainExchange, PlainUsers({"alice": "pencil"})), lifetime_ms)
        sasl = ListenerSasl({"PLAIN": mechanism}, maximum_frame_bytes=RECEIVE_BYTES, delay_ms=DELAY_MS)
        self.security = ListenerSecurity(sasl=sasl)
        self.server = Server(self.host, idle_after_ms=600_000, login_timeout_ms=LOGIN_TIMEOUT_MS)
        self.clients: list[Client] = []

    def _serve(self, _request: Any, context: Any) -> ListGroupsResponse:
        self.served.append(str(context.principal))
        return ListGroupsResponse(error_code=0, groups=[])

    async def client(self) -> Client:
        if not self.clients:
            self.port = await self.server.start("", 0, "SASL", self.security)
        client = Client(*await asyncio.open_connection("localhost", self.port))
        self.clients.append(client)
        return client


class Client:
    """Speaks frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, message: ApiMessage, version: int) -> None:
        exchange = exchange_of(type(message), version)
        body = request_header(exchange.key, version, 7, "c") + exchange.request.encode(message)
        self.writer.write(struct.pack(">i", len(body)) + body)

    async def frame(self) -> bytes:
        size = struct.unpack(">i", await self.reader.readexactly(4))[0]
        return await self.reader.readexactly(size)

    async def ask(self, message: ApiMessage, version: int) -> Any:
        self.send(message, version)
        frame = await self.frame()
        exchange = exchange_of(type(message), version)
        _, position = read_response_header(memoryview(frame), 0, len(frame), flexible=exchange.answer_is_flexible)
        return exchange.decode(memoryview(frame), position, len(frame))

    async def log_in(self, token: bytes = RIGHT) -> Any:
        assert (await self.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)).error_code == 0
        return await self.ask(SaslAuthenticateRequest(auth_bytes=token), 2)

    async def is_closed(self) -> bool:
        """Whether nothing but the end comes."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True


def simulate(test: Callable[[World], Coroutine[Any, Any, None]], **world: int) -> None:
    async def main(loop: SimulatedLoop) -> None:
        tried = World(loop, **world)
        try:
            await test(tried)
        finally:
            for client in tried.clients:
                client.writer.close()

    run_simulation(main, 1)


def test_requests_that_come_together_are_executed_together_only_behind_a_login() -> None:
    """The joint form goes past `_on_request`, which knows about logins."""
    taken: list[int] = []

    def read(_buffer: memoryview, position: int, end: int, _frame_max: int, _is_one: bool) -> Any:
        taken.append(end - position)
        return [SimpleNamespace(version=9, correlation_ids=[7, 7], places=[0, 0], stop=end)]

    async def test(world: World) -> None:
        joint = JointForm(read, lambda *_: [b"\0\0\0\1!"] * 2)
        spec = HandlerSpec(key=ApiKey.PRODUCE, guard=FOR_EVERYONE, handle=world._serve, joint=joint)
        world.host.dispatcher.register([spec])
        content = struct.pack(">hhi", 0, 9, 7) + bytes(10)
        frames = (struct.pack(">i", len(content)) + content) * 2
        early, late = await world.client(), await world.client()
        early.writer.write(frames)
        assert await early.is_closed()
        assert not taken
        assert (await late.log_in()).error_code == 0
        late.writer.write(frames)
        assert await late.frame() == b"!"
        assert taken == [len(frames)]

    simulate(test)


def test_a_client_logs_in_and_is_served_as_its_principal() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        versions = await client.ask(ApiVersionsRequest(client_software_name="c", client_software_version="1"), 3)
        assert {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE} <= {api.api_key for api in versions.api_keys}
        assert world.host.logins
        assert (await client.log_in()).error_code == 0
        assert not world.host.logins
        assert (await client.ask(ListGroupsRequest(), 0)).error_code == 0
        assert world.served == ["User:alice"]
        assert (
            await client.ask(SaslAuthenticateRequest(auth_bytes=RIGHT), 0)
        ).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)).error_code == ErrorCode.ILLEGAL_SASL_STATE

    simulate(test)


def test_bare_tokens() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0)
        client.writer.write(struct.pack(">i", len(RIGHT)) + RIGHT)
        assert await client.frame() == b""
        await client.ask(ListGroupsRequest(), 0)
        assert world.served == ["User:alice"]

    simulate(test)


@pytest.mark.parametrize("before", [[], [ApiVersionsRequest()]])
def test_nothing_reaches_the_dispatcher_before_the_login(before: list[ApiMessage]) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        for message in before:
            await client.ask(message, 0)
        client.send(ListGroupsRequest(), 0)
        assert await client.is_closed()
        assert world.served == []

    simulate(test)


@pytest.mark.parametrize(
    ("message", "version"),
    [(ListGroupsRequest(), 0), (DeleteTopicsRequest(topics=[], topic_names=["t"], timeout_ms=1), 1)],
)
def test_another_request_between_handshake_and_token_is_answered_in_its_own_form(
    message: ApiMessage, version: int
) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        if isinstance(message, ListGroupsRequest):
            assert (await client.ask(message, version)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        else:
            client.send(message, version)  # Not served by this server: closed without an answer.
        assert await client.is_closed()
        assert world.served == []

    simulate(test)


def test_versions_are_answered_once_but_for_errors() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        body = request_header(ApiKey.API_VERSIONS, 99, 7, "c")
        client.writer.write(struct.pack(">i", len(body)) + body)
        assert struct.unpack_from(">ih", await client.frame()) == (7, ErrorCode.UNSUPPORTED_VERSION)
        bad = ApiVersionsRequest(client_software_name="-", client_software_version="1")
        assert (await client.ask(bad, 3)).error_code == ErrorCode.INVALID_REQUEST
        assert (await client.ask(ApiVersionsRequest(), 0)).error_code == 0
        client.send(ApiVersionsRequest(), 0)
        assert await client.is_closed()

    simulate(test)


def test_a_failure_is_answered_late_and_nothing_is_read_meanwhile() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        began_ms = world.clock.monotonic_ms()
        client.send(SaslAuthenticateRequest(auth_bytes=WRONG), 2)
        client.send(SaslAuthenticateRequest(auth_bytes=RIGHT), 2)
        client.send(ListGroupsRequest(), 0)
        frame = await client.frame()
        assert struct.unpack_from(">h", frame, 5)[0] == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert world.clock.monotonic_ms() - began_ms >= DELAY_MS
        assert await client.is_closed()
        assert world.served == []
        assert (
            "login refused: PLAIN of user 'alice': the user is unknown, or the password is wrong" in world.log.reasons
        )
        assert not any("wrong\\0" in reason or "pencil" in reason for reason in world.log.reasons)

    simulate(test)


def test_a_client_that_goes_while_its_failure_is_pending_leaves_nothing() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        client.send(SaslAuthenticateRequest(auth_bytes=WRONG), 2)
        client.writer.transport.abort()
        await asyncio.sleep(1)
        assert not world.host.connections
        assert not world.host.logins

    simulate(test)


@pytest.mark.parametrize("size", [RECEIVE_BYTES + 1, -1, 0])
def test_a_frame_that_is_too_large_for_a_login_closes(size: int) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        client.writer.write(struct.pack(">i", size))
        assert await client.is_closed()

    simulate(test)


@pytest.mark.parametrize("cut", [4, 2])
def test_frames_before_the_login_hold_bounded_memory(cut: int) -> None:
    """Large ones of all connections together: the oldest gives way to the next."""

    async def test(world: World) -> None:
        flood = []
        for _ in range(LOGIN_MEMORY_BYTES // RECEIVE_BYTES + 5):
            client = await world.client()
            flood.append(client)
            head = struct.pack(">i", RECEIVE_BYTES - 10)
            client.writer.write(head[:cut])
            await asyncio.sleep(0.01)
            client.writer.write(head[cut:] + b"x" * 100)
        await asyncio.sleep(0.1)
        assert len(world.host.connections) == LOGIN_MEMORY_BYTES // RECEIVE_BYTES
        assert await flood[0].is_closed()
        assert world.host.login_memory.free_bytes < RECEIVE_BYTES
        for client in flood:
            client.writer.transport.abort()
        await asyncio.sleep(0.1)
        assert world.host.login_memory.free_bytes == LOGIN_MEMORY_BYTES

    simulate(test)


@pytest.mark.parametrize("size", [FREE_FRAME_BYTES - 100, 6_000, RECEIVE_BYTES - 1_000])
def test_strangers_that_hold_all_memory_keep_no_login_out(size: int) -> None:
    """Tokens of any size in two pieces, while 260 connections announce large frames and send little of them."""

    async def test(world: World) -> None:
        for announced in [RECEIVE_BYTES - 10] * 20 + [60_000] * 100 + [12_000] * 60 + [4_500] * 80:
            client = await world.client()
            client.writer.write(struct.pack(">i", announced) + b"x" * 10)
        await asyncio.sleep(1.5)
        honest = await world.client()
        await honest.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        exchange = exchange_of(SaslAuthenticateRequest, 2)
        token = b"\0alice\0pencil".ljust(size, b"x")
        body = request_header(exchange.key, 2, 7, "c") + exchange.request.encode(
            SaslAuthenticateRequest(auth_bytes=token)
        )
        honest.writer.write(struct.pack(">i", len(body)) + body[:1_400])
        await asyncio.sleep(0.2)
        honest.writer.write(body[1_400:])
        await honest.frame()
        assert any("alice" in reason for reason in world.log.reasons)

    simulate(test)


def test_after_the_login_large_frames_come_again() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await client.log_in()
        exchange = exchange_of(ListGroupsRequest, 4)
        message = ListGroupsRequest(states_filter=["x" * 30_000] * 60)
        body = request_header(exchange.key, 4, 7, "c") + exchange.request.encode(message)
        assert len(body) > RECEIVE_BYTES
        client.writer.write(struct.pack(">i", len(body)) + body)
        await client.frame()
        assert world.served == ["User:alice"]

    simulate(test)


def test_a_connection_that_does_not_log_in_is_closed_in_time() -> None:
    async def test(world: World) -> None:
        silent, slow, honest = [await world.client() for _ in range(3)]
        await slow.ask(ApiVersionsRequest(), 0)
        await honest.log_in()
        await asyncio.sleep(LOGIN_TIMEOUT_MS / 1000 + 3)
        assert await silent.is_closed()
        assert await slow.is_closed()
        await honest.ask(ListGroupsRequest(), 0)

    simulate(test)


def test_a_login_that_has_ended_closes_at_the_next_request_unless_it_is_made_again() -> None:
    async def test(world: World) -> None:
        client, faithful = await world.client(), await world.client()
        assert (await client.log_in()).session_lifetime_ms == 5_000
        await faithful.log_in()
        await asyncio.sleep(4)
        await client.ask(ListGroupsRequest(), 0)
        assert (await faithful.log_in()).error_code == 0
        await asyncio.sleep(3)
        client.send(ListGroupsRequest(), 0)
        assert await client.is_closed()
        await faithful.ask(ListGroupsRequest(), 0)
        await asyncio.sleep(10)
        assert (await faithful.log_in()).error_code == 0  # Late, and still in time: nothing was asked for between.
        assert world.served == ["User:alice"] * 2

    simulate(test, lifetime_ms=5_000)


def test_a_login_again_that_fails_closes() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await client.log_in()
        await asyncio.sleep(2)
        answer = await client.log_in(WRONG)
        assert "re-authentication" in answer.error_message
        assert await client.is_closed()

    simulate(test, lifetime_ms=5_000)


@pytest.mark.parametrize("cut", [2, 11])
def test_a_client_of_tls_is_named(cut: int) -> None:
    """Its frame seems to have 369 million bytes, also if the length comes in two pieces."""

    async def run(world: World) -> None:
        client, hello = await world.client(), bytes.fromhex("16030106f4010006f00303")
        client.writer.write(hello[:cut])
        await asyncio.sleep(0.05)
        client.writer.write(hello[cut:])
        assert await client.is_closed()
        remedy = "its clients need security.protocol=SASL_PLAINTEXT"
        assert world.log.reasons == [f"connection closed: it speaks TLS, and this listener has none: {remedy}"]

    simulate(run)
