"""The start of an encrypted HTTP connection: its place and its handshake.

A loop may read from an accepted socket at once, and bytes read before TLS starts are lost to TLS: a client's first
message is often already there. So the socket is taken from its first transport before anything is read, and gets one
that speaks TLS from the first byte.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, cast

from lowtide.runtime.http_connection import HEAD_MS, HttpConnection

if TYPE_CHECKING:
    from lowtide.runtime.http_site import TlsContext
    from lowtide.runtime.http_visits import Visits


class TlsEntrance(asyncio.Protocol):
    """Turns an accepted socket into an `HttpConnection`, encrypted with the current context."""

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
