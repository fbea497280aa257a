"""The listening side: accepts connections, shares what they share, ends the idle ones, stops gracefully."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import cast

from lowtide.broker.config.listeners import Listener as ConfiguredListener
from lowtide.broker.network.connection import Connection
from lowtide.broker.network.connection_host import ConnectionHost
from lowtide.broker.network.slow_clients import why_to_end
from lowtide.runtime.network import LISTEN_BACKLOG, Listener, bound_port, listen

_SWEEP_INTERVAL_S = 5.0
"""How often idle and slow connections are looked for."""

_HURRY_INTERVAL_S = 1.0
"""How often those are looked for who are in the way of others that wait for memory."""

_CLOSE_POLL_S = 0.005


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
