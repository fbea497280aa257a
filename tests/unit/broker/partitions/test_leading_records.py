"""A leader with followers: what they receive, when records are committed, and which replicas are in sync."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import Any

import pytest

from lowtide.broker.partitions.fetch.fetch_reader import FetchReader, assumed_epoch
from lowtide.metadata import keys
from lowtide.metadata.records import encode
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchRequest
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.types import topic_id_text
from tests.unit.replication.leaders import image_of

from .leading import LAG_MS, NONE, Follower, Leading, simulate


def test_a_record_is_committed_when_all_in_sync_replicas_have_fetched_it() -> None:
    async def run(world: Leading) -> None:
        await world.start(2, 3)
        await world.create_topic()
        second, third = await world.follower(2), await world.follower(3)
        produced = asyncio.ensure_future(world.send_produce())
        await asyncio.sleep(0.05)
        answer = await second.fetch()
        assert (answer.error_code, answer.high_watermark, len(answer.records or b"")) == (NONE, 0, 74)
        assert len((await third.fetch()).records or b"") > 0
        second.end = 1
        assert (await second.fetch()).high_watermark == 0
        assert not produced.done()
        third.end = 1
        assert (await third.fetch()).high_watermark == 1, "the response to the fetch that commits it says so"
        row = await produced
        assert (row.error_code, row.base_offset) == (NONE, 0)

    simulate(run)


def test_acks_1_is_answered_at_once_and_several_acks_all_of_one_connection_wait_together() -> None:
    async def run(world: Leading) -> None:
        await world.start(2, 3)
        await world.create_topic()
        started = world.loop.time()
        assert (await world.send_produce(acks=1)).error_code == NONE
        assert world.loop.time() - started < 0.01
        waiting = [asyncio.ensure_future(world.send_produce()) for _ in range(5)]
        await asyncio.sleep(0.05)
        assert world.partition().log.log_end_offset == 6
        for follower in (await world.follower(2, end=6), await world.follower(3, end=6)):
            await follower.fetch()
        assert [(await row).base_offset for row in waiting] == [1, 2, 3, 4, 5]

    simulate(run)


def test_a_produce_that_no_follower_fetches_times_out_in_time() -> None:
    async def run(world: Leading) -> None:
        await world.start(2, 3)
        await world.create_topic()
        started = world.loop.time()
        row = await world.send_produce(timeout_ms=300)
        assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert 0.3 <= world.loop.time() - started < 0.35

    simulate(run)


@pytest.mark.parametrize("flush_messages", ["1", "9223372036854775807"])
def test_an_answer_waits_for_the_flush_and_the_commit(flush_messages: str) -> None:
    async def run(world: Leading) -> None:
        world.commit_ms = (50, 50)
        await world.start(2)
        await world.create_topic("t", (1, 2), flush_messages=flush_messages)
        follower = await world.follower(2)
        await follower.fetch()
        started = world.loop.time()
        produced = asyncio.ensure_future(world.send_produce())
        await asyncio.sleep(0.001)
        follower.end = 1
        await follower.fetch()
        assert (await produced).error_code == NONE
        assert (world.loop.time() - started > 0.04) == (flush_messages == "1")

    simulate(run)


@pytest.mark.parametrize("replicas", [(1,), (1, 2)])
def test_what_a_flush_leaves_that_is_not_due_any_more_is_answered(replicas: tuple[int, ...]) -> None:
    """A record appended during a flush waits for no other one if fewer than `flush.messages` are left, as in Kafka."""

    async def run(world: Leading) -> None:
        world.commit_ms = (50, 50)
        await world.start(2)
        await world.create_topic("t", replicas, flush_messages="3")
        outcomes: list[ErrorCode] = []
        await world.produce(2, acks=1)
        waiting = []
        for end in (3, 4):
            waiting.append(asyncio.ensure_future(world.send_produce(acks=1, client=await world.connect())))
            await asyncio.sleep(0.01)
            assert world.partition().log.log_end_offset == end
        if len(replicas) == 1:
            world.replicas.when_committed(world.partition(), 4, outcomes.append, timeout_ms=500)
        assert world.partition().log.recovery_point == 0
        rows = [await produced for produced in waiting]
        assert [(row.error_code, row.base_offset) for row in rows] == [(NONE, 2), (NONE, 3)]
        assert world.partition().log.recovery_point == 3
        assert outcomes == [NONE] * (len(replicas) == 1)

    simulate(run)


def test_a_leader_that_is_deposed_answers_waiting_requests_at_once() -> None:
    async def run(world: Leading) -> None:
        await world.start(2, 3)
        await world.create_topic()
        follower = await world.follower(2)
        await follower.fetch()
        waiting = follower.client.send(follower.request(wait_ms=5000), 17)
        produced = asyncio.ensure_future(world.send_produce(timeout_ms=5000))
        await asyncio.sleep(0.05)
        await waiting
        waiting = follower.client.send(follower.request(wait_ms=5000, fetch_offset=1), 17)
        started = world.loop.time()
        await world.change(leader=2, leader_epoch=1)
        row = await produced
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (2, 1)
        answer = await waiting
        assert answer.responses[0].partitions[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert answer.responses[0].partitions[0].current_leader.leader_id == 2
        assert [node.node_id for node in answer.node_endpoints] == [2], "the leader, and no other node"
        assert world.loop.time() - started < 0.05
        assert world.partition().leadership is None

    simulate(run)


def state_of(world: Leading) -> Any:
    leadership = world.leadership()
    return deepcopy((leadership.followers, leadership.floor, leadership.maximal_isr)), world.partition().log.describe()


FORGERIES: dict[str, tuple[dict[str, Any], int]] = {
    "not a replica": ({"replica_id": 77, "replica_epoch": 5}, ErrorCode.UNKNOWN_LEADER_EPOCH),
    "ourselves": ({"replica_id": 1}, ErrorCode.UNKNOWN_LEADER_EPOCH),
    "not a replica, no leader epoch": (
        {"replica_id": 77, "current_leader_epoch": -1},
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ),
    "no leader epoch": ({"current_leader_epoch": -1}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    "an old leader epoch": ({"current_leader_epoch": 3}, ErrorCode.FENCED_LEADER_EPOCH),
    "a later leader epoch": ({"current_leader_epoch": 9}, ErrorCode.UNKNOWN_LEADER_EPOCH),
    "no registration": ({"replica_epoch": -1}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    "an old version that has none": ({"version": 12}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    "an old registration": ({"replica_epoch": 1}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    "an offset above the end": ({"fetch_offset": 4}, ErrorCode.OFFSET_OUT_OF_RANGE),
    "an offset below the start": ({"fetch_offset": 0}, ErrorCode.OFFSET_OUT_OF_RANGE),
    "a log start above the end": ({"log_start_offset": 4}, ErrorCode.OFFSET_OUT_OF_RANGE),
    "an invalid log start": ({"log_start_offset": -2}, ErrorCode.OFFSET_OUT_OF_RANGE),
}


@pytest.mark.parametrize("name", list(FORGERIES))
def test_a_forged_or_old_fetch_changes_nothing(name: str) -> None:
    changed, code = FORGERIES[name]

    async def run(world: Leading) -> None:
        await world.start(2, 3)
        await world.create_topic()
        await world.change(leader_epoch=5)
        followers = [await world.follower(2), await world.follower(3)]
        await world.produce(3, acks=1)
        for follower in followers:
            await follower.catch_up()
        assert (await world.delete(1, leader_only=True)).error_code == NONE
        followers[0].start = 1
        before = state_of(world)
        for wait_ms in (0, 100):
            answer = await followers[0].fetch(wait_ms=wait_ms, **{"fetch_offset": 3, **changed})
            assert answer.error_code == code
            assert answer.high_watermark == -1
        assert state_of(world) == before

    simulate(run)


def test_a_diverging_fetch_receives_the_divergence_and_is_not_counted() -> None:
    async def run(world: Leading) -> None:
        await world.start(2, 3)
        await world.create_topic()
        await world.produce(2, acks=1)
        await world.change(leader_epoch=5)
        await world.produce(1, acks=1)
        follower = await world.follower(2, end=3)
        before = state_of(world)
        answer = await follower.fetch(last_fetched_epoch=0)
        assert (answer.error_code, answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (NONE, 0, 2)
        assert state_of(world) == before

    simulate(run)


async def begin(world: Leading, *, isr: tuple[int, ...] = (1, 2, 3), **configs: str) -> tuple[Follower, Follower]:
    """Three replicas, three records that all have, and the given ISR."""
    await world.start(2, 3)
    await world.create_topic(**configs)
    if isr != (1, 2, 3):
        await world.change(
            isr=isr, isr_epochs=tuple(world.epochs.get(member, world.image().isr_epochs[0]) for member in isr)
        )
    second, third = await world.follower(2), await world.follower(3)
    await world.produce(3, acks=1)
    return second, third


def test_a_follower_that_stays_behind_leaves_the_isr_and_its_absence_commits() -> None:
    async def run(world: Leading) -> None:
        second, third = await begin(world)
        await second.catch_up()
        await third.fetch()
        for _ in range(3 * LAG_MS // 1000):
            await asyncio.sleep(0.5)
            await second.fetch()
            await third.fetch()
        await world.see()
        assert world.image().isr == (1, 2)
        assert world.image().isr_epochs == (world.image().isr_epochs[0], world.epochs[2])
        assert world.partition().log.high_watermark == 3

    simulate(run)


def test_a_follower_that_has_caught_up_joins_under_its_registration() -> None:
    async def run(world: Leading) -> None:
        second, third = await begin(world, isr=(1,))
        third.end = 2
        await third.fetch()
        assert world.leadership().proposal is None, "it lacks a committed record"
        assert world.partition().log.high_watermark == 3
        await second.catch_up()
        assert world.leadership().maximal_isr == {1, 2}, "it counts as soon as it is proposed"
        await world.see()
        await asyncio.sleep(0.01)
        assert world.image().isr == (1, 2)
        assert world.image().isr_epochs[1] == world.epochs[2]
        assert world.leadership().proposal is None
        epoch = await world.register(3)
        await third.catch_up()
        await asyncio.sleep(0.01)
        assert (world.image().isr, world.image().isr_epochs[2]) == ((1, 2, 3), epoch)

    simulate(run)


@pytest.mark.parametrize("why", ["wants to stop", "offline directory", "fenced"])
def test_a_replica_that_may_not_be_in_sync_does_not_join(why: str) -> None:
    async def run(world: Leading) -> None:
        second, _ = await begin(world, isr=(1,))
        topic_id = world.replicas.image.topics["t"].topic_id
        if why == "wants to stop":
            await world.put(keys.shutdown(2), b"%d" % world.epochs[2], lease_of=2)
        elif why == "offline directory":
            await world.put(keys.offline(2), encode({topic_id_text(topic_id): [0]}), lease_of=2)
        else:
            await world.fence(2)
        await second.catch_up()
        await asyncio.sleep(0.1)
        assert world.leadership().maximal_isr == {1}

    simulate(run)


def test_too_few_in_sync_refuses_before_the_append_and_holds_the_high_watermark() -> None:
    async def run(world: Leading) -> None:
        second, third = await begin(world, isr=(1,), min_insync_replicas="2")
        assert world.partition().log.high_watermark == 0, "as in Kafka"
        assert (await world.send_produce()).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert world.partition().log.log_end_offset == 3
        await second.catch_up()
        await asyncio.sleep(0.01)
        assert world.partition().log.high_watermark == 3
        produced = asyncio.ensure_future(world.send_produce())
        await asyncio.sleep(0.01)
        await second.catch_up()
        assert (await produced).error_code == NONE
        del third

    simulate(run)


def test_min_insync_replicas_above_the_number_of_replicas_means_all_of_them() -> None:
    async def run(world: Leading) -> None:
        await world.start(2)
        await world.create_topic("t", (1,), min_insync_replicas="2")
        assert (await world.send_produce()).error_code == NONE

    simulate(run)


def test_a_session_answers_and_visits_only_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(world: Leading) -> None:
        await world.start(2)
        await world.create_topic("t", *[(1, 2)] * 50)
        follower = await world.follower(2)
        first = follower.request()
        first.topics[0].partitions = [deepcopy(first.topics[0].partitions[0]) for _ in range(50)]
        for number, row in enumerate(first.topics[0].partitions):
            row.partition = number
        first.session_epoch = 0
        answer = await follower.client.request(first, 17)
        assert len(answer.responses[0].partitions) == 50

        def again(epoch: int, wait_ms: int) -> FetchRequest:
            request = follower.request(wait_ms=wait_ms, names=False)
            request.session_id, request.session_epoch = answer.session_id, epoch
            return request

        started = world.loop.time()
        nothing = await follower.client.request(again(1, 200), 17)
        assert nothing.responses == []
        assert 0.19 < world.loop.time() - started < 0.25
        visited: list[int] = []
        find = FetchReader.find

        def spied(reader: FetchReader, target: Any, rules: Any) -> Any:
            visited.append(target.partition)
            return find(reader, target, rules)

        monkeypatch.setattr(FetchReader, "find", spied)
        waiting = follower.client.send(again(2, 5000), 17)
        await asyncio.sleep(0.01)
        assert visited == []
        await world.send_produce(number=7, acks=1)
        news = await waiting
        assert set(visited) == {7}
        assert [row.partition_index for row in news.responses[0].partitions] == [7]
        assert all(
            each.last_fetch_ms > 0 for number in range(50) for each in world.leadership(number).followers.values()
        )
        # Idle partitions stay caught up: they were fetched with the session.
        for epoch in range(3, 3 + 3 * LAG_MS // 400):
            request = again(epoch, 400)
            if epoch == 3:
                request.topics = follower.request(number=7, fetch_offset=1).topics
            await follower.client.request(request, 17)
        assert all(world.image(number).isr == (1, 2) for number in range(50))

    simulate(run)


def test_a_leader_counts_a_follower_of_a_session_that_is_silent_as_slow() -> None:
    async def run(world: Leading) -> None:
        second, _ = await begin(world)
        second.end = 3
        request = second.request()
        request.session_epoch = 0
        await second.client.request(request, 17)
        await world.produce(1, acks=1)
        await asyncio.sleep(1.3 * LAG_MS / 1000)
        await world.see()
        assert world.image().isr == (1,)

    simulate(run)


@pytest.mark.parametrize(
    ("version", "code"), [(7, ErrorCode.OFFSET_NOT_AVAILABLE), (4, ErrorCode.LEADER_NOT_AVAILABLE)]
)
def test_a_new_leader_that_does_not_know_what_is_committed_returns_no_end(version: int, code: int) -> None:
    """Otherwise it could return an end below that of its predecessor, and a reader would consider records lost."""

    async def run(world: Leading) -> None:
        second, third = await begin(world)
        await second.catch_up()
        assert world.partition().log.high_watermark == 0
        await world.change(leader_epoch=1)

        async def ask(timestamp: int, replica_id: int = -1) -> tuple[int, int]:
            topic = ListOffsetsTopic(
                name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
            )
            answer = await world.client.request(ListOffsetsRequest(replica_id=replica_id, topics=[topic]), version)
            row = answer.topics[0].partitions[0]
            return row.error_code, row.offset

        assert [await ask(timestamp) for timestamp in (-1, 0, -2)] == [(code, -1), (code, -1), (NONE, 0)]
        assert await ask(-1, replica_id=2) == (NONE, 3)
        await second.catch_up()
        third.end = 3
        await third.fetch()
        assert [await ask(timestamp) for timestamp in (-1, 0)] == [(NONE, 3), (NONE, 0)]

    simulate(run)


@pytest.mark.parametrize("gone", [False, True])
def test_a_batch_behind_a_refused_one_is_the_first_only_when_it_comes_again(gone: bool) -> None:
    """A log without state of the producer accepts any first batch: the retry of the refused one would be out of order.

    Where another leader got the refused one meanwhile, and has deleted it, it is never sent again.
    """

    def batch(sequence: int) -> ProduceRequest:
        records = build_batch([(1, None, b"v", ())], producer_id=7, producer_epoch=0, base_sequence=sequence)
        rows = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])]
        return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=rows)

    async def run(world: Leading) -> None:
        second, third = await begin(world, isr=(1,), min_insync_replicas="2")

        def send(sequence: int) -> asyncio.Future[Any]:
            return world.client.send(batch(sequence), 9)

        async def code(sent: asyncio.Future[Any]) -> ErrorCode:
            return ErrorCode((await sent).responses[0].partition_responses[0].error_code)

        assert await code(send(0)) == ErrorCode.NOT_ENOUGH_REPLICAS
        await second.catch_up()
        await asyncio.sleep(0.01)
        assert await code(send(1)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        sent = [send(sequence) for sequence in ((1, 2) if gone else (0, 1, 2))]
        await asyncio.sleep(0.01)
        await second.catch_up()
        assert [await code(each) for each in sent] == [NONE] * len(sent)
        assert await code(send(4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        del third

    simulate(run)


def test_an_epoch_is_assumed_while_no_report_is_needed() -> None:
    brokers = {1: 1, 2: 2, 3: 3}

    def epoch(broker_id: int, *, reporting: bool) -> int:
        return assumed_epoch(broker_id, image_of(10, brokers, reporting=reporting))

    assert [epoch(2, reporting=False), epoch(9, reporting=False)] == [2, -1]
    assert [epoch(2, reporting=True), epoch(9, reporting=True)] == [-1, -1]
