"""A connection whose client is above its quota: its answers are sent, and nothing more is executed for a while."""

from __future__ import annotations

import asyncio

from .test_connection import ECHO, PARK, World, answer, frame, simulate


def test_a_muted_connection_sends_its_answer_and_executes_nothing_until_its_time_is_over() -> None:
    """What arrives meanwhile is kept; the longest of several times counts."""

    async def run(world: World) -> None:
        reader, writer = await world.client()
        writer.write(frame(ECHO, 1, b"a"))
        assert await answer(reader) == (1, b"a")
        (connection,) = world.host.connections
        connection.mute(5_000)
        connection.mute(3_000)
        muted_ms = world.clock.monotonic_ms()
        writer.write(frame(ECHO, 2, b"b") + frame(ECHO, 3, b"c"))
        await asyncio.sleep(4)
        assert world.dispatcher.executed == [b"a"]
        assert await answer(reader) == (2, b"b")
        assert await answer(reader) == (3, b"c")
        assert world.clock.monotonic_ms() >= muted_ms + 5_000

    simulate(run)


def test_a_request_that_is_answered_late_does_not_end_the_silence() -> None:
    async def run(world: World) -> None:
        reader, writer = await world.client()
        writer.write(frame(PARK, 1, b"slow"))
        while not world.dispatcher.parked:
            await asyncio.sleep(0.01)
        (connection,) = world.host.connections
        connection.mute(5_000)
        world.dispatcher.parked[0][1].complete(bytearray(b"done"))
        assert await answer(reader) == (1, b"done")
        writer.write(frame(ECHO, 2, b"b"))
        await asyncio.sleep(4)
        assert world.dispatcher.executed == [b"slow"]
        assert await answer(reader) == (2, b"b")

    simulate(run)


def test_a_connection_above_the_rate_of_its_address_is_served_later() -> None:
    async def run(world: World) -> None:
        world.host._connection_wait_ms = lambda _address, _listener: 2_000
        reader, writer = await world.client()
        began_ms = world.clock.monotonic_ms()
        writer.write(frame(ECHO, 1, b"a"))
        assert await answer(reader) == (1, b"a")
        assert world.clock.monotonic_ms() >= began_ms + 1_900

    simulate(run)


def test_a_muted_connection_that_closes_leaves_nothing_behind() -> None:
    async def run(world: World) -> None:
        _, writer = await world.client()
        await asyncio.sleep(0.1)
        (connection,) = world.host.connections
        connection.mute(3_600_000)
        writer.transport.abort()
        await asyncio.sleep(1)
        assert not world.host.connections
        assert connection.turns._unmuting is None

    simulate(run)
