"""A broker refuses the first batch of a producer for now: the batches behind it wait for it, whatever the reason was.

The log of the partition knows nothing of the producer. It would take the second batch for the first one, and the first
would be out of order for good (KAFKA-14312, KAFKA-15591, KAFKA-19880).
"""

from __future__ import annotations

import asyncio

import pytest

from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.records import read_batch_header
from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.simulation.client import WireClient
from lowtide.storage.log.producers.producer_state import ProducerStateManager
from lowtide.storage.log.producers.verifications import (
    EARLY_PRODUCERS_MAX,
    EARLY_REFUSALS_MAX,
    EarlyRefusals,
    Verifications,
)
from lowtide.storage.log.validation.validation_rules import QUICK_RECORDS

from .test_slow_produce import PARTITIONS, World, let_time_pass, produce_handler_of, simulate

NONE, UNKNOWN, UNKNOWN_ID, NOT_LEADER, OUT_OF_ORDER = (
    ErrorCode.NONE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
)


def batch(sequence: int, producer_id: int = 7, epoch: int = 0) -> bytes:
    return build_batch([(1, None, b"v", ())], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


async def send(
    client: WireClient, sequence: int, topic: str | bytes = "new", *, producer_id: int = 7, epoch: int = 0
) -> ErrorCode:
    """Produce a batch of one record, and return what comes of it."""
    name, topic_id, version = (topic, ZERO_TOPIC_ID, 9) if isinstance(topic, str) else ("", topic, 13)
    row = PartitionProduceData(index=0, records=batch(sequence, producer_id, epoch))
    data = TopicProduceData(name=name, topic_id=topic_id, partition_data=[row])
    response = await client.request(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), version)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


async def create(client: WireClient, name: str = "new") -> bytes:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
    response = await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
    assert response.topics[0].error_code == NONE
    topic_id: bytes = response.topics[0].topic_id
    return topic_id


def replicas_of(world: World) -> ReplicaManager:
    assert world.broker is not None
    assert world.broker.replicas is not None
    return world.broker.replicas


async def delete(world: World, client: WireClient) -> None:
    """Delete the topic, and let the worker do all that waits for it, when the partition isn't here any more."""
    answer = client.send(
        DeleteTopicsRequest(topics=[DeleteTopicState(name="new")], topic_names=[], timeout_ms=10_000), 6
    )
    await asyncio.sleep(1)
    assert ("new", 0) not in replicas_of(world).partitions
    world.worker.close()
    assert (await answer).responses[0].error_code == NONE


async def check_order(client: WireClient, topic: str | bytes = "new", first: int = 0) -> None:
    """The batches behind a refused first one are refused for now too; then all are sent again in order."""
    assert [await send(client, first + number, topic) for number in (1, 2)] == [NOT_LEADER, NOT_LEADER]
    assert [await send(client, first + number, topic) for number in (0, 1, 2, 3)] == [NONE] * 4


@pytest.mark.parametrize("others", [0, 1])
def test_a_topic_appears_between_two_batches(others: int) -> None:
    """Also where another producer is the first in the log."""

    async def run(world: World) -> None:
        client = await world.connect()
        assert await send(client, 0) == UNKNOWN
        await create(client)
        for number in range(others):
            assert await send(client, 0, producer_id=100 + number) == NONE
        await check_order(client)

    simulate(run)


def test_several_batches_are_refused_before_the_topic_appears() -> None:
    async def run(world: World) -> None:
        client = await world.connect()
        assert [await send(client, number) for number in (0, 1, 2)] == [UNKNOWN] * 3
        await create(client)
        assert [await send(client, number) for number in (3, 4)] == [NOT_LEADER] * 2
        assert [await send(client, number) for number in range(5)] == [NONE] * 5

    simulate(run)


def test_a_topic_is_known_by_its_id_before_it_is_here() -> None:
    """Another broker has the id, which this one doesn't know yet."""

    async def run(world: World) -> None:
        client = await world.connect()
        topic_id = await create(client)
        replicas = replicas_of(world)
        partition, known = replicas.partitions.pop(("new", 0)), replicas.image
        replicas.image = None
        assert await send(client, 0, topic_id) == UNKNOWN_ID
        replicas.image = known
        assert world.broker is not None
        assert world.broker.serving is not None
        world.broker.serving.partitions.hosted.add(partition)
        await check_order(client, topic_id)

    simulate(run)


