"""A follower's fetch is held for a moment if nobody waits for the records, and answered at once otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lowtide.broker.partitions import held_fetches
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

from .leading import A_RECORD, NONE, Follower, Leading, simulate
from .test_follower_sessions import fetch_in_session

LONG_S = 5.0
"""A hold that can't be missed."""

LONG_MS = 60_000


def records_of(row: Any) -> int:
    """The number of records that an answer has."""
    return 0 if row is None else len(row.records or b"") // len(A_RECORD)


async def waiting(world: Leading, broker_id: int = 2, **state: Any) -> tuple[Follower, asyncio.Task[Any]]:
    """A follower whose fetch waits at the leader, in a session."""
    follower = await world.follower(broker_id, **state)
    await fetch_in_session(follower)
    task = asyncio.ensure_future(fetch_in_session(follower, wait_ms=LONG_MS))
    await asyncio.sleep(0.1)
    assert not task.done()
    return follower, task


async def begin(world: Leading) -> None:
    await world.start(2, 3)
    await world.create_topic()


@pytest.fixture
def long_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_fetches, "HOLD_S", LONG_S)


@pytest.mark.usefixtures("long_hold")
@pytest.mark.parametrize("acks", [0, 1])
def test_one_answer_has_the_records_of_several_requests(acks: int) -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        _, fetch = await waiting(world)
        began_s = world.loop.time()
        if acks:
            await world.produce(3, acks=acks)
        else:
            data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=A_RECORD)])
            for _ in range(3):
                request = ProduceRequest(acks=0, timeout_ms=1000, topic_data=[data])
                world.client.send(request, 10, expect_answer=False)
        row = await fetch
        assert records_of(row) == 3
        assert LONG_S <= world.loop.time() - began_s < LONG_S + 0.5

    simulate(run)


def test_it_is_held_for_a_millisecond() -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        _, fetch = await waiting(world)
        await world.produce(acks=1)
        began_s = world.loop.time()
        assert records_of(await fetch) == 1
        assert world.loop.time() - began_s < 0.05

    simulate(run)


@pytest.mark.usefixtures("long_hold")
def test_a_fetch_that_finds_records_nobody_waits_for_is_held_too() -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        follower = await world.follower(2)
        await fetch_in_session(follower)
        await world.produce(acks=1)
        began_s = world.loop.time()
        fetch = asyncio.ensure_future(fetch_in_session(follower, wait_ms=LONG_MS))
        await asyncio.sleep(1)
        await world.produce(acks=1)
        assert records_of(await fetch) == 2
        assert LONG_S <= world.loop.time() - began_s < LONG_S + 0.5
        assert records_of(await fetch_in_session(follower, wait_ms=0)) == 2, "one that may not wait is answered"

    simulate(run)


@pytest.mark.usefixtures("long_hold")
def test_a_producer_that_waits_for_followers_ends_it() -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        follower, fetch = await waiting(world)
        await world.produce(2, acks=1)
        began_s = world.loop.time()
        produced = asyncio.ensure_future(world.send_produce())
        assert records_of(await fetch) == 3
        assert world.loop.time() - began_s < 1
        follower.end = 2
        assert records_of(await fetch_in_session(follower, wait_ms=LONG_MS)) == 1
        assert world.loop.time() - began_s < 1, "the record that it waits for is not held either"
        for other in (2, 3):
            await (await world.follower(other, end=3)).fetch()
        assert (await produced).error_code == NONE

    simulate(run)


@pytest.mark.usefixtures("long_hold")
@pytest.mark.parametrize("in_session", [False, True])
def test_a_consumer_that_waits_for_records_ends_it(in_session: bool) -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        _, fetch = await waiting(world)
        third = await world.follower(3)
        await fetch_in_session(third)
        consumer = await world.connect()
        row = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=LONG_MS,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=0,
            session_epoch=0 if in_session else -1,
            topics=[FetchTopic(topic="t", partitions=[row])],
        )
        consumed = asyncio.ensure_future(consumer.request(request, 11))
        await asyncio.sleep(0.1)
        began_s = world.loop.time()
        await world.produce(acks=1)
        assert records_of(await fetch) == 1
        assert world.loop.time() - began_s < 1
        for other in (2, 3):
            await (await world.follower(other, end=1)).fetch()
        assert (await consumed).error_code == NONE

    simulate(run)


@pytest.mark.usefixtures("long_hold")
def test_a_log_start_ends_it() -> None:
    """Rule DR5."""

    async def run(world: Leading) -> None:
        await begin(world)
        await world.change(isr=(1,), isr_epochs=world.image().isr_epochs[:1])
        await world.produce(2)
        follower, fetch = await waiting(world, end=2)
        await world.produce(acks=1)
        began_s = world.loop.time()
        deleted = asyncio.ensure_future(world.delete(1))
        row = await fetch
        assert (row.log_start_offset, records_of(row)) == (1, 1)
        assert world.loop.time() - began_s < 1
        deleted.cancel()
        del follower

    simulate(run)


@pytest.mark.usefixtures("long_hold")
def test_many_bytes_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_fetches, "HELD_BYTES_MAX", 2 * len(A_RECORD))

    async def run(world: Leading) -> None:
        await begin(world)
        follower = await world.follower(2)
        await fetch_in_session(follower)
        await world.produce(3, acks=1)
        began_s = world.loop.time()
        assert records_of(await fetch_in_session(follower, wait_ms=LONG_MS)) == 3
        assert world.loop.time() - began_s < 1

    simulate(run)


@pytest.mark.usefixtures("long_hold")
def test_a_broker_that_stops_answers_a_held_fetch() -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        _, fetch = await waiting(world)
        await world.produce(acks=1)
        assert world.broker is not None
        await world.broker.stop()
        await asyncio.wait([fetch], timeout=LONG_S - 1)
        assert fetch.done()
        fetch.exception()

    simulate(run)
