"""What all connections of a broker share: routes, limits, buffers, memory, and the log of what is refused."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from lowtide.broker.audit.line_bound import LineBound
from lowtide.broker.network.admission.admission import Admission, Admitted, ConnectionLimits
from lowtide.broker.network.admission.login_memory import LOGIN_MEMORY_BYTES, LoginMemory
from lowtide.broker.network.admission.slow_lane import HandshakeTurns, Laned, SlowLane
from lowtide.broker.network.connection.answer_memory import AnswerMemory
from lowtide.broker.network.connection.execution import ExecutionState
from lowtide.broker.network.connection.frame_buffers import FrameBuffers
from lowtide.broker.network.connection.gathering import Gathering
from lowtide.broker.network.connection.outgoing import CHUNK_BYTES, BufferPool
from lowtide.broker.network.connection.request_memory import Receiver, RequestMemory
from lowtide.broker.network.connection.slow_clients import Watched
from lowtide.broker.network.routing.dispatcher import Dispatcher
from lowtide.broker.network.routing.large_requests import ROWS_MAX_KEY, LargeRequest, LargeRequests
from lowtide.broker.network.routing.request_times import RequestClock
from lowtide.broker.network.routing.routes import Route, read_request
from lowtide.broker.pending import AnswerRounds, Pending
from lowtide.broker.request_context import Client, RequestContext
from lowtide.broker.turns import Turns
from lowtide.protocol.errors import ProtocolError, TooManyRowsError
from lowtide.runtime.addresses import network_of
from lowtide.runtime.clock import Clock
from lowtide.runtime.worker import Worker

SCRATCH_BYTES = 256 * 1024
"""What one receive may bring, for all connections: about a socket's receive buffer."""

PARKED_PART = 2
"""A connection executes nothing more while its pending requests have this part (1/2) of the bytes that a follower
fetches of a partition at
a time. So a follower gets all of them with one fetch, or with two when the last one is large; otherwise it would always
lack what came
while it fetched, and leave the ISR. A larger request is executed alone, as each is in Kafka."""

PARKED_COUNT = 16
"""A request counts as this part (1/16) of those bytes at least. Clients keep fewer in flight (Java: 5)."""

_IDLE_CHUNKS = 8
"""Buffers that are kept for the next file to be sent, or frame to be received: eight megabytes together."""

_REFUSALS_LOGGED_PER_S = 20
_REFUSALS_OF_VISITOR = 10
"""Log lines about misbehaving clients; more are counted only, or a client could fill the disk with them."""


class RequestBounds(NamedTuple):
    """How many bytes a connection's requests may have: each one, and those that are pending.

    `parked_min`: what each of these counts.
    """

    frame_max: int
    parked_max: int
    parked_min: int


class HostedConnection(Client, Admitted, Watched, Laned, Receiver, Protocol):
    """An open connection, as its host sees it."""

    turns: ExecutionState

    def look_for_end(self) -> None:
        """Finds out whether the client has gone."""
        ...

    security_protocol: str

    def refuse(self, reason: str) -> None:
        """Closes because the client has sent invalid bytes."""
        ...

    def close_gracefully(self) -> None:
        """Reads nothing more, and closes when all answers are sent."""
        ...


