"""Listening and connecting: thin over the running event loop, which is uvloop, asyncio's own, or the simulated one.

Transports are asyncio's. Both real loops turn Nagle's algorithm off (TCP_NODELAY) on every TCP transport that they
make.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

LISTEN_BACKLOG: Final = 1024
"""Connections that may wait to be accepted. Linux cuts it to net.core.somaxconn."""

_KEEP_ALIVE_OPTIONS: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""Seconds of silence until the system asks whether the peer is there, between questions, and how many may stay without an answer."""

_CLOSED_STATES: Final = frozenset({7, 8})
"""TCP_CLOSE and TCP_CLOSE_WAIT, as Linux tells them in the first byte of TCP_INFO."""

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


async def listen(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, backlog: int = LISTEN_BACKLOG
) -> Listener:
    """Accept connections, each served by a protocol that `factory` makes.

    An empty `host` is every interface; port 0 lets the system choose, see `bound_port`.

    Raises:
        OSError: the address is in use, or is not ours.
    """
    listener = await asyncio.get_running_loop().create_server(factory, host or None, port, backlog=backlog)
    for bound in listener.sockets:
        _keep_alive(bound)
    return listener


def _keep_alive(bound: Any) -> None:
    """Has connections that are accepted end when the other machine has gone without a word.

    A simulated socket knows no options.
    """
    set_option = getattr(bound, "setsockopt", None)
    if set_option is None:
        return
    set_option(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE_OPTIONS.items():
        if (option := getattr(socket, name, None)) is not None:
            set_option(socket.IPPROTO_TCP, option, value)


def peer_has_closed(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has closed or reset the connection, though nothing is read at the moment.

    False where that isn't known.
    """
    connected, option = transport.get_extra_info("socket"), getattr(socket, "TCP_INFO", None)
    if connected is None or option is None:
        return False
    try:
        state: bytes = connected.getsockopt(socket.IPPROTO_TCP, option, 1)
    except OSError:  # It is closed already, and its protocol is about to learn that.
        return False
    return state[0] in _CLOSED_STATES


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
