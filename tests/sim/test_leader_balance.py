"""A full process gives leadership to one of the same machine with room, once, without losing a record."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

import pytest

from lowtide.broker.lifecycle.running import give
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.replication.leader_balance import BalanceRules, BrokerLoad, LeaderBalance
from lowtide.replication.topic_names import INTERNAL_TOPICS
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SIMULATION_WALL_START_MS, SimulatedClock
from lowtide.runtime.thread_usage import ThreadUsage
from lowtide.simulation.chronicle import Chronicle
from lowtide.simulation.client import WireClient
from lowtide.simulation.machines import Machine, State
from lowtide.simulation.neighbours import Beside, SharedMachine
from lowtide.simulation.shared_store import SharedStore

PARTITIONS: Final = 6
PAUSE_S: Final = 0.8
"""Between two records of a partition. With `RECORD_NS` each takes a sixth of a core."""
RECORD_NS: Final = 130_000_000
SETTINGS: Final = {
    "log.dirs": "/a",
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "2000",
    "replica.fetch.wait.max.ms": "5000",
    "leader.imbalance.check.interval.seconds": "15",
}
RECORD: Final = bytes(build_batch([(SIMULATION_WALL_START_MS, None, b"x", ())]))


class World:
    """Brokers 1 and 2 of a machine. A broker's loop runs for so long for each record that it appends as leader."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.shared = SharedStore(loop, Random(1))
        self.balance = LeaderBalance(BalanceRules())
        self.machines = [
            SharedMachine(
                loop=loop,
                shared=self.shared,
                broker_id=broker_id,
                random=Random(broker_id),
                settings=SETTINGS,
                chronicle=Chronicle(loop.time),
                effects=Counter(),
            )
            for broker_id in (1, 2)
        ]
        self.moved: list[tuple[int, int, int]] = []
        self.acknowledged = Counter[int]()
        for machine in self.machines:
            machine.neighbours = Beside(self.machines, self._on_load)
            machine.read_usage = lambda machine=machine: ThreadUsage(RECORD_NS * appended(machine), 0, 0)  # type: ignore[misc]

    def _on_load(self, load: BrokerLoad) -> None:
        """As a supervisor does it."""
        self.balance.on_load(load)
        for move in self.balance.moves(SimulatedClock(self.loop).monotonic_ms()):
            self.moved.append((move.partition, move.giver, move.receiver))
            broker = self.machines[move.giver - 1].broker
            assert broker is not None
            give(broker, move)

    async def begin(self) -> None:
        """All partitions are led by broker 1."""
        for machine in self.machines:
            machine.start()
        await self.until(lambda: all(machine.state is State.UP for machine in self.machines))
        rows = [CreatableReplicaAssignment(partition_index=number, broker_ids=[1, 2]) for number in range(PARTITIONS)]
        topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=rows, configs=[])
        client = await WireClient.connect(*self.machines[0].address)
        await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
        client.close()
        await self.until(lambda: "t" in self.image.topics)

    async def until(self, condition: object) -> None:
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.05)

    @property
    def image(self) -> MetadataImage:
        """As the store has it now."""
        self.shared.follow(lambda _image, _batch: None)
        return self.shared.image

    def leaders(self) -> list[int]:
        return [state.leader for state in self.image.topics["t"].partitions]

    async def produce(self, number: int, until_s: float) -> None:
        """A record after the other, to the leader that the metadata name."""
        clients = [await WireClient.connect(*machine.address) for machine in self.machines]
        data = PartitionProduceData(index=number, records=RECORD)
        request = ProduceRequest(
            acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
        )
        while self.loop.time() < until_s:
            answer = await clients[self.leaders()[number] - 1].request(request, 9)
            code = answer.responses[0].partition_responses[0].error_code
            assert code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.acknowledged[number] += code == ErrorCode.NONE
            await asyncio.sleep(PAUSE_S)
        for client in clients:
            client.close()

    async def load(self, for_s: float) -> None:
        until_s = self.loop.time() + for_s
        await asyncio.gather(*(self.produce(number, until_s) for number in range(PARTITIONS)))


def appended(machine: Machine) -> int:
    """Records that its broker has appended as leader in this life."""
    broker = machine.broker
    if broker is None or broker.replicas is None:
        return 0
    return sum(
        partition.traffic.produce_requests
        for partition in broker.replicas.partitions.values()
        if partition.topic_partition.topic not in INTERNAL_TOPICS
    )


@pytest.mark.parametrize("moves", [True, False])
def test_a_full_process_gives_leaderships_away(moves: bool) -> None:
    """As many as it takes, and they stay, also when preferred leaders are elected. Without reports nothing moves."""

    async def scenario(loop: SimulatedLoop) -> None:
        world = World(loop)
        if not moves:
            for machine in world.machines:
                machine.settings["lowtide.leader.balance.enable"] = "false"
        await world.begin()
        assert world.leaders() == [1] * PARTITIONS
        await world.load(50.0)
        given = len(world.moved)
        await world.load(60.0 if moves else 10.0)
        assert len(world.moved) == given, "more moved under the same load"
        broker = world.machines[0].broker
        assert broker is not None
        assert broker.serving is not None
        leaders = world.leaders()
        if moves:
            assert given == 2
            assert all((giver, receiver) == (1, 2) for _, giver, receiver in world.moved)
            assert sorted(leaders) == [1] * (PARTITIONS - given) + [2] * given
            preferred = [state.replicas[0] for state in world.image.topics["t"].partitions]
            assert preferred == leaders
        else:
            assert (given, leaders) == (0, [1] * PARTITIONS)
        for key, partition in world.machines[leaders[0] - 1].broker.replicas.partitions.items():
            assert partition.log.log_end_offset == world.acknowledged[key.partition]

    run_simulation(scenario, seed=1)
