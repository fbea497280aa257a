"""A Fetch of very many partitions runs in slices: others are served in between, and no event is missed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker import turns
from lowtide.broker.network.connection import outgoing
from lowtide.broker.partitions.fetch import fetch_handler, fetch_in_slices, fetch_reader, usual_fetch
from lowtide.broker.partitions.fetch.fetch_in_slices import respond_in_steps
from lowtide.broker.partitions.fetch.fetch_reader import FetchReader
from lowtide.broker.partitions.fetch.fetch_session import FetchPlan
from lowtide.broker.partitions.fetch.fetch_targets import FetchOutcome, FetchRules, requested_targets
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, PartitionData
from lowtide.replication.topic_traffic import TrafficTable
from lowtide.simulation.client import WireClient

from . import test_leading_deletes, test_leading_records, test_leading_waits
from .test_slow_produce import PARTITIONS, SMALL, PassingTime, World, produce, rows, simulate

VERSION = 12
RULES = FetchRules(
    api_version=4,
    read_committed=False,
    is_follower=False,
    minimum_bytes=0,
    maximum_bytes=1 << 20,
    maximum_wait_ms=0,
    replica_id=-1,
)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten partitions count as very many, and a slice reads a few of them while the world's clock is slow."""
    monkeypatch.setattr(fetch_handler, "PARTITIONS_AT_ONCE", 10)
    monkeypatch.setattr(usual_fetch, "PARTITIONS_MAX", 10)
    monkeypatch.setattr(fetch_in_slices, "PARTITIONS_OF_A_STEP", 5)


def fetch(
    offset: int = 0,
    *,
    wait_ms: int = 0,
    minimum_bytes: int = 1,
    session_id: int = 0,
    session_epoch: int = -1,
    partitions: range = range(PARTITIONS),
    forget: range = range(0),
) -> FetchRequest:
    asked = [
        FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20) for number in partitions
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=minimum_bytes,
        max_bytes=1 << 24,
        isolation_level=0,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic(topic="t", partitions=asked)] if asked else [],
        forgotten_topics_data=[ForgottenTopic(topic="t", partitions=list(forget))] if forget else [],
        rack_id="",
    )


def told(response: Any) -> dict[int, tuple[int, int, int]]:
    """By partition: error, high watermark, bytes."""
    return {
        row.partition_index: (row.error_code, row.high_watermark, len(row.records or b""))
        for topic in response.responses
        for row in topic.partitions
    }


async def one_record_each(world: World) -> WireClient:
    client = await world.connect()
    assert rows(await client.request(produce(*[SMALL] * PARTITIONS), 9)) == [(ErrorCode.NONE, 0)] * PARTITIONS
    return client


def let_time_pass(world: World) -> None:
    """From now on slices take time."""
    assert world.broker is not None
    assert world.broker.replicas is not None
    world.broker.replicas.turns._loop = PassingTime(world.loop)
    world.clock.look_costs_ms = 1


def held(world: World) -> int:
    assert world.broker is not None
    assert world.broker.replicas is not None
    return world.broker.replicas.turns.partitions_held


def break_off(world: World) -> None:
    """Reset the connection: a client that only closes its side still receives its responses."""
    assert world.broker is not None
    assert world.broker.serving.host is not None
    world.broker.serving.host.abort_connections()


def watchers(world: World) -> int:
    assert world.broker is not None
    assert world.broker.replicas is not None
    return sum(len(partition.watchers) for partition in world.broker.replicas.partitions.values())


def test_a_large_fetch_of_a_session_lets_go_of_what_is_done() -> None:
    """What was read was in memory with the answer."""
    count = 2_000
    targets = list(requested_targets(fetch(partitions=range(count))).values())
    read = [
        (target, PartitionData(partition_index=target.partition, error_code=0, high_watermark=0, records=b""))
        for target in targets
    ]
    outcome = FetchOutcome(read, 0, False, 0)
    reader = FetchReader(SimpleNamespace(traffic=TrafficTable()), list)  # it reads nothing
    response = run_to_end(respond_in_steps(FetchPlan(), outcome, RULES, reader))
    assert outcome.answers == []
    assert [row.partition_index for topic in response.responses for row in topic.partitions] == list(range(count))


