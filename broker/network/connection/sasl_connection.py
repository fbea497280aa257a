"""A connection of a listener with SASL: until its client is logged in, nothing that it sends reaches the dispatcher.

Before the login, frames are small (`sasl.server.max.receive.size`), their memory is bounded over all connections, and
ApiVersions is answered once; no other request of the dispatcher is. A failed login is answered after
`connection.failed.authentication.delay.ms`, during which nothing is read. Then the connection is closed.
`security/login` decides; this module decodes, sends and closes.

A login may expire (`connections.max.reauth.ms`, or with its delegation token). The first request after that closes the
connection, unless it begins another login.

Sources: Kafka's `SaslServerAuthenticator`, `Selector.delayCloseOnAuthenticationFailure`.
"""

from __future__ import annotations

import asyncio
import struct
from functools import partial
from typing import Final

from lowtide.broker.network.connection.connection import Connection
from lowtide.broker.network.connection.connection_host import ConnectionHost
from lowtide.broker.network.connection.execution import PARK
from lowtide.broker.network.connection.partial_frame import FrameRefusedError, PartialFrame
from lowtide.broker.network.connection.request_memory import Receiver
from lowtide.broker.network.routing.refusals import refusal_of_all
from lowtide.broker.network.routing.routes import Part, read_request
from lowtide.broker.request_context import RequestContext
from lowtide.broker.security.login import NEVER_MS, Login, Mechanisms, Reply
from lowtide.broker.security.login_state import LoginState
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.broker_frames import REQUEST_HEADER_BYTES_MIN
from lowtide.protocol.errors import ErrorCode, ProtocolError, TooManyRowsError
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeRequest
from lowtide.runtime.addresses import network_of

FREE_FRAME_BYTES: Final = 4096
"""A frame up to this size, with its length, needs no memory grant. Tokens with passwords are a few hundred bytes."""

_HEAD, _LENGTH = struct.Struct(">hhi"), struct.Struct(">i")
_HANDSHAKE: Final = int(ApiKey.SASL_HANDSHAKE)


class ListenerSasl:
    """The settings of a listener for logins."""

    __slots__ = ("delay_ms", "maximum_frame_bytes", "mechanisms")

    def __init__(self, mechanisms: Mechanisms, *, maximum_frame_bytes: int, delay_ms: int) -> None:
        """`maximum_frame_bytes` counts before the login. A failure is answered after `delay_ms`."""
        self.mechanisms = dict(mechanisms)
        """The current mechanisms. All connections share this table, so each handshake uses the current ones."""
        self.maximum_frame_bytes = maximum_frame_bytes
        self.delay_ms = delay_ms

    def use(self, mechanisms: Mechanisms) -> None:
        """Replaces the mechanisms. Logins that have begun continue with the earlier ones."""
        self.mechanisms.clear()
        self.mechanisms.update(mechanisms)


class FrameBeforeLogin(PartialFrame):
    """The incomplete frame of a client without a login. The memory of all such frames is bounded."""

    __slots__ = ("_login_memory", "_visitor")

    def __init__(self, host: ConnectionHost) -> None:
        super().__init__(host.frame_buffers, host.memory)
        self._login_memory = host.login_memory
        self._visitor = ""
        """The network of a client that holds memory."""

    def start(self, received: memoryview, receiver: Receiver, now_ms: int) -> bool:
        """Keeps the beginning of a frame. Errors: FrameRefusedError, also if others hold the memory for logins."""
        if len(received) >= _LENGTH.size:
            self._hold(_LENGTH.unpack_from(received)[0], receiver)
        return super().start(received, receiver, now_ms)

    def learn_length(self, size: int, receiver: Receiver) -> None:
        """Makes room after a prefix that arrived in pieces. Errors: those of `start`."""
        self._hold(size, receiver)
        super().learn_length(size, receiver)

    def give_memory_back(self, receiver: Receiver) -> None:
        """Gives back the memory that was granted for the frame."""
        if self._visitor:
            self._login_memory.give_back(receiver, self._visitor)
            self._visitor = ""
        super().give_memory_back(receiver)

    def _hold(self, size: int, receiver: Receiver) -> None:
        if size + _LENGTH.size <= FREE_FRAME_BYTES:
            return
        visitor = network_of(receiver.client_address)
        if not self._login_memory.take(receiver, visitor, size):
            raise FrameRefusedError("a large frame before its login finds no memory: others hold it")
        self._visitor = visitor


