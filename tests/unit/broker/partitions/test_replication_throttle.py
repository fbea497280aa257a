"""Throttled replication (KIP-73) on both sides: replicas out of sync are limited, and deletes reach them anyway."""

from __future__ import annotations

import asyncio

import pytest

from lowtide.broker.partitions.fetch import fetch_handler
from lowtide.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

from . import following, leading
from .following import Following, row
from .leading import A_RECORD, NONE, Follower, Leading

RATE = 1000
COUNT = 100
BYTES = COUNT * len(A_RECORD)
A_FEW = 5 * len(A_RECORD)


async def begin(world: Leading, *, isr: tuple[int, ...] = (1,)) -> Follower:
    """Broker 1 leads, and 2 has nothing yet."""
    await world.start(2, leader_replication_throttled_rate=str(RATE))
    await world.create_topic("t", (1, 2), leader_replication_throttled_replicas="0:1")
    epochs = dict(zip(world.image().isr, world.image().isr_epochs, strict=True))
    await world.change(isr=isr, isr_epochs=tuple(epochs[member] for member in isr))
    await world.produce(COUNT, acks=1)
    return await world.follower(2)


async def fetch_all(world: Leading, follower: Follower) -> float:
    """Fetch to the end; returns the seconds that it took."""
    started = world.loop.time()
    while follower.end < COUNT:
        answer = await follower.fetch(wait_ms=100, partition_max_bytes=A_FEW)
        assert answer.error_code == NONE
        follower.end += len(answer.records) // len(A_RECORD)
    return world.loop.time() - started


def test_a_leader_serves_about_the_rate_in_bytes_a_second() -> None:
    async def run(world: Leading) -> None:
        follower = await begin(world)
        took = await fetch_all(world, follower)
        assert 0.8 < took / (BYTES / RATE) < 1.2

    leading.simulate(run)


def test_in_sync_replicas_are_never_slowed_down() -> None:
    """Otherwise the throttle of a move would drop them from the ISR."""

    async def run(world: Leading) -> None:
        follower = await begin(world, isr=(1, 2))
        assert await fetch_all(world, follower) < 0.1
        assert world.replicas.leader_throttle.quota.total_bytes == BYTES, "but it counts"

    leading.simulate(run)


def test_a_throttled_follower_receives_a_delete_at_once() -> None:
    async def run(world: Leading) -> None:
        follower = await begin(world)
        while (await follower.fetch(wait_ms=0, partition_max_bytes=A_FEW)).records:
            follower.end += 5
        waiting = asyncio.ensure_future(follower.fetch(wait_ms=400))
        await asyncio.sleep(0.05)
        assert not waiting.done(), "there are records, and none for it"
        before = world.loop.time()
        assert (await world.delete(3, leader_only=True)).error_code == NONE
        answer = await waiting
        assert world.loop.time() - before < 0.05
        assert (answer.log_start_offset, len(answer.records)) == (3, 0)

    leading.simulate(run)


@pytest.mark.parametrize("session_epoch", [-1, 0])
@pytest.mark.parametrize("partitions", [5, 30])
def test_what_is_read_again_after_a_wait_counts_once(
    session_epoch: int, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ten partitions or more a fetch is one of many, which is read in slices."""
    monkeypatch.setattr(fetch_handler, "PARTITIONS_AT_ONCE", 10)

    async def run(world: Leading) -> None:
        await world.start(2, leader_replication_throttled_rate=str(100 * BYTES))
        await world.create_topic("t", *[(1, 2)] * partitions, leader_replication_throttled_replicas="*")
        for number in range(partitions):
            await world.produce(acks=1, number=number)
        follower = await world.follower(2)
        request = follower.request(wait_ms=300)
        request.min_bytes, request.session_epoch = 1 << 20, session_epoch
        for number in range(1, partitions):
            request.topics[0].partitions += follower.request(number=number).topics[0].partitions
        answer = await follower.client.request(request, 17)
        sent = sum(len(each.records) for topic in answer.responses for each in topic.partitions)
        assert sent == partitions * len(A_RECORD)
        assert world.replicas.leader_throttle.quota.total_bytes == sent
        assert world.replicas.traffic.of_topic("t").replication_bytes_out == sent

    leading.simulate(run)


def test_a_rate_that_is_raised_applies_at_once() -> None:
    async def run(world: Leading) -> None:
        follower = await begin(world)
        await follower.fetch(partition_max_bytes=BYTES)
        assert len((await follower.fetch(partition_max_bytes=A_FEW)).records) == 0
        config = AlterableConfig(name="leader.replication.throttled.rate", config_operation=0, value=str(100 * BYTES))
        resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
        answer = await world.client.request(
            IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1
        )
        assert [each.error_code for each in answer.responses] == [NONE]
        await world.see()
        assert await fetch_all(world, follower) < 0.1

    leading.simulate(run)


# The follower's side.

ONE = following.records(0, 5)


async def serve(world: Following, high_watermark: int) -> None:
    """Answer fetches of the follower until it has all records."""
    log = world.partition().log
    while log.log_end_offset < high_watermark:
        asked = await world.next()
        if asked.rows and asked.rows[0].partition_max_bytes > 0:
            world.answer(asked, row(records=following.records(log.log_end_offset, 5), high_watermark=high_watermark))
            await asyncio.sleep(0.001)
        else:
            await asyncio.sleep(asked.message.max_wait_ms / 1000)
            world.answer(asked)


def test_a_follower_fetches_about_the_rate_in_bytes_a_second() -> None:
    async def run(world: Following) -> None:
        settings = {"follower_replication_throttled_rate": str(RATE)}
        await world.begin((2, 1), configs={"follower_replication_throttled_replicas": "0:1"}, **settings)
        started = world.loop.time()
        await serve(world, 500)
        assert 0.8 < (world.loop.time() - started) / (100 * len(ONE) / RATE) < 1.2

    following.simulate(run)


def test_a_follower_that_is_throttled_receives_log_starts_and_one_in_sync_receives_records() -> None:
    async def run(world: Following) -> None:
        settings = {"follower_replication_throttled_rate": "10"}
        log = await world.begin((2, 1), configs={"follower_replication_throttled_replicas": "*"}, **settings)
        await world.fetched(row(records=following.records(0, 5), high_watermark=6))
        asked = await world.next()
        assert [each.partition_max_bytes for each in asked.rows] == [0]
        world.answer(asked, row(high_watermark=6, log_start_offset=4))
        asked = await world.next()
        assert [(each.partition_max_bytes, each.log_start_offset) for each in asked.rows] == [(0, 4)]
        world.answer(asked, row(high_watermark=5, log_start_offset=4))
        asked = await world.next()
        assert [each.partition_max_bytes for each in asked.rows] == [1 << 20], "it lacks nothing that is committed"
        assert log.log_end_offset == 5

    following.simulate(run)


def test_others_are_not_throttled() -> None:
    async def run(world: Following) -> None:
        settings = {"follower_replication_throttled_rate": "10"}
        await world.begin((2, 1), configs={"follower_replication_throttled_replicas": "0:3,1:1"}, **settings)
        await world.fetched(row(records=following.records(0, 5), high_watermark=600))
        asked = await world.next()
        assert [each.partition_max_bytes for each in asked.rows] == [1 << 20]

    following.simulate(run)