def run_to_end(steps: Generator[None, None, Any]) -> Any:
    """What the steps return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def test_others_are_served_between_two_slices_and_the_connection_keeps_its_order() -> None:
    async def run(world: World) -> None:
        client = await one_record_each(world)
        other = await world.connect()
        done: list[str] = []
        let_time_pass(world)
        large = client.send(fetch(), VERSION)
        behind = client.send(fetch(partitions=range(1)), VERSION)
        quick = other.send(fetch(partitions=range(1)), VERSION)
        for name, future in (("large", large), ("behind", behind), ("quick", quick)):
            future.add_done_callback(lambda _future, name=name: done.append(name))  # type: ignore[misc]
        await asyncio.gather(large, behind, quick)
        assert done == ["quick", "large", "behind"]
        assert told(large.result()) == {number: (ErrorCode.NONE, 1, len(SMALL)) for number in range(PARTITIONS)}
        assert (held(world), watchers(world)) == (0, 0)

    simulate(run)


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.02, 0.2])
def test_records_that_arrive_while_it_is_read_or_waits_ends_its_wait(after_s: float, in_session: bool) -> None:
    """Also in a partition that was read before the record arrived."""

    async def run(world: World) -> None:
        client = await one_record_each(world)
        other = await world.connect()
        let_time_pass(world)
        began = world.loop.time()
        waits = client.send(fetch(1, wait_ms=600_000, session_epoch=0 if in_session else -1), VERSION)
        await asyncio.sleep(after_s)
        await other.request(produce(SMALL), 9)
        response = await waits
        assert world.loop.time() - began < 10
        assert told(response)[0] == (ErrorCode.NONE, 2, len(SMALL))
        assert len(told(response)) == PARTITIONS
        assert held(world) == 0
        assert watchers(world) == (PARTITIONS if in_session else 0)

    simulate(run)


def test_it_waits_for_its_min_bytes_or_its_max_wait() -> None:
    async def run(world: World) -> None:
        client = await one_record_each(world)
        other = await world.connect()
        waits = client.send(fetch(1, wait_ms=5000, minimum_bytes=3 * len(SMALL)), VERSION)
        for _ in range(2):
            await asyncio.sleep(0.5)
            await other.request(produce(SMALL), 9)
        await asyncio.sleep(0.5)
        assert not waits.done()
        await other.request(produce(*[SMALL] * 50), 9)
        assert sum(size for _, _, size in told(await waits).values()) >= 3 * len(SMALL)
        began = world.loop.time()
        late = await client.request(fetch(1, wait_ms=5000, partitions=range(50, PARTITIONS)), VERSION)
        assert told(late) == dict.fromkeys(range(50, PARTITIONS), (ErrorCode.NONE, 1, 0))
        assert world.loop.time() - began >= 5
        assert (held(world), watchers(world)) == (0, 0)

    simulate(run)


def test_a_session_receives_what_changed_between_a_read_and_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that was read at its end and changes before the response must be visited by the next fetch."""
    reads: list[FetchRules] = []
    read = FetchReader.read

    def spied(reader: FetchReader, targets: Any, rules: FetchRules, **options: Any) -> FetchOutcome:
        reads.append(rules)
        return read(reader, targets, rules, **options)

    monkeypatch.setattr(FetchReader, "read", spied)

    async def run(world: World) -> None:
        client = await one_record_each(world)
        other = await world.connect()
        opened = await client.request(fetch(1, session_epoch=0), VERSION)
        let_time_pass(world)
        reads.clear()
        slow = client.send(fetch(1, session_id=opened.session_id, session_epoch=1), VERSION)
        while not reads:
            await asyncio.sleep(0.001)
        assert rows(await other.request(produce(SMALL), 9)) == [(ErrorCode.NONE, 1)]
        assert not slow.done()
        assert told(await slow) == {}
        following = await client.request(
            fetch(session_id=opened.session_id, session_epoch=2, partitions=range(0)), VERSION
        )
        assert told(following) == {0: (ErrorCode.NONE, 2, len(SMALL))}

    simulate(run)