class SaslConnection(Connection):
    """One connection of a client that has to log in."""

    security_protocol = "SASL_PLAINTEXT"
    may_gather = False

    def __init__(self, host: ConnectionHost, listener_name: str, settings: ListenerSasl) -> None:
        super().__init__(host, listener_name)
        self._settings = settings
        self._login = Login(settings.mechanisms)
        self._is_in = False
        self._farewell: asyncio.TimerHandle | None = None
        self._maximum_frame_bytes = min(settings.maximum_frame_bytes, host.bounds.frame_max)
        self.frame = FrameBeforeLogin(host)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sets the connection up. Until the login it has a time limit."""
        self._host.logins[self] = None
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection and its login."""
        self._host.logins.pop(self, None)
        if self._farewell is not None:
            self._farewell.cancel()
            self._farewell = None
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """Continues: the socket is empty again. Closes if a failed login was answered."""
        super().resume_writing()
        if self._farewell is not None:
            self.close_when_done()

    def _pause_reading(self) -> None:
        if self._farewell is not None:
            self._backlog = b""  # It would never be executed.
        super()._pause_reading()

    # ------------------------------------------------------------------ requests
    def _execute(self, buffer: memoryview, position: int, stop: int, end: int) -> int:
        """Executes requests: together only if the login does not expire, in a short form only after a login."""
        expires_ms = self._login.expires_ms
        if self._is_in and self.last_active_ms < expires_ms:
            return super()._execute(buffer, position, stop, end if expires_ms == NEVER_MS else stop)
        self.on_request(buffer, position + _LENGTH.size, stop)
        return stop

    def on_request(self, buffer: memoryview, start: int, stop: int) -> None:
        if self._is_in:
            login = self._login
            if login.expires_ms == NEVER_MS:
                super().on_request(buffer, start, stop)
                return
            is_handshake = (
                stop - start >= REQUEST_HEADER_BYTES_MIN and _HEAD.unpack_from(buffer, start)[0] == _HANDSHAKE
            )
            if not is_handshake and self.last_active_ms >= login.expires_ms:
                self.close(f"the login of {login.principal} has ended, and it was not followed by another one")
                return
            if not is_handshake or not login.begins_again(self.last_active_ms):
                super().on_request(buffer, start, stop)
                return
            self._is_in = self.may_gather = False
            self.frame = FrameBeforeLogin(host=self._host)
        if self._login.state is LoginState.BARE_TOKENS:
            reply = self._login.on_token(bytes(buffer[start:stop]), self._host.clock.now_ms())
            token = reply.answer
            self._reply(reply, [] if reply.failure else [_LENGTH.pack(len(token)) + token])  # type: ignore[arg-type,operator]
            return
        if stop - start < REQUEST_HEADER_BYTES_MIN:
            self.refuse(f"a request of {stop - start} bytes is shorter than its header")
            return
        head = _HEAD.unpack_from(buffer, start)
        try:
            self._on_login_api(head, buffer, start, stop)
        except (ProtocolError, TooManyRowsError) as error:
            self.refuse(f"{self._host.dispatcher.describe(head[0], head[1])} before the login: {error}")

    def _on_login_api(self, head: tuple[int, int, int], buffer: memoryview, start: int, stop: int) -> None:
        """Answers a request of the login. Errors: ProtocolError, also for any other request; TooManyRowsError."""
        key, version, correlation_id = head
        login, host = self._login, self._host
        route = host.routes[(key, version)]
        if key == ApiKey.API_VERSIONS and login.state is LoginState.BEGINS:
            if route is None:
                answer = host.dispatcher.answer_unsupported(key, version, correlation_id, buffer[start + 8 : stop])
                self._reply(login.on_versions(succeeds=False), answer)
                return
            request, client_id = read_request(route, buffer, start, stop, partial(host.on_surplus, self))
            response = route.handle(request, RequestContext(version, client_id, self))
            self._reply(
                login.on_versions(succeeds=response.error_code == ErrorCode.NONE), route.write(correlation_id, response)
            )
            return
        if route is None or key not in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
            reply = login.fail(f"{host.dispatcher.describe(key, version)} comes before the login")
            if route is None or not login.mechanism:
                self._reply(reply, [])
            else:
                self._reply(
                    reply,
                    route.write(correlation_id, refusal_of_all(ApiKey(key), version, ErrorCode.ILLEGAL_SASL_STATE)),
                )
            return
        request, _ = read_request(route, buffer, start, stop, partial(host.on_surplus, self))
        if isinstance(request, SaslHandshakeRequest):
            reply = login.on_handshake(version, request.mechanism, host.clock.now_ms())
        else:
            reply = login.on_token(request.auth_bytes, host.clock.now_ms())
        self._reply(reply, [] if reply.answer is None else route.write(correlation_id, reply.answer))

    def _reply(self, reply: Reply, parts: list[Part]) -> None:
        """Sends an answer: at once, or after the delay if the login failed."""
        if not reply.failure:
            self.answers.add(parts)
            if self._login.state is LoginState.LOGGED_IN:
                host = self._host
                self._is_in = True
                self.may_gather = self._login.expires_ms == NEVER_MS
                self.frame.give_memory_back(self)
                self.frame = PartialFrame(host.frame_buffers, host.memory)
                self._maximum_frame_bytes = host.bounds.frame_max
                self.principal, self.shown_by = self._login.principal, self._login.shown_by
                host.logins.pop(self, None)
                host.on_login(self, "")
            return
        self._host.on_login_failed(self, reply.failure)
        self.turns.execution = PARK[self.turns.execution]
        delay_s = self._settings.delay_ms / 1000
        self._farewell = asyncio.get_running_loop().call_later(delay_s, self._say_farewell, parts)

    def _say_farewell(self, parts: list[Part]) -> None:
        if self.closed:
            return
        self._backlog = b""
        self.frame.drop(self)
        self.answers.add(parts)
        self.answers.flush()
        self.close_gracefully()
