"""The listening side: accepts connections, shares what they share, ends the idle ones, stops gracefully."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, cast

from lowtide.broker.config.listeners import Listener as ConfiguredListener
from lowtide.broker.network.admission import Admission, Admitted, ConnectionLimits
from lowtide.broker.network.connection import Connection
from lowtide.broker.network.dispatcher import Dispatcher, Route
from lowtide.broker.network.frame_buffers import FrameBuffers
from lowtide.broker.network.large_requests import LargeRequests, LargeRoute
from lowtide.broker.network.outgoing import CHUNK_BYTES, BufferPool
from lowtide.broker.network.request_memory import RequestMemory
from lowtide.broker.network.slow_clients import why_to_end
from lowtide.broker.network.slow_lane import SlowLane
from lowtide.broker.turns import Turns
from lowtide.runtime.clock import Clock
from lowtide.runtime.network import LISTEN_BACKLOG, Listener, bound_port, listen
from lowtide.runtime.worker import Worker

SCRATCH_BYTES = 256 * 1024
"""What one receive may bring, for all connections: about a socket's receive buffer."""

_IDLE_CHUNKS = 8
"""Buffers that are kept for the next file to be sent, or frame to be received: eight megabytes together."""

_SWEEP_INTERVAL_S = 5.0
"""How often idle and slow connections are looked for."""

_HURRY_INTERVAL_S = 1.0
"""How often those are looked for who are in the way of others that wait for memory."""

_CLOSE_POLL_S = 0.005

_REFUSALS_LOGGED_PER_S = 10
"""Log lines about misbehaving clients; more are counted only, or a client could fill the disk with them."""


class ConnectionHost:
    """What all connections of a broker share."""

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        clock: Clock,
        worker: Worker,
        log: Any,
        maximum_frame_bytes: int,
        request_memory_bytes: int,
        limits: ConnectionLimits,
        request_rows_max: int,
        turns: Turns,
    ) -> None:
        self.dispatcher = dispatcher
        self.routes = dispatcher.routes
        self.now_ms = clock.monotonic_ms
        self.worker = worker
        self.log = log
        self.maximum_frame_bytes = maximum_frame_bytes
        self.memory = RequestMemory(request_memory_bytes)
        self.large_requests = LargeRequests(turns, request_rows_max, self._on_large_bug, self.on_refused)
        self.buffers = BufferPool(CHUNK_BYTES, _IDLE_CHUNKS)
        self.frame_buffers = FrameBuffers(self.buffers)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.connections: dict[Connection, None] = {}
        self.lane = SlowLane(self.now_ms)
        self.serving = True
        self.admission = Admission(limits, clock.monotonic_ms)
        self._refusals_second = 0
        self._refusals = 0
        self._refusals_unlogged = 0

    def serve(self) -> None:
        """Answer those who connected while `serving` was False: the port is known before the broker is ready."""
        self.serving = True
        for connection in self.connections:
            connection.begin()

    def on_connected(self, connection: Connection) -> str | None:
        """Count a connection. Returns why it may not stay, None when it may."""
        self.connections[connection] = None
        refused = self.admission.admit(connection, cast("Mapping[Admitted, None]", self.connections))
        if refused is None:
            self.lane.on_connected(connection)
        return refused

    def on_disconnected(self, connection: Connection) -> None:
        """Forget a connection."""
        self.lane.leave(connection)
        if self.connections.pop(connection, connection) is None:
            self.admission.left(connection)

    def abort_connections(self) -> None:
        """Cut all connections off, whatever is owed to them."""
        for connection in list(self.connections):
            connection.close("the broker ends")

    def active_since(self, since_ms: int) -> list[str]:
        """Clients that something was received from at or after a moment of the monotonic clock."""
        return [connection.peer for connection in self.connections if connection.last_active_ms >= since_ms]

    def on_refused(self, connection: Connection, reason: str, event: str = "connection closed") -> None:
        """Log why a connection is closed, or a request refused, at most so many lines a second."""
        second = self.now_ms() // 1000
        if second != self._refusals_second:
            if self._refusals_unlogged:
                self.log.warning("more connections were closed, or requests refused", count=self._refusals_unlogged)
            self._refusals_second, self._refusals, self._refusals_unlogged = second, 0, 0
        self._refusals += 1
        if self._refusals > _REFUSALS_LOGGED_PER_S:
            self._refusals_unlogged += 1
        else:
            self.log.warning(event, peer=connection.peer, reason=reason)

    def _on_large_bug(self, route: LargeRoute, error: Exception) -> None:
        self.log.error("request failed", request=route.name, exc_info=error)

    def on_bug(self, connection: Connection, route: Route, error: Exception) -> None:
        """A handler raised: our fault, told with its traceback."""
        self.log.error("request failed", peer=connection.peer, request=route.name, exc_info=error)


