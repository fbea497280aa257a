"""EraseRecords at a broker that leads: what it answers of each row, and that a record that is erased is in no file."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.handlers.erase_records import PARTITIONS_MAX
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.erase_records import EraseRecordsPartition, EraseRecordsRequest, EraseRecordsTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

from .leading import NONE, Leading, simulate
from .test_leading_deletes import begin


async def erase(
    world: Leading, offset: int, *, timeout_ms: int = 5_000, name: str = "t", number: int = 0, **topic: Any
) -> Any:
    topics = [
        EraseRecordsTopic(name=name, partitions=[EraseRecordsPartition(partition_index=number, offset=offset)], **topic)
    ]
    answer = await world.client.request(EraseRecordsRequest(topics=topics, timeout_ms=timeout_ms), 0)
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
        assert (await erase(world, 0)).error_code == NONE

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
