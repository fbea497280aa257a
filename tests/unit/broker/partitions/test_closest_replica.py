"""Reads at the closest replica (KIP-392), named by the leader, and responses of followers to consumers (rule DR7)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lowtide.metadata import keys
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData

from . import following, leading
from .following import Following, row
from .leading import LAG_MS, NONE, Leading

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
VERSION = 12


async def consume(
    world: Leading, offset: int, *, rack: str = "", version: int = VERSION, wait_ms: int = 0, epoch: int = -1
) -> Any:
    """A consumer's fetch at broker 1."""
    partition = FetchPartition(
        partition=0, current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=1 << 20
    )
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        topics=[FetchTopic(topic="t", partitions=[partition])],
        session_id=0,
        session_epoch=-1,
        rack_id=rack,
    )
    answer = await world.client.request(request, version)
    found: PartitionData = answer.responses[0].partitions[0]
    return found


# The leader


async def begin(world: Leading, *, selects: bool = True) -> tuple[Any, Any]:
    """Broker 1 in r1 leads; 2 is in r2, 3 in r3, and both have all records."""
    settings = {"replica_selector_class": SELECTOR} if selects else {}
    await world.start(2, 3, racks={2: "r2", 3: "r3"}, **settings)
    await world.create_topic("t", (1, 2, 3))
    await world.produce(5, acks=1)
    second, third = await world.follower(2), await world.follower(3)
    await second.catch_up()
    await third.catch_up()
    return second, third


def test_a_leader_names_the_replica_in_the_consumers_rack() -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        for rack, named, has_records in (
            ("r2", 2, False),
            ("r3", 3, False),
            ("r1", -1, True),
            ("r9", -1, True),
            ("", -1, True),
        ):
            answer = await consume(world, 0, rack=rack, wait_ms=5000)
            assert (answer.error_code, answer.preferred_read_replica, len(answer.records) > 0) == (
                NONE,
                named,
                has_records,
            ), rack

    leading.simulate(run)


def test_without_a_selector_it_reads_itself() -> None:
    async def run(world: Leading) -> None:
        await begin(world, selects=False)
        answer = await consume(world, 0, rack="r2")
        assert (answer.preferred_read_replica, len(answer.records) > 0) == (-1, True)

    leading.simulate(run)


@pytest.mark.parametrize("why", ["lacks the offset", "lacks a delete", "out of the ISR", "registered again", "gone"])
def test_a_replica_that_would_refuse_is_not_named(why: str) -> None:
    """Otherwise the consumer would alternate between the two brokers."""

    async def run(world: Leading) -> None:
        second, third = await begin(world)
        offset = 3
        if why == "lacks the offset":
            await world.produce(1, acks=1)
            third.end = 6
            await third.fetch()
            offset = 6
        elif why == "lacks a delete":
            await world.delete(2, leader_only=True)
        elif why == "out of the ISR":
            await world.put(keys.shutdown(2), b"%d" % world.epochs[2], lease_of=2)
            await asyncio.sleep(0.05)
            assert world.image().isr == (1, 3)
        elif why == "registered again":
            await world.register(2, rack="r2")
        else:
            await world.fence(2)
        assert (await consume(world, offset, rack="r2")).preferred_read_replica == -1
        if why == "lacks a delete":
            second.start = 2
            await second.fetch()
            assert (await consume(world, offset, rack="r2")).preferred_read_replica == 2

    leading.simulate(run)


# The follower


def test_a_follower_answers_up_to_its_high_watermark() -> None:
    async def run(world: Following) -> None:
        log = await world.filled(0, 0, 0, high_watermark=2)
        answer = await consume(world, 0)
        assert (answer.error_code, answer.high_watermark, answer.log_start_offset) == (NONE, 2, 0)
        assert answer.preferred_read_replica == -1
        assert log.log_end_offset == 3
        assert len((await consume(world, 2)).records) == 0, "it is not known to be committed"
        waiting = asyncio.ensure_future(consume(world, 2, wait_ms=400))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await world.fetched(row(high_watermark=3))
        assert len((await waiting).records) > 0

    following.simulate(run)


def test_below_its_log_start_a_follower_returns_it_and_no_high_watermark() -> None:
    """The consumer then need not ask the leader for it. Above the log end the follower returns no offset."""

    async def run(world: Following) -> None:
        await world.filled(0, 0, 0, high_watermark=3)
        await world.fetched(row(high_watermark=3, log_start_offset=2))
        await world.next()
        answer = await consume(world, 1)
        assert (answer.error_code, answer.high_watermark, answer.log_start_offset) == (
            ErrorCode.OFFSET_OUT_OF_RANGE,
            -1,
            2,
        )
        answer = await consume(world, 4)
        assert (answer.error_code, answer.high_watermark, answer.log_start_offset) == (
            ErrorCode.OFFSET_OUT_OF_RANGE,
            -1,
            -1,
        )
        assert (await consume(world, 2)).error_code == NONE

    following.simulate(run)


@pytest.mark.parametrize(
    "why", ["old version", "no response yet", "a delete on its way", "response long ago", "another leader epoch"]
)
def test_a_follower_that_may_not_serve_answers_not_leader(why: str) -> None:
    async def run(world: Following) -> None:
        if why == "no response yet":
            await world.begin()
        else:
            await world.filled(0, 0, 0, high_watermark=3)
            assert (await consume(world, 0)).error_code == NONE
        asked = await world.next()
        version = VERSION
        if why == "old version":
            version = 10
        elif why == "a delete on its way":
            world.set_commit_ms(50)
            world.answer(asked, row(high_watermark=3, log_start_offset=2))
            await asyncio.sleep(0.01)
        elif why == "response long ago":
            await asyncio.sleep(0.8 * LAG_MS / 1000 + 0.1)
        elif why == "another leader epoch":
            await world.change(leader_epoch=7)
        answer = await consume(world, 0, version=version)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (answer.high_watermark, answer.log_start_offset, len(answer.records)) == (-1, -1, 0)

    following.simulate(run)


def test_a_waiting_fetch_ends_when_its_follower_may_not_serve_any_more() -> None:
    async def run(world: Following) -> None:
        await world.filled(0, 0, high_watermark=2)
        waiting = asyncio.ensure_future(consume(world, 2, wait_ms=5000))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await world.change(leader_epoch=7)
        await asyncio.sleep(0.05)
        assert (await asyncio.wait_for(waiting, 0.01)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    following.simulate(run)
