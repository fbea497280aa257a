"""A DeleteRecords of very many partitions is executed in parts, and has one response."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lowtide.broker.handlers import delete_records
from lowtide.broker.network.routing.large_requests import Bounds
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

from .test_slow_produce import SMALL, World, simulate

COUNTS = {"a": 2, "b": 5}


async def begin(world: World) -> Any:
    """Topics of which each partition has three records."""
    client = await world.connect()
    topics = [
        CreatableTopic(name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[])
        for name, count in COUNTS.items()
    ]
    await client.request(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
    rows = [
        TopicProduceData(
            name=name, partition_data=[PartitionProduceData(index=index, records=SMALL) for index in range(count)]
        )
        for name, count in COUNTS.items()
    ]
    for _ in range(3):
        await client.request(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=rows), 9)
    return client


def request(timeout_ms: int = 1000) -> DeleteRecordsRequest:
    """One record of each partition, and of one partition that does not exist."""
    topics = [
        DeleteRecordsTopic(
            name=name,
            partitions=[
                DeleteRecordsPartition(partition_index=index, offset=1) for index in range(count + (name == "a"))
            ],
        )
        for name, count in COUNTS.items()
    ]
    return DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)


EXPECTED = {
    "a": [(0, 0, 1), (1, 0, 1), (2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)],
    "b": [(index, 0, 1) for index in range(5)],
}


def told(response: Any) -> dict[str, list[tuple[int, int, int]]]:
    return {
        topic.name: [(row.partition_index, row.error_code, row.low_watermark) for row in topic.partitions]
        for topic in response.topics
    }


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_all_is_deleted_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    deleted: list[int] = []
    request_log_starts = ReplicaManager.request_log_starts

    def spied(replicas: ReplicaManager, accepted: list[Any]) -> None:
        deleted.append(len(accepted))
        request_log_starts(replicas, accepted)

    monkeypatch.setattr(ReplicaManager, "request_log_starts", spied)
    monkeypatch.setattr(delete_records, "BOUNDS", Bounds(undivided_max=at_once, rows_at_once=at_once))

    async def test(world: World) -> None:
        client = await begin(world)
        assert told(await client.request(request(), 2)) == EXPECTED
        assert sum(deleted) == 7
        assert max(deleted) <= at_once
        again = await client.request(request(), 2)
        assert told(again) == EXPECTED, "a repeated delete succeeds"

    simulate(test)


def test_a_request_waits_for_the_disk_by_one_of_its_partitions() -> None:
    """One write makes all of them durable, and a wait for each would cost more than the write."""

    async def test(world: World) -> None:
        client, other = await begin(world), await world.connect()
        first = [asyncio.ensure_future(client.request(request(), 2))]
        assert world.broker is not None
        assert world.broker.replicas is not None
        waiting = world.broker.replicas.waiting.log_starts
        watched: set[int] = set()
        while not all(asked.done() for asked in first):
            if len(first) == 1 and waiting:
                first.append(asyncio.ensure_future(other.request(request(), 2)))  # Its deletes are on their way.
            watched.add(len(waiting.watched))
            await asyncio.sleep(0.00001)
        assert [told(asked.result()) for asked in first] == [EXPECTED, EXPECTED]
        assert watched == {0, 1}

    simulate(test)


def test_a_client_that_leaves_in_between_has_its_deletes_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all had been accepted at once."""
    monkeypatch.setattr(delete_records, "BOUNDS", Bounds(undivided_max=2, rows_at_once=2))

    async def test(world: World) -> None:
        client = await begin(world)
        asked = asyncio.ensure_future(client.request(request(), 2))
        await asyncio.sleep(0.0001)
        asked.cancel()
        client.close()
        await asyncio.sleep(10)
        assert told(await (await world.connect()).request(request(), 2)) == EXPECTED

    simulate(test)
