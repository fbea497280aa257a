"""Connections on the simulated loop behave as asyncio's TCP connections, and faults have their documented effect."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lowtide.runtime.network import bound_port, connect, listen
from lowtide.runtime.simulated_loop import SimulatedDeadlockError, SimulatedLoop, run_simulation
from lowtide.runtime.simulated_network import ANY_HOST
from lowtide.runtime.simulated_node import SimulatedNode
from lowtide.runtime.simulated_transport import SimulatedTransport
from tests.scenarios import played_by

PORT = 9092


class Recorder(asyncio.Protocol):
    """Records all its callbacks."""

    def __init__(self, *, keep_open_after_eof: bool = False) -> None:
        self.events: list[str] = []
        self.received = bytearray()
        self.chunks_count = 0
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.transport: SimulatedTransport
        self._keep_open = keep_open_after_eof

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimulatedTransport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        assert data
        self.received += data
        self.chunks_count += 1

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self._keep_open

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost" if exc is None else f"lost {type(exc).__name__}")
        self.lost.set_result(exc)


class BufferedRecorder(asyncio.BufferedProtocol):
    """Receives into one small buffer, as the broker does."""

    def __init__(self) -> None:
        self.buffer = bytearray(1000)
        self.received = bytearray()
        self.sizes: set[int] = set()
        self.closed = False

    def get_buffer(self, sizehint: int) -> bytearray:
        assert sizehint == -1
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.sizes.add(nbytes)
        self.received += self.buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True


class Pair:
    """A server on host "broker-0", a client outside, and the connection between them."""

    loop: SimulatedLoop
    node: SimulatedNode
    client: Recorder
    server: Any


def with_pair(
    scenario: Callable[[Pair], Awaitable[Any]],
    *,
    seed: int = 1,
    server: Callable[[], asyncio.BaseProtocol] = Recorder,
    client: Callable[[], Recorder] = Recorder,
) -> Any:
    """Run the scenario on a connected pair and return what it returns."""

    async def main(loop: SimulatedLoop) -> Any:
        accepted: list[asyncio.BaseProtocol] = []

        def accept() -> asyncio.BaseProtocol:
            accepted.append(server())
            return accepted[-1]

        pair = Pair()
        pair.loop, pair.node = loop, loop.start_node("broker-0")
        await pair.node.spawn(listen(accept, "", PORT))
        _, pair.client = await connect(client, "broker-0", PORT)
        await asyncio.sleep(0.1)
        pair.server = accepted[0]
        return await scenario(pair)

    return run_simulation(main, seed)


def test_bytes_arrive_whole_and_in_order_in_pieces_of_any_size() -> None:
    sent = bytes(range(256)) * 2000

    async def scenario(pair: Pair) -> int:
        for start in range(0, len(sent), 10_007):
            pair.client.transport.write(sent[start : start + 10_007])
        await asyncio.sleep(1)
        assert pair.server.received == sent
        return int(pair.server.chunks_count)

    counts = {with_pair(scenario, seed=seed) for seed in range(5)}
    assert len(counts) > 1, "another seed cuts at other positions"
    assert max(counts) > 10


def test_a_small_frame_is_sometimes_cut_and_sometimes_not() -> None:
    """A parser that needs whole frames must fail in some run, and so must one that needs cut frames."""

    async def scenario(pair: Pair) -> int:
        pair.client.transport.write(b"\0\0\0\x04abcd")
        await asyncio.sleep(1)
        assert pair.server.received == b"\0\0\0\x04abcd"
        return int(pair.server.chunks_count)

    assert {with_pair(scenario, seed=seed) for seed in range(30)} >= {1, 2}


def test_a_buffered_protocol_receives_into_its_own_buffer() -> None:
    sent = bytes(range(251)) * 400

    async def scenario(pair: Pair) -> None:
        pair.client.transport.write(memoryview(sent))
        await asyncio.sleep(1)
        assert pair.server.received == sent
        assert max(pair.server.sizes) == 1000, "never more than the buffer size"

    with_pair(scenario, server=BufferedRecorder)


def test_a_receiver_that_does_not_read_stops_the_sender_and_starts_it_again() -> None:
    sent = b"x" * 500_000

    async def scenario(pair: Pair) -> None:
        pair.server.transport.pause_reading()
        assert not pair.server.transport.is_reading()
        pair.client.transport.write(sent)
        assert pair.client.events == ["made", "pause"], "called before write returns"
        await asyncio.sleep(10)
        assert pair.server.received == b""
        assert pair.client.events == ["made", "pause"]
        assert pair.client.transport.get_write_buffer_size() == len(sent) - pair.loop.network.window_bytes
        pair.server.transport.resume_reading()
        await asyncio.sleep(10)
        assert pair.server.received == sent
        assert pair.client.events == ["made", "pause", "resume"]
        assert pair.client.transport.get_write_buffer_size() == 0

    with_pair(scenario)


@played_by(with_pair)
async def test_write_buffer_limits_are_asyncio_s(pair: Pair, /) -> None:
    transport = pair.client.transport
    assert transport.get_write_buffer_limits() == (16 * 1024, 64 * 1024)
    transport.set_write_buffer_limits(high=100)
    assert transport.get_write_buffer_limits() == (25, 100)
    transport.set_write_buffer_limits(low=100)
    assert transport.get_write_buffer_limits() == (100, 400)
    with pytest.raises(ValueError, match="must be >="):
        transport.set_write_buffer_limits(high=1, low=2)
    pair.server.transport.pause_reading()
    transport.write(bytes(pair.loop.network.window_bytes + 300))
    assert pair.client.events == ["made"]
    transport.set_write_buffer_limits(high=200)
    assert pair.client.events == ["made", "pause"], "as soon as the mark falls below the waiting bytes"


def test_close_sends_what_was_written_before_it_ends() -> None:
    sent = b"x" * 300_000

    async def scenario(pair: Pair) -> None:
        pair.client.transport.write(sent)
        pair.client.transport.close()
        assert pair.client.transport.is_closing()
        pair.client.transport.write(b"ignored")
        pair.client.transport.close()
        assert pair.client.events == ["made", "pause"], "connection_lost never comes inside close"
        assert await pair.client.lost is None
        assert await pair.server.lost is None
        assert pair.server.received == sent
        assert pair.server.events == ["made", "eof", "lost"]
        assert pair.client.events[-1] == "lost"

    with_pair(scenario)


@played_by(with_pair)
async def test_abort_ends_at_once_and_drops_what_was_not_sent(pair: Pair, /) -> None:
    pair.client.transport.write(b"x" * 300_000)
    pair.client.transport.abort()
    pair.client.transport.abort()
    assert await pair.client.lost is None
    await pair.server.lost
    assert len(pair.server.received) <= pair.loop.network.window_bytes


def test_half_close_leaves_the_other_direction_open() -> None:
    async def scenario(pair: Pair) -> None:
        pair.client.transport.write(b"question")
        pair.client.transport.write_eof()
        with pytest.raises(RuntimeError, match="write_eof"):
            pair.client.transport.write(b"more")
        await asyncio.sleep(1)
        assert (pair.server.received, pair.server.events) == (b"question", ["made", "eof"])
        pair.server.transport.write(b"answer")
        await asyncio.sleep(1)
        assert pair.client.received == b"answer"
        assert pair.client.events == ["made"]
        pair.server.transport.close()
        assert await pair.client.lost is None

    with_pair(scenario, server=lambda: Recorder(keep_open_after_eof=True))


def test_writing_to_a_closed_peer_is_answered_by_a_reset() -> None:
    async def scenario(pair: Pair) -> None:
        pair.server.transport.close()
        await asyncio.sleep(1)
        assert pair.client.events == ["made", "eof"]
        pair.client.transport.write(b"too late")
        assert isinstance(await pair.client.lost, ConnectionResetError)

    with_pair(scenario, client=lambda: Recorder(keep_open_after_eof=True))


@played_by(with_pair)
async def test_closing_with_something_unread_resets(pair: Pair, /) -> None:
    pair.server.transport.pause_reading()
    pair.client.transport.write(b"unread")
    await asyncio.sleep(1)
    pair.server.transport.close()
    assert isinstance(await pair.client.lost, ConnectionResetError)


@played_by(with_pair)
async def test_end_of_file_waits_behind_what_was_not_read(pair: Pair, /) -> None:
    pair.server.transport.pause_reading()
    pair.client.transport.write(b"last words")
    pair.client.transport.close()
    await asyncio.sleep(1)
    assert pair.server.events == ["made"]
    pair.server.transport.resume_reading()
    await pair.server.lost
    assert (pair.server.received, pair.server.events) == (b"last words", ["made", "eof", "lost"])


def test_reading_can_be_stopped_between_two_deliveries() -> None:
    """Bytes received meanwhile wait; nothing is delivered while reading is paused."""

    class OneAtATime(Recorder):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.pause_reading()

    async def scenario(pair: Pair) -> None:
        pair.client.transport.write(b"first")
        await asyncio.sleep(1)
        seen = bytes(pair.server.received)
        pair.client.transport.write(b"second")
        await asyncio.sleep(1)
        assert pair.server.received == seen != b""
        for _ in range(20):
            pair.server.transport.resume_reading()
            await asyncio.sleep(0.01)
        assert pair.server.received == b"firstsecond"

    with_pair(scenario, server=OneAtATime)


@played_by(with_pair)
async def test_a_delivery_that_is_due_does_not_happen_after_pause_or_close(pair: Pair, /) -> None:
    pair.server.transport.pause_reading()
    pair.client.transport.write(b"unread")
    await asyncio.sleep(1)
    pair.server.transport.resume_reading()
    pair.server.transport.pause_reading()
    await asyncio.sleep(1)
    assert pair.server.received == b""
    pair.server.transport.resume_reading()
    pair.server.transport.close()
    await pair.server.lost
    assert pair.server.received == b""


def test_a_protocol_that_fails_loses_its_connection_and_is_reported() -> None:
    class Failing(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ValueError("a bug")

    async def scenario(pair: Pair) -> None:
        pair.client.transport.write(b"x")
        assert isinstance(await pair.server.lost, ValueError)
        await pair.client.lost

    with pytest.raises(ExceptionGroup) as caught:
        with_pair(scenario, server=Failing)
    assert caught.group_contains(ValueError, match="a bug")


def test_an_empty_buffer_is_refused() -> None:
    class Empty(BufferedRecorder):
        def get_buffer(self, sizehint: int) -> bytearray:
            return bytearray()

    async def scenario(pair: Pair) -> None:
        pair.client.transport.write(b"x")
        await asyncio.sleep(1)
        assert pair.server.closed

    with pytest.raises(ExceptionGroup) as caught:
        with_pair(scenario, server=Empty)
    assert caught.group_contains(RuntimeError, match="empty buffer")


@played_by(run_simulation, 1)
async def test_a_port_without_listener_is_refused_and_unknown_names_are_unknown(loop: SimulatedLoop, /) -> None:
    loop.start_node("broker-0")
    with pytest.raises(ConnectionRefusedError):
        await connect(Recorder, "broker-0", PORT)
    with pytest.raises(socket.gaierror):
        await connect(Recorder, "broker-9", PORT)
    with pytest.raises(ConnectionRefusedError):
        await connect(Recorder, "127.0.0.1", PORT)


@played_by(run_simulation, 1)
async def test_listening_allots_ports_and_refuses_one_in_use(loop: SimulatedLoop, /) -> None:
    first, second = await listen(Recorder, "127.0.0.1", 0), await listen(Recorder, "", 0)
    assert bound_port(first) != bound_port(second)
    with pytest.raises(OSError, match="in use"):
        await listen(Recorder, "", bound_port(first))
    with pytest.raises(OSError, match="cannot listen"):
        await listen(Recorder, "elsewhere", 0)
    port = bound_port(first)
    _, client = await connect(Recorder, "localhost", port)
    first.close()
    first.close()
    await first.wait_closed()
    with pytest.raises(ConnectionRefusedError):
        await connect(Recorder, "localhost", port)
    assert not client.transport.is_closing(), "connections survive their listener"
    await listen(Recorder, "", port)
    node = loop.start_node("broker-0")
    await node.spawn(listen(Recorder, "", port))


@played_by(with_pair)
async def test_a_cut_link_holds_everything_back_until_it_heals(pair: Pair, /) -> None:
    network = pair.loop.network
    network.cut("localhost", "broker-0")
    pair.client.transport.write(b"one ")
    pair.server.transport.write(b"answer")
    await asyncio.sleep(60)
    pair.client.transport.write(b"two")
    assert pair.server.received == pair.client.received == b""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await connect(Recorder, "broker-0", PORT)
    network.heal("localhost", "broker-0")
    await asyncio.sleep(1)
    assert pair.server.received == b"one two"
    assert pair.client.received == b"answer"


@played_by(with_pair)
async def test_a_link_can_be_cut_in_one_direction_and_for_one_host_from_all(pair: Pair, /) -> None:
    network = pair.loop.network
    network.cut("broker-0", "localhost", both_ways=False)
    pair.client.transport.write(b"heard")
    pair.server.transport.write(b"unheard")
    await asyncio.sleep(1)
    assert pair.server.received == b"heard"
    assert pair.client.received == b""
    network.heal()
    await asyncio.sleep(1)
    assert pair.client.received == b"unheard"
    network.cut(ANY_HOST, "broker-0")
    pair.client.transport.write(b"!")
    await asyncio.sleep(1)
    assert pair.server.received == b"heard"
    network.heal(ANY_HOST, "broker-0")
    await asyncio.sleep(1)
    assert pair.server.received == b"heard!"


def test_connecting_over_a_cut_link_times_out_as_in_tcp() -> None:
    async def main(loop: SimulatedLoop) -> float:
        loop.start_node("broker-0")
        loop.network.cut("localhost", "broker-0")
        with pytest.raises(TimeoutError, match="timed out"):
            await connect(Recorder, "broker-0", PORT)
        return loop.time()

    assert 60 < run_simulation(main, 1) < 130


def test_a_killed_process_ends_its_connections_and_listeners() -> None:
    async def scenario(pair: Pair) -> str:
        pair.client.transport.write(b"x")
        pair.node.kill()
        error = await pair.client.lost
        assert pair.server.events == ["made"], "a killed process receives nothing"
        with pytest.raises(ConnectionRefusedError):
            await connect(Recorder, "broker-0", PORT)
        return type(error).__name__

    assert {with_pair(scenario, seed=seed) for seed in range(20)} == {"NoneType", "ConnectionResetError"}


@played_by(with_pair)
async def test_a_dead_machine_sends_nothing_until_it_is_back(pair: Pair, /) -> None:
    pair.node.kill(silently=True)
    pair.client.transport.write(b"hello?")
    await asyncio.sleep(1000)
    assert pair.client.events == ["made"]
    with pytest.raises(TimeoutError):
        await connect(Recorder, "broker-0", PORT)
    node = pair.loop.start_node("broker-0")
    assert isinstance(await pair.client.lost, ConnectionResetError)
    with pytest.raises(ConnectionRefusedError):
        await connect(Recorder, "broker-0", PORT)
    await node.spawn(listen(Recorder, "", PORT))
    await connect(Recorder, "broker-0", PORT)


@played_by(with_pair)
async def test_an_idle_connection_learns_of_the_restart_when_it_writes(pair: Pair, /) -> None:
    pair.node.kill(silently=True)
    pair.loop.start_node("broker-0")
    await asyncio.sleep(1000)
    assert pair.client.events == ["made"]
    pair.client.transport.write(b"hello?")
    assert isinstance(await pair.client.lost, ConnectionResetError)


def test_cancelling_a_connect_leaves_no_connection_behind() -> None:
    async def main(loop: SimulatedLoop) -> set[str]:
        outcomes = set()
        servers: list[Recorder] = []

        def accept() -> Recorder:
            servers.append(Recorder())
            return servers[-1]

        loop.network.delay_range_ms = (10, 10)
        await listen(accept, "", PORT)
        for limit_s in (0.005, 0.015, 0.1):
            try:
                async with asyncio.timeout(limit_s):
                    _, client = await connect(Recorder, "", PORT)
                client.transport.close()
                outcomes.add("connected")
            except TimeoutError:
                outcomes.add("gave up")
            await asyncio.sleep(1)
        assert all(server.events[-1].startswith("lost") for server in servers)
        assert len(servers) == 2
        return outcomes

    assert run_simulation(main, 1) == {"connected", "gave up"}


@played_by(run_simulation, 1)
async def test_streams_run_on_it_unchanged(loop: SimulatedLoop, /) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection("127.0.0.1", bound_port(server))
        for number in range(50):
            writer.write(b"line %d\n" % number)
            await writer.drain()
            assert await reader.readline() == b"LINE %d\n" % number
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


class EchoServer(asyncio.BufferedProtocol):
    """A small server built like the broker: one buffer, flow control, no task."""

    def __init__(self) -> None:
        self._buffer = bytearray(300)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._transport.write(self._buffer[:nbytes])

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        pass


async def chaos(loop: SimulatedLoop) -> tuple[int, int, list[str]]:
    """A server that is killed and started again under clients, on links that fail; returns the trace."""
    loop.trace_lines = []
    echoed_bytes = 0

    async def client(number: int) -> None:
        nonlocal echoed_bytes
        for _ in range(8):
            try:
                async with asyncio.timeout(2):
                    reader, writer = await asyncio.open_connection("broker-0", PORT)
                    size = loop.random.randint(1, 200_000)
                    writer.write(bytes([number]) * size)
                    assert await reader.readexactly(size) == bytes([number]) * size
                    echoed_bytes += size
                    writer.close()
                    await writer.wait_closed()
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                await asyncio.sleep(loop.random.random())
            finally:
                if "writer" in locals():
                    writer.transport.abort()

    async def faults() -> None:
        node = loop.start_node("broker-0")
        await node.spawn(listen(EchoServer, "", PORT))
        for _ in range(6):
            await asyncio.sleep(loop.random.random())
            loop.network.cut("localhost", "broker-0", both_ways=loop.random.random() < 0.5)
            await asyncio.sleep(loop.random.random())
            loop.network.heal()
            node.kill(silently=loop.random.random() < 0.5)
            node = loop.start_node("broker-0")
            await node.spawn(listen(EchoServer, "", PORT))

    await asyncio.gather(faults(), *(client(number) for number in range(5)))
    return loop.trace_digest, echoed_bytes, loop.trace_lines


@pytest.mark.parametrize("seed", range(2))
def test_the_same_seed_gives_the_same_run_event_by_event(seed: int) -> None:
    first, second = run_simulation(chaos, seed), run_simulation(chaos, seed)
    assert first == second
    assert first[1] > 0, "something was echoed"


def test_another_seed_gives_another_run() -> None:
    assert len({run_simulation(chaos, seed)[0] for seed in range(5)}) == 5


def test_a_server_that_does_not_answer_is_found_as_a_deadlock() -> None:
    async def scenario(pair: Pair) -> None:
        pair.client.transport.write(b"question")
        await pair.loop.create_future()

    with pytest.raises(SimulatedDeadlockError, match="main"):
        with_pair(scenario)