@pytest.mark.parametrize("waits", [False, True])
def test_a_topic_that_is_deleted_between_two_slices_is_reported(waits: bool) -> None:
    async def run(world: World) -> None:
        client = await one_record_each(world)
        other = await world.connect()
        if not waits:
            let_time_pass(world)
        answer = client.send(fetch(1, wait_ms=600_000), VERSION)
        await asyncio.sleep(1 if waits else 0.006)
        deletion = other.send(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=60_000), 6)
        errors = {error for error, _, _ in told(await answer).values()}
        assert errors & {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER}
        world.clock.look_costs_ms = 0
        world.worker.close()
        await deletion
        assert held(world) == 0

    simulate(run)


def test_partitions_that_are_no_longer_led_here_are_reported() -> None:
    """A broker that is fenced between two slices."""

    async def run(world: World) -> None:
        client = await one_record_each(world)
        let_time_pass(world)
        assert world.broker is not None
        replicas = world.broker.replicas
        assert replicas is not None
        answer = client.send(fetch(1, wait_ms=600_000), VERSION)
        await asyncio.sleep(0.006)
        replicas.is_fenced = lambda: True
        assert world.broker.serving is not None
        world.broker.serving.partitions.hosted.on_fenced()
        assert ErrorCode.NOT_LEADER_OR_FOLLOWER in {error for error, _, _ in told(await answer).values()}
        assert held(world) == 0

    simulate(run)


@pytest.mark.parametrize("after_s", [0.006, 0.02, 1.0])
def test_nothing_is_left_of_a_closed_connection(after_s: float) -> None:
    async def run(world: World) -> None:
        client = await one_record_each(world)
        if after_s < 1:
            let_time_pass(world)
        answer = client.send(fetch(1, wait_ms=600_000), VERSION)
        await asyncio.sleep(after_s)
        assert held(world) >= PARTITIONS or after_s < 1
        break_off(world)
        with pytest.raises(ConnectionError):
            await answer
        await asyncio.sleep(1)
        assert (held(world), watchers(world)) == (0, 0)

    simulate(run)


def test_a_session_continued_by_another_connection_answers_the_first() -> None:
    async def run(world: World) -> None:
        client = await one_record_each(world)
        other = await world.connect()
        opened = await client.request(fetch(1, session_epoch=0), VERSION)
        let_time_pass(world)
        first = client.send(fetch(1, session_id=opened.session_id, session_epoch=1, wait_ms=600_000), VERSION)
        await asyncio.sleep(0.006)
        second = other.send(fetch(1, session_id=opened.session_id, session_epoch=2, forget=range(5, 50)), VERSION)
        assert (await first).error_code == (await second).error_code == ErrorCode.NONE
        assert held(world) == 0

    simulate(run)


