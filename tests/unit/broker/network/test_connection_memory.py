"""Memory of connections while requests arrive, and which connections wait for it."""

from __future__ import annotations

import asyncio
import struct

import pytest

from lowtide.broker.network.connection.frame_buffers import FRAME_BUFFER_BYTES
from lowtide.broker.network.connection.partial_frame import BEGINNING_BYTES, FREE_FRAME_BYTES
from lowtide.broker.network.connection.slow_clients import SLOW_FRAME_GRACE_MS

from .test_connection import CLOSED, ECHO, LARGE, MAXIMUM_FRAME_BYTES, World, answer, frame, simulate


def test_announced_length_costs_no_memory_until_it_arrives() -> None:
    async def run(world: World) -> None:
        _, writer = await world.client()
        writer.write(struct.pack(">i", MAXIMUM_FRAME_BYTES) + b"0123456789")
        await asyncio.sleep(0.05)
        (connection,) = world.host.connections
        assert connection.frame.buffer is not None
        assert len(connection.frame.buffer) <= 64 * 1024

    simulate(run)


@pytest.mark.parametrize("size", [20_000, 300_000, 900_000])
def test_buffers_of_partial_frames_are_reused_and_do_not_expose_the_last(size: int) -> None:
    async def run(world: World) -> None:
        for number in range(6):
            reader, writer = await world.client()
            body = bytes([number + 1]) * (size - number * 1000)
            data = frame(ECHO, number, body)
            for start in range(0, len(data), 150_000):
                writer.write(data[start : min(start + 150_000, len(data) - 1)])
                await asyncio.sleep(0.01)
            writer.write(data[-1:])
            assert await answer(reader) == (number, body)
            writer.close()
        idle = world.host.frame_buffers.first if size < FRAME_BUFFER_BYTES else world.host.frame_buffers.chunks
        assert idle.has_idle
        taken = [idle.take(), idle.take()]
        assert taken[0][100] == 6, "this is the buffer that was used last"
        assert not any(taken[1]), "no other buffer was allocated"

    simulate(run)


def test_full_request_memory_makes_others_wait_and_then_serves_them() -> None:
    async def run(world: World) -> None:
        reader1, writer1 = await world.client()
        reader2, writer2 = await world.client()
        body = bytes(2_000_000)
        first, second = frame(ECHO, 1, body), frame(ECHO, 2, body)
        writer1.write(first[:-1])
        await asyncio.sleep(0.2)
        writer2.write(second)
        await asyncio.sleep(0.5)
        assert len(world.dispatcher.executed) == 0
        reader3, writer3 = await world.client()
        writer3.write(frame(ECHO, 3, bytes(400_000)))
        assert (await answer(reader3))[0] == 3, "smaller frames do not wait"
        writer1.write(first[-1:])
        assert await answer(reader1) == (1, body)
        assert await answer(reader2) == (2, body)
        assert world.host.memory.used_bytes == 0

    simulate(run, request_memory_bytes=3_000_000)


def test_clients_that_only_announce_large_frames_block_no_other() -> None:
    """They never do: an announced length reserves no memory."""

    async def run(world: World) -> None:
        for _ in range(20):
            _, writer = await world.client()
            writer.write(struct.pack(">i", MAXIMUM_FRAME_BYTES) + b"0123456789")
        reader, writer = await world.client()
        body = bytes(3_000_000)
        writer.write(frame(ECHO, 1, body))
        async with asyncio.timeout(1):
            assert await answer(reader) == (1, body)

    simulate(run)


