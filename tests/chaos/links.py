"""Proxies between brokers, one for each link and direction, that hold requests, hold or lose answers, and cut
connections.

The others reach each broker through one address here, which it advertises for its inter-broker listener. The origin of
a connection is found by the client id of the first request, `broker-<id>-…`. Whole frames pass unchanged.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Self

from lowtide.protocol.api_keys import ApiKey

HOST = "127.0.0.1"
_CLIENT_ID = re.compile(rb"broker-(\d+)")


class Link:
    """Requests of one broker to another, and the answers on the same connections."""

    def __init__(self, origin: int, target: int) -> None:
        self.origin = origin
        self.target = target
        self.requests: Counter[ApiKey] = Counter()
        """The number of requests from the origin, including held ones."""
        self.answers: Counter[ApiKey] = Counter()
        """The number of answers from the target, including held and lost ones."""
        self.passed: Counter[ApiKey] = Counter()
        """The number of answers that were forwarded."""
        self.loses_answers = False
        self.refuses = False
        """New connections are closed at once."""
        self._requests_open, self._answers_open = asyncio.Event(), asyncio.Event()
        self._requests_open.set()
        self._answers_open.set()
        self._connections: list[Connection] = []
        self._news = asyncio.Event()

    def hold_requests(self) -> None:
        """Holds requests from now on."""
        self._requests_open.clear()

    def hold_answers(self) -> None:
        """Holds answers from now on."""
        self._answers_open.clear()

    def lose_answers(self) -> None:
        """Drops answers from now on; the connections stay open."""
        self.loses_answers = True

    def mend(self) -> None:
        """Forwards everything again, in order, held frames first."""
        self.loses_answers = self.refuses = False
        self._requests_open.set()
        self._answers_open.set()

    def cut(self) -> None:
        """Closes every connection; frames held on them are lost."""
        for connection in list(self._connections):
            connection.abort()

    async def until_requested(self, key: ApiKey, count: int) -> None:
        """Waits until this many requests have arrived in total."""
        while self.requests[key] < count:
            await self._change()

    async def next_answer(self, key: ApiKey) -> None:
        """Waits for another answer to arrive, even if it is held or lost."""
        seen = self.answers[key]
        while self.answers[key] == seen:
            await self._change()

    # ------------------------------------------------------------------ for connections
    def add(self, connection: Connection) -> None:
        self._connections.append(connection)

    def remove(self, connection: Connection) -> None:
        self._connections.remove(connection)

    async def admit_request(self, key: ApiKey) -> None:
        """Waits until the request may be forwarded."""
        self.requests[key] += 1
        self._tell()
        await self._requests_open.wait()

    async def admit_answer(self, key: ApiKey) -> bool:
        """Waits while answers are held; returns whether the answer may be forwarded."""
        self.answers[key] += 1
        self._tell()
        if self.loses_answers:
            return False
        await self._answers_open.wait()
        self.passed[key] += 1
        self._tell()
        return True

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _change(self) -> None:
        await self._news.wait()


class Connection:
    """One connection of a broker to another, through the proxy."""

    def __init__(
        self,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._near, self._far = near, far
        self._asked: dict[bytes, ApiKey] = {}

    async def run(self, link: Link, first: bytes) -> None:
        """Forwards frames until either side closes."""
        link.add(self)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._requests(link, first))
                tasks.create_task(self._answers(link))
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.abort()
            link.remove(self)

    def abort(self) -> None:
        for _, writer in (self._near, self._far):
            writer.transport.abort()

    async def _requests(self, link: Link, frame: bytes) -> None:
        while True:
            key = ApiKey(int.from_bytes(frame[:2], "big"))
            self._asked[frame[4:8]] = key
            await link.admit_request(key)
            await send_frame(self._far[1], frame)
            frame = await read_frame(self._near[0])

    async def _answers(self, link: Link) -> None:
        while True:
            frame = await read_frame(self._far[0])
            if await link.admit_answer(self._asked.pop(frame[:4])):
                await send_frame(self._near[1], frame)


class Links:
    """All links of a cluster.

    `targets`: broker id → the port at which it listens for other brokers. Used as `async with`.
    """

    def __init__(self, targets: dict[int, int]) -> None:
        self._targets = targets
        self._links = {
            (origin, target): Link(origin, target) for origin in targets for target in targets if origin != target
        }
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.ports: dict[int, int] = {}
        """The address at which others reach each broker."""
        self.strangers = 0
        """The number of connections of unknown origin, which are refused."""

    async def __aenter__(self) -> Self:
        for target in self._targets:
            server = await asyncio.start_server(self._acceptor(target), HOST, 0)
            self._servers.append(server)
            self.ports[target] = server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def __getitem__(self, ends: tuple[int, int]) -> Link:
        """Returns the link from one broker to another."""
        return self._links[ends]

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    def of(self, broker_id: int) -> list[Link]:
        """Returns all links from and to a broker."""
        return [link for link in self if broker_id in (link.origin, link.target)]

    def _acceptor(self, target: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._serve(target, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return accept

    async def _serve(self, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = await read_frame(reader)
            origin = _CLIENT_ID.match(first[10:])
            link = None if origin is None else self._links.get((int(origin[1]), target))
            if link is None:
                self.strangers += 1
            elif not link.refuses:
                far = await asyncio.open_connection(HOST, self._targets[target])
                await Connection((reader, writer), far).run(link, first)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """One frame without its length. Errors: ConnectionError, IncompleteReadError."""
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def send_frame(writer: asyncio.StreamWriter, frame: bytes) -> None:
    """Errors: ConnectionError."""
    writer.write(len(frame).to_bytes(4, "big") + frame)
    await writer.drain()