def test_where_too_much_is_held_all_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So no client makes a broker hold more; the response has the bytes that are there."""
    monkeypatch.setattr(turns, "PARTITIONS_IN_SLICES_MAX", PARTITIONS + 10)

    async def run(world: World) -> None:
        client = await one_record_each(world)
        other = await world.connect()
        waits = client.send(fetch(1, wait_ms=600_000), VERSION)
        await asyncio.sleep(1)
        assert held(world) >= PARTITIONS
        assert len(told(await other.request(fetch(1, wait_ms=600_000), VERSION))) == PARTITIONS
        assert not waits.done()
        break_off(world)
        with pytest.raises(ConnectionError):
            await waits
        assert held(world) == 0

    simulate(run)


def test_a_stop_answers_it() -> None:
    async def run(world: World) -> None:
        client = await one_record_each(world)
        assert world.broker is not None
        reading = await world.connect()
        waits = client.send(fetch(1, wait_ms=600_000), VERSION)
        await asyncio.sleep(1)
        let_time_pass(world)
        reads = reading.send(fetch(1, wait_ms=600_000), VERSION)
        await asyncio.sleep(0.006)
        stopped = asyncio.ensure_future(world.broker.stop())
        assert len(told(await waits)) == len(told(await reads)) == PARTITIONS
        world.clock.look_costs_ms = 0
        await stopped

    simulate(run)


def test_a_bug_closes_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(world: World) -> None:
        client = await one_record_each(world)
        other = await world.connect()

        def broken(*_: Any, **__: Any) -> Any:
            raise AssertionError

        with monkeypatch.context() as patch:
            patch.setattr(FetchReader, "read", broken)
            with pytest.raises(ConnectionError):
                await client.request(fetch(), VERSION)
        assert held(world) == 0
        assert len(told(await other.request(fetch(), VERSION))) == PARTITIONS

    simulate(run)


def test_an_answer_of_very_many_pieces_is_sent_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, followed by the responses of later requests, and also to a client that has closed its side."""
    monkeypatch.setattr(outgoing, "PARTS_AT_ONCE", 7)
    for module in (fetch_reader, usual_fetch):
        monkeypatch.setattr(module, "READ_AT_ONCE_BYTES", 0)
    runs: list[int] = []
    gather = outgoing.OutgoingQueue._gather

    def spied(queue: outgoing.OutgoingQueue) -> list[outgoing.Buffer]:
        run = gather(queue)
        runs.append(len(run))
        return run

    monkeypatch.setattr(outgoing.OutgoingQueue, "_gather", spied)

    async def run(world: World) -> None:
        client = await one_record_each(world)
        answers = [client.send(fetch(partitions=range(count)), VERSION) for count in (9, 5, PARTITIONS, 2)]
        assert client._transport is not None
        client._transport.write_eof()
        for answer, count in zip(await asyncio.gather(*answers), (9, 5, PARTITIONS, 2), strict=True):
            assert told(answer) == {number: (ErrorCode.NONE, 1, len(SMALL)) for number in range(count)}
        assert max(runs) == 7
        await asyncio.sleep(1)
        assert client.lost

    simulate(run)


@pytest.mark.parametrize(
    "scenario",
    [
        test_leading_deletes.test_a_fetch_is_answered_at_once_while_there_is_a_log_start_to_report,
        test_leading_records.test_a_leader_that_is_deposed_answers_waiting_requests_at_once,
        test_leading_waits.test_a_re_created_topic_does_not_complete_requests_of_the_old_one,
    ],
)
def test_followers_with_large_fetches_are_answered_as_soon(
    monkeypatch: pytest.MonkeyPatch, scenario: Callable[[], None]
) -> None:
    """With a session they are read in slices; those of old brokers have no session, and watch each partition."""
    monkeypatch.setattr(fetch_handler, "PARTITIONS_AT_ONCE", 0)
    scenario()


def test_what_a_waiting_fetch_sends_is_counted_once() -> None:
    """It has read it before its wait, and reads it again for the answer."""

    async def run(world: World) -> None:
        client = await one_record_each(world)
        assert world.broker is not None
        assert world.broker.replicas is not None
        traffic = world.broker.replicas.traffic
        assert traffic.of_topic("t").bytes_out == 0
        answer = told(await client.request(fetch(wait_ms=100, minimum_bytes=1 << 20), VERSION))
        sent = sum(size for _, _, size in answer.values())
        assert sent > 0
        assert traffic.of_topic("t").bytes_out == sent

    simulate(run)
