"""The listening side: accepts connections, shares what they share, ends the idle ones, stops gracefully."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType

from lowtide.broker.config.listeners import ConfiguredListener
from lowtide.broker.network.connection.connection_host import ConnectionHost
from lowtide.broker.network.connection.listener_security import OPEN, ListenerSecurity, make_connection
from lowtide.broker.network.connection.slow_clients import why_to_end
from lowtide.runtime.network import LISTEN_BACKLOG, ListeningServer, bound_port, listen

_SWEEP_INTERVAL_S = 5.0
"""How often idle and slow connections are looked for."""

_HURRY_INTERVAL_S = 1.0
"""How often those are looked for who are in the way of others that wait for memory."""

_CLOSE_POLL_S = 0.005

LOGIN_TIMEOUT_MS = 30_000
"""The default of `lowtide.login.timeout.ms`."""


class Server:
    """The listeners of a broker, which share all but their sockets."""

    def __init__(
        self,
        host: ConnectionHost,
        *,
        idle_after_ms: int,
        login_timeout_ms: int = LOGIN_TIMEOUT_MS,
        backlog: int = LISTEN_BACKLOG,
    ) -> None:
        """Closes a connection after `idle_after_ms` without a request or `login_timeout_ms` without its login."""
        self._host = host
        self._login_timeout_ms = login_timeout_ms
        self._backlog = min(backlog, LISTEN_BACKLOG)
        self._idle_after_ms = idle_after_ms
        self._listeners: list[ListeningServer] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._hurry: asyncio.TimerHandle | None = None

    async def start(self, address: str, port: int, name: str = "", security: ListenerSecurity = OPEN) -> int:
        """Listen, and let connections know that they came by the listener of this `name`, which is secured so.

        May be called for several.
        Returns the port: where `port` is 0, a free one. Errors: OSError.
        """
        listener = await listen(
            partial(make_connection, self._host, name, security), address, port, backlog=self._backlog
        )
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
        now_ms = self._host.clock.now_ms()
        for connection in list(self._host.connections):
            connection.look_for_end()
            reason = why_to_end(connection, now_ms, self._idle_after_ms)
            if reason is not None:
                connection.close(reason)
        self._sweep = asyncio.get_running_loop().call_later(_SWEEP_INTERVAL_S, self._on_sweep)

    def _on_hurry(self) -> None:
        for connection in self._host.memory.stalled(self._host.clock.now_ms()):
            connection.close("its request has stopped arriving, and others wait for the memory that it holds")
        oldest_ms = self._host.clock.now_ms() - self._login_timeout_ms
        for login in [login for login in self._host.logins if login.connected_ms < oldest_ms]:
            login.close(f"it has not logged in within lowtide.login.timeout.ms={self._login_timeout_ms}")
        self._hurry = asyncio.get_running_loop().call_later(_HURRY_INTERVAL_S, self._on_hurry)


async def open_listeners(
    server: Server,
    listeners: Iterable[ConfiguredListener],
    security: Mapping[str, ListenerSecurity] = MappingProxyType({}),
) -> dict[str, int]:
    """Listen on all of them. Returns their ports by their names. Errors: OSError, whose text names the listener.

    `security` has those, by their names, that are not open to everybody.
    """
    ports = {}
    for listener in listeners:
        try:
            ports[listener.name] = await server.start(
                listener.host, listener.port, listener.name, security.get(listener.name, OPEN)
            )
        except OSError as error:
            reason = (error.strerror or str(error)).rpartition(": ")[2]  # asyncio puts before it what we say better.
            message = f"listeners={listener.text} is not possible: {reason}."
            raise OSError(message) from error
    return ports
