"""One real broker on virtual time that leads. The test plays the followers: registers them and sends fetches."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.lifecycle.broker import Broker, Ports
from lowtide.broker.lifecycle.logger import quiet_logger
from lowtide.metadata import keys
from lowtide.metadata.image import PartitionImage
from lowtide.metadata.memory import MemoryDisk, MemoryStore
from lowtide.metadata.records import BrokerRecord, Listener, PartitionRecord, encode
from lowtide.metadata.store import Put
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData, ReplicaState
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.replication.leadership import Leadership
from lowtide.replication.partition import Partition
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.heavy_work import SimulatedHeavyWorker
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock, SimulatedCommitter
from lowtide.runtime.worker import SimulatedWorker
from lowtide.simulation.client import WireClient

HOST, PORT, PREFIX = "broker-1", 9092, b"/lowtide/"
LAG_MS = 10_000
A_RECORD = build_batch([(1, None, b"record", ())])
NONE = ErrorCode.NONE


class Leading:
    """Broker 1, and the state of the others as the test sets it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.clock = SimulatedClock(loop)
        self.filesystem = MemoryFileSystem(random.Random(1))
        self.commit_ms = (0.1, 0.5)
        self.broker: Broker | None = None
        self.leases: dict[int, int] = {}
        self.epochs: dict[int, int] = {}

    async def start(self, *followers: int, racks: dict[int, str] | None = None, **settings: str) -> None:
        disk = MemoryDisk()
        self.store = MemoryStore(disk, clock=self.clock, random=random.Random(2), loop=self.loop)

        async def open_store(_directory: str) -> MemoryStore:
            return self.store

        ports = Ports(
            loop=self.loop,
            clock=self.clock,
            filesystem=self.filesystem,
            random=random.Random(3),
            worker=SimulatedWorker(self.loop, random.Random(5)),
            make_committer=lambda _directory: SimulatedCommitter(
                self.filesystem, self.loop, random.Random(4), self.commit_ms
            ),
            open_store=open_store,
            make_heavy_worker=lambda _processes: SimulatedHeavyWorker(self.filesystem, self.loop, random.Random(6)),
        )
        given = {
            "node.id": "1",
            "broker.rack": "r1",
            "log.dirs": "/data",
            "listeners": f"PLAINTEXT://{HOST}:{PORT}",
            "replica.lag.time.max.ms": str(LAG_MS),
        }
        config = load_config(settings=given | {name.replace("_", "."): value for name, value in settings.items()})
        broker = self.broker = Broker(config, ports, quiet_logger(logging.CRITICAL))
        started = self.loop.create_future()

        async def serve() -> None:
            await broker.start()
            started.set_result(None)

        self.loop.start_node(HOST).spawn(serve())
        await started
        for broker_id in followers:
            await self.register(broker_id, rack=(racks or {}).get(broker_id))
        self.client = await self.connect()

    async def connect(self) -> WireClient:
        return await WireClient.connect(HOST, PORT)

    # The other brokers
    async def register(self, broker_id: int, rack: str | None = None) -> int:
        """Begin a registration, after the end of an earlier one; returns the broker epoch when the image has it."""
        if broker_id in self.leases:
            await self.store.lease_revoke(self.leases[broker_id])
        lease = self.leases[broker_id] = await self.store.lease_grant(1_000_000_000)
        record = BrokerRecord(f"{broker_id}", (Listener("PLAINTEXT", f"broker-{broker_id}", PORT),), rack)
        result = await self.store.transact([], [Put(PREFIX + keys.broker(broker_id), encode(record), lease)])
        self.epochs[broker_id] = result.revision
        await self.see()
        return result.revision

    async def fence(self, broker_id: int) -> None:
        """End the registration."""
        await self.store.lease_revoke(self.leases[broker_id])
        await self.see()

    async def put(self, key: bytes, value: bytes, lease_of: int | None = None) -> None:
        """Write to the store as another process."""
        await self.store.transact([], [Put(PREFIX + key, value, self.leases[lease_of] if lease_of else 0)])
        await self.see()

    async def see(self) -> None:
        """Wait until the broker has received the contents of the store, and acted on them."""
        assert self.broker is not None
        assert self.broker.replicas is not None
        revision = await self.store.revision()
        while self.broker.replicas.image is None or self.broker.replicas.image.revision < revision:
            await asyncio.sleep(0.001)
        await self.broker.serving.partitions.assigned.settled()
        await asyncio.sleep(0.001)

    # The topic
    async def create_topic(self, name: str = "t", *partitions: tuple[int, ...], **configs: str) -> None:
        """A topic with these replicas; the first of each leads."""
        assignments = [
            CreatableReplicaAssignment(partition_index=number, broker_ids=list(replicas))
            for number, replicas in enumerate(partitions or ((1, 2, 3),))
        ]
        rows = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
        topic = CreatableTopic(
            name=name, num_partitions=-1, replication_factor=-1, assignments=assignments, configs=rows
        )
        answer = await self.client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
        assert [row.error_code for row in answer.topics] == [NONE], answer
        await self.see()

    @property
    def replicas(self) -> Any:
        assert self.broker is not None
        return self.broker.replicas

    def partition(self, number: int = 0, topic: str = "t") -> Partition:
        found: Partition = self.replicas.partitions[(topic, number)]
        return found

    def leadership(self, number: int = 0) -> Leadership:
        found = self.partition(number).leadership
        assert found is not None
        return found

    def image(self, number: int = 0) -> PartitionImage:
        found: PartitionImage = self.replicas.image.topics["t"].partitions[number]
        return found

    async def change(self, number: int = 0, **fields: Any) -> None:
        """Write a partition as the controller does: leader, leader epoch, ISR."""
        before = self.image(number)
        values: dict[str, Any] = {
            name: getattr(before, name)
            for name in (
                "replicas",
                "isr",
                "isr_epochs",
                "leader",
                "leader_epoch",
                "partition_epoch",
                "adding",
                "removing",
            )
        }
        values |= fields
        values["partition_epoch"] += 1
        topic_id = self.replicas.image.topics["t"].topic_id
        await self.put(keys.partition(topic_id, number), encode(PartitionRecord(**values)))

    # Requests
    async def produce(
        self, count: int = 1, *, acks: int = -1, timeout_ms: int = 1000, number: int = 0, client: Any = None
    ) -> Any:
        """Append batches of one record each; returns the last row."""
        row = None
        for _ in range(count):
            row = await self.send_produce(acks=acks, timeout_ms=timeout_ms, number=number, client=client)
        return row

    async def send_produce(self, *, acks: int = -1, timeout_ms: int = 1000, number: int = 0, client: Any = None) -> Any:
        rows = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=number, records=A_RECORD)])]
        request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=rows)
        answer = await (client or self.client).request(request, 10)
        return answer.responses[0].partition_responses[0]

    async def delete(
        self, offset: int, *, leader_only: bool = False, timeout_ms: int = 1000, number: int = 0, client: Any = None
    ) -> Any:
        topic = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=number, offset=offset)])
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms, leader_only=leader_only)
        answer = await (client or self.client).request(request, 3)
        return answer.topics[0].partitions[0]

    async def follower(self, broker_id: int, **state: Any) -> Follower:
        return Follower(self, await self.connect(), broker_id, **state)


