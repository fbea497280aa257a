"""A small Kafka client for tests: one connection, requests as messages, answers as messages.

Runs on stock asyncio, so on the simulated loop too. It is the admin client's connection without a session: any version
is sent, nothing is tried again, and nothing ends by time. A test decides what a lost answer means. An answer that can't
be read is a bug, and raises.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from lowtide.admin.connection import AsyncConnection
from lowtide.admin.errors import ConnectionFailedError
from lowtide.admin.settings import Address
from lowtide.runtime.clock import SimulatedClock
from lowtide.runtime.network import connect

if TYPE_CHECKING:
    import ssl

    from lowtide.protocol.schema import ApiMessage

ConnectionLostError = ConnectionFailedError
"""The broker closed the connection, or died: what became of the requests under way isn't known."""


class WireClient(AsyncConnection):
    """A connection to one broker. Opened by `connect`."""

    @classmethod
    async def connect(cls, host: str, port: int, tls: ssl.SSLContext | None = None) -> Self:
        """A connected client, with `tls` over an encrypted connection. Errors: OSError."""
        clock = SimulatedClock(asyncio.get_running_loop())
        _, client = await connect(lambda: cls(Address(host, port), "test", clock), host, port, tls=tls)
        return client

    @property
    def lost(self) -> bool:
        """Whether the connection is gone."""
        return self.closed

    def buffer_updated(self, nbytes: int) -> None:
        """As in every connection, but bytes that are no answer are a bug of the broker."""
        super().buffer_updated(nbytes)
        assert self._core.broken is None, self._core.broken

    def send(self, request: ApiMessage, version: int, *, expect_answer: bool = True) -> asyncio.Future[Any]:
        """Send a request message; the future gives the response message.

        Errors (of the future): ConnectionLostError.
        """
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
        """Send and wait for the answer. Errors: ConnectionLostError."""
        return await self.send(request, version)

    def close(self, reason: str = "", *, by_broker: bool = False) -> None:
        """Close the connection. Without a reason what waits fails a moment later, when the loop notices the loss."""
        if reason:
            super().close(reason, by_broker=by_broker)
        elif self._transport is not None:
            self._transport.abort()
