"""A visitor of an HTTP listener who sends exactly the bytes that a test says."""

from __future__ import annotations

import asyncio
import ssl
from typing import NamedTuple, Self

LIMIT_S = 60.0


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Visitor:
    """One connection. Used as `async with`."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None, source: str | None = None) -> None:
        """`url` as the broker names it; `source` is the address that the connection is made from."""
        self.host, _, port = url.partition("://")[2].rpartition(":")
        self.port = int(port)
        self._tls, self._source = tls, source

    async def __aenter__(self) -> Self:
        local = None if self._source is None else (self._source, 0)
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port, ssl=self._tls, local_addr=local)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, path: str, method: str = "GET", body: bytes = b"", **headers: str) -> Answer:
        """Header names have `_` for `-`."""
        given = {"Host": f"{self.host}:{self.port}"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        if body:
            given["Content-Length"] = str(len(body))
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items()), "", ""]
        await self.send("\r\n".join(lines).encode() + body)
        return await self.answer()

    async def answer(self) -> Answer:
        """The next one. Errors: IncompleteReadError where the connection ends before."""
        async with asyncio.timeout(LIMIT_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
            return Answer(int(head[0].split()[1]), headers, await self._body(headers))

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await self.reader.readexactly(int(headers.get("content-length", 0)))
        parts = []
        while size := int(await self.reader.readline(), 16):
            parts.append(await self.reader.readexactly(size))
            await self.reader.readline()
        await self.reader.readline()
        return b"".join(parts)

    async def ended(self) -> bytes:
        """What comes until the server closes the connection."""
        found = b""
        async with asyncio.timeout(LIMIT_S):
            try:
                while part := await self.reader.read(65536):
                    found += part
            except ConnectionError:
                pass
        return found


async def visit(url: str, path: str, **headers: str) -> Answer:
    """One request on a connection of its own."""
    async with Visitor(url) as visitor:
        return await visitor.ask(path, **headers)
