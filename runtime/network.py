"""Listening and connecting: thin over the running event loop, which is uvloop, asyncio's own, or the simulated one.

Transports are asyncio's. Both real loops disable Nagle's algorithm (TCP_NODELAY).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

LISTEN_BACKLOG: Final = 1024
"""Connections that may wait to be accepted. Linux limits it to net.core.somaxconn."""

_KEEP_ALIVE_OPTIONS: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""Seconds of silence before a probe, seconds between probes, and unanswered probes before the connection ends."""

_CLOSED_STATES: Final = frozenset({7, 8})
"""TCP_CLOSE and TCP_CLOSE_WAIT, as Linux reports them in the first byte of TCP_INFO."""

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)


class BoundSocket(Protocol):
    """The used part of a listening socket."""

    def getsockname(self) -> Any:
        """Returns the address: a tuple whose second member is the port; the others depend on the family."""


class ListeningServer(Protocol):
    """Asyncio's Server, uvloop's, or the simulated one."""

    @property
    def sockets(self) -> Sequence[BoundSocket]: ...
    def close(self) -> None:
        """Accepts no more connections; accepted ones stay open."""

    async def wait_closed(self) -> None:
        """Waits until it is closed; newer Pythons wait for the connections too, so close those first."""


async def listen(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, backlog: int = LISTEN_BACKLOG
) -> ListeningServer:
    """Accepts connections, each with a protocol that `factory` creates.

    An empty `host` is every interface; with port 0 the system chooses, see `bound_port`. Errors: OSError.
    """
    listener = await asyncio.get_running_loop().create_server(factory, host or None, port, backlog=backlog)
    for bound in listener.sockets:
        _keep_alive(bound)
    return listener


def _keep_alive(bound: Any) -> None:
    """Makes accepted connections end when the other machine disappears silently. Simulated sockets have no options."""
    set_option = getattr(bound, "setsockopt", None)
    if set_option is None:
        return
    set_option(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE_OPTIONS.items():
        if (option := getattr(socket, name, None)) is not None:
            set_option(socket.IPPROTO_TCP, option, value)


def peer_has_closed(transport: asyncio.BaseTransport) -> bool:
    """Returns whether the peer has closed or reset the connection, though nothing is being read; False if unknown."""
    connected, option = transport.get_extra_info("socket"), getattr(socket, "TCP_INFO", None)
    if connected is None or option is None:
        return False
    try:
        state: bytes = connected.getsockopt(socket.IPPROTO_TCP, option, 1)
    except OSError:  # It is closed, and its protocol is about to be told.
        return False
    return state[0] in _CLOSED_STATES


async def connect(
    factory: Callable[[], ProtocolT], host: str, port: int, *, tls: ssl.SSLContext | None = None
) -> tuple[asyncio.Transport, ProtocolT]:
    """Opens a connection with a protocol that `factory` creates, encrypted if `tls` is given.

    It may take minutes: callers set a limit. Errors: OSError; ssl.SSLError if the peer's certificate isn't trusted.
    """
    if tls is None:
        return await asyncio.get_running_loop().create_connection(factory, host, port)
    return await asyncio.get_running_loop().create_connection(factory, host, port, ssl=tls)


def bound_port(server: ListeningServer) -> int:
    """Returns the port that the server listens on; the first one if there are several addresses."""
    port = server.sockets[0].getsockname()[1]
    assert isinstance(port, int)
    return port


async def over_socket(connected: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Returns streams over one end of a socket pair, which they close. Errors: OSError."""
    return await asyncio.open_unix_connection(sock=connected)
