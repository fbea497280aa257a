"""Connections of real sockets.

That a peer has gone is found out while nothing is read, and asked for where a machine is silent.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from lowtide.runtime.network import bound_port, listen, peer_has_closed

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
RESET = (socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
"""Close at once, and drop what is unsent."""


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], main: Callable[[], Any]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


class Silent(asyncio.Protocol):
    """Reads nothing."""

    def __init__(self, connected: asyncio.Future[asyncio.Transport]) -> None:
        self._connected = connected

    def connection_made(self, transport: Any) -> None:
        transport.pause_reading()
        self._connected.set_result(transport)


async def accepted() -> tuple[socket.socket, asyncio.Transport, Any]:
    """A client's socket, the transport that serves it, and the listener."""
    connected: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
    listener = await listen(lambda: Silent(connected), "127.0.0.1", 0)
    client = socket.create_connection(("127.0.0.1", bound_port(listener)))
    return client, await connected, listener


@LOOPS
@pytest.mark.parametrize("reset", [True, False])
def test_a_peer_that_has_gone_is_seen_while_nothing_is_read(
    new_loop: Callable[[], asyncio.AbstractEventLoop], reset: bool
) -> None:
    async def main() -> None:
        client, transport, listener = await accepted()
        client.sendall(b"never read")
        assert not peer_has_closed(transport)
        if reset:
            client.setsockopt(*RESET)
        client.close()
        async with asyncio.timeout(10):
            while not peer_has_closed(transport):
                await asyncio.sleep(0.01)
        transport.abort()
        listener.close()

    run(new_loop, main)


@LOOPS
def test_an_accepted_connection_is_kept_alive(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        client, transport, listener = await accepted()
        with client:
            own = transport.get_extra_info("socket")
            assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        transport.abort()
        listener.close()

    run(new_loop, main)
