"""The listeners of a broker: they accept connections, close idle and slow ones, and stop gracefully."""

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
"""How often idle and slow connections are closed."""

_HURRY_INTERVAL_S = 1.0
"""How often stalled connections, which hold memory that others wait for, are closed."""

_CLOSE_POLL_S = 0.005

LOGIN_TIMEOUT_MS = 30_000
"""The default of `lowtide.login.timeout.ms`."""


class Server:
    """The listeners of a broker. They share everything except their sockets."""

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
        """Opens one listener. Returns its port, a free one if `port` is 0. Errors: OSError.

        Connections know the listener's `name`. May be called again, for another listener.
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
        """Closes the listeners; open connections stay."""
        for listener in self._listeners:
            listener.close()
        for timer in (self._sweep, self._hurry):
            if timer is not None:
                timer.cancel()

    async def close(self, grace_s: float) -> None:
        """Waits at most `grace_s` seconds until pending answers are sent, then closes all connections."""
        self.stop_accepting()
        for connection in list(self._host.connections):
            connection.close_gracefully()
        try:
            async with asyncio.timeout(grace_s):
                while self._host.connections:  # noqa: ASYNC110  only at a stop
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
    """Opens all listeners. Returns their ports by name. Errors: OSError, whose text names the listener.

    `security` has an entry for each listener with TLS or SASL, by name.
    """
    ports = {}
    for listener in listeners:
        try:
            ports[listener.name] = await server.start(
                listener.host, listener.port, listener.name, security.get(listener.name, OPEN)
            )
        except OSError as error:
            reason = (error.strerror or str(error)).rpartition(": ")[2]  # asyncio's own beginning is dropped.
            message = f"listeners={listener.text} is not possible: {reason}."
            raise OSError(message) from error
    return ports