class ConnectionHost:
    """The parts that all connections of a broker share."""

    def __init__(  # noqa: PLR0913  parts, each by its name
        self,
        *,
        dispatcher: Dispatcher,
        clock: Clock,
        worker: Worker,
        log: Any,
        maximum_frame_bytes: int,
        request_memory_bytes: int,
        answer_memory_bytes: int,
        follower_fetch_bytes: int,
        limits: ConnectionLimits,
        request_rows_max: int,
        turns: Turns,
        rounds: AnswerRounds,
        connection_wait_ms: Callable[[str, str], int] = lambda _address, _listener: 0,
        on_login: Callable[[Client, str], None] = lambda _client, _failure: None,
        serving: bool = True,
    ) -> None:
        """Without `serving`, clients that connect wait until `serve`.

        `follower_fetch_bytes` is what a follower fetches of a partition at a time.
        `connection_wait_ms` returns how long a new connection of an address by a listener is not served, because there
        are too many.
        `on_login` is called when a client is logged in, with "", or refused, with the reason.
        """
        self.dispatcher = dispatcher
        self.routes = dispatcher.routes
        self.clock = RequestClock(clock)
        self.worker = worker
        self.log = log
        parked_max = max(follower_fetch_bytes // PARKED_PART, 1)
        self.bounds = RequestBounds(maximum_frame_bytes, parked_max, max(parked_max // PARKED_COUNT, 1))
        self.memory = RequestMemory(request_memory_bytes)
        self.answers = AnswerMemory(answer_memory_bytes, clock.monotonic_ms)
        self.large_requests = LargeRequests(turns, request_rows_max, self._on_large_bug)
        self.frame_buffers = FrameBuffers(BufferPool(CHUNK_BYTES, _IDLE_CHUNKS))
        self.gathering = Gathering(SCRATCH_BYTES, self.routes, self.clock, self.on_failed)
        """Its room is what connections receive into."""
        self.cipher_scratch = memoryview(bytearray(SCRATCH_BYTES))
        """The same for encrypted bytes. Without a TLS listener none of its pages is touched."""
        self.connections: dict[HostedConnection, None] = {}
        self.logins: dict[HostedConnection, None] = {}
        """Open connections without a login yet, oldest first."""
        self.login_memory = LoginMemory(LOGIN_MEMORY_BYTES, clock.monotonic_ms)
        self.lane = SlowLane(clock.monotonic_ms)
        self.handshakes = HandshakeTurns(clock.monotonic_ms)
        self.rounds = rounds
        self.serving = serving
        self._connection_wait_ms = connection_wait_ms
        self.admission = Admission(limits, clock.monotonic_ms)
        self.on_login = on_login
        self._refusals = LineBound(_REFUSALS_LOGGED_PER_S, _REFUSALS_OF_VISITOR)

    def serve(self) -> None:
        """Executes the requests of clients that connected before the broker was ready."""
        self.serving = True
        for connection in self.connections:
            connection.turns.begin()

    def on_connected(self, connection: HostedConnection) -> str | None:
        """Counts a connection. Returns why it must be closed, or None."""
        self.connections[connection] = None
        everyone, logins = (
            cast("Mapping[Admitted, None]", self.connections),
            cast("Mapping[Admitted, None]", self.logins),
        )
        refused = self.admission.admit(connection, everyone, logins)
        if refused is None:
            self.lane.on_connected(connection)
            wait_ms = self._connection_wait_ms(connection.client_address, connection.listener_name)
            if wait_ms:
                connection.mute(wait_ms)
        return refused

    def on_disconnected(self, connection: HostedConnection) -> None:
        """Forgets a closed connection."""
        self.lane.leave(connection)
        self.gathering.forget(connection)
        if self.connections.pop(connection, connection) is None:
            self.admission.left(connection)

    def abort_connections(self) -> None:
        """Aborts all connections, answered or not."""
        for connection in list(self.connections):
            connection.close("the broker ends")

    def active_since(self, since_ms: int) -> list[str]:
        """Returns the clients from which bytes were received at or after a time of the monotonic clock."""
        return [connection.peer for connection in self.connections if connection.last_active_ms >= since_ms]

    def begin_large(
        self, connection: HostedConnection, route: Route, correlation_id: int, rows: int, frame: memoryview
    ) -> Pending[Any]:
        """Executes a request of many rows in parts. Its frame is kept if it was mapped, else copied."""
        is_mapped = isinstance(frame.obj, mmap.mmap)
        kept = frame if is_mapped else memoryview(bytes(frame))

        def read() -> tuple[Any, RequestContext]:
            request, client_id = read_request(route, kept, 0, len(kept))
            version = int.from_bytes(kept[2:4], "big")
            return request, RequestContext(version, client_id, connection, {}, correlation_id)

        assert route.cut is not None, "it is cut"
        large = LargeRequest(route.name, route.cut, route.bounds, rows, read, route.handle)
        if is_mapped:
            large.on_done = partial(self.memory.give_back, large)
            self.memory.keep(connection, large)
        return self.large_requests.submit(large)

    def on_refused(self, connection: Client, reason: str, event: str = "connection closed") -> None:
        """Logs why a connection is closed or a request refused, with a limited number of lines a second."""
        now_ms = self.clock.now_ms()
        suppressed = self._refusals.take_suppressed(now_ms)
        if suppressed is not None:
            self.log.warning("more connections were closed, or requests refused", count=suppressed.count)
        if self._refusals.admit(f"{event} {network_of(connection.client_address)}", now_ms):
            self.log.warning(event, peer=connection.peer, reason=reason)

    def on_surplus(self, connection: Client, request: str, count: int) -> None:
        """Counts a request that has `count` bytes behind its fields, and logs the first of each kind."""
        surplus, software = self.dispatcher.surplus, connection.software
        if surplus.note(request.partition(" ")[0], software[0]):
            self.log.info(
                "request has bytes behind its fields; they are ignored",
                request=request,
                bytes=count,
                peer=connection.peer,
                software=" ".join(software),
            )

    def on_login_failed(self, connection: Client, reason: str) -> None:
        """Handles a failed login. An address with many failures enters the slow lane."""
        self.lane.on_malformed(connection.client_address)
        self.on_refused(connection, reason, "login refused")
        self.on_login(connection, reason)

    def _on_large_bug(self, name: str, error: Exception) -> None:
        self.log.error("request failed", request=name, exc_info=error)

    def on_invalid_length(self, connection: HostedConnection, size: int, maximum: int) -> None:
        """Refuses a frame of invalid length: the client speaks another protocol."""
        from lowtide.broker.network.connection.foreign_protocols import instead_of_kafka  # noqa: PLC0415  for clients that are refused

        spoken = instead_of_kafka(struct.pack(">i", size), connection.security_protocol)
        connection.refuse(spoken or f"a frame of {size} bytes is announced, 1 to {maximum} are allowed")

    def on_failed(
        self, connection: HostedConnection, route: Route | None, name: str, error: Exception, *, was_read: bool
    ) -> None:
        """Closes a connection whose request is invalid, or met a bug, which is logged with its traceback."""
        if isinstance(error, TooManyRowsError):
            connection.refuse(f"{name if route is None else route.name} has {error}; {ROWS_MAX_KEY} is the limit")
        elif route is None or (isinstance(error, ProtocolError) and not was_read):
            connection.refuse(f"{name}: {error}")
        else:
            self.log.error("request failed", peer=connection.peer, request=route.name, exc_info=error)
            connection.close(f"{name} failed inside")
