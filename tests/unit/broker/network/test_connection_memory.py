"""What connections hold of memory while requests arrive, and who has to wait for it."""

from __future__ import annotations

import asyncio
import struct

import pytest

from lowtide.broker.network.frame_buffers import FRAME_BUFFER_BYTES
from lowtide.broker.network.partial_frame import UNCOUNTED_FRAME_BYTES
from lowtide.broker.network.slow_clients import SLOW_FRAME_GRACE_MS

from .test_connection import CLOSED, ECHO, LARGE, MAXIMUM_FRAME_BYTES, World, answer, frame, simulate


def test_announced_length_costs_no_memory_until_it_arrives() -> None:
    async def run(world: World) -> None:
        _, writer = await world.client()
        writer.write(struct.pack(">i", MAXIMUM_FRAME_BYTES) + b"0123456789")
        await asyncio.sleep(0.05)
        (connection,) = world.host.connections
        assert connection._frame is not None
        assert len(connection._frame) <= 64 * 1024

    simulate(run)


@pytest.mark.parametrize("size", [20_000, 300_000, 900_000])
def test_buffers_of_partial_frames_are_used_again_and_show_nothing_of_the_last(size: int) -> None:
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
        idle = world.host.frame_buffers.first if size < FRAME_BUFFER_BYTES else world.host.buffers
        assert idle.has_idle
        taken = [idle.take(), idle.take()]
        assert taken[0][100] == 6, "the one that was used last"
        assert not any(taken[1]), "no other was made"

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
        assert (await answer(reader3))[0] == 3, "smaller frames wait for nobody"
        writer1.write(first[-1:])
        assert await answer(reader1) == (1, body)
        assert await answer(reader2) == (2, body)
        assert world.host.memory.used_bytes == 0

    simulate(run, request_memory_bytes=3_000_000)


def test_who_only_announces_large_frames_stops_nobody() -> None:
    """Neither at once nor later: announcing takes no memory from others."""

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


def test_who_sends_half_of_large_frames_stops_others_for_seconds_only() -> None:
    """All memory is taken by frames that stop arriving: their clients are told to go when somebody waits for it, and not before."""

    async def run(world: World) -> None:
        for _ in range(20):
            _, writer = await world.client()
            writer.write(frame(ECHO, 1, bytes(3_500_000))[:-1_000_000])
        await asyncio.sleep(10)
        assert world.host.memory.used_bytes <= 1 << 24
        assert len(world.host.connections) < 20, "those of them who waited had the others closed"
        reader, writer = await world.client()
        body = bytes(3_000_000)
        writer.write(frame(ECHO, 2, body))
        async with asyncio.timeout(10):
            assert await answer(reader) == (2, body)
        assert set(world.log.reasons) == {"its request has stopped arriving, and others wait for the memory that it holds"}

    simulate(run)


def test_a_large_frame_of_a_client_that_takes_no_answers_stays_counted() -> None:
    """It waits whole where it is, and is executed when the answers before it were taken."""

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
        held = world.host.memory.used_bytes + UNCOUNTED_FRAME_BYTES
        assert len(connection._backlog) + (0 if connection._frame is None else len(connection._frame)) <= max(
            held, 2 * UNCOUNTED_FRAME_BYTES
        )
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        for number in range(6):
            assert (await answer(reader))[0] == number
        assert await answer(reader) == (9, body)
        assert world.host.memory.used_bytes == 0

    for seed in range(20):
        simulate(run, seed)


def test_slow_frame_is_closed_and_gives_its_memory_back() -> None:
    async def run(world: World) -> None:
        reader, writer = await world.client()
        writer.write(frame(ECHO, 1, bytes(500_000))[:100])
        await asyncio.sleep((SLOW_FRAME_GRACE_MS + 10_000) / 1000)
        with pytest.raises(CLOSED):
            await reader.readexactly(1)
        assert world.log.reasons == ["its request arrives too slowly"]
        assert world.host.memory.used_bytes == 0

    simulate(run)
