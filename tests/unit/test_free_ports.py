"""Servers of several tests at once never get one port, also not one whose server has not started, or is away."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest
import uvloop

from tests import free_ports as module
from tests.free_ports import FIRST_PORT, HELD_MAX, HOST, free_ports


def test_a_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a few ports, twice as many as one call takes. A dozen that other processes have may be among them."""
    monkeypatch.setattr(module, "PORTS_END", FIRST_PORT + 64)
    first, second = free_ports(16), free_ports(16)
    assert len({*first, *second}) == 32


def test_a_port_is_its_servers_and_refuses_others() -> None:
    (port,) = free_ports(1)

    async def serve_twice() -> None:
        for _ in range(2):
            server = await asyncio.get_running_loop().create_server(asyncio.Protocol, HOST, port)
            refused()
            server.close()
            await server.wait_closed()

    def refused() -> None:
        with socket.socket() as other, pytest.raises(OSError) as caught:
            other.bind((HOST, port))
        assert caught.value.errno == errno.EADDRINUSE

    asyncio.run(serve_twice())
    uvloop.run(serve_twice())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port))


def test_what_is_held_is_bounded() -> None:
    for _ in range(HELD_MAX // 8 + 1):
        free_ports(8)
    assert len(module._held) == HELD_MAX
