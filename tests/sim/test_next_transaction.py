"""A producer begins its next transaction while markers of the previous one are sent (KIP-890)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lowtide.broker.coordinator.runtime.offsets_topic import GROUP_TOPIC
from lowtide.broker.coordinator.transactions.marker_sender import MarkerSender
from lowtide.broker.coordinator.transactions.transaction_coordinator import TRANSACTION_TOPIC
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.end_txn import EndTxnRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.simulation.chronicle import Chronicle
from lowtide.simulation.client import WireClient
from lowtide.simulation.machines import Machine, State
from lowtide.simulation.shared_store import SharedStore

NAME, TOPIC = "x", "t"
PARTITIONS = 6
COORDINATOR, LEADER = 1, 2
NONE, CONCURRENT = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS
COMES_AGAIN = {
    CONCURRENT,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
AN_ANSWER_S = 0.03
"""Enough for a request to the coordinator and its response, and less than the time for which requests are repeated."""


class Cluster:
    """Three brokers: 1 coordinates transactions, 2 leads the topic, and the groups' offsets."""

    def __init__(self, loop: SimulatedLoop, patch: pytest.MonkeyPatch) -> None:
        self.loop = loop
        self.markers = asyncio.Event()
        """Set while markers may be sent to other brokers."""
        self.markers.set()
        self._hold_markers(patch)
        shared = SharedStore(loop, Random(1))
        settings = {"log.dirs": "/a", "offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
        self.machines = [
            Machine(
                loop=loop,
                shared=shared,
                broker_id=broker_id,
                random=Random(broker_id),
                settings=settings,
                chronicle=Chronicle(loop.time),
                effects=Counter(),
            )
            for broker_id in (1, 2, 3)
        ]
        self.identity = (-1, -1)
        self.sequence = 0

    def _hold_markers(self, patch: pytest.MonkeyPatch) -> None:
        ask = MarkerSender._ask

        async def ask_later(sender: Any, *arguments: Any) -> None:
            await self.markers.wait()
            await ask(sender, *arguments)

        patch.setattr(MarkerSender, "_ask", ask_later)

    async def begin(self) -> None:
        for machine in self.machines:
            machine.start()
        while not all(machine.state is State.UP for machine in self.machines):
            await asyncio.sleep(0.01)
        self.clients = {machine.broker_id: await WireClient.connect(*machine.address) for machine in self.machines}
        for name, leader, partitions in (
            (TOPIC, LEADER, PARTITIONS),
            (GROUP_TOPIC, LEADER, 1),
            (TRANSACTION_TOPIC, COORDINATOR, 1),
        ):
            rows = [
                CreatableReplicaAssignment(partition_index=number, broker_ids=[leader, 3])
                for number in range(partitions)
            ]
            topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=rows, configs=[])
            answer = await self.clients[1].request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
            assert answer.topics[0].error_code == NONE
        for key_type, broker_id in ((0, LEADER), (1, COORDINATOR)):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[NAME])
            found = await self.clients[1].request(request, 4)
            assert found.coordinators[0].node_id == broker_id
        answer = await self.settled(
            COORDINATOR, InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=60_000), 4
        )
        self.identity = (answer.producer_id, answer.producer_epoch)

    async def settled(self, broker_id: int, request: Any, version: int) -> Any:
        while True:
            answer = await self.clients[broker_id].request(request, version)
            if answer.error_code not in COMES_AGAIN:
                assert answer.error_code == NONE
                return answer
            await asyncio.sleep(0.01)

    def write(self, *partitions: int) -> Coroutine[Any, Any, list[ErrorCode]]:
        """Sends a batch to each, with its next sequence."""
        producer_id, epoch = self.identity
        batch = build_batch(
            [(1, None, b"v", ())],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self.sequence,
            is_transactional=True,
        )
        self.sequence += 1
        rows = [PartitionProduceData(index=number, records=batch) for number in partitions]
        request = ProduceRequest(
            transactional_id=NAME,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[TopicProduceData(name=TOPIC, partition_data=rows)],
        )
        sent = self.clients[LEADER].send(request, 12)

        async def answered() -> list[ErrorCode]:
            return [row.error_code for row in (await sent).responses[0].partition_responses]

        return answered()

    def commit_offset(self) -> Coroutine[Any, Any, list[ErrorCode]]:
        row = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=None)
        request = TxnOffsetCommitRequest(
            transactional_id=NAME,
            group_id=NAME,
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[row])],
        )
        sent = self.clients[LEADER].send(request, 5)

        async def answered() -> list[ErrorCode]:
            return [row.error_code for row in (await sent).topics[0].partitions]

        return answered()

    async def end(self, *, is_commit: bool) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=NAME, producer_id=self.identity[0], producer_epoch=self.identity[1], committed=is_commit
        )
        answer = await self.clients[COORDINATOR].request(request, 5)
        if answer.error_code == NONE:
            self.identity, self.sequence = (answer.producer_id, answer.producer_epoch), 0
        return ErrorCode(answer.error_code)


def simulate(patch: pytest.MonkeyPatch, run: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: SimulatedLoop) -> None:
        cluster = Cluster(loop, patch)
        await cluster.begin()
        await run(cluster)

    run_simulation(main, 1)


@pytest.mark.parametrize("what", ["write", "commit_offset"])
@pytest.mark.parametrize("is_commit", [True, False])
def test_its_first_request_waits_for_the_markers(what: str, is_commit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator first answers CONCURRENT_TRANSACTIONS; after the marker the write is verified again."""

    async def run(cluster: Cluster) -> None:
        async def act() -> list[ErrorCode]:
            return await (cluster.write(0) if what == "write" else cluster.commit_offset())

        assert await act() == [NONE]
        cluster.markers.clear()
        assert await cluster.end(is_commit=is_commit) == NONE
        waiting = asyncio.ensure_future(act())
        await asyncio.sleep(AN_ANSWER_S)
        assert not waiting.done()
        cluster.markers.set()
        assert await waiting == [NONE]
        assert await cluster.end(is_commit=True) == NONE

    simulate(monkeypatch, run)


def test_any_end_while_markers_are_written_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(cluster: Cluster) -> None:
        assert await cluster.write(0) == [NONE]
        cluster.markers.clear()
        assert await cluster.end(is_commit=True) == NONE
        assert [await cluster.end(is_commit=is_commit) for is_commit in (True, False)] == [CONCURRENT, CONCURRENT]
        cluster.markers.set()
        await asyncio.sleep(1)
        assert await cluster.end(is_commit=False) == NONE, "in an epoch in which nothing was written"

    simulate(monkeypatch, run)
