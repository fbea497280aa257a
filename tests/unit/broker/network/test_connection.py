"""A connection: whole frames from any split of the stream, responses in order, and limits."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import struct
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lowtide.broker.network.admission.admission import ConnectionLimits
from lowtide.broker.network.admission.slow_lane import Refusals
from lowtide.broker.network.connection.connection_host import PARKED_COUNT, SCRATCH_BYTES, ConnectionHost
from lowtide.broker.network.connection.server import Server
from lowtide.broker.network.connection.slow_clients import ABANDONED_MS
from lowtide.broker.network.routing.dispatcher import Routes, SurplusBytes
from lowtide.broker.network.routing.large_requests import Bounds
from lowtide.broker.network.routing.request_times import ApiTimes
from lowtide.broker.network.routing.routes import Route
from lowtide.broker.pending import AnswerRounds, Pending
from lowtide.broker.promises import mapped
from lowtide.broker.turns import Turns
from lowtide.protocol.errors import ProtocolError
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.runtime.worker import SimulatedWorker

ECHO, PARK, PARK_PRODUCE, LARGE, RAISES, UNWRITABLE = range(6)
MAXIMUM_FRAME_BYTES = 1 << 22
CLOSED = (ConnectionError, asyncio.IncompleteReadError)


class Log:
    """Collects log lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **values: Any) -> None:
        self.lines.append((event, values))

    exception = error = warning

    @property
    def reasons(self) -> list[str]:
        return [values["reason"] for event, values in self.lines if event == "connection closed"]


class FakeDispatcher:
    """Routes that echo, park, or fail. The body of a request follows its eight bytes of header."""

    def __init__(self) -> None:
        self.parked: list[tuple[bytes, Pending[bytes]]] = []
        self.executed, self.surplus = list[bytes](), SurplusBytes()
        self.routes = Routes(lambda api_key, _version: self._route(api_key) if api_key in range(6) else None)

    def answer_unsupported(self, api_key: int, api_version: int, correlation_id: int, client_id: memoryview) -> Any:
        raise ProtocolError("not served")

    def describe(self, api_key: int, api_version: int) -> str:
        return f"API {api_key} v{api_version}"

    def _route(self, key: int) -> Route:
        def handle(request: bytes, _context: Any) -> Any:
            self.executed.append(request)
            if key == RAISES:
                raise RuntimeError("bug")
            if key in (PARK, PARK_PRODUCE):
                pending = Pending[bytes]()
                self.parked.append((request, pending))
                return mapped(pending, bytearray)  # Bytes would be the frame of a joint form.
            if key == UNWRITABLE:
                return 0
            return request * 1_000_000 if key == LARGE else request

        return Route(
            name=f"test {key}",
            is_produce=key == PARK_PRODUCE,
            handle=handle,
            read=lambda buffer, start, stop, _rows_max, _flexible: (bytes(buffer[start + 10 : stop]), None),
            rows_max=10_000,
            is_flexible=False,
            write=lambda correlation_id, response: [struct.pack(">ii", len(response) + 4, correlation_id) + response],
            cut=None,
            bounds=Bounds(),
            undivided_bytes=1 << 31,
            **dict.fromkeys(("times", "follower_times"), ApiTimes("test")),
        )