class Follower:
    """The fetches of a follower of partition 0 of t. It reports given offsets and stores nothing."""

    def __init__(self, world: Leading, client: WireClient, broker_id: int, *, end: int = 0, start: int = 0) -> None:
        self.world = world
        self.client = client
        self.broker_id = broker_id
        self.end, self.start = end, start
        self.session_id, self.session_epoch = 0, -1

    async def fetch(self, *, wait_ms: int = 0, **changed: Any) -> PartitionData:
        """One fetch of the partition, without a session."""
        answer = await self.client.request(self.request(wait_ms=wait_ms, **changed), changed.get("version", 17))
        row: PartitionData = answer.responses[0].partitions[0]
        return row

    def request(self, *, wait_ms: int = 0, number: int = 0, version: int = 17, **changed: Any) -> FetchRequest:
        topic_id = self.world.replicas.image.topics["t"].topic_id
        values: dict[str, Any] = {
            "partition": number,
            "current_leader_epoch": self.world.partition(number).leader_epoch,
            "fetch_offset": self.end,
            "log_start_offset": self.start,
            "last_fetched_epoch": -1,
            "partition_max_bytes": 1 << 20,
        }
        values |= {name: value for name, value in changed.items() if name in values}
        state = ReplicaState(
            replica_id=changed.get("replica_id", self.broker_id),
            replica_epoch=changed.get("replica_epoch", self.world.epochs.get(self.broker_id, -1)),
        )
        with_state = version >= 15
        topic = FetchTopic(topic="t", partitions=[FetchPartition(**values)])
        if version >= 13:
            topic = FetchTopic(topic_id=topic_id, partitions=topic.partitions)
        return FetchRequest(
            replica_state=state if with_state else None,
            replica_id=-1 if with_state else state.replica_id,
            max_wait_ms=wait_ms,
            min_bytes=1,
            topics=[topic] if changed.get("names", True) else [],
            session_id=self.session_id,
            session_epoch=self.session_epoch,
        )

    async def catch_up(self) -> PartitionData:
        """Fetch twice, up to the current log end."""
        self.end = max(self.end, self.world.partition().log.log_end_offset)
        await self.fetch()
        return await self.fetch()


def simulate(test: Callable[[Leading], Coroutine[Any, Any, None]]) -> None:
    """Run `test` on virtual time."""

    async def main(loop: SimulatedLoop) -> None:
        await test(Leading(loop))

    run_simulation(main, 1)
