"""Three brokers that serve share groups, on virtual time, with a client of the wire for each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.types import TopicId
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.simulation.chronicle import Chronicle
from lowtide.simulation.client import ConnectionLostError, WireClient
from lowtide.simulation.machines import Machine, State
from lowtide.simulation.shared_store import SharedStore

COMES_AGAIN = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
SETTINGS = {
    "log.dirs": "/a",
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.prune.interval.ms": "1000",
    "share.coordinator.snapshot.update.records.per.snapshot": "5",
}
GROUP, SHARE = 0, 2
LIMIT_S = 600
"""The limit in virtual time: waiting for something that never comes must fail."""


class ShareCluster:
    """The brokers, and one topic `t`."""

    def __init__(self, loop: SimulatedLoop, settings: dict[str, str], partitions: int = 2) -> None:
        self.partitions = partitions
        shared = SharedStore(loop, Random(1))
        self.machines = [
            Machine(
                loop=loop,
                shared=shared,
                broker_id=broker_id,
                random=Random(broker_id),
                settings=SETTINGS | settings,
                chronicle=Chronicle(loop.time),
                effects=Counter(),
            )
            for broker_id in (1, 2, 3)
        ]
        self.clients: dict[int, WireClient] = {}
        self.topic_id: TopicId = b""

    async def begin(self) -> None:
        for machine in self.machines:
            machine.start()
        await self.up()
        self.topic_id = await self.create("t", self.partitions)

    async def up(self) -> None:
        """All machines serve, and have a client."""
        while not all(machine.state is State.UP for machine in self.machines):
            await asyncio.sleep(0.01)
        for machine in self.machines:
            client = self.clients.get(machine.broker_id)
            if client is None or client.lost:
                self.clients[machine.broker_id] = await WireClient.connect(*machine.address)

    async def create(self, name: str, partitions: int) -> TopicId:
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=3, assignments=[], configs=[])
        answer = await self.clients[1].request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
        assert answer.topics[0].error_code == ErrorCode.NONE
        found: TopicId = answer.topics[0].topic_id
        return found

    def kill(self, broker_id: int) -> None:
        machine = self.machines[broker_id - 1]
        machine.kill()
        self.clients[broker_id].close()

    async def coordinator(self, key: str, key_type: int, *, but: int = -1) -> int:
        """Returns the broker that coordinates a key, when there is one other than `but`."""
        while True:
            for broker_id, client in self.clients.items():
                if client.lost or broker_id == but:
                    continue
                request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
                row = (await client.request(request, 6)).coordinators[0]
                if row.error_code == ErrorCode.NONE and row.node_id != but:
                    found: int = row.node_id
                    return found
                assert row.error_code in (ErrorCode.NONE, *COMES_AGAIN), row.error_code
            await asyncio.sleep(0.05)

    async def settled(self, key: str, key_type: int, request: Any, version: int, error_of: Callable[[Any], int]) -> Any:
        """Returns the answer of the coordinator of a key, when it can give one."""
        while True:
            try:
                broker_id = await self.coordinator(key, key_type)
                answer = await self.clients[broker_id].request(request, version)
            except ConnectionLostError:
                await asyncio.sleep(0.05)
                continue
            if error_of(answer) not in COMES_AGAIN:
                return answer
            await asyncio.sleep(0.05)


def simulate(run: Callable[[ShareCluster], Coroutine[Any, Any, None]], **settings: str) -> None:
    """Runs with a cluster that serves."""

    async def main(loop: SimulatedLoop) -> None:
        cluster = ShareCluster(loop, {name.replace("_", "."): value for name, value in settings.items()})
        async with asyncio.timeout(LIMIT_S):
            await cluster.begin()
            await run(cluster)

    run_simulation(main, 1)