def test_a_topic_is_created_again() -> None:
    """The producer continues where it was: there is nothing before in the new topic."""

    async def run(world: World) -> None:
        client = await world.connect()
        await create(client)
        assert await send(client, 0) == NONE
        await delete(world, client)
        assert await send(client, 1) == UNKNOWN
        await create(client)
        await check_order(client, first=1)

    simulate(run)


def test_a_batch_that_is_never_sent_again_holds_up_those_behind_it_once() -> None:
    async def run(world: World) -> None:
        client = await world.connect()
        assert await send(client, 0) == UNKNOWN
        await create(client)
        assert [await send(client, 1) for _ in range(2)] == [NOT_LEADER, NONE]
        assert await send(client, 0, epoch=1) == NONE

    simulate(run)


def test_another_epoch_of_the_producer_waits_for_nothing() -> None:
    async def run(world: World) -> None:
        client = await world.connect()
        assert await send(client, 5) == UNKNOWN
        await create(client)
        assert await send(client, 0, epoch=1) == NONE

    simulate(run)


def test_a_broker_that_is_fenced_refuses_the_first_batch() -> None:
    async def run(world: World) -> None:
        client = await world.connect()
        replicas = replicas_of(world)
        is_fenced, replicas.is_fenced = replicas.is_fenced, lambda: True
        assert await send(client, 0, "t") == NOT_LEADER
        replicas.is_fenced = is_fenced
        await check_order(client, "t")

    simulate(run)


def test_a_topic_is_created_again_while_a_batch_is_checked() -> None:
    """The batch was for the topic before. Its producer sends it again."""

    async def run(world: World) -> None:
        client, other = await world.connect(), await world.connect()
        await create(client)
        many = build_batch([(1, None, b"", ())] * (QUICK_RECORDS + 1), producer_id=7, producer_epoch=0, base_sequence=0)
        data = TopicProduceData(name="new", partition_data=[PartitionProduceData(index=0, records=many)])
        answer = client.send(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), 9)
        await asyncio.sleep(1)
        await delete(world, other)
        assert (await answer).responses[0].partition_responses[0].error_code == UNKNOWN
        await create(other)
        assert await send(client, QUICK_RECORDS + 1) == NOT_LEADER

    simulate(run)


def test_a_request_of_many_batches_for_which_there_is_no_room() -> None:
    async def run(world: World) -> None:
        client = await world.connect()
        kept = produce_handler_of(world).parts.kept
        let_time_pass(world)
        kept.count, world.clock.look_costs_ms = kept.limit + 1, 1
        rows = [PartitionProduceData(index=index, records=batch(0)) for index in range(PARTITIONS)]
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=rows)])
        last = (await client.request(request, 9)).responses[0].partition_responses[-1]
        assert last.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        kept.count, world.clock.look_costs_ms = 0, 0
        data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=last.index, records=batch(1))])
        later = await client.request(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), 9)
        assert later.responses[0].partition_responses[0].error_code == NOT_LEADER

    simulate(run)


def test_what_was_refused_early_is_bounded() -> None:
    early = EarlyRefusals()
    for number in range(EARLY_REFUSALS_MAX + 1):
        for producer_id in range(EARLY_PRODUCERS_MAX + 1 if number == 1 else 1):
            early.note(("t", number), (producer_id, 0), 0, now_ms=1)
    assert len(early) == EARLY_REFUSALS_MAX
    assert early.take(("t", 0)) is None
    taken = early.take(("t", 1))
    assert taken is not None
    assert len(taken) == EARLY_PRODUCERS_MAX
    assert early.take(("t", 1)) is None


def test_a_partition_takes_over_what_it_does_not_know_and_has_room_for() -> None:
    early, state = Verifications(9), ProducerStateManager(maximum_producers=3)
    for producer_id in range(5):
        early.note_refused(producer_id, 0, 5, now_ms=1)
    state.update(read_batch_header(batch(0, producer_id=0)), base_offset=0, now_ms=1)
    kept = state.verifications.begin(1, 0, 8, adds_itself=False, now_ms=1)
    state.verifications.take(early, state.producers)
    assert [state.verifications.find(number) is not None for number in range(5)] == [False, True, True, True, False]
    assert state.verifications.find(1) is kept
