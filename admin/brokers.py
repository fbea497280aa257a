"""The connections of a client, by address.

Quick requests to an address share one connection. A request that the broker may hold uses a connection of its own while
it lasts. Connections are opened on demand. After a failure the next attempt waits, longer each time; all callers wait
for the same attempt.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from lowtide.admin.connection import AsyncConnection, open_connection
from lowtide.admin.errors import AdminError, ClientClosedError, MisroutedError, no_token
from lowtide.admin.settings import Address, ClientSettings, SettingsError
from lowtide.protocol.client.opening import ExpectedBroker, Opening
from lowtide.protocol.client.retries import Backoff, Reachability
from lowtide.protocol.client.sasl import ClientSaslSettings
from lowtide.runtime.clock import Clock
from lowtide.runtime.random import Random
from lowtide.runtime.tasks import TaskRegistry
from lowtide.runtime.tls import TlsError, client_context

if TYPE_CHECKING:
    from lowtide.runtime.token_source import Tokens

OWN_CONNECTIONS_MAX: Final = 8
"""Requests that one address may hold at once; further ones wait in the client."""

NONCE_BYTES: Final = 18


class ClientPorts(NamedTuple):
    """Clock and random numbers: the system's for users, simulated ones in tests."""

    clock: Clock
    random: Random
    """Must be unpredictable for SCRAM."""


class _AddressState:
    """The connections to one address."""

    def __init__(self, backoff: Backoff) -> None:
        self.reachability = Reachability(backoff)
        self.shared: AsyncConnection | None = None
        self.opening: asyncio.Task[AsyncConnection] | None = None
        self.idle: list[AsyncConnection] = []
        self.lent: list[AsyncConnection] = []
        self.room = asyncio.Semaphore(OWN_CONNECTIONS_MAX)


