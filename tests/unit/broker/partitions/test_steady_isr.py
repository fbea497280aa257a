"""Stable ISRs: no follower is removed that keeps up with its fetches, and none because of a pause of the leader."""

from __future__ import annotations

import asyncio

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.records import iterate_batches
from lowtide.runtime.simulated_ports import SimulatedClock

from .leading import LAG_MS, NONE, Follower, Leading, simulate

PRODUCE_S = 0.2


async def begin(world: Leading) -> tuple[Follower, Follower]:
    await world.start(2, 3)
    await world.create_topic()
    followers = await world.follower(2), await world.follower(3)
    for follower in followers:
        await follower.catch_up()
    return followers


async def fetch_for(world: Leading, followers: tuple[Follower, ...], every_s: float, duration_s: float) -> None:
    """Records come all the time; each follower fetches now and then, and receives the records that are there."""
    until = world.loop.time() + duration_s
    next_fetch = world.loop.time()
    while world.loop.time() < until:
        await world.produce(acks=1)
        if world.loop.time() >= next_fetch:
            next_fetch += every_s
            for follower in followers:
                await follower.fetch()
                follower.end = world.partition().log.log_end_offset
        await asyncio.sleep(PRODUCE_S)


@pytest.mark.parametrize("every_s", [0.2, 1.0, 0.45 * LAG_MS / 1000])
def test_followers_that_fetch_seldom_stay_in_sync_while_records_come_all_the_time(every_s: float) -> None:
    """They never have the last record.

    A follower is caught up if a fetch reaches the log end of its previous fetch (KIP-16).
    The next fetch shows it, so a follower must fetch twice within `replica.lag.time.max.ms`.
    """

    async def test(world: Leading) -> None:
        followers = await begin(world)
        before = world.image()
        await fetch_for(world, followers, every_s, 6 * LAG_MS / 1000)
        assert world.image() is before

    simulate(test)


def test_a_removed_follower_rejoins_once_and_stays() -> None:
    async def test(world: Leading) -> None:
        two, three = await begin(world)
        await fetch_for(world, (two,), 0.5, 2 * LAG_MS / 1000)
        assert world.image().isr == (1, 2)
        dropped = world.image()
        await fetch_for(world, (two,), 0.5, LAG_MS / 1000)
        assert world.image() is dropped, "nothing changes while it is away"
        await three.catch_up()
        await world.see()
        joined = world.image()
        assert joined.isr == (1, 2, 3)
        await fetch_for(world, (two, three), 0.5, 2 * LAG_MS / 1000)
        assert world.image() is joined

    simulate(test)


class PausedClock(SimulatedClock):
    """The leader's clock, which jumps when the leader is paused."""

    paused_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.paused_ms


def wake_up(world: Leading) -> None:
    """Overdue timers run before the bytes that arrived meanwhile are read."""
    world.replicas.led.looks.look()


def test_a_leader_that_was_paused_reads_its_followers_fetches_before_it_removes_them() -> None:
    async def test(world: Leading) -> None:
        clock = world.clock = PausedClock(world.loop)
        followers = await begin(world)
        await fetch_for(world, followers, 0.5, 3)
        before = world.image()
        for _ in range(3):
            await world.produce(acks=1)
            clock.paused_ms += 2 * LAG_MS
            world.replicas.led.look_at(world.partition())
            wake_up(world)
            world.replicas.led.look_at(world.partition())
            await fetch_for(world, followers, 0.5, 3)
            assert world.image() is before
        await fetch_for(world, followers[:1], 0.5, 2 * LAG_MS / 1000)
        assert world.image().isr == (1, 2), "a silent follower is removed anyway"

    simulate(test)


def test_one_pause_after_another_keeps_no_follower_in_sync() -> None:
    async def test(world: Leading) -> None:
        clock = world.clock = PausedClock(world.loop)
        two, _ = await begin(world)
        await fetch_for(world, (two,), 0.5, 1)
        for _ in range(2):
            await world.produce(acks=1)
            clock.paused_ms += 2 * LAG_MS
            wake_up(world)
        await fetch_for(world, (two,), 0.5, 3)
        assert 3 not in world.image().isr

    simulate(test)


# Producers that have much under way

HALF_A_MEGABYTE = build_batch([(1, None, bytes(500_000), ())])
SHORT_LAG_MS = 1000


async def replicate(follower: Follower, fetch_s: float) -> None:
    """Fetch a mebibyte at a time, as followers do; to receive and write it takes `fetch_s`."""
    while True:
        row = await follower.fetch(wait_ms=500)
        await asyncio.sleep(fetch_s)
        data = bytes(row.records)  # type: ignore[call-overload]  # a client receives bytes
        for position, header in iterate_batches(data):
            if position + header.size_bytes <= len(data):
                follower.end = header.next_offset


@pytest.mark.parametrize(("producers", "fetch_s"), [(1, 0.1), (8, 0.04)])
def test_followers_stay_in_sync_with_producers_that_have_much_under_way(producers: int, fetch_s: float) -> None:
    """One request in flight fits into a fetch. Several do not, so followers are some fetches behind."""

    async def test(world: Leading) -> None:
        await world.start(2, 3, replica_lag_time_max_ms=str(SHORT_LAG_MS))
        await world.create_topic("t", (1, 2, 3), min_insync_replicas="2")
        followers = [asyncio.ensure_future(replicate(await world.follower(broker_id), fetch_s)) for broker_id in (2, 3)]
        before, began_s = world.image(), world.loop.time()
        rows = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=HALF_A_MEGABYTE)])]
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=rows)
        clients = [await world.connect() for _ in range(producers)]
        answers = [client.send(request, 10) for client in clients for _ in range(80 // producers)]
        for answer in answers:
            assert (await answer).responses[0].partition_responses[0].error_code == NONE
        assert world.loop.time() - began_s > SHORT_LAG_MS / 1000, "it takes long enough for a follower to be dropped"
        assert world.image() is before
        for follower in followers:
            follower.cancel()

    simulate(test)
