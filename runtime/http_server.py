"""An HTTP listener on the event loop that costs only a socket until its first visit.

It binds without importing anything. The first connection waits while a thread imports aiohttp and the sites; then
everything received goes to aiohttp's parser. `http_site` defines sites, `http_connection` has the limits of one
connection, `http_visits` those of all, `http_app` the part that uses aiohttp. They know nothing of the content.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from lowtide.runtime.http_connection import HEAD_MS, HttpConnection
from lowtide.runtime.http_origin import NO_PROXIES, Proxies
from lowtide.runtime.http_site import GateLoader, SiteLoader, TlsContext
from lowtide.runtime.http_visits import Visits
from lowtide.runtime.network import ListeningServer, bound_port, listen
from lowtide.runtime.worker import ThreadWorker

if TYPE_CHECKING:
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.http_app import HttpApp
    from lowtide.runtime.tasks import TaskRegistry

SWEEP_S: Final = 1.0
"""How often slow connections are looked for."""


class HttpServer:
    """The sites of one owner, at some addresses. `listen`, then `close`. Used from the event loop only."""

    def __init__(
        self,
        gate: GateLoader,
        sites: Sequence[SiteLoader],
        clock: Clock,
        tasks: TaskRegistry,
        log: Any,
        proxies: Proxies = NO_PROXIES,
    ) -> None:
        """`proxies` are trusted to report clients' addresses."""
        self._gate = gate
        self._sites = tuple(sites)
        self._tasks = tasks
        self._log = log
        self.visits = Visits(clock, tasks, self._wake, proxies)
        """Connections and their statistics."""
        self._listeners: list[ListeningServer] = []
        self._answering: HttpApp | None = None
        self._loading: ThreadWorker | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def listen(self, host: str, port: int, tls: TlsContext | None = None) -> int:
        """Accepts connections, encrypted with the current context of `tls`. Returns the port. Errors: OSError."""
        accept = partial(HttpConnection, self.visits) if tls is None else partial(TlsEntrance, self.visits, tls)
        listener = await listen(accept, host, port)
        self._listeners.append(listener)
        return bound_port(listener)

    async def close(self) -> None:
        """Stops accepting, and ends all connections and requests. A second call does nothing."""
        self._is_closed = True
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._sweep is not None:
            self._sweep.cancel()
        self.visits.end_all()
        if self._answering is not None:
            answering, self._answering = self._answering, None
            await answering.close()

    def _wake(self) -> None:
        """Starts loading and sweeping when a connection is made."""
        if self._is_closed:
            return
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._on_sweep)
        if self._answering is None and self._loading is None:
            self._loading = ThreadWorker(asyncio.get_running_loop(), threads=1, name="http")
            self._loading.submit(self._load, self._on_loaded)

    def _load(self) -> Callable[[], HttpApp]:
        """Imports everything in the thread, and returns a function that builds the rest in the event loop."""
        from lowtide.runtime.http_app import HttpApp  # noqa: PLC0415 - aiohttp comes with it

        return partial(HttpApp, self._gate(), [load() for load in self._sites], self.visits, self._log)

    def _on_loaded(self, outcome: Callable[[], HttpApp] | BaseException) -> None:
        assert self._loading is not None
        self._loading.close()
        self._loading = None
        if self._is_closed:
            return
        if isinstance(outcome, BaseException):
            self._log.error("HTTP can't be served", error=f"{type(outcome).__name__}: {outcome}")
            self.visits.end_all()
            return
        self._answering = outcome()
        self._tasks.spawn(self._begin(self._answering), name="http")

    async def _begin(self, answering: HttpApp) -> None:
        self.visits.serve(await answering.begin())

    def _on_sweep(self) -> None:
        self._sweep = None
        self.visits.end_slow()
        if self.visits.count:
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._on_sweep)


class TlsEntrance(asyncio.Protocol):
    """Turns an accepted socket into an `HttpConnection`, encrypted with the current context.

    A loop may read from an accepted socket at once, and TLS loses bytes that were read before it starts. So the socket
    gets a second transport, which speaks TLS from the first byte.
    """

    def __init__(self, visits: Visits, context: TlsContext) -> None:
        self._visits = visits
        self._context = context

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        accepted = cast("asyncio.Transport", transport)
        connection = HttpConnection(self._visits)
        try:
            if connection.enter(transport):
                own = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
                connection.handshake = self._visits.tasks.spawn(
                    self._shake_hands(connection, own), name="handshake of HTTPS"
                )
        except OSError:  # No descriptor is free.
            connection.abort()
        finally:
            accepted.abort()

    async def _shake_hands(self, connection: HttpConnection, own: socket.socket) -> None:
        """Runs the handshake, within the time of a head."""
        loop = asyncio.get_running_loop()
        try:
            own.setblocking(False)
            await loop.connect_accepted_socket(
                lambda: connection,
                own,
                ssl=self._context(),
                ssl_handshake_timeout=HEAD_MS / 1000,
                ssl_shutdown_timeout=1,
            )
        except (OSError, TimeoutError):  # Including TLS errors: the peer doesn't speak it, or is gone.
            connection.handshake = None
            connection.abort()
        else:
            connection.handshake = None
