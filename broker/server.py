"""The listening side: accepts connections, shares what they share, ends the idle ones, stops gracefully."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

from lowtide.broker.connection import FRAME_BUFFER_BYTES, Connection
from lowtide.broker.dispatcher import Dispatcher, Route
from lowtide.broker.outgoing import CHUNK_BYTES, BufferPool
from lowtide.broker.request_memory import RequestMemory
from lowtide.runtime.clock import Clock
from lowtide.runtime.network import Listener, bound_port, listen
from lowtide.runtime.worker import Worker

SCRATCH_BYTES = 256 * 1024
"""What one receive may bring, for all connections: about a socket's receive buffer."""

_IDLE_CHUNKS = 8
_IDLE_FRAME_BUFFERS = 32
"""Buffers that are kept for the next file to be sent, or frame to be received: ten megabytes together."""

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
        maximum_connections: int,
        maximum_connections_per_address: int,
    ) -> None:
        self.dispatcher = dispatcher
        self.routes = dispatcher.routes
        self.now_ms = clock.monotonic_ms
        self.worker = worker
        self.log = log
        self.maximum_frame_bytes = maximum_frame_bytes
        self.memory = RequestMemory(request_memory_bytes)
        self.buffers = BufferPool(CHUNK_BYTES, _IDLE_CHUNKS)
        self.frame_buffers = BufferPool(FRAME_BUFFER_BYTES, _IDLE_FRAME_BUFFERS)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.connections: dict[Connection, None] = {}
        self.serving = True
        self.maximum_connections = maximum_connections
        self.maximum_per_address = maximum_connections_per_address
        self._by_address: Counter[str] = Counter()
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
        address = connection.peer.rpartition(":")[0]
        self._by_address[address] += 1
        if len(self.connections) > self.maximum_connections:
            return f"max.connections={self.maximum_connections} are open"
        if self._by_address[address] > self.maximum_per_address:
            return f"max.connections.per.ip={self.maximum_per_address} are open from {address}"
        return None

    def on_disconnected(self, connection: Connection) -> None:
        """Forget a connection."""
        if self.connections.pop(connection, connection) is None:
            address = connection.peer.rpartition(":")[0]
            self._by_address[address] -= 1
            if self._by_address[address] <= 0:
                del self._by_address[address]

    def active_since(self, since_ms: int) -> list[str]:
        """Clients that something was received from at or after a moment of the monotonic clock."""
        return [connection.peer for connection in self.connections if connection.last_active_ms >= since_ms]

    def on_refused(self, connection: Connection, reason: str) -> None:
        """Log why a connection is closed, at most so many lines a second."""
        second = self.now_ms() // 1000
        if second != self._refusals_second:
            if self._refusals_unlogged:
                self.log.warning("more connections were closed", count=self._refusals_unlogged)
            self._refusals_second, self._refusals, self._refusals_unlogged = second, 0, 0
        self._refusals += 1
        if self._refusals > _REFUSALS_LOGGED_PER_S:
            self._refusals_unlogged += 1
        else:
            self.log.warning("connection closed", peer=connection.peer, reason=reason)

    def on_bug(self, connection: Connection, route: Route, error: Exception) -> None:
        """A handler raised: our fault, told with its traceback."""
        self.log.error("request failed", peer=connection.peer, request=route.name, exc_info=error)


class Server:
    """One listener of a broker."""

    def __init__(self, host: ConnectionHost, *, idle_after_ms: int) -> None:
        self._host = host
        self._idle_after_ms = idle_after_ms
        self._server: Listener | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._hurry: asyncio.TimerHandle | None = None
        self.port = 0

    async def start(self, address: str, port: int) -> None:
        """Listen; `port` 0 takes a free one, which `self.port` then tells. Errors: OSError."""
        server = self._server = await listen(lambda: Connection(self._host), address, port)
        self.port = bound_port(server)
        self._sweep = asyncio.get_running_loop().call_later(_SWEEP_INTERVAL_S, self._on_sweep)
        self._hurry = asyncio.get_running_loop().call_later(_HURRY_INTERVAL_S, self._on_hurry)

    def stop_accepting(self) -> None:
        """Take no new connection."""
        if self._server is not None:
            self._server.close()
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
            for connection in list(self._host.connections):
                connection.close("the broker stops")

    def _on_sweep(self) -> None:
        now_ms = self._host.now_ms()
        for connection in list(self._host.connections):
            if connection.frame_is_too_slow(now_ms):
                connection.close("its request arrives too slowly")
            elif connection.is_left_alone(now_ms):
                connection.close("its client closed it while a request was waiting")
            elif now_ms - connection.last_active_ms > self._idle_after_ms and not connection.waiting:
                connection.close(f"idle for more than connections.max.idle.ms={self._idle_after_ms}")
        self._sweep = asyncio.get_running_loop().call_later(_SWEEP_INTERVAL_S, self._on_sweep)

    def _on_hurry(self) -> None:
        for connection in cast("list[Connection]", self._host.memory.stalled(self._host.now_ms())):
            connection.close("its request has stopped arriving, and others wait for the memory that it holds")
        self._hurry = asyncio.get_running_loop().call_later(_HURRY_INTERVAL_S, self._on_hurry)
