"""A held topic loses nothing, whoever asks and whatever rule is on. With the end of the hold all of it works again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest
from lowtide.protocol.messages.erase_records import EraseRecordsPartition, EraseRecordsRequest, EraseRecordsTopic

from .leading import NONE, Leading, simulate
from .test_find_records import ID, find, produce

HELD_MS = 300_000
SENTENCE = "The topic is held until 2"


async def delete(world: Leading) -> tuple[int, str | None]:
    return (await world.delete(2)).error_code, None


async def delete_everything(world: Leading) -> tuple[int, str | None]:
    return (await world.delete(-1)).error_code, None


async def delete_at_the_leader(world: Leading) -> tuple[int, str | None]:
    return (await world.delete(2, leader_only=True)).error_code, None


async def erase_by_key(world: Leading) -> tuple[int, str | None]:
    row = await find(world, keys=[b"a"], erase=True)
    return row.error_code, row.error_message


async def erase_by_offset(world: Leading) -> tuple[int, str | None]:
    row = await find(world, offsets=((0, 1),), erase=True, search_id=bytes(reversed(ID)))
    return row.error_code, row.error_message


async def erase_the_beginning(world: Leading) -> tuple[int, str | None]:
    topics = [EraseRecordsTopic(name="t", partitions=[EraseRecordsPartition(partition_index=0, offset=0)])]
    answer = await world.client.request(EraseRecordsRequest(topics=topics, timeout_ms=1_000), 1)
    row = answer.topics[0].partitions[0]
    return row.error_code, row.error_message


async def delete_the_topic(world: Leading) -> tuple[int, str | None]:
    answer = await world.client.request(DeleteTopicsRequest(topic_names=["t"], timeout_ms=5_000), 5)
    return answer.responses[0].error_code, answer.responses[0].error_message


WAYS: tuple[Callable[[Leading], Awaitable[tuple[int, str | None]]], ...] = (
    delete,
    delete_everything,
    delete_at_the_leader,
    erase_by_key,
    erase_by_offset,
    erase_the_beginning,
    delete_the_topic,
)


async def held(world: Leading, **configs: str) -> int:
    """Starts with a held topic of two records; returns the wall-clock time of the hold's end."""
    await world.start()
    until_ms = world.clock.wall_ms() + HELD_MS
    await world.create_topic("t", (1,), lowtide_hold_until=str(until_ms), lowtide_hold_reason="case 7", **configs)
    await produce(world, b"a")
    await produce(world, b"b")
    return until_ms


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_no_request_deletes(way: Callable[[Leading], Awaitable[tuple[int, str | None]]]) -> None:
    async def run(world: Leading) -> None:
        await held(world, retention_ms="-1")
        error, message = await way(world)
        assert error == ErrorCode.POLICY_VIOLATION
        assert message is None or (message.startswith(SENTENCE) and message.endswith("Z: case 7."))
        row = await find(world, keys=[b"a", b"b"], search_id=b"s" * 16)
        assert (row.record_count, world.partition().log.log_start_offset) == (2, 0)
        await asyncio.sleep(HELD_MS / 1000)
        error, message = await way(world)
        assert (error, message) == (NONE, None)

    simulate(run)


@pytest.mark.parametrize(
    "rule",
    [{"retention_ms": "1"}, {"retention_bytes": "0"}, {"log_retention_min_timestamp": "4102444800000"}],
    ids=lambda rule: next(iter(rule)),
)
def test_no_rule_of_retention_deletes(rule: dict[str, Any]) -> None:
    async def run(world: Leading) -> None:
        until_ms = await held(world, **rule)
        while world.clock.wall_ms() < until_ms - 1_000:
            assert world.partition().log.log_start_offset == 0
            await asyncio.sleep(10)
        await asyncio.sleep(600)
        assert world.partition().log.log_start_offset == 2

    simulate(run)
