"""A small Kafka client for tests: one connection, requests and responses as messages.

It runs on stock asyncio and on the simulated loop. It is the admin client's connection without a session: any version,
no retries, no timeouts. A test decides what a lost response means. An unreadable response is a bug, and raises.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from lowtide.admin.connection import AsyncConnection
from lowtide.admin.errors import ConnectionFailedError
from lowtide.admin.settings import Address
from lowtide.runtime.network import connect
from lowtide.runtime.simulated_ports import SimulatedClock

if TYPE_CHECKING:
    import ssl

    from lowtide.protocol.schema import ApiMessage

ConnectionLostError = ConnectionFailedError
"""The broker closed the connection, or died: the outcome of pending requests is unknown."""


class WireClient(AsyncConnection):
    """A connection to one broker, opened by `connect`."""

    @classmethod
    async def connect(cls, host: str, port: int, tls: ssl.SSLContext | None = None) -> Self:
        """Connects, with TLS if `tls`. Errors: OSError."""
        clock = SimulatedClock(asyncio.get_running_loop())
        _, client = await connect(lambda: cls(Address(host, port), "test", clock), host, port, tls=tls)
        return client

    @property
    def lost(self) -> bool:
        return self.closed

    def buffer_updated(self, nbytes: int) -> None:
        """Reads the responses. Unreadable ones are a bug of the broker."""
        super().buffer_updated(nbytes)
        assert self._core.broken is None, self._core.broken

    def send(self, request: ApiMessage, version: int, *, expect_answer: bool = True) -> asyncio.Future[Any]:
        """Sends a request; the future returns the response. Errors (of the future): ConnectionLostError."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            if expect_answer:
                return self.begin(request, version)
        except ConnectionLostError as error:
            future.set_exception(error)
            return future
        if self._transport is not None:
            self._transport.write(self._core.request_without_answer(request, version))
        future.set_result(None)
        return future

    async def request(self, request: ApiMessage, version: int) -> Any:
        """Sends a request and waits for the response. Errors: ConnectionLostError."""
        return await self.send(request, version)

    def close(self, reason: str = "", *, by_broker: bool = False) -> None:
        """Closes the connection. Without a reason pending requests fail a moment later, when the loop notices."""
        if reason:
            super().close(reason, by_broker=by_broker)
        elif self._transport is not None:
            self._transport.abort()
