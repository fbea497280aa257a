"""The decompressed size of a request is bounded in the loop and the worker, where requests take turns."""

from __future__ import annotations

import asyncio
from typing import Any

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.errors import ErrorCode
from lowtide.storage.log.validation.validation_rules import QUICK_BYTES

from .test_slow_produce import BOMB, World, kept_bytes, produce, rows, simulate


async def work_until(world: World, answer: asyncio.Future[Any]) -> int:
    """Let the worker work until there is an answer; returns the number of steps."""
    steps = 0
    while not answer.done():
        await asyncio.sleep(0.1)
        if world.worker.waiting:
            world.worker.step()
            steps += 1
    return steps


def test_one_request_decompresses_to_so_much_and_no_more() -> None:
    """A request of a megabyte decompressed to 30 GB.

    Its first batches are accepted, the others may come in another request.
    """
    half = build_batch([(1, None, bytes(QUICK_BYTES), ())] * 60, compression=Compression.ZSTD)

    async def run(world: World) -> None:
        client = await world.connect()
        answer = client.send(produce(half, BOMB, half, half, BOMB), 9)
        await work_until(world, answer)
        refused = (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
        assert rows(await answer) == [(ErrorCode.NONE, 0)] * 3 + [refused] * 2
        again = client.send(produce(half), 9)
        await work_until(world, again)
        assert rows(await again) == [(ErrorCode.NONE, 60)]
        assert kept_bytes(world) == 0

    simulate(run)


def test_the_checks_of_requests_take_turns_one_at_a_time() -> None:
    """A request with many batches must not occupy both threads: validations and cold reads of others need one."""

    async def run(world: World) -> None:
        first, second = await world.connect(), await world.connect()
        many = first.send(produce(*[BOMB] * 5), 9)
        await asyncio.sleep(1)
        one = second.send(produce(BOMB), 9)
        await asyncio.sleep(1)
        for _ in range(3):
            assert len(world.worker.waiting) == 1
            world.worker.step()
            await asyncio.sleep(0)
        await one
        assert not many.done()
        await work_until(world, many)
        assert {error for error, _ in rows(await many)} == {ErrorCode.NONE}

    simulate(run)


def test_the_decompressed_size_of_many_small_bombs_in_the_loop_is_bounded() -> None:
    """Each takes little time; a hundred of them do not."""
    quick = build_batch([(1, None, bytes(QUICK_BYTES - 100), ())], compression=Compression.ZSTD)

    async def run(world: World) -> None:
        client = await world.connect()
        answer = client.send(produce(*[quick] * 10), 9)
        await asyncio.sleep(1)
        assert len(world.worker.waiting) == 1, (
            "the first five are within the four megabytes, and so is the one that exceeds them"
        )
        steps = await work_until(world, answer)
        assert steps == 5
        assert {error for error, _ in rows(await answer)} == {ErrorCode.NONE}

    simulate(run)
