"""Ports for servers that a test or a measurement starts."""

from __future__ import annotations

import os
import secrets
import socket
from collections import deque
from typing import Final

HOST: Final = "127.0.0.1"

FIRST_PORT: Final = 10_240
PORTS_END: Final = 32_768
"""Exclusive. Linux uses higher ports for outgoing connections, which could take the port of a server that restarts."""

HELD_MAX: Final = 128
"""More servers than one test starts."""

_held: deque[int] = deque()


def free_ports(count: int) -> list[int]:
    """Returns ports that no other server gets before a server listens on them, or while it restarts.

    A socket stays bound to each of the last `HELD_MAX` ports until the process ends. It does not listen: a connection
    is refused, and a server that sets SO_REUSEADDR, as servers do on Linux, can listen on the port. A test of another
    process that looks for ports does not set it, and is refused.
    """
    ports: list[int] = []
    while len(ports) < count:
        each = socket.socket()
        try:
            each.bind((HOST, FIRST_PORT + secrets.randbelow(PORTS_END - FIRST_PORT)))
        except OSError:
            each.close()
            continue
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ports.append(each.getsockname()[1])
        _held.append(each.detach())
    while len(_held) > HELD_MAX:
        os.close(_held.popleft())
    return ports
