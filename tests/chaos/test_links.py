"""The proxies between brokers behave as tests of clusters rely on: each link separately, both directions, in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from lowtide.protocol.api_keys import ApiKey

from .links import HOST, Links, read_frame, send_frame

LIMIT_S = 120.0
FETCH, PRODUCE = ApiKey.FETCH, ApiKey.PRODUCE


class Target:
    """Stands for a broker: answers each request with its correlation id and its client id."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame = await read_frame(reader)
                self.taken.append(frame)
                await send_frame(writer, frame[4:8] + frame[10:])
        writer.transport.abort()


class Origin:
    """A connection of a broker to another."""

    def __init__(self, broker_id: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._name = b"broker-%d-fetcher" % broker_id
        self._reader, self._writer = reader, writer
        self._serial = 0

    @classmethod
    async def connect(cls, broker_id: int, port: int) -> Origin:
        return cls(broker_id, *await asyncio.open_connection(HOST, port))

    async def send(self, key: ApiKey = FETCH) -> bytes:
        """Returns the expected answer."""
        self._serial += 1
        serial = self._serial.to_bytes(4, "big")
        header = key.to_bytes(2, "big") + bytes(2) + serial + len(self._name).to_bytes(2, "big") + self._name
        await send_frame(self._writer, header)
        return serial + self._name

    async def receive(self) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            return await read_frame(self._reader)

    def close(self) -> None:
        self._writer.transport.abort()


@pytest.fixture
async def scene() -> AsyncIterator[tuple[Links, dict[int, Target]]]:
    targets = {1: Target(), 2: Target(), 3: Target()}
    servers = [await target.start() for target in targets.values()]
    async with Links({number: target.port for number, target in targets.items()}) as links:
        yield links, targets
    for server in servers:
        server.close()


async def test_frames_pass_and_are_counted_by_link(scene):
    links, targets = scene
    origins = {number: await Origin.connect(number, links.ports[1]) for number in (2, 3)}
    for number, origin in origins.items():
        expected = await origin.send()
        assert await origin.receive() == expected
        assert links[number, 1].passed == {FETCH: 1}
    assert len(targets[1].taken) == 2
    assert not links[1, 2].requests
    for origin in origins.values():
        origin.close()


async def test_held_requests_wait_on_their_link_alone_and_continue_in_order(scene):
    links, targets = scene
    held, other = await Origin.connect(2, links.ports[1]), await Origin.connect(3, links.ports[1])
    links[2, 1].hold_requests()
    expected = [await held.send(), await held.send(PRODUCE)]
    await links[2, 1].until_requested(FETCH, 1)
    assert await other.send() == await other.receive()
    assert len(targets[1].taken) == 1
    links[2, 1].mend()
    assert [await held.receive(), await held.receive()] == expected
    held.close()
    other.close()


async def test_held_answers_come_later_and_lost_ones_never(scene):
    links, targets = scene
    origin = await Origin.connect(2, links.ports[1])
    links[2, 1].hold_answers()
    expected = await origin.send()
    await links[2, 1].next_answer(FETCH)
    assert len(targets[1].taken) == 1
    links[2, 1].mend()
    assert await origin.receive() == expected
    links[2, 1].lose_answers()
    await origin.send()
    await links[2, 1].next_answer(FETCH)
    links[2, 1].mend()
    assert await origin.send() == await origin.receive(), "the connection continues, one answer is missing"
    origin.close()


async def test_a_cut_connection_is_lost_and_a_refused_one_never_opened(scene):
    links, _ = scene
    origin = await Origin.connect(2, links.ports[1])
    await origin.send()
    await origin.receive()
    links[2, 1].refuses = True
    links[2, 1].cut()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await origin.receive()
    again = await Origin.connect(2, links.ports[1])
    with contextlib.suppress(ConnectionError):
        await again.send()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await again.receive()
    origin.close()
    again.close()
    links[2, 1].mend()
    third = await Origin.connect(2, links.ports[1])
    assert await third.send() == await third.receive()
    third.close()


async def test_a_client_that_is_no_broker_is_refused(scene):
    """Otherwise a link would be open that no test controls."""
    links, targets = scene
    stranger = await Origin.connect(2, links.ports[1])
    stranger._name = b"somebody"
    await stranger.send()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await stranger.receive()
    stranger.close()
    assert links.strangers == 1
    assert not targets[1].taken