class Server:
    """The listeners of a broker, which share all but their sockets."""

    def __init__(self, host: ConnectionHost, *, idle_after_ms: int, backlog: int = LISTEN_BACKLOG) -> None:
        self._host = host
        self._backlog = min(backlog, LISTEN_BACKLOG)
        self._idle_after_ms = idle_after_ms
        self._listeners: list[Listener] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._hurry: asyncio.TimerHandle | None = None

    async def start(self, address: str, port: int, name: str = "") -> int:
        """Listen, and let connections know that they came by the listener of this `name`. May be called for several.

        Returns the port: where `port` is 0, a free one. Errors: OSError.
        """
        listener = await listen(lambda: Connection(self._host, name), address, port, backlog=self._backlog)
        self._listeners.append(listener)
        if self._sweep is None:
            self._begin_sweeping()
        return bound_port(listener)

    def _begin_sweeping(self) -> None:
        self._sweep = asyncio.get_running_loop().call_later(_SWEEP_INTERVAL_S, self._on_sweep)
        self._hurry = asyncio.get_running_loop().call_later(_HURRY_INTERVAL_S, self._on_hurry)

    def stop_accepting(self) -> None:
        """Take no new connection."""
        for listener in self._listeners:
            listener.close()
        for timer in (self._sweep, self._hurry):
            if timer is not None:
                timer.cancel()

    async def close(self, grace_s: float) -> None:
        """Let the answers that are owed go out, at most for `grace_s` seconds, then close all connections."""
        self.stop_accepting()
        for connection in list(self._host.connections):
            connection.close_gracefully()
        try:
            async with asyncio.timeout(grace_s):
                while self._host.connections:  # noqa: ASYNC110  at a stop only, and a connection needn't know who waits
                    await asyncio.sleep(_CLOSE_POLL_S)
        except TimeoutError:
            self._host.abort_connections()

    def _on_sweep(self) -> None:
        now_ms = self._host.now_ms()
        for connection in list(self._host.connections):
            reason = why_to_end(connection, now_ms, self._idle_after_ms)
            if reason is not None:
                connection.close(reason)
        self._sweep = asyncio.get_running_loop().call_later(_SWEEP_INTERVAL_S, self._on_sweep)

    def _on_hurry(self) -> None:
        for connection in cast("list[Connection]", self._host.memory.stalled(self._host.now_ms())):
            connection.close("its request has stopped arriving, and others wait for the memory that it holds")
        self._hurry = asyncio.get_running_loop().call_later(_HURRY_INTERVAL_S, self._on_hurry)


async def open_listeners(server: Server, listeners: Iterable[ConfiguredListener]) -> dict[str, int]:
    """Listen on all of them. Returns their ports by their names. Errors: OSError, whose text names the listener."""
    ports = {}
    for listener in listeners:
        try:
            ports[listener.name] = await server.start(listener.host, listener.port, listener.name)
        except OSError as error:
            reason = (error.strerror or str(error)).rpartition(": ")[2]  # asyncio puts before it what we say better.
            message = f"listeners={listener.text} is not possible: {reason}."
            raise OSError(message) from error
    return ports
