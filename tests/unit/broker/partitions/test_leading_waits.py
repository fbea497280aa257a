"""Waits at a leader: coordinators, producers whose ISR shrinks, requests of a topic that is re-created."""

from __future__ import annotations

import asyncio

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic

from .leading import NONE, Follower, Leading, simulate

SOON_S = 0.05


async def begin(world: Leading, **configs: str) -> Follower:
    await world.start(2)
    await world.create_topic("t", (1, 2), **configs)
    await world.produce(2, acks=1)
    return await world.follower(2)


async def delete_topic(world: Leading) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], topic_names=["t"], timeout_ms=10_000)
    answer = await (await world.connect()).request(request, 6)
    assert [row.error_code for row in answer.responses] == [NONE]
    await world.see()


# when_committed


def test_a_listener_is_called_once_when_the_offset_is_committed_or_at_once() -> None:
    async def run(world: Leading) -> None:
        follower = await begin(world)
        told: list[tuple[int, ErrorCode]] = []
        for offset in (1, 2, 2):
            world.replicas.when_committed(
                world.partition(), offset, lambda error, offset=offset: told.append((offset, error))
            )
        assert told == []
        follower.end = 1
        await follower.fetch()
        await asyncio.sleep(0)
        assert told == [(1, NONE)]
        await follower.catch_up()
        assert told == [(1, NONE), (2, NONE), (2, NONE)]
        world.replicas.when_committed(world.partition(), 2, lambda error: told.append((9, error)))
        assert told[3:] == [(9, NONE)], "from within the call"

    simulate(run)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ("leadership moves", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("leadership flips", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("topic is deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("topic is re-created", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("time is up", ErrorCode.REQUEST_TIMED_OUT),
    ],
)
def test_a_listener_receives_what_ended_the_wait(event: str, error: ErrorCode) -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        told: list[ErrorCode] = []
        world.replicas.when_committed(world.partition(), 2, told.append, timeout_ms=200)
        if event == "leadership moves":
            await world.change(leader=2, leader_epoch=1)
        elif event == "leadership flips":
            await world.change(leader_epoch=2)
        elif event.startswith("topic"):
            await delete_topic(world)
        else:
            await asyncio.sleep(0.19)
            assert told == []
        await asyncio.sleep(SOON_S)
        assert told == [error]
        if event == "topic is re-created":
            await world.create_topic("t", (1, 2))
            world.replicas.when_committed(world.partition(), 1, told.append)
            await world.produce(1, acks=1)
            await (await world.follower(2)).catch_up()
            assert told[1:] == [NONE]

    simulate(run)


@pytest.mark.parametrize("flush_messages", ["1", "9223372036854775807"])
def test_what_waits_for_replicas_waits_on_when_another_one_is_removed(flush_messages: str) -> None:
    """A removal raises the leader epoch and the leader stays: producers stay, and coordinators keep their state."""

    async def run(world: Leading) -> None:
        await world.start(2, 3)
        await world.create_topic("t", (1, 2, 3), flush_messages=flush_messages)
        await world.produce(1, acks=1)
        follower = await world.follower(2, end=1)
        await follower.fetch()
        waiting = [
            asyncio.ensure_future(world.send_produce(timeout_ms=5000, client=await world.connect())) for _ in range(2)
        ]
        outcomes: list[ErrorCode] = []
        await asyncio.sleep(SOON_S)
        assert world.partition().log.log_end_offset == 3
        world.replicas.when_committed(world.partition(), 3, outcomes.append)
        mine = world.image().isr_epochs[0]
        await world.change(replicas=(1, 2), isr=(1, 2), isr_epochs=(mine, world.epochs[2]), leader_epoch=1)
        await asyncio.sleep(SOON_S)
        assert not any(produced.done() for produced in waiting)
        assert outcomes == []
        await follower.catch_up()
        rows = [await produced for produced in waiting]
        assert [row.error_code for row in rows] == [NONE, NONE]
        assert sorted(row.base_offset for row in rows) == [1, 2]
        assert outcomes == [NONE]

    simulate(run)


def test_no_listener_is_called_for_another_partition_of_the_same_name() -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        old, told = world.partition(), list[ErrorCode]()
        await delete_topic(world)
        await world.create_topic("t", (1, 2))
        world.replicas.when_committed(old, 1, told.append)
        assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    simulate(run)


def test_a_listener_waits_for_a_due_flush_too() -> None:
    """A power cut of this broker must not lose the records behind a coordinator's response, or its markers."""

    async def run(world: Leading) -> None:
        follower = await begin(world, flush_messages="1")
        for committer in world.replicas.log_manager._committers.values():
            committer.delay_range_ms = (200, 200)
        told: list[ErrorCode] = []
        produced = asyncio.ensure_future(world.send_produce(timeout_ms=5000))
        await asyncio.sleep(0.01)
        world.replicas.when_committed(world.partition(), 3, told.append)
        await follower.catch_up()
        assert world.partition().log.high_watermark == 3
        await asyncio.sleep(SOON_S)
        assert told == []
        await asyncio.sleep(0.5)
        assert told == [NONE]
        assert world.partition().log.recovery_point == 3
        assert (await produced).error_code == NONE

    simulate(run)


# Groups


def commit(offset: int) -> OffsetCommitRequest:
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=None)
    return OffsetCommitRequest(
        group_id="g", member_id="", topics=[OffsetCommitRequestTopic(name="t", partitions=[row])]
    )