class BrokerConnections:
    """The connections to all brokers of a cluster. All methods must run on one event loop."""

    def __init__(
        self,
        settings: ClientSettings,
        ports: ClientPorts,
        expected: Callable[[Address], ExpectedBroker | None],
        on_misrouted: Callable[[], None],
    ) -> None:
        """`expected` returns the broker that has an address, if the metadata name one.

        `on_misrouted` is called when another one answers there.
        """
        self._settings = settings
        self._expected = expected
        self._on_misrouted = on_misrouted
        self._ports = ports
        self._places: dict[Address, _AddressState] = {}
        self._tasks = TaskRegistry(_raised_where_awaited)
        self._tls: ssl.SSLContext | None = None
        self._tokens: Tokens | None = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def is_connected(self, address: Address) -> bool:
        """Returns whether the shared connection is open."""
        place = self._places.get(address)
        return (
            place is not None
            and place.shared is not None
            and place.shared.is_usable(self._settings.connections_max_idle_ms)
        )

    def rests(self, address: Address) -> bool:
        """Returns whether the address failed recently and must not be tried yet."""
        place = self._places.get(address)
        return place is not None and place.reachability.wait_ms(self._ports.clock.monotonic_ms()) > 0

    def was_silent(self, address: Address) -> bool:
        """Returns whether the broker left a request unanswered recently."""
        place = self._places.get(address)
        return place is not None and place.reachability.was_silent(self._ports.clock.monotonic_ms())

    def note_silence(self, address: Address) -> None:
        """Notes that a broker takes longer than a call should wait."""
        self._place(address).reachability.on_silence(self._ports.clock.monotonic_ms())

    def note_answer(self, address: Address) -> None:
        """Notes that a broker answers."""
        self._place(address).reachability.on_answer()

    async def shared(self, address: Address) -> AsyncConnection:
        """Returns the connection for quick requests. Callers limit the time. Errors: AdminError, SettingsError."""
        place = self._place(address)
        if place.shared is not None:
            place.shared.close_if_overdue()
        if not self.is_connected(address):
            place.shared = None
            if place.opening is None:
                place.opening = self._tasks.spawn(self._open_shared(address, place), name=f"connect-{address}")
            opening = place.opening
            await asyncio.wait([opening])
            if opening.cancelled():
                raise ClientClosedError("the client is closed")
            return opening.result()
        assert place.shared is not None
        return place.shared

    @asynccontextmanager
    async def own(self, address: Address) -> AsyncIterator[AsyncConnection]:
        """Lends a connection to one request that the broker may hold. Errors: AdminError."""
        place = self._place(address)
        async with place.room:
            connection = self._idle(place) or await self._open(address, place)
            place.lent.append(connection)
            try:
                yield connection
            except BaseException:
                connection.close("a request on it was cancelled")
                raise
            finally:
                place.lent.remove(connection)
                if not connection.closed and not self._closed:
                    place.idle.append(connection)

    async def close(self) -> None:
        """Closes all connections. Calls that wait fail with ClientClosedError."""
        self._closed = True
        if self._loop is not None and self._loop.is_closed():  # Its sockets and tasks are gone.
            self._places.clear()
            return
        await self._tasks.cancel_all()
        for place in self._places.values():
            for connection in (place.shared, *place.idle, *place.lent):
                if connection is not None:
                    connection.close("the client was closed")
        self._places.clear()

    def _place(self, address: Address) -> _AddressState:
        """Returns the state of an address. Errors: ClientClosedError; RuntimeError on another event loop."""
        if self._closed:
            raise ClientClosedError("the client is closed")
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise RuntimeError(
                    "the client was first used on another event loop: create a client on each loop (each asyncio.run), "
                    "or use BlockingAdminClient"
                )
            self._loop = loop
        place = self._places.get(address)
        if place is None:
            place = self._places[address] = _AddressState(self._settings.reconnect_backoff)
        return place

    def _idle(self, place: _AddressState) -> AsyncConnection | None:
        while place.idle:
            connection = place.idle.pop()
            if connection.is_usable(self._settings.connections_max_idle_ms):
                return connection
            connection.close("it was idle for too long")
        return None

    async def _open_shared(self, address: Address, place: _AddressState) -> AsyncConnection:
        try:
            place.shared = await self._open(address, place)
            return place.shared
        finally:
            place.opening = None

    async def _open(self, address: Address, place: _AddressState) -> AsyncConnection:
        """Opens a connection, after the backoff of the last failure. Errors: AdminError."""
        clock, random = self._ports
        wait_ms = place.reachability.wait_ms(clock.monotonic_ms())
        if wait_ms:
            await asyncio.sleep(wait_ms / 1000)
        if self._settings.tls is not None and self._tls is None:
            try:
                self._tls = client_context(self._settings.tls)
            except TlsError as error:
                raise SettingsError(str(error)) from error
        try:
            nonce = random.randbytes(NONCE_BYTES).hex()
            opening = Opening(await self._login(address), nonce, self._expected(address))
            connection = await open_connection(address, self._settings, opening, clock, self._tls)
        except MisroutedError:
            self._on_misrouted()
            raise
        except AdminError:
            place.reachability.on_failure(clock.monotonic_ms(), random.uniform(-1, 1))
            raise
        place.reachability.on_success()
        return connection

    async def _login(self, address: Address) -> ClientSaslSettings | None:
        """Returns the SASL settings, with a valid token. Errors: AdminError."""
        sasl, source = self._settings.sasl, self._settings.tokens
        if sasl is None or source is None:
            return sasl
        from lowtide.runtime.token_source import TokenError, Tokens  # noqa: PLC0415 - slow, and rarely needed

        if self._tokens is None:
            self._tokens = Tokens(source, self._ports.clock)
        try:
            return replace(sasl, token=await self._tokens.get())
        except TokenError as error:
            raise no_token(address, error, is_final=error.is_final) from None


def _raised_where_awaited(name: str, error: BaseException) -> None:
    """Does nothing: callers that wait for the task get its error."""
