"""Batches of transactions that take long to check: each is verified, and none is answered before it is written."""

from __future__ import annotations

import asyncio
from typing import Any

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.produce import ProduceRequest
from lowtide.simulation.client import WireClient
from lowtide.storage.log.validation.validation_rules import QUICK_RECORDS

from .test_slow_produce import World, produce, rows, simulate

NONE = ErrorCode.NONE
WITHOUT_EPOCHS, BY_ITSELF = 9, 12


async def begin(client: WireClient, name: str) -> tuple[int, int]:
    """A producer with that transactional id."""
    while True:
        await client.request(FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4)
        answer = await client.request(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000), 4)
        if answer.error_code == NONE:
            return answer.producer_id, answer.producer_epoch
        await asyncio.sleep(0.1)


async def add(client: WireClient, name: str, identity: tuple[int, int]) -> None:
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=identity[0],
        v3_and_below_producer_epoch=identity[1],
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0, 1])],
    )
    answer = await client.request(request, 3)
    assert {row.partition_error_code for row in answer.results_by_topic_v3_and_below[0].results_by_partition} == {NONE}


def many(name: str, identity: tuple[int, int], *, partitions: int = 1) -> ProduceRequest:
    """A request whose batches the worker checks."""
    batch = build_batch(
        [(1, None, b"", ())] * (QUICK_RECORDS + 1),
        producer_id=identity[0],
        producer_epoch=identity[1],
        base_sequence=0,
        is_transactional=True,
    )
    request = produce(*[batch] * partitions)
    request.transactional_id = name
    return request


async def finish(world: World, *waiting: Any) -> list[Any]:
    """Let the worker work until all are answered."""
    while not all(each.done() for each in waiting):
        await asyncio.sleep(0.1)
        if world.worker.waiting:
            world.worker.step()
    return [await each for each in waiting]


def test_the_worker_returns_a_batch_to_its_own_transaction() -> None:
    async def run(world: World) -> None:
        first, second = await world.connect(), await world.connect()
        one, two = await begin(first, "one"), await begin(second, "two")
        await add(first, "one", one)
        await add(second, "two", two)
        answers = await finish(
            world, first.send(many("one", one), WITHOUT_EPOCHS), second.send(many("two", two), WITHOUT_EPOCHS)
        )
        assert [rows(answer)[0][0] for answer in answers] == [NONE, NONE]

    simulate(run)


def test_a_batch_that_adds_its_partition_is_written_before_it_is_answered() -> None:
    async def run(world: World) -> None:
        client = await world.connect()
        identity = await begin(client, "x")
        [answer] = await finish(world, client.send(many("x", identity, partitions=2), BY_ITSELF))
        for number, (error, base_offset) in enumerate(rows(answer)):
            assert world.broker is not None
            partition: Any = world.broker.replicas.find("t", number)
            assert (error, base_offset, partition.log.log_end_offset) == (NONE, 0, QUICK_RECORDS + 1)

    simulate(run)


def test_a_batch_of_a_stranger_is_refused_after_its_validation() -> None:
    async def run(world: World) -> None:
        client = await world.connect()
        producer_id, epoch = await begin(client, "x")
        [answer] = await finish(world, client.send(many("x", (producer_id + 1, epoch)), BY_ITSELF))
        assert rows(answer) == [(ErrorCode.INVALID_PRODUCER_ID_MAPPING, -1)]
        [answer] = await finish(world, client.send(many("x", (producer_id, epoch)), BY_ITSELF))
        assert rows(answer)[0][0] == NONE

    simulate(run)
