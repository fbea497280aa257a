"""The least that a broker does with a batch: receive it, check its CRC, write it, answer.

`python -m bench.storing_responder REQUEST ANSWER FILE` (sizes) is a server on uvloop. Requests that one receive has
completed are appended to the file together, and answered together; nothing is parsed. It prints its port and ends when
its standard input does.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import cast

import uvloop

from lowtide.protocol.crc32c import crc32c

from .responder import answer_of

_REQUESTS_AT_ONCE = 16


class Storing(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, request_bytes: int, answer: bytes, file: int) -> None:
        self._buffer = memoryview(bytearray(request_bytes * _REQUESTS_AT_ONCE))
        self._request_bytes = request_bytes
        self._answer = answer
        self._file = file
        self._filled = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the buffer after the received part of the next request."""
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Checks, writes and answers all complete requests."""
        self._filled += nbytes
        count = self._filled // self._request_bytes
        if not count or self._transport is None:
            return
        end = count * self._request_bytes
        for start in range(0, end, self._request_bytes):
            crc32c(self._buffer[start : start + self._request_bytes])
        os.write(self._file, self._buffer[:end])
        self._transport.write(self._answer * count)
        rest = self._filled - end
        self._buffer[:rest] = bytes(self._buffer[end : self._filled])
        self._filled = rest


async def _serve(request_bytes: int, answer: bytes, file: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    server = await loop.create_server(lambda: Storing(request_bytes, answer, file), "127.0.0.1", 0, backlog=128)
    print(server.sockets[0].getsockname()[1], flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(ended.set)), daemon=True).start()
    await ended.wait()
    server.close()


def main() -> None:
    """Reads the command line, and serves."""
    request_bytes, answer_bytes = map(int, sys.argv[1:3])
    file = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    uvloop.run(_serve(request_bytes, answer_of(answer_bytes), file))


if __name__ == "__main__":
    main()
