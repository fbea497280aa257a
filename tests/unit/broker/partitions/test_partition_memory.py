"""Partitions in memory: deleted ones leave nothing to the collector."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Iterator

import pytest

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.lifecycle.broker import Broker, Ports
from lowtide.broker.lifecycle.logger import quiet_logger
from lowtide.metadata.memory import MemoryDisk, MemoryStore
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.replication.partition import Partition
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock, SimulatedCommitter
from lowtide.runtime.worker import SimulatedWorker
from lowtide.simulation.client import WireClient
from lowtide.storage.log.log import Log
from lowtide.storage.log.segments.segment import Segment

HOST, PORT = "broker", 9092
PARTITIONS = 7
BATCH = build_batch([(1, None, b"x", ())])


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(kind: type) -> int:
    return sum(type(each) is kind for each in gc.get_objects())


async def use(client: WireClient, name: str) -> None:
    """Each partition is written, read and trimmed."""
    numbers = range(PARTITIONS)
    produced = [PartitionProduceData(index=number, records=BATCH) for number in numbers]
    await client.request(
        ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=name, partition_data=produced)]), 9
    )
    fetched = [FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1000) for number in numbers]
    await client.request(
        FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic=name, partitions=fetched)]), 11
    )
    trimmed = [DeleteRecordsPartition(partition_index=number, offset=-1) for number in numbers]
    topics = [DeleteRecordsTopic(name=name, partitions=trimmed)]
    response = await client.request(DeleteRecordsRequest(topics=topics, timeout_ms=1000), 2)
    assert [row.low_watermark for row in response.topics[0].partitions] == [1] * PARTITIONS


@pytest.mark.usefixtures("no_collections")
def test_a_deleted_partition_is_freed_without_the_collector() -> None:
    """The collector does not visit partitions that are older than a while."""

    async def main(loop: SimulatedLoop) -> None:
        filesystem, disk, clock = MemoryFileSystem(random.Random(1)), MemoryDisk(), SimulatedClock(loop)

        async def open_store(_directory: str) -> MemoryStore:
            return MemoryStore(disk, clock=clock, random=random.Random(2), loop=loop)

        ports = Ports(
            loop=loop,
            clock=clock,
            filesystem=filesystem,
            random=random.Random(3),
            worker=SimulatedWorker(loop, random.Random(5)),
            make_committer=lambda _directory: SimulatedCommitter(filesystem, loop, random.Random(4)),
            open_store=open_store,
        )
        config = load_config(settings={"log.dirs": "/data", "listeners": f"PLAINTEXT://{HOST}:{PORT}"})
        broker = Broker(config, ports, quiet_logger(logging.CRITICAL))
        started = loop.create_future()

        async def serve() -> None:
            await broker.start()
            started.set_result(None)

        loop.start_node(HOST).spawn(serve())
        await started
        client = await WireClient.connect(HOST, PORT)
        before = {kind: alive(kind) for kind in (Partition, Log, Segment)}
        for name in ("a", "b"):
            topic = CreatableTopic(
                name=name, num_partitions=PARTITIONS, replication_factor=1, assignments=[], configs=[]
            )
            await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
            await use(client, name)
        assert alive(Log) == before[Log] + 2 * PARTITIONS
        await client.request(DeleteTopicsRequest(topic_names=["a"], timeout_ms=10_000), 5)
        await asyncio.sleep(100)
        assert {kind: alive(kind) - count for kind, count in before.items()} == dict.fromkeys(before, PARTITIONS)

    run_simulation(main, 1)
