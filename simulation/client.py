"""A small Kafka client for tests: one connection, requests as messages, answers as messages.

Runs on stock asyncio, so on the simulated loop too. It pipelines, checks the order of answers and knows nothing of retries: a test
decides what a lost answer means.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Self, cast

from lowtide.protocol.api_keys import API, ApiKey, response_header_is_flexible
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.headers import request_header

_LENGTH_BYTES = 4
_KEYS = {spec.request: key for key, spec in API.items()}


class ConnectionLostError(ConnectionError):
    """The broker closed the connection, or died: what became of the requests under way isn't known."""


class WireClient(asyncio.Protocol):
    """See the module. Made by `connect`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: deque[tuple[int, ApiKey, int, asyncio.Future[Any]]] = deque()
        self._correlation_id = 0
        self.lost = False

    @classmethod
    async def connect(cls, host: str, port: int) -> Self:
        """A connected client. Errors: OSError."""
        _, protocol = await asyncio.get_running_loop().create_connection(cls, host, port)
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Complete the requests whose answers are whole."""
        self._received += data
        while len(self._received) >= _LENGTH_BYTES:
            size = int.from_bytes(self._received[:_LENGTH_BYTES], "big", signed=True)
            if len(self._received) < _LENGTH_BYTES + size:
                return
            frame = bytes(self._received[_LENGTH_BYTES : _LENGTH_BYTES + size])
            del self._received[: _LENGTH_BYTES + size]
            self._on_frame(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits."""
        self.lost = True
        while self._waiting:
            future = self._waiting.popleft()[3]
            if not future.done():
                future.set_exception(ConnectionLostError(str(exc or "closed")))

    def send(self, request: Any, version: int, *, expect_answer: bool = True) -> asyncio.Future[Any]:
        """Send a request message; the future gives the response message. Errors (of the future): ConnectionLostError."""
        key = _KEYS[type(request)]
        self._correlation_id += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.lost or self._transport is None:
            future.set_exception(ConnectionLostError("not connected"))
            return future
        header = request_header(key, version, self._correlation_id, "test")
        body = codec_for(type(request), version).encode(request)
        self._transport.write((len(header) + len(body)).to_bytes(_LENGTH_BYTES, "big") + header + body)
        if expect_answer:
            self._waiting.append((self._correlation_id, key, version, future))
        else:
            future.set_result(None)
        return future

    async def request(self, request: Any, version: int) -> Any:
        """Send and wait for the answer. Errors: ConnectionLostError."""
        return await self.send(request, version)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _on_frame(self, frame: bytes) -> None:
        correlation_id, key, version, future = self._waiting.popleft()
        assert int.from_bytes(frame[:4], "big", signed=True) == correlation_id, "an answer is out of order"
        position = 4
        if response_header_is_flexible(key, version):
            assert frame[4] == 0, "a tagged field in a response header"
            position = 5
        if not future.done():
            future.set_result(codec_for(API[key].response, version).decode(frame, position, len(frame)))
