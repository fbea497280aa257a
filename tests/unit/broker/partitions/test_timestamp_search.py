"""Long ListOffsets searches run in the worker while others are served, and changes in the meantime take effect."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lowtide.broker.config.offset_reset import OffsetReset
from lowtide.broker.partitions.share.share_partitions import begin_offset
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.simulation.client import ConnectionLostError, WireClient
from lowtide.storage.log import timestamps
from lowtide.storage.log.timestamps import QUICK_BYTES

from .test_decompressed_bounds import work_until
from .test_slow_produce import World, produce, produce_handler_of, rows, simulate

NOW = 10**12
LONG = build_batch(
    [(NOW, None, bytes(QUICK_BYTES), ()), (NOW + 5, None, b"", ()), (NOW + 1, None, b"", ())],
    compression=Compression.ZSTD,
)
MAX_TIMESTAMP = -3


def asking(*wanted: tuple[int, int]) -> ListOffsetsRequest:
    rows = [ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index, timestamp in wanted]
    return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[ListOffsetsTopic(name="t", partitions=rows)])


def listed(response: Any) -> list[tuple[int, int, int]]:
    return [(row.error_code, row.offset, row.timestamp) for row in response.topics[0].partitions]


async def loaded(world: World, *batches: bytes) -> Any:
    """A client whose batches are in partition 0, and one small one in partition 1."""
    client = await world.connect()
    for batch in batches:
        answer = client.send(produce(batch), 9)
        await work_until(world, answer)
        assert rows(await answer)[0][0] == ErrorCode.NONE
    answer = client.send(produce(b"", build_batch([(NOW, None, b"x", ())])), 9)
    await answer
    return client


@pytest.mark.parametrize(
    ("wanted", "found"), [(NOW + 1, (1, NOW + 5)), (NOW + 6, (3, NOW + 9)), (MAX_TIMESTAMP, (3, NOW + 9))]
)
def test_rows_are_answered_by_the_worker_and_in_their_places(wanted: int, found: tuple[int, int]) -> None:
    async def run(world: World) -> None:
        client = await loaded(
            world, LONG, build_batch([(NOW + 9, None, bytes(QUICK_BYTES), ())], compression=Compression.ZSTD)
        )
        other = await world.connect()
        answer = client.send(asking((1, NOW), (0, wanted), (2, NOW)), 7)
        await asyncio.sleep(1)
        assert not answer.done()
        assert len(world.worker.waiting) == 1
        assert listed(await other.request(asking((1, NOW)), 7)) == [(ErrorCode.NONE, 0, NOW)]
        await work_until(world, answer)
        assert listed(await answer) == [(ErrorCode.NONE, 0, NOW), (ErrorCode.NONE, *found), (ErrorCode.NONE, -1, -1)]

    simulate(run)


def test_a_record_that_is_deleted_during_the_search_is_not_returned() -> None:
    async def run(world: World) -> None:
        client, other = await loaded(world, LONG), await world.connect()
        answer = client.send(asking((0, NOW)), 7)
        await asyncio.sleep(1)
        await delete_below(other, 1)
        await work_until(world, answer)
        assert listed(await answer) == [(ErrorCode.NONE, 1, NOW + 5)]

    simulate(run)


async def delete_below(client: WireClient, offset: int) -> None:
    row = DeleteRecordsPartition(partition_index=0, offset=offset)
    response = await client.request(
        DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[row])], timeout_ms=1000), 2
    )
    assert response.topics[0].partitions[0].error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("later", "log_start", "found"),
    [
        ((), 1, (1, NOW + 5)),
        ((), 2, (2, NOW + 1)),
        ((), 3, (-1, -1)),
        ((NOW + 1, NOW), 2, (2, NOW + 1)),
        ((NOW, NOW + 2, NOW + 3), 2, (5, NOW + 3)),
        ((NOW + 3, NOW + 2), 4, (4, NOW + 2)),
    ],
)
def test_the_largest_timestamp_is_of_a_record_that_is_there(
    later: tuple[int, ...], log_start: int, found: tuple[int, int]
) -> None:
    """The batch that holds the log start is searched by the worker, and then those behind it."""

    async def run(world: World) -> None:
        client = await loaded(world, LONG, *(build_batch([(time, None, b"x", ())]) for time in later))
        await delete_below(client, log_start)
        answer = client.send(asking((0, MAX_TIMESTAMP)), 7)
        await work_until(world, answer)
        assert listed(await answer) == [(ErrorCode.NONE, *found)]

    simulate(run)


def test_the_record_with_the_largest_timestamp_is_deleted_during_the_search() -> None:
    async def run(world: World) -> None:
        client, other = await loaded(world, LONG), await world.connect()
        await delete_below(other, 1)
        answer = client.send(asking((0, MAX_TIMESTAMP)), 7)
        await asyncio.sleep(1)
        await delete_below(other, 2)
        await work_until(world, answer)
        assert listed(await answer) == [(ErrorCode.NONE, 2, NOW + 1)]

    simulate(run)


def test_a_share_group_that_begins_by_time_begins_with_a_record_that_is_there() -> None:
    async def run(world: World) -> None:
        client = await loaded(world, LONG)
        parts = produce_handler_of(world).parts
        partition = parts.replicas.partitions["t", 0]
        work = begin_offset(
            partition, OffsetReset(duration_ms=10), NOW + 10, parts.replicas.turns, parts.lane, parts.log
        )
        begin = asyncio.ensure_future(work)
        await asyncio.sleep(1)
        await delete_below(client, 1)
        await work_until(world, begin)
        assert await begin == 1

    simulate(run)


def test_a_topic_that_is_deleted_meanwhile_is_unknown() -> None:
    async def run(world: World) -> None:
        client, other = await loaded(world, LONG), await world.connect()
        answer = client.send(asking((0, NOW)), 7)
        await asyncio.sleep(1)
        gone = other.send(
            DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], topic_names=["t"], timeout_ms=10_000), 5
        )
        await work_until(world, gone)
        await work_until(world, answer)
        assert listed(await answer)[0][0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    simulate(run)


def test_a_client_that_leaves_causes_no_further_search() -> None:
    async def run(world: World) -> None:
        client = await loaded(world, LONG)
        answer = client.send(asking((0, NOW + 1)), 7)
        await asyncio.sleep(1)
        client.close()
        with pytest.raises(ConnectionLostError):
            await answer
        await asyncio.sleep(1)
        world.worker.close()
        await asyncio.sleep(1)
        assert not world.worker.waiting

    simulate(run)


def test_a_search_over_many_batches_does_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timestamps, "BATCHES_AT_ONCE", 3)

    async def run(world: World) -> None:
        small = [build_batch([(NOW + time, None, b"x", ())]) for time in (50, *[1] * 20, 40)]
        client = await loaded(world, *small)
        await delete_below(client, 1)
        assert listed(await client.request(asking((0, NOW + 30)), 7)) == [(ErrorCode.NONE, 21, NOW + 40)]
        assert listed(await client.request(asking((0, MAX_TIMESTAMP)), 7)) == [(ErrorCode.NONE, 21, NOW + 40)]

    simulate(run)
