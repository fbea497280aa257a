"""EraseRecords at a broker that leads: what it answers of each row, and that a record that is erased is in no file."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import pytest

from lowtide.broker.handlers.erase_records import PARTITIONS_MAX
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.erasure_record import ErasureRecord
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_retention import DescribeRetentionRequest, DescribeRetentionTopic
from lowtide.protocol.messages.erase_records import EraseRecordsPartition, EraseRecordsRequest, EraseRecordsTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.offset_ranges import OffsetRange
from lowtide.storage.directory.erasure_waits import NOTED_BYTES
from lowtide.storage.log.markers import make_erasure

from .leading import NONE, Leading, simulate
from .test_leading_deletes import begin

TWO: Final = ErasureRecord(UUID(int=7), (OffsetRange(1, 1),))


async def erase(
    world: Leading,
    offset: int,
    *,
    timeout_ms: int = 5_000,
    name: str = "t",
    number: int = 0,
    version: int = 0,
    erasures_end: int = 0,
    **topic: Any,
) -> Any:
    row = EraseRecordsPartition(partition_index=number, offset=offset, erasures_end=erasures_end)
    topics = [EraseRecordsTopic(name=name, partitions=[row], **topic)]
    answer = await world.client.request(EraseRecordsRequest(topics=topics, timeout_ms=timeout_ms), version)
    assert answer.error_code == NONE
    return answer.topics[0].partitions[0]


async def explain(world: Leading) -> Any:
    request = DescribeRetentionRequest(topics=[DescribeRetentionTopic(name="t", partitions=[0])])
    answer = await world.client.request(request, 0)
    assert answer.error_code == NONE
    return answer.topics[0].partitions[0]


async def produce(world: Leading, *values: bytes) -> None:
    records = build_batch([(1, None, value, ()) for value in values])
    rows = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])]
    answer = await world.client.request(ProduceRequest(acks=1, timeout_ms=1000, topic_data=rows), 10)
    assert answer.responses[0].partition_responses[0].error_code == NONE


def files(world: Leading) -> bytes:
    folder = world.partition().log.directory
    return b"".join(world.filesystem.read_bytes(f"{folder}/{name}") for name in world.filesystem.listdir(folder))


def test_what_is_erased_is_in_no_file() -> None:
    async def run(world: Leading) -> None:
        second, third = await begin(world)
        first = world.partition().log.log_end_offset
        await produce(world, b"-one-", b"-two-", b"-three-")
        for follower in (second, third):
            follower.start = follower.end = first + 3
            await follower.fetch()
        assert (await world.delete(first + 2)).error_code == NONE
        assert b"-two-" in files(world)
        row = await erase(world, first + 2)
        assert (row.error_code, row.log_start_offset) == (NONE, first + 2)
        assert (b"-one-" in files(world), b"-two-" in files(world), b"-three-" in files(world)) == (False, False, True)
        assert (await erase(world, first + 2, topic_id=world.partition().log.topic_id)).error_code == NONE

    simulate(run)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"offset": 99}, ErrorCode.OFFSET_NOT_AVAILABLE),
        ({"offset": -1}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"offset": 0, "number": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"offset": 0, "name": "other"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"offset": 0, "name": "__consumer_offsets"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"offset": 0, "topic_id": b"\7" * 16}, ErrorCode.INCONSISTENT_TOPIC_ID),
    ],
)
def test_what_is_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        assert (await erase(world, **fields)).error_code == code

    simulate(run)


def test_the_time_may_end_before() -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        row = await erase(world, 0, timeout_ms=0)
        assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert row.error_message == "segments are being written again, or wait for their turn"
        assert (await erase(world, 0)).error_code == NONE

    simulate(run)


@pytest.mark.parametrize("free_bytes", [0, 8192])
def test_a_full_disk_delays_and_says_so(free_bytes: int) -> None:
    """In the row, and in what explains the partition. Without any room it can't even be noted that rewriting begins."""

    async def run(world: Leading) -> None:
        await world.start()
        await world.create_topic("t", (1,))
        await produce(world, b"-one-", b"-two-", bytes(10_000), b"-three-")
        disk, partition = world.filesystem, world.partition()
        assert world.replicas.append(partition, make_erasure(TWO, 1), 1) is not None
        disk.capacity_bytes = 1 << 30
        disk.capacity_bytes -= disk.free_bytes("/") - free_bytes
        row = await erase(world, 0, timeout_ms=4_000, version=1, erasures_end=5)
        needed = partition.log.segments[0].size if free_bytes else NOTED_BYTES
        reason = f"no room in {partition.log.parent_directory}: needs {needed} bytes, has {disk.free_bytes('/')}"
        assert (row.error_code, row.error_message) == (ErrorCode.REQUEST_TIMED_OUT, reason)
        explained = await explain(world)
        assert (explained.erasures_waiting, explained.records_to_erase) == (1, 1)
        assert (explained.erasing_waits_for, explained.error_code) == (reason, NONE)
        assert 4_000 <= world.clock.wall_ms() - explained.erasing_since_ms <= 5_000
        disk.capacity_bytes = None
        assert (await erase(world, 0, version=1, erasures_end=5)).error_code == NONE
        assert (await explain(world)).erasures_waiting == 0
        assert (b"-one-" in files(world), b"-two-" in files(world), b"-three-" in files(world)) == (True, False, True)

    simulate(run)


@pytest.mark.parametrize(
    ("erasures_end", "reason"),
    [
        (7, "the erasure isn't known to be committed: the high watermark is 3"),
        (9, "the replica ends at 7, below the end of the erasure at 9"),
    ],
)
def test_a_row_says_that_it_waits_for_the_erasure(erasures_end: int, reason: str) -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        await produce(world, b"-one-", b"-two-", b"-three-")
        assert world.replicas.append(world.partition(), make_erasure(TWO, 1), 1) is not None
        row = await erase(world, 0, timeout_ms=100, version=1, erasures_end=erasures_end)
        assert (row.error_code, row.error_message) == (ErrorCode.REQUEST_TIMED_OUT, reason)

    simulate(run)


def test_no_rows_and_too_many() -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        assert (await world.client.request(EraseRecordsRequest(topics=[], timeout_ms=0), 0)).error_code == NONE
        rows = [EraseRecordsPartition(partition_index=number, offset=0) for number in range(PARTITIONS_MAX + 1)]
        request = EraseRecordsRequest(topics=[EraseRecordsTopic(name="t", partitions=rows)], timeout_ms=0)
        answer = await world.client.request(request, 0)
        assert (answer.error_code, answer.topics) == (ErrorCode.INVALID_REQUEST, [])

    simulate(run)
