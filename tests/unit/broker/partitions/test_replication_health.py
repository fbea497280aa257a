"""A broker's report on its replication: counts of the real state, and a log line a minute while it is unhealthy."""

from __future__ import annotations

import asyncio
from typing import Any

from lowtide.broker.partitions.replication_health import REPORT_INTERVAL_MS, ReplicationHealth, ReplicationSnapshot

from . import following, leading
from .following import Following, records, row
from .leading import NONE, Leading


class Lines:
    """A log that keeps its warnings."""

    def __init__(self) -> None:
        self.warnings: list[dict[str, Any]] = []

    def warning(self, event: str, **values: Any) -> None:
        self.warnings.append(values | {"event": event})


def health_of(world: Leading) -> ReplicationHealth:
    assert world.broker is not None
    assert world.broker.serving.partitions.health is not None
    return world.broker.serving.partitions.health


def now(world: Leading) -> ReplicationSnapshot:
    return health_of(world).snapshot()


def test_a_follower_that_falls_behind_and_catches_up_is_counted() -> None:
    async def run(world: Leading) -> None:
        await world.start(2)
        await world.create_topic("t", (1, 2), min_insync_replicas="2")
        assert (now(world).partitions, now(world).led_partitions, now(world).under_replicated_partitions) == (1, 1, 0)
        assert now(world).is_well
        await world.produce(1, acks=1)
        follower = await world.follower(2)
        await asyncio.sleep(leading.LAG_MS * 1.5 / 1000)
        after = now(world)
        assert (after.under_replicated_partitions, after.under_min_isr_partitions) == (1, 1)
        assert (after.isr_shrinks_total, after.isr_expands_total) == (1, 0)
        assert not after.is_well
        await follower.catch_up()
        await asyncio.sleep(0.05)
        assert now(world).is_well
        assert (now(world).isr_shrinks_total, now(world).isr_expands_total) == (1, 1)

    leading.simulate(run)


def test_a_replica_that_is_being_added_makes_no_partition_under_replicated() -> None:
    async def run(world: Leading) -> None:
        await world.start(2, 3)
        await world.create_topic("t", (1, 2))
        await world.change(replicas=(1, 2, 3), adding=(3,))
        assert now(world).is_well
        await world.change(replicas=(1, 2, 3), adding=())
        assert now(world).under_replicated_partitions == 1

    leading.simulate(run)


def test_requests_that_wait_for_followers_are_counted() -> None:
    async def run(world: Leading) -> None:
        await world.start(2)
        await world.create_topic("t", (1, 2))
        follower = await world.follower(2)
        produced = asyncio.ensure_future(world.send_produce())
        await asyncio.sleep(0.01)
        assert now(world).parked_produces == 1
        await follower.catch_up()
        assert (await produced).error_code == NONE
        deleted = asyncio.ensure_future(world.delete(1, client=await world.connect()))
        await asyncio.sleep(0.05)
        assert (now(world).parked_deletes, now(world).parked_produces) == (1, 0)
        follower.start = 1
        await follower.fetch()
        assert (await deleted).error_code == NONE
        assert now(world).parked_deletes == 0

    leading.simulate(run)


def test_a_partition_without_leader_is_counted_by_the_controller() -> None:
    async def run(world: Leading) -> None:
        await world.start(2)
        await world.create_topic("t", (2,), (1,))
        assert now(world).offline_partitions == 0
        await world.fence(2)
        await asyncio.sleep(0.05)
        assert now(world).offline_partitions == 1
        assert not now(world).is_well

    leading.simulate(run)


def test_lag_is_relative_to_the_leaders_reported_end() -> None:
    async def run(world: Following) -> None:
        await world.begin()
        assert (now(world).followed_partitions, now(world).lagging_partitions) == (1, 1)
        await world.fetched(row(records=records(0, 2), high_watermark=9))
        assert (now(world).lagging_partitions, now(world).lag_max) == (1, 7)
        assert now(world).fetched_bytes_total == len(records(0, 2))
        await world.fetched(row(records=records(2, 7), high_watermark=9))
        assert (now(world).lagging_partitions, now(world).lag_max) == (0, 0)

    following.simulate(run)


def test_there_is_a_line_a_minute_while_it_is_unhealthy_and_otherwise_none() -> None:
    async def run(world: Leading) -> None:
        await world.start(2)
        await world.create_topic("t", (1, 2))
        lines = Lines()
        health_of(world)._log = lines
        minute_s = REPORT_INTERVAL_MS / 1000
        follower = await world.follower(2)
        for _ in range(20):
            await follower.fetch()
            await asyncio.sleep(minute_s / 10)
        assert lines.warnings == []
        await world.produce(1, acks=1)
        await asyncio.sleep(2.5 * minute_s)
        assert [line["under_replicated_partitions"] for line in lines.warnings] in ([1, 1], [1, 1, 1])
        assert [line["isr_shrinks"] for line in lines.warnings][:2] in ([1, 0], [0, 0])

    leading.simulate(run)
