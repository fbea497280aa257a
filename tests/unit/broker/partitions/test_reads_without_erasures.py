"""What is sent to a consumer that takes every batch for records: kafka-go, known by the log start that it reports."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from lowtide.broker.partitions.erasures import append_erasures
from lowtide.broker.partitions.fetch import records_only
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.records import iterate_batches, read_batch_header
from lowtide.storage.errors import StorageError

from .leading import NONE, Leading, simulate

REWRITTEN_S = 3.0
"""Then segments are rewritten."""
WAIT_MS = 500
MAX_TIMESTAMP = -3


async def produce(world: Leading, producer_id: int, *values: bytes, first_ms: int = 1) -> None:
    """Appends a batch of an idempotent producer: it stays as an empty one when its records are erased."""
    records = build_batch(
        [(first_ms + number, None, value, ()) for number, value in enumerate(values)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
    )
    rows = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])]
    answer = await world.client.request(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=rows), 10)
    assert answer.responses[0].partition_responses[0].error_code == NONE


def erase(world: Leading, *offsets: int) -> None:
    found = OffsetRanges.of_offsets(offsets)
    append_erasures(world.replicas, world.partition(), UUID(int=1), found, world.clock.wall_ms())


async def fetch(world: Leading, offset: int, log_start_offset: int = 0, **more: Any) -> PartitionData:
    """Fetches as kafka-go does, or with -1 as other consumers."""
    row = FetchPartition(
        partition=0, fetch_offset=offset, log_start_offset=log_start_offset, partition_max_bytes=1 << 20
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        topics=[FetchTopic(topic="t", partitions=[row])],
        session_id=0,
        session_epoch=-1,
        **more,
    )
    answer = await world.client.request(request, 10)
    found: PartitionData = answer.responses[0].partitions[0]
    assert found.error_code == NONE
    return found


async def begin(world: Leading) -> None:
    """A log with erasures at 4 and 6, and nothing left of the batch at 1 and 2."""
    await world.start()
    await world.create_topic("t", (1,))
    await produce(world, 7, b"0")
    await produce(world, 8, b"1", b"2")
    await produce(world, 9, b"3")
    erase(world, 1, 2)
    await produce(world, 10, b"5")
    erase(world, 3)
    await asyncio.sleep(REWRITTEN_S)


def places(row: PartitionData) -> list[tuple[int, int]]:
    """Returns base offset and number of records of each batch."""
    records: Any = row.records
    return [(header.base_offset, header.record_count) for _, header in iterate_batches(memoryview(bytes(records)))]


def test_kafka_go_gets_records_only_and_others_get_all_batches() -> None:
    """kafka-go hands an erasure to the application, and ends the program at a batch without records."""

    async def run(world: Leading) -> None:
        await begin(world)
        assert places(await fetch(world, 0, -1)) == [(0, 1), (1, 0), (3, 0), (4, 1), (5, 1), (6, 1)]
        assert places(await fetch(world, 0)) == [(0, 1)]
        for offset in range(1, 6):
            assert places(await fetch(world, offset)) == [(5, 1)]

    simulate(run)


def test_kafka_go_waits_at_the_end_until_there_is_a_record() -> None:
    """It isn't answered at once where only an erasure is left, and sees no lag there."""

    async def run(world: Leading) -> None:
        await begin(world)
        begun_ms = world.clock.monotonic_ms()
        row = await fetch(world, 6)
        assert (places(row), row.high_watermark, row.last_stable_offset) == ([], 6, 6)
        assert world.clock.monotonic_ms() - begun_ms >= WAIT_MS
        waiting = asyncio.ensure_future(fetch(world, 6))
        await asyncio.sleep(WAIT_MS / 4000)
        other, world.client = world.client, await world.connect()
        await produce(world, 11, b"7")
        row = await waiting
        assert (places(row), row.high_watermark) == ([(7, 1)], 8)
        assert other is not world.client

    simulate(run)


def test_kafka_go_leaves_a_batch_whose_last_records_are_erased() -> None:
    """It would read the batch again and again, because no record of it takes its position to the batch's end."""

    async def run(world: Leading) -> None:
        await world.start()
        await world.create_topic("t", (1,))
        await produce(world, 7, b"0", b"1", b"2", b"3")
        erase(world, 2, 3)
        await asyncio.sleep(REWRITTEN_S)
        assert places(await fetch(world, 1)) == [(0, 2)]
        row = await fetch(world, 2)
        assert (places(row), row.high_watermark) == ([], 2)
        await produce(world, 8, b"5")
        assert places(await fetch(world, 2)) == [(5, 1)]

    simulate(run)


async def offset_at(world: Leading, timestamp_ms: int) -> tuple[int, int]:
    """Returns timestamp and offset of ListOffsets."""
    row = ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[ListOffsetsTopic(name="t", partitions=[row])]
    )
    answer = await world.client.request(request, 7)
    found = answer.topics[0].partitions[0]
    assert found.error_code == NONE
    return found.timestamp, found.offset


@pytest.mark.parametrize("waits_s", [0.0, REWRITTEN_S])
def test_no_search_by_time_names_an_erased_record(waits_s: float) -> None:
    """Neither while its bytes are in a file, nor afterwards."""

    async def run(world: Leading) -> None:
        await world.start()
        await world.create_topic("t", (1,))
        await produce(world, 7, *[b"%d" % number for number in range(5)], first_ms=100)
        erase(world, 1, 2, 4)
        await asyncio.sleep(waits_s)
        assert [await offset_at(world, time_ms) for time_ms in (100, 101, 102, 103)] == [
            (100, 0),
            (103, 3),
            (103, 3),
            (103, 3),
        ]
        assert await offset_at(world, 104) in {(104, 5), (-1, -1)}
        assert (await offset_at(world, MAX_TIMESTAMP))[1] in {3, 5}

    simulate(run)


def test_a_disk_that_fails_while_a_batch_is_looked_into_is_a_storage_error() -> None:
    """Protects the log directory from staying online."""
    batch = build_batch([(1, b"k", b"v", ()), (1, b"k", b"v", ())], base_offset=0, leader_epoch=0)

    def fail(_size: int, _position: int) -> bytes:
        raise OSError(errno.EIO, "failed")

    read: Any = SimpleNamespace(file=SimpleNamespace(path="log", pread=fail))
    with pytest.raises(StorageError) as caught:
        records_only._reaches(read, 0, read_batch_header(batch), 1)
    assert caught.value.error_number == errno.EIO
