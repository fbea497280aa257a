"""Topics created, grown and deleted by many clients at once, with brokers that fail meanwhile, on virtual time.

Of equal requests one succeeds, and the others get the response of a later request; different requests all succeed.
Growth is complete or has not happened, for a power cut at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from lowtide.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.runtime.simulated_loop import SimulatedLoop
from lowtide.simulation.broker_simulation import Simulation
from lowtide.simulation.client import ConnectionLostError, WireClient

MANY = 8
TIMEOUT_MS = 30_000

DURABLE = [CreatableTopicConfig(name="flush.messages", value="1")]
"""So that acknowledged records survive a power cut."""

Scenario = Callable[[Simulation], Coroutine[Any, Any, None]]


def simulated(scenario: Scenario, seed: int = 1) -> None:
    """Runs `scenario` with a broker that serves."""
    loop = SimulatedLoop(seed)
    simulation = Simulation(loop, seed, flush_each_append=True)

    async def run() -> None:
        await simulation.start()
        await scenario(simulation)

    try:
        loop.run_until_complete(run())
        assert loop.failures() == []
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    finally:
        loop.close()


def creation(name: str, partitions: int = 1, timeout_ms: int = TIMEOUT_MS) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=DURABLE)
    return CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)


def growth(
    name: str, count: int, *, assignments: Sequence[Sequence[int]] | None = None, validate_only: bool = False
) -> CreatePartitionsRequest:
    rows = (
        None
        if assignments is None
        else [CreatePartitionsAssignment(broker_ids=list(replicas)) for replicas in assignments]
    )
    topic = CreatePartitionsTopic(name=name, count=count, assignments=rows)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=validate_only)


async def create(client: WireClient, name: str, partitions: int = 1) -> int:
    return int((await client.request(creation(name, partitions), 7)).topics[0].error_code)


async def grow(client: WireClient, name: str, count: int, **options: Any) -> int:
    return int((await client.request(growth(name, count, **options), 3)).results[0].error_code)


async def delete(client: WireClient, name: str) -> int:
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=TIMEOUT_MS)
    return int((await client.request(request, 5)).responses[0].error_code)


async def partition_count(client: WireClient, name: str) -> int:
    topic = MetadataRequestTopic(name=name)
    found = (await client.request(MetadataRequest(topics=[topic], allow_auto_topic_creation=False), 12)).topics[0]
    return len(found.partitions)


async def produce(client: WireClient, name: str, partition: int) -> int:
    batch = build_batch([(1_700_000_000_000, None, b"%d" % partition, ())])
    data = TopicProduceData(name=name, partition_data=[PartitionProduceData(index=partition, records=batch)])
    answer = await client.request(ProduceRequest(acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[data]), 9)
    return int(answer.responses[0].partition_responses[0].error_code)


def partition_keys(simulation: Simulation) -> list[bytes]:
    return [key for key in simulation.disk.keys if b"parts/" in key]


async def clients(simulation: Simulation) -> list[WireClient]:
    return [await simulation.connect() for _ in range(MANY)]


def test_of_many_creations_of_one_topic_one_succeeds() -> None:
    """The others receive TOPIC_ALREADY_EXISTS, and no retriable error."""

    async def scenario(simulation: Simulation) -> None:
        codes = await asyncio.gather(*(create(client, "t", 250) for client in await clients(simulation)))
        assert sorted(codes) == [ErrorCode.NONE] + [ErrorCode.TOPIC_ALREADY_EXISTS] * (MANY - 1)

    simulated(scenario)


def test_topics_of_different_names_are_all_created() -> None:
    async def scenario(simulation: Simulation) -> None:
        codes = await asyncio.gather(
            *(create(client, f"t{number}") for number, client in enumerate(await clients(simulation)))
        )
        assert codes == [ErrorCode.NONE] * MANY

    simulated(scenario)


def test_names_that_collide_are_not_both_created() -> None:
    """`a.b` and `a_b` have the same metric name; also for concurrent requests."""

    async def scenario(simulation: Simulation) -> None:
        codes = await asyncio.gather(
            *(create(client, name) for client, name in zip(await clients(simulation), ["a.b", "a_b"], strict=False))
        )
        assert sorted(codes) == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]

    simulated(scenario)


def test_of_many_deletions_of_one_topic_one_succeeds() -> None:
    """Requests by name receive an unknown topic, requests by id an unknown id."""

    async def scenario(simulation: Simulation) -> None:
        everybody = await clients(simulation)
        made = await everybody[0].request(creation("t", 3), 7)
        by_id = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=made.topics[0].topic_id)], timeout_ms=TIMEOUT_MS)
        asked = [delete(client, "t") for client in everybody[1:]]
        codes = await asyncio.gather(*asked, everybody[0].request(by_id, 6))
        last = codes.pop().responses[0]
        assert sorted(codes) == [ErrorCode.NONE] + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * (MANY - 2)
        assert last.error_code == ErrorCode.UNKNOWN_TOPIC_ID

    simulated(scenario)


def test_a_topic_that_several_grow_has_the_largest_count() -> None:
    """A request after a larger growth receives that its count is no increase."""

    async def scenario(simulation: Simulation) -> None:
        everybody = await clients(simulation)
        await create(everybody[0], "t")
        counts = [130, 3, 5, 130, 140, 2, 251, 4]
        codes = await asyncio.gather(
            *(grow(client, "t", count) for client, count in zip(everybody, counts, strict=True))
        )
        assert set(codes) == {ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS}
        grown = [count for count, code in zip(counts, codes, strict=True) if code == ErrorCode.NONE]
        assert grown == sorted(set(grown))
        assert await partition_count(everybody[0], "t") == 251

    simulated(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_growth_and_deletion_at_once(seed: int) -> None:
    """Both orders are possible; a deleted topic leaves nothing, so that its name can be reused."""

    async def scenario(simulation: Simulation) -> None:
        first, second, third = (await clients(simulation))[:3]
        await create(first, "t", 120)
        grown, deleted, made = await asyncio.gather(grow(first, "t", 300), delete(second, "t"), create(third, "t", 2))
        assert grown in {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert deleted == ErrorCode.NONE
        assert made in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
        assert await partition_count(first, "t") == (2 if made == ErrorCode.NONE else 0)
        assert len(partition_keys(simulation)) == (2 if made == ErrorCode.NONE else 0)

    simulated(scenario, seed)


def test_new_partitions_are_served_when_they_are_answered_and_survive_a_power_cut() -> None:
    """A client may produce to them at once; their records are there after the machine restarts."""

    async def scenario(simulation: Simulation) -> None:
        client = await simulation.connect()
        await create(client, "t", 2)
        assert await grow(client, "t", 9, validate_only=True) == ErrorCode.NONE
        assert await partition_count(client, "t") == 2
        assert await grow(client, "t", 4, assignments=[[1], [2]]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert simulation.broker is not None
        own = simulation.broker.config.node_id
        assert await grow(client, "t", 4, assignments=[[own], [own]]) == ErrorCode.NONE
        assert await grow(client, "t", 254) == ErrorCode.NONE
        assert [await produce(client, "t", partition) for partition in range(254)] == [ErrorCode.NONE] * 254
        simulation.end_life(power=True)
        await simulation.start()
        client = await simulation.connect()
        assert await partition_count(client, "t") == 254
        logs = simulation.broker.log_manager.logs
        assert sorted(key.partition for key in logs) == list(range(254))
        assert {log.log_end_offset for log in logs.values()} == {1}
        assert await grow(client, "t", 255) == ErrorCode.NONE
        assert await produce(client, "t", 254) == ErrorCode.NONE

    simulated(scenario)


def test_growth_is_whole_or_has_not_happened_when_the_broker_fails() -> None:
    """At any of the three steps of 250 partitions.

    Then the topic grows again, by fewer and by more partitions than attempted.
    """
    found: set[tuple[int, int]] = set()

    async def scenario(simulation: Simulation, seed: int) -> None:
        client = await simulation.connect()
        await create(client, "t")
        written = simulation.disk.writes
        answer = asyncio.ensure_future(grow(client, "t", 251))
        while simulation.disk.writes < written + seed % 4:
            await asyncio.sleep(0.0001)
        simulation.end_life(power=seed % 2 == 0)
        with pytest.raises(ConnectionLostError):
            await answer
        on_disk = len(partition_keys(simulation))
        await simulation.start()
        client = await simulation.connect()
        count = await partition_count(client, "t")
        found.add((count, on_disk))
        assert len(partition_keys(simulation)) == count, "the remains of an earlier controller are swept"
        assert await grow(client, "t", count + 2) == ErrorCode.NONE
        assert [await produce(client, "t", partition) for partition in range(count + 2)] == [ErrorCode.NONE] * (
            count + 2
        )
        assert await grow(client, "t", 300) == ErrorCode.NONE
        assert await delete(client, "t") == ErrorCode.NONE
        assert partition_keys(simulation) == []

    for seed in range(12):
        simulated(partial(scenario, seed=seed), seed)
    assert found == {(1, 1), (1, 101), (1, 201), (251, 251)}


def test_without_time_nothing_is_done() -> None:
    """A timeout of 0 or less expires at once, for any request, as in Kafka."""

    async def scenario(simulation: Simulation) -> None:
        client = await simulation.connect()
        for timeout_ms in (0, -1):
            answer = await client.request(creation("t", timeout_ms=timeout_ms), 7)
            assert answer.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
            checked = creation("t", timeout_ms=timeout_ms)
            checked.validate_only = True
            assert (await client.request(checked, 7)).topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert await create(client, "t") == ErrorCode.NONE
        for name in ("t", "nobody"):
            topic = CreatePartitionsTopic(name=name, count=2, assignments=None)
            answer = await client.request(CreatePartitionsRequest(topics=[topic], timeout_ms=0, validate_only=False), 3)
            assert answer.results[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        answer = await client.request(DeleteTopicsRequest(topic_names=["t"], timeout_ms=0), 5)
        assert answer.responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert await partition_count(client, "t") == 1

    simulated(scenario)
