"""Ports for servers that a test or a measurement starts."""

from __future__ import annotations

import secrets
import socket
from typing import Final

HOST: Final = "127.0.0.1"

FIRST_PORT: Final = 10_240
PORTS_END: Final = 32_768
"""Exclusive. From here on Linux takes ports for outgoing connections: one may have that of a server that is about to come back."""


def free_ports(count: int) -> list[int]:
    """Ports that no process listens on now, and that no outgoing connection is given while a server is away from its own."""
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            each = socket.socket()
            try:
                each.bind((HOST, FIRST_PORT + secrets.randbelow(PORTS_END - FIRST_PORT)))
            except OSError:
                each.close()
            else:
                sockets.append(each)
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
