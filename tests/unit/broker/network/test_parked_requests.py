"""How much of a connection may wait for its answers: the bytes that a follower gets with one fetch, or one request."""

from __future__ import annotations

import asyncio

import pytest

from .test_connection import LARGE, PARK_PRODUCE, World, answer, frame, simulate


@pytest.mark.parametrize(("size", "count"), [(100_000, 6), (300_000, 2), (520_000, 2), (600_000, 1), (3_000_000, 1)])
def test_parked_produces_have_the_bytes_that_a_follower_gets_with_one_fetch(size: int, count: int) -> None:
    """That is 1 MiB here. Many small requests may wait, and of the largest one, as in Kafka."""

    async def run(world: World) -> None:
        reader, writer = await world.client()
        sent = 12
        for number in range(sent):
            writer.write(frame(PARK_PRODUCE, number, bytes(size)))
        for number in range(sent):
            await asyncio.sleep(0.5)
            assert len(world.dispatcher.parked) == min(number + count, sent)
            world.dispatcher.parked[number][1].complete(bytearray(b""))
            assert await answer(reader) == (number, b"")

    simulate(run)


@pytest.mark.parametrize("fetch_bytes", [0, 1])
def test_one_produce_is_executed_however_little_followers_fetch(fetch_bytes: int) -> None:
    async def run(world: World) -> None:
        reader, writer = await world.client()
        for number in range(3):
            writer.write(frame(PARK_PRODUCE, number))
        for number in range(3):
            await asyncio.sleep(0.5)
            assert len(world.dispatcher.parked) == number + 1
            world.dispatcher.parked[number][1].complete(bytearray(b""))
            assert await answer(reader) == (number, b"")

    simulate(run, fetch_bytes=fetch_bytes)


def test_large_answers_behind_a_parked_produce_are_bounded_by_their_bytes() -> None:
    async def run(world: World) -> None:
        reader, writer = await world.client()
        writer.write(frame(PARK_PRODUCE, 0, b"p"))
        writer.write(b"".join(frame(LARGE, number, b"x") for number in range(1, 40)))
        await asyncio.sleep(1)
        assert len(world.dispatcher.executed) == 2, "an answer has a megabyte"
        world.dispatcher.parked[0][1].complete(bytearray(b"p"))
        for number in range(40):
            assert (await answer(reader))[0] == number

    simulate(run)
