"""A throttled move of a partition on virtual time takes about bytes / rate, and delays no delete."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from lowtide.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.simulation.chronicle import Chronicle
from lowtide.simulation.client import WireClient
from lowtide.simulation.machines import Machine, State
from lowtide.simulation.shared_store import SharedStore

TOPIC = "t"
A_BATCH = build_batch([(1, None, b"x" * 10_000, ())])
COUNT = 100
RATE = 100_000
NEEDS_S = COUNT * len(A_BATCH) / RATE


class Cluster:
    """Three brokers; partition 0 of the topic is on 1 and 2."""

    def __init__(self, loop: SimulatedLoop, **settings: str) -> None:
        self.loop = loop
        self.shared = SharedStore(loop, Random(1))
        chronicle, effects = Chronicle(loop.time), Counter[str]()
        given = {"log.dirs": "/a", "replica.fetch.max.bytes": str(3 * len(A_BATCH))} | {
            name.replace("_", "."): text for name, text in settings.items()
        }
        self.machines = [
            Machine(
                loop=loop,
                shared=self.shared,
                broker_id=broker_id,
                random=Random(broker_id),
                settings=given,
                chronicle=chronicle,
                effects=effects,
            )
            for broker_id in (1, 2, 3)
        ]

    async def begin(self, **configs: str) -> None:
        for machine in self.machines:
            machine.start()
        while not all(machine.state is State.UP for machine in self.machines):
            await asyncio.sleep(0.01)
        self.client = await WireClient.connect(*self.machines[0].address)
        topic = CreatableTopic(
            name=TOPIC,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])],
            configs=[CreatableTopicConfig(name=name.replace("_", "."), value=text) for name, text in configs.items()],
        )
        answer = await self.client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
        assert answer.topics[0].error_code == ErrorCode.NONE
        for _ in range(COUNT):
            rows = [TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=A_BATCH)])]
            produced = await self.client.request(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=rows), 10)
            assert produced.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    @property
    def state(self) -> Any:
        return self.machines[0].broker.replicas.image.topics[TOPIC].partitions[0]

    async def reassign(self, *replicas: int) -> None:
        topics = [
            ReassignableTopic(
                name=TOPIC, partitions=[ReassignablePartition(partition_index=0, replicas=list(replicas))]
            )
        ]
        answer = await self.client.request(AlterPartitionReassignmentsRequest(topics=topics), 0)
        assert [row.error_code for row in answer.responses[0].partitions] == [ErrorCode.NONE]

    async def delete(self, offset: int) -> None:
        topics = [DeleteRecordsTopic(name=TOPIC, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])]
        answer = await self.client.request(DeleteRecordsRequest(topics=topics, timeout_ms=10_000), 2)
        assert [row.error_code for row in answer.topics[0].partitions] == [ErrorCode.NONE]

    async def until_moved(self, *replicas: int) -> float:
        """Returns the seconds it took."""
        started = self.loop.time()
        while (self.state.replicas, set(self.state.isr), self.state.adding) != (replicas, set(replicas), ()):
            await asyncio.sleep(0.01)
        return self.loop.time() - started


@pytest.mark.parametrize("side", ["leader", "follower", "both"])
def test_a_move_takes_about_its_bytes_over_the_rate(side: str) -> None:
    async def main(loop: SimulatedLoop) -> None:
        sides = {"leader": ("leader",), "follower": ("follower",), "both": ("leader", "follower")}[side]
        cluster = Cluster(loop, **{f"{each}_replication_throttled_rate": str(RATE) for each in sides})
        named = {"leader_replication_throttled_replicas": "0:1,0:2", "follower_replication_throttled_replicas": "0:3"}
        began = loop.time()
        await cluster.begin(**named)
        assert loop.time() - began < NEEDS_S / 2, "a replica in sync is not slowed down"
        await asyncio.sleep(15)  # The written bytes have left the windows.
        await cluster.reassign(1, 3)
        assert 0.75 < await cluster.until_moved(1, 3) / NEEDS_S < 1.25

    run_simulation(main, 1)


def test_without_a_throttle_it_is_quick() -> None:
    async def main(loop: SimulatedLoop) -> None:
        cluster = Cluster(loop)
        await cluster.begin(leader_replication_throttled_replicas="*", follower_replication_throttled_replicas="*")
        await cluster.reassign(1, 3)
        assert await cluster.until_moved(1, 3) < NEEDS_S / 5

    run_simulation(main, 1)


def test_a_delete_during_a_throttled_move_is_quick() -> None:
    """The added replica must have it too, and receives it though it may not receive records now."""

    async def main(loop: SimulatedLoop) -> None:
        cluster = Cluster(loop, follower_replication_throttled_rate=str(RATE))
        await cluster.begin(follower_replication_throttled_replicas="0:3")
        await cluster.reassign(1, 3)
        await asyncio.sleep(NEEDS_S / 4)
        for offset in range(1, 6):
            before = loop.time()
            await cluster.delete(offset)
            assert loop.time() - before < 0.05
            await asyncio.sleep(0.3)
        assert 3 not in cluster.state.isr, "it is still catching up"
        await cluster.until_moved(1, 3)

    run_simulation(main, 1)