def test_offsets_are_returned_as_of_the_request() -> None:
    """Offsets appended while the response waited are not committed: another coordinator might not have them."""

    async def run(world: Leading) -> None:
        await begin(world)
        await world.create_topic("__consumer_offsets", (1, 2))
        follower = await world.follower(2)
        request = follower.request()
        request.topics[0].topic_id = world.replicas.image.topics["__consumer_offsets"].topic_id
        first = world.client.send(commit(5), 8)
        asked = (await world.connect()).send(
            OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])]), 7
        )
        await asyncio.sleep(0.1)
        second = (await world.connect()).send(commit(6), 8)
        await asyncio.sleep(0.1)
        assert world.partition(topic="__consumer_offsets").log.log_end_offset == 2
        request.topics[0].partitions[0].fetch_offset = 1
        await follower.client.request(request, 17)
        assert (await asked).topics[0].partitions[0].committed_offset == 5
        assert (await first).topics[0].partitions[0].error_code == NONE
        assert not second.done()

    simulate(run)


# Producers


def test_records_that_were_committed_by_too_few_are_reported_so() -> None:
    """The ISR was large enough at the append; it shrank during the flush."""

    async def run(world: Leading) -> None:
        follower = await begin(world, min_insync_replicas="2", flush_messages="1")
        await follower.catch_up()
        for committer in world.replicas.log_manager._committers.values():
            committer.delay_range_ms = (200, 200)
        produced = asyncio.ensure_future(world.send_produce(timeout_ms=5000))
        await asyncio.sleep(0.01)
        await follower.catch_up()
        assert world.partition().log.high_watermark == 3
        await world.fence(2)
        await asyncio.sleep(SOON_S)
        assert world.image().isr == (1,)
        assert not produced.done()
        answer = await produced
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1)

    simulate(run)


# A topic that is re-created


def test_a_re_created_topic_does_not_complete_requests_of_the_old_one() -> None:
    """Neither its records nor its deletes complete them; each is answered at once."""

    async def run(world: Leading) -> None:
        follower = await begin(world)
        produced = asyncio.ensure_future(world.send_produce(timeout_ms=5000))
        other = await world.connect()
        await asyncio.sleep(0.01)
        follower.end = 3
        fetching = asyncio.ensure_future(follower.fetch(wait_ms=5000))
        await asyncio.sleep(0.01)
        assert (await produced).error_code == NONE
        deleting = asyncio.ensure_future(world.delete(2, timeout_ms=5000, client=other))
        await asyncio.sleep(0.01)
        produced = asyncio.ensure_future(world.send_produce(timeout_ms=5000, client=await world.connect()))
        await asyncio.sleep(0.01)
        follower.start = 0
        assert fetching.done(), "a log start, and records"
        fetching = asyncio.ensure_future(follower.fetch(wait_ms=5000, fetch_offset=4))
        await asyncio.sleep(0.01)
        before = world.loop.time()
        await delete_topic(world)
        await world.create_topic("t", (1, 2))
        assert (await deleting).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await fetching).error_code in {ErrorCode.UNKNOWN_TOPIC_ID, NONE}
        assert world.loop.time() - before < SOON_S
        await world.produce(5, acks=1)
        newer = await world.follower(2, start=2, end=5)
        await newer.fetch()
        assert world.partition().log.log_start_offset == 0
        assert produced.done()

    simulate(run)
