"""Responses to readers of committed records while transactions are open, and about aborted ones."""

from __future__ import annotations

import asyncio

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersTopicRequest
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.storage.log.log import AppendedBatch
from lowtide.storage.log.markers import make_marker
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce

from .leading import NONE, Leading, simulate

LATEST, FETCH_VERSION = -1, 12


def produce(world: Leading, producer_id: int, sequence: int) -> None:
    content = build_batch(
        [(1, None, b"r", ())], producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True
    )
    batch = validate_produce(memoryview(content), ValidationRules(), 1)
    assert isinstance(batch, ValidatedBatch)
    assert isinstance(world.replicas.append(world.partition(), batch, 1), AppendedBatch)


def end(world: Leading, producer_id: int, *, is_commit: bool) -> None:
    marker = make_marker(producer_id, 0, is_commit=is_commit, coordinator_epoch=3, epoch_is_bumped=False, now_ms=1)
    assert isinstance(world.replicas.append(world.partition(), marker, 1), AppendedBatch)


async def fetch(world: Leading, offset: int, *, read_committed: bool = True, wait_ms: int = 0) -> PartitionData:
    row = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        isolation_level=int(read_committed),
        topics=[FetchTopic(topic="t", partitions=[row])],
    )
    client = await world.connect()
    answer = (await client.request(request, FETCH_VERSION)).responses[0].partitions[0]
    assert isinstance(answer, PartitionData)
    return answer


async def latest(world: Leading, *, read_committed: bool) -> int:
    row = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=int(read_committed), topics=[ListOffsetsTopic(name="t", partitions=[row])]
    )
    return int((await world.client.request(request, 7)).topics[0].partitions[0].offset)


def named(answer: PartitionData) -> list[tuple[int, int]]:
    return [(entry.producer_id, entry.first_offset) for entry in answer.aborted_transactions or []]


def test_open_transactions_hold_readers_of_committed_records_and_aborted_ones_are_listed() -> None:
    async def run(world: Leading) -> None:
        await world.start()
        await world.create_topic("t", (1,))
        produce(world, 7, 0)
        produce(world, 8, 0)
        answer = await fetch(world, 0)
        assert (answer.high_watermark, answer.last_stable_offset, len(answer.records or b"")) == (2, 0, 0)
        assert len((await fetch(world, 0, read_committed=False)).records or b"") > 0
        assert (await fetch(world, 0, read_committed=False)).aborted_transactions is None
        assert (await latest(world, read_committed=True), await latest(world, read_committed=False)) == (0, 2)
        end(world, 7, is_commit=False)
        answer = await fetch(world, 0)
        assert (answer.last_stable_offset, named(answer)) == (1, [(7, 0)])
        assert await latest(world, read_committed=True) == 1
        end(world, 8, is_commit=True)
        answer = await fetch(world, 0)
        assert (answer.high_watermark, answer.last_stable_offset, named(answer)) == (4, 4, [(7, 0)])
        assert named(await fetch(world, 3)) == []

    simulate(run)


def test_a_reader_waits_for_the_end_of_the_transaction() -> None:
    async def run(world: Leading) -> None:
        await world.start()
        await world.create_topic("t", (1,))
        produce(world, 7, 0)
        waiting = asyncio.ensure_future(fetch(world, 0, wait_ms=5000))
        await asyncio.sleep(0.1)
        produce(world, 7, 1)
        await asyncio.sleep(0.1)
        assert not waiting.done(), "more records of an open transaction are not readable"
        started = world.loop.time()
        end(world, 7, is_commit=True)
        answer = await waiting
        assert world.loop.time() - started < 0.1
        assert (answer.last_stable_offset, len(answer.records or b"") > 0) == (3, True)

    simulate(run)


def test_a_delete_within_an_open_transaction_returns_no_last_stable_offset_below_the_log_start() -> None:
    async def run(world: Leading) -> None:
        await world.start()
        await world.create_topic("t", (1,))
        for sequence in range(4):
            produce(world, 7, sequence)
        row = DeleteRecordsPartition(partition_index=0, offset=3)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[row])], timeout_ms=1000)
        assert (await world.client.request(request, 2)).topics[0].partitions[0].error_code == NONE
        answer = await fetch(world, 3)
        assert (answer.error_code, answer.log_start_offset, answer.last_stable_offset) == (NONE, 3, 3)
        assert len(answer.records or b"") == 0
        end(world, 7, is_commit=False)
        answer = await fetch(world, 3)
        assert (answer.last_stable_offset, named(answer)) == (5, [(7, 0)])
        row.offset = -1
        assert (await world.client.request(request, 2)).topics[0].partitions[0].low_watermark == 5
        produce(world, 7, 4)
        end(world, 7, is_commit=True)
        answer = await fetch(world, 5)
        assert (answer.last_stable_offset, named(answer)) == (7, [])

    simulate(run)


def test_open_transactions_are_described() -> None:
    async def run(world: Leading) -> None:
        await world.start()
        await world.create_topic("t", (1,))
        request = DescribeProducersRequest(topics=[DescribeProducersTopicRequest(name="t", partition_indexes=[0])])
        produce(world, 7, 0)
        end(world, 7, is_commit=True)
        produce(world, 7, 1)
        rows = (await world.client.request(request, 0)).topics[0].partitions[0].active_producers
        assert [
            (row.producer_id, row.coordinator_epoch, row.current_txn_start_offset, row.last_sequence) for row in rows
        ] == [(7, 3, 2, 1)]

    simulate(run)


def test_a_transaction_is_open_until_its_marker_is_committed() -> None:
    async def run(world: Leading) -> None:
        await world.start(2)
        await world.create_topic("t", (1, 2))
        follower = await world.follower(2)
        produce(world, 7, 0)
        end(world, 7, is_commit=True)
        follower.end = 1
        await follower.fetch()
        answer = await fetch(world, 0)
        assert (answer.high_watermark, answer.last_stable_offset) == (1, 0)
        waiting = asyncio.ensure_future(fetch(world, 0, wait_ms=5000))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        follower.end = 2
        await follower.fetch()
        assert (await waiting).last_stable_offset == 2

    simulate(run)
