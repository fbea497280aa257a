"""Listening and connecting: thin over the running event loop, which is uvloop, asyncio's own, or the simulated one.

Transports are asyncio's. Both real loops turn Nagle's algorithm off (TCP_NODELAY) on every TCP transport that they make.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

LISTEN_BACKLOG: Final = 1024
"""Connections that may wait to be accepted. Linux cuts it to net.core.somaxconn."""

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)


class BoundSocket(Protocol):
    """The used part of a listening socket."""

    def getsockname(self) -> Any:
        """Return the address: a tuple whose second member is the port, and whose others depend on the family."""
        ...


class Listener(Protocol):
    """What listens: asyncio's Server, uvloop's, or the simulated one."""

    @property
    def sockets(self) -> Sequence[BoundSocket]: ...

    def close(self) -> None:
        """Accept no more. Connections that were accepted live on."""
        ...

    async def wait_closed(self) -> None:
        """Wait until it is closed; newer Pythons wait for the connections too, so close those first."""
        ...


async def listen(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, backlog: int = LISTEN_BACKLOG) -> Listener:
    """Accept connections, each served by a protocol that `factory` makes.

    An empty `host` is every interface; port 0 lets the system choose, see `bound_port`.

    Raises:
        OSError: the address is in use, or is not ours.
    """
    return await asyncio.get_running_loop().create_server(factory, host or None, port, backlog=backlog)


async def connect(
    factory: Callable[[], ProtocolT], host: str, port: int, *, tls: ssl.SSLContext | None = None
) -> tuple[asyncio.Transport, ProtocolT]:
    """Open a connection, served by the protocol that `factory` makes; with `tls` it is encrypted when the protocol sees it.

    Raises:
        OSError: no process listens there, the name is unknown, the peer cannot be reached, or its certificate isn't trusted (ssl.SSLError).
            It may take minutes: callers set a limit.
    """
    if tls is None:
        return await asyncio.get_running_loop().create_connection(factory, host, port)
    return await asyncio.get_running_loop().create_connection(factory, host, port, ssl=tls)


def bound_port(server: Listener) -> int:
    """Return the port that the server listens on; the first one's, if it listens on several addresses."""
    port = server.sockets[0].getsockname()[1]
    assert isinstance(port, int)
    return port


async def over_socket(connected: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Streams over one end of a pair of sockets (`socket.socketpair`), which are closed with them. Errors: OSError."""
    return await asyncio.open_unix_connection(sock=connected)