class World:
    """A server with the fake dispatcher, on a simulated loop."""

    def __init__(self, loop: SimulatedLoop, connections_max: int = 1000, **bounds: int):
        self.dispatcher, self.log, self.clock = FakeDispatcher(), Log(), SimulatedClock(loop)
        self.host: Any = ConnectionHost(
            dispatcher=self.dispatcher,
            clock=self.clock,
            worker=SimulatedWorker(loop, random.Random(0)),
            log=self.log,
            maximum_frame_bytes=MAXIMUM_FRAME_BYTES,
            request_memory_bytes=bounds.get("request_memory_bytes", 1 << 24),
            answer_memory_bytes=1 << 30,
            follower_fetch_bytes=bounds.get("fetch_bytes", 1 << 20),
            limits=ConnectionLimits(connections_max, f"max.connections={connections_max} are open", connections_max),
            request_rows_max=100_000,
            turns=Turns(loop, self.clock),
            rounds=AnswerRounds(loop),
        )
        self.writers: list[asyncio.StreamWriter] = []
        self.server, self.port = Server(self.host, idle_after_ms=600_000), 0

    async def client(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.port == 0:
            self.port = await self.server.start("", 0)
        reader, writer = await asyncio.open_connection("localhost", self.port)
        self.writers.append(writer)
        return reader, writer

    async def parked(self) -> Pending[bytes]:
        """Waits for the first parked request."""
        while not self.dispatcher.parked:
            await asyncio.sleep(0.01)
        return self.dispatcher.parked[0][1]


@pytest.fixture(autouse=True, params=["free", "slow lane"])
def lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test runs with a normal connection and with one in the slow lane."""
    if request.param == "slow lane":
        monkeypatch.setattr(Refusals, "is_troubled", lambda *_: True)
        monkeypatch.setattr("lowtide.broker.network.admission.slow_lane.TURNS", 1 << 30)
    return str(request.param)


def frame(key: int, correlation_id: int, body: bytes = b"") -> bytes:
    return struct.pack(">ihhih", len(body) + 10, key, 0, correlation_id, -1) + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    size, correlation_id = struct.unpack(">ii", await reader.readexactly(8))
    return correlation_id, await reader.readexactly(size - 4)


async def is_closed(reader: asyncio.StreamReader) -> None:
    with pytest.raises(CLOSED):
        await reader.readexactly(1)


def simulate(test: Callable[[World], Coroutine[Any, Any, None]], seed: int = 1, **world: int) -> None:
    async def main(loop: SimulatedLoop) -> None:
        tried = World(loop, **world)
        try:
            await test(tried)
        finally:
            for writer in tried.writers:
                writer.close()

    run_simulation(main, seed)


def test_requests_survive_every_cut_of_the_stream() -> None:
    """The same two requests, cut at each byte, also inside the length."""
    stream = frame(ECHO, 1, b"first") + frame(ECHO, 2, b"x" * 300)

    async def run(world: World) -> None:
        for cut in range(1, len(stream)):
            reader, writer = await world.client()
            writer.write(stream[:cut])
            await asyncio.sleep(0.01)
            writer.write(stream[cut:])
            assert [await answer(reader) for _ in range(2)] == [(1, b"first"), (2, b"x" * 300)]
            writer.close()
        assert world.log.lines == []

    simulate(run)


@pytest.mark.parametrize("seed", range(5))
def test_large_frames_in_random_pieces(seed: int) -> None:
    """Frames beyond the shared buffer, and small ones around them, delivered in random pieces."""
    bodies = [random.Random(seed).randbytes(size) for size in (10, 700_000, 3, 65_528, 262_144, 1)]

    async def run(world: World) -> None:
        reader, writer = await world.client()
        writer.write(b"".join(frame(ECHO, number, body) for number, body in enumerate(bodies)))
        for number, body in enumerate(bodies):
            assert await answer(reader) == (number, body)
        assert world.host.memory.used_bytes == 0

    simulate(run, seed)


def test_bytes_that_arrive_with_the_connection_count() -> None:
    """Such a connection was counted as one that has sent nothing, and was closed in the next flood of silent ones."""

    async def scenario(world: World) -> None:
        world.host.clock.now_ms, world.host.clock.now_ns = lambda: 1_000, lambda: 1_000_000_000
        _, writer = await world.client()
        await asyncio.sleep(0.1)
        (connection,) = world.host.connections
        assert connection.last_active_ms < connection.connected_ms
        writer.write(frame(1, 1))
        await asyncio.sleep(0.1)
        assert connection.last_active_ms >= connection.connected_ms

    simulate(scenario)


def test_answers_keep_the_order_of_requests() -> None:
    """A request behind a parked one waits, and its response is second."""

    async def run(world: World) -> None:
        reader, writer = await world.client()
        writer.write(frame(PARK, 1, b"slow") + frame(ECHO, 2, b"fast"))
        pending = await world.parked()
        assert world.dispatcher.executed == [b"slow"], "nothing is executed behind a parked request"
        pending.complete(bytearray(b"done"))
        assert await answer(reader) == (1, b"done")
        assert await answer(reader) == (2, b"fast")

    simulate(run)


def test_parked_produces_overlap_up_to_the_limit_and_answer_in_order() -> None:
    async def run(world: World) -> None:
        reader, writer = await world.client()
        count = PARKED_COUNT + 4
        for number in range(count):
            writer.write(frame(PARK_PRODUCE, number, b"%d" % number))
        await asyncio.sleep(0.5)
        parked = world.dispatcher.parked
        assert len(parked) == PARKED_COUNT
        for body, pending in reversed(parked[:PARKED_COUNT]):
            pending.complete(bytearray(body))
        await asyncio.sleep(0.5)
        for body, pending in parked[PARKED_COUNT:]:
            pending.complete(bytearray(body))
        assert [await answer(reader) for _ in range(count)] == [(number, b"%d" % number) for number in range(count)]

    simulate(run)


def test_answers_behind_a_parked_produce_are_as_few_as_parked_produces() -> None:
    """They cannot be sent before the parked response, however long the disk takes, so their number must be bounded."""

    async def run(world: World) -> None:
        reader, writer = await world.client()
        writer.write(frame(PARK_PRODUCE, 0, b"p"))
        writer.write(b"".join(frame(ECHO, number, b"x") for number in range(1, 40)))
        await asyncio.sleep(1)
        assert len(world.dispatcher.executed) == PARKED_COUNT
        world.dispatcher.parked[0][1].complete(bytearray(b"p"))
        assert [(await answer(reader))[0] for _ in range(40)] == list(range(40))

    simulate(run)


@pytest.mark.parametrize("reset", [True, False])
def test_parked_request_is_abandoned_when_the_client_disconnects(reset: bool) -> None:
    """At once after a reset. A plain close looks like a half-close, so the request is kept for some seconds."""

    async def run(world: World) -> None:
        reader, writer = await world.client()
        if reset:
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(frame(ECHO, 1, b"never read"))
        writer.write(frame(PARK, 2))
        pending, abandoned = await world.parked(), []
        pending.on_abandoned = lambda: abandoned.append(True)
        await asyncio.sleep(0.1)
        writer.transport.abort()
        await asyncio.sleep(0.1 if reset else (ABANDONED_MS + 6_000) / 1000)
        assert abandoned == [True]
        pending.complete(bytearray(b"too late"))
        assert not world.host.connections

    simulate(run)


def test_half_closed_client_gets_its_answers() -> None:
    async def run(world: World) -> None:
        reader, writer = await world.client()
        writer.write(frame(PARK, 1) + frame(ECHO, 2, b"x"))
        writer.write_eof()
        (await world.parked()).complete(bytearray(b""))
        assert [await answer(reader) for _ in range(2)] == [(1, b""), (2, b"x")]
        assert await reader.read() == b""

    simulate(run)


@pytest.mark.parametrize("length", [0, -1, MAXIMUM_FRAME_BYTES + 1, 2**31 - 1, -(2**31)])
def test_impossible_length_closes_and_logs_why(length: int) -> None:
    """Whole in one piece, and with the length itself cut in two."""

    async def run(world: World) -> None:
        for cut in (4, 2):
            reader, writer = await world.client()
            head = struct.pack(">i", length)
            writer.write(head[:cut])
            await asyncio.sleep(0.05)
            writer.write(head[cut:] + b"rest")
            await is_closed(reader)
        assert len(world.log.reasons) == 2
        assert all(str(length) in reason for reason in world.log.reasons)

    simulate(run)


def test_longest_allowed_frame_is_served() -> None:
    async def run(world: World) -> None:
        reader, writer = await world.client()
        body = bytes(MAXIMUM_FRAME_BYTES - 10)
        writer.write(frame(ECHO, 1, body))
        assert await answer(reader) == (1, body)

    simulate(run)


def test_idle_connection_is_closed_but_not_one_that_waits() -> None:
    async def run(world: World) -> None:
        reader, _ = await world.client()
        reader2, writer2 = await world.client()
        writer2.write(frame(PARK, 1))
        await asyncio.sleep(700)
        await is_closed(reader)
        world.dispatcher.parked[0][1].complete(bytearray(b"still here"))
        assert await answer(reader2) == (1, b"still here")

    simulate(run)


def test_client_that_reads_nothing_stops_being_served() -> None:
    """A few responses of a megabyte may be pending, not a hundred."""

    async def run(world: World) -> None:
        reader, writer = await world.client()
        for number in range(100):
            writer.write(frame(LARGE, number, b"x"))
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(5)
        assert len(world.dispatcher.executed) < 10
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        assert [(await answer(reader))[0] for _ in range(100)] == list(range(100))

    simulate(run)


def test_a_closed_connection_is_freed_without_the_collector() -> None:
    """The collector never visits objects that were frozen while the connection was open."""

    async def run(world: World) -> None:
        reader, writer = await world.client()
        writer.write(frame(ECHO, 1, b"x"))
        await answer(reader)
        (connection,) = map(weakref.ref, world.host.connections)
        gc.disable()
        try:
            writer.close()
            await asyncio.sleep(1)
            assert connection() is None
        finally:
            gc.enable()

    simulate(run)


def test_an_answer_that_cannot_be_written_closes_its_connection_and_is_reported() -> None:
    async def run(world: World) -> None:
        reader, writer = await world.client()
        writer.write(frame(UNWRITABLE, 1, b"x"))
        await is_closed(reader)
        assert [event for event, _ in world.log.lines] == ["request failed", "connection closed"]

    simulate(run)


def test_a_client_that_sends_much_at_once_does_not_block_others() -> None:
    """All its requests are executed, in order, and the next turn overtakes no parked request."""

    async def run(world: World) -> None:
        reader, writer = await world.client()
        other_reader, other_writer = await world.client()
        other_writer.write(frame(ECHO, 0, b"first"))
        await answer(other_reader)
        world.host.clock.now_ns = itertools.count(10**12, 10**6).__next__  # Each reading takes a millisecond.
        requests = [frame(ECHO, number, b"%d" % number) for number in range(50)]
        writer.write(b"".join(requests) + frame(PARK, 50, b"parked") + b"".join(requests))
        other_writer.write(frame(ECHO, 1, b"other"))
        assert await answer(other_reader) == (1, b"other")
        assert 0 < world.dispatcher.executed.index(b"other") < 50
        assert [await answer(reader) for _ in range(50)] == [(number, b"%d" % number) for number in range(50)]
        await asyncio.sleep(1)
        assert world.dispatcher.executed[-1] == b"parked"
        world.dispatcher.parked[0][1].complete(bytearray(b"done"))
        assert await answer(reader) == (50, b"done")
        assert [await answer(reader) for _ in range(50)] == [(number, b"%d" % number) for number in range(50)]

    simulate(run)


def test_nothing_is_executed_before_the_broker_serves() -> None:
    """This holds even when the event loop continues to read after `connection_made` paused it, as uvloop does."""

    async def run(world: World) -> None:
        world.host.serving = False
        reader, writer = await world.client()
        while not world.host.connections:
            await asyncio.sleep(0.01)
        for connection in world.host.connections:
            connection._transport.resume_reading()
        for number in range(3):
            writer.write(frame(ECHO, number, b"early"))
            await asyncio.sleep(0.1)
        assert world.dispatcher.executed == []
        body = bytes(100_000)
        for number in range(3, 40):
            writer.write(frame(ECHO, number, body))
            await asyncio.sleep(0.1)
        (connection,) = world.host.connections
        assert len(connection._backlog) <= SCRATCH_BYTES, "an early client uses no more memory"
        world.host.serve()
        assert [(await answer(reader))[0] for _ in range(40)] == list(range(40))
        writer.write(frame(ECHO, 9, b"late"))
        assert await answer(reader) == (9, b"late")

    simulate(run)


def test_unknown_api_and_short_request_close() -> None:
    async def run(world: World) -> None:
        for data in (
            struct.pack(">ihhih", 10, 99, 0, 1, -1),
            struct.pack(">ihhib", 9, ECHO, 0, 1, 0),
            struct.pack(">ih", 2, 0),
        ):
            reader, writer = await world.client()
            writer.write(data)
            await is_closed(reader)
        assert len(world.log.reasons) == 3

    simulate(run)


def test_bug_in_a_handler_closes_one_connection_only() -> None:
    async def run(world: World) -> None:
        reader, writer = await world.client()
        other_reader, other_writer = await world.client()
        writer.write(frame(RAISES, 1))
        await is_closed(reader)
        assert world.log.lines[0][0] == "request failed"
        other_writer.write(frame(ECHO, 2, b"fine"))
        assert await answer(other_reader) == (2, b"fine")

    simulate(run)


def test_connections_beyond_the_limit_are_closed() -> None:
    async def run(world: World) -> None:
        reader, writer = await world.client()
        reader2, _ = await world.client()
        await is_closed(reader2)
        writer.write(frame(ECHO, 1, b"x"))
        assert await answer(reader) == (1, b"x")

    simulate(run, connections_max=1)


def test_graceful_stop_sends_pending_responses() -> None:
    async def run(world: World) -> None:
        reader, writer = await world.client()
        writer.write(frame(PARK, 1))
        pending = await world.parked()
        stopping = asyncio.ensure_future(world.server.close(5))
        await asyncio.sleep(0.1)
        pending.complete(bytearray(b"owed"))
        assert await answer(reader) == (1, b"owed")
        assert await reader.read() == b""
        await stopping

    simulate(run)


def test_refusals_do_not_flood_the_log() -> None:
    async def run(world: World) -> None:
        for _ in range(200):
            _, writer = await world.client()
            writer.write(struct.pack(">i", -1))
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)
        assert len(world.log.reasons) < 50

    simulate(run)