def test_clients_that_send_half_of_large_frames_block_others_for_seconds_only() -> None:
    """Incomplete frames that hold all the memory are closed when another request waits for it, and not before."""

    async def run(world: World) -> None:
        for _ in range(20):
            _, writer = await world.client()
            writer.write(frame(ECHO, 1, bytes(3_500_000))[:-1_000_000])
        await asyncio.sleep(10)
        assert world.host.memory.used_bytes <= 1 << 24
        assert len(world.host.connections) < 20, "those that waited caused the others to be closed"
        reader, writer = await world.client()
        body = bytes(3_000_000)
        writer.write(frame(ECHO, 2, body))
        async with asyncio.timeout(10):
            assert await answer(reader) == (2, body)
        assert set(world.log.reasons) == {
            "its request has stopped arriving, and others wait for the memory that it holds"
        }

    simulate(run)


@pytest.mark.parametrize("first", [4, 1_000, 200_000])
@pytest.mark.parametrize("size", [900_000, 3_500_000])
def test_half_sent_frames_have_bounded_memory(monkeypatch: pytest.MonkeyPatch, size: int, first: int) -> None:
    """Their beginnings too, which other clients don't wait for."""
    room = 4 << 20
    monkeypatch.setattr("lowtide.broker.network.connection.request_memory.BEGINNINGS_MAX_BYTES", room)

    async def run(world: World) -> None:
        limit_bytes = 8 << 20
        for _ in range(40):
            _, writer = await world.client()
            half = frame(ECHO, 1, bytes(size))[:-1]
            writer.write(half[:first])
            await asyncio.sleep(0.01)
            writer.write(half[first:])
        await asyncio.sleep(1)
        held = sum(connection.frame.filled for connection in world.host.connections)
        assert world.host.memory.begun_bytes <= room
        assert world.host.memory.used_bytes <= limit_bytes
        assert held <= room + limit_bytes + 41 * FREE_FRAME_BYTES + (200_000 if first > FREE_FRAME_BYTES else 0)
        reader, writer = await world.client()
        writer.write(frame(ECHO, 2, bytes(FREE_FRAME_BYTES - 100)))
        async with asyncio.timeout(1):
            assert (await answer(reader))[0] == 2, "small frames do not wait"
        body = bytes(500_000)
        writer.write(frame(ECHO, 3, body))
        async with asyncio.timeout(60):
            assert await answer(reader) == (3, body)
        await asyncio.sleep(SLOW_FRAME_GRACE_MS / 1000 + 60)
        assert len(world.host.connections) <= 1 + 40
        for connection in list(world.host.connections):
            connection.close("the test ends")
        await asyncio.sleep(1)
        assert world.host.memory.begun_bytes == world.host.memory.used_bytes == 0

    simulate(run, request_memory_bytes=8 << 20)


def test_a_large_frame_of_a_client_that_reads_no_responses_stays_counted() -> None:
    """The whole frame waits, and is executed when the client has read the previous responses."""

    async def run(world: World) -> None:
        reader, writer = await world.client()
        body = bytes(3_000_000)
        for number in range(6):
            writer.write(frame(LARGE, number, b"x"))
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(frame(ECHO, 9, body)[:100_000])
        await asyncio.sleep(1)
        writer.write(frame(ECHO, 9, body)[100_000:])
        await asyncio.sleep(5)
        (connection,) = world.host.connections
        held = world.host.memory.used_bytes + BEGINNING_BYTES
        assert len(connection._backlog) + (
            0 if connection.frame.buffer is None else len(connection.frame.buffer)
        ) <= max(held, 2 * BEGINNING_BYTES)
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        for number in range(6):
            assert (await answer(reader))[0] == number
        assert await answer(reader) == (9, body)
        assert world.host.memory.used_bytes == 0

    for seed in range(20):
        simulate(run, seed)


def test_slow_frame_is_closed_and_frees_its_memory() -> None:
    async def run(world: World) -> None:
        reader, writer = await world.client()
        writer.write(frame(ECHO, 1, bytes(500_000))[:100])
        await asyncio.sleep((SLOW_FRAME_GRACE_MS + 10_000) / 1000)
        with pytest.raises(CLOSED):
            await reader.readexactly(1)
        assert world.log.reasons == ["its request arrives too slowly"]
        assert world.host.memory.used_bytes == 0

    simulate(run)
