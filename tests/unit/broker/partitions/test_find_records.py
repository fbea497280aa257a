"""FindRecords at a broker that leads: what is found, what is refused, and how requests share a search."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lowtide.broker.handlers.find_records import PARTITIONS_MAX, RANGES_MAX
from lowtide.broker.ledger.kept_searches import IDS_SHARE
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.find_records import (
    FindRecordsPartition,
    FindRecordsRequest,
    FindRecordsTopic,
    RecordOffsets,
)
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.replication.topic_names import LEDGER_TOPIC
from lowtide.storage.erasures.log_search import SearchedLog
from lowtide.storage.erasures.record_search import KeySelector

from .leading import NONE, Leading, simulate
from .test_leading_deletes import begin

ID = bytes(range(16))


async def ask(
    world: Leading, *, name: str = "t", number: int = 0, offsets: tuple[tuple[int, int], ...] = (), **fields: Any
) -> Any:
    ranges = [RecordOffsets(first_offset=first, last_offset=last) for first, last in offsets]
    topic_id = {"topic_id": fields.pop("topic_id")} if "topic_id" in fields else {}
    rows = [FindRecordsPartition(partition_index=number, offsets=ranges)]
    request = FindRecordsRequest(
        topics=[FindRecordsTopic(name=name, partitions=rows, **topic_id)],
        **({"search_id": ID, "timeout_ms": 5_000} | fields),
    )
    return await world.client.request(request, 0)


async def find(world: Leading, **fields: Any) -> Any:
    answer = await ask(world, **fields)
    assert answer.error_code == NONE, answer.error_message
    return answer.topics[0].partitions[0]


async def produce(world: Leading, *keys: bytes, codec: Compression = Compression.ZSTD) -> int:
    log = world.partition().log
    base_offset: int = log.log_end_offset
    records = build_batch([(1, key, b"value", [(b"who", key)]) for key in keys], compression=codec)
    rows = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])]
    answer = await world.client.request(ProduceRequest(acks=1, timeout_ms=1000, topic_data=rows), 10)
    assert answer.responses[0].partition_responses[0].error_code == NONE
    return base_offset


def offsets(row: Any) -> list[tuple[int, int]]:
    return [(each.first_offset, each.last_offset) for each in row.offsets]


def test_records_are_found_by_key_header_and_offset() -> None:
    """Protects the whole way from the request to the file and back."""

    async def run(world: Leading) -> None:
        await begin(world)
        at = await produce(world, b"a", b"person", b"person", b"b")
        await produce(world, b"other", b"person", codec=Compression.NONE)
        end = world.partition().log.log_end_offset
        row = await find(world, keys=[b"person"])
        assert (row.error_code, row.record_count, row.has_more) == (NONE, 3, False)
        assert offsets(row) == [(at + 1, at + 2), (at + 5, at + 5)]
        assert (row.searched_from, row.searched_to, row.leader_epoch) == (0, end, world.partition().leader_epoch)
        row = await find(world, keys=[b"b", b"other"], search_id=bytes(16), ranges_max=1)
        assert (offsets(row), row.record_count, row.has_more) == ([(at + 3, at + 4)], 2, False)
        row = await find(world, header_name=b"who", header_value=b"person", search_id=b"1" * 16, ranges_max=1)
        assert (offsets(row), row.record_count, row.has_more) == ([(at + 1, at + 2)], 3, True)
        row = await find(world, offsets=((at, at + 1), (end, end + 9)), search_id=b"2" * 16)
        assert (offsets(row), row.record_count) == ([(at, at + 1)], 2)

    simulate(run)


def test_a_request_with_the_same_id_joins_the_search() -> None:
    """Protects a client that asks again: the end of the search stays, and nothing is read twice."""

    async def run(world: Leading) -> None:
        await begin(world)
        at = await produce(world, b"person")
        row = await find(world, keys=[b"person"], timeout_ms=0)
        assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        await produce(world, b"person")
        row = await find(world, keys=[b"person"])
        assert (row.error_code, offsets(row), row.searched_to) == (NONE, [(at, at)], at + 1)
        assert row.searched_bytes == row.total_bytes > 0
        row = await find(world, keys=[b"person"], search_id=bytes(16))
        assert row.record_count == 2
        row = await find(world, keys=[b"another"])
        assert (row.error_code, row.error_message) == (ErrorCode.INVALID_REQUEST, "Another search has this id.")

    simulate(run)


def test_a_search_that_nobody_asks_for_is_forgotten() -> None:
    """Protects memory: after a minute the same id begins a new search."""

    async def run(world: Leading) -> None:
        await begin(world)
        await produce(world, b"person")
        await find(world, keys=[b"person"], timeout_ms=0)
        await asyncio.sleep(50)
        before = await find(world, keys=[b"person"])
        await produce(world, b"person")
        await asyncio.sleep(50)
        assert (await find(world, keys=[b"person"])).searched_to == before.searched_to
        await asyncio.sleep(90)
        assert (await find(world, keys=[b"person"])).searched_to == before.searched_to + 1

    simulate(run)


def test_a_client_has_a_share_of_the_searches() -> None:
    """Protects other clients, and the memory for keys."""

    async def run(world: Leading) -> None:
        await begin(world)
        await produce(world, b"person")
        for number in range(IDS_SHARE):
            row = await find(world, keys=[b"person"], search_id=bytes([number] * 16), timeout_ms=0)
            assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        row = await find(world, keys=[b"person"], search_id=b"x" * 16)
        assert row.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        for number in range(IDS_SHARE):
            assert (await find(world, keys=[b"person"], search_id=bytes([number] * 16))).error_code == NONE
        for number in range(3 * IDS_SHARE):  # Finished ones make room.
            assert (await find(world, keys=[b"person"], search_id=bytes([99, number] * 8))).error_code == NONE
        assert len(world.broker.serving.observed.searches) == IDS_SHARE

    simulate(run)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"number": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"name": "other"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"name": "__consumer_offsets"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"topic_id": b"\7" * 16}, ErrorCode.INCONSISTENT_TOPIC_ID),
    ],
)
def test_partitions_that_are_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    """Protects the precise error of a row."""

    async def run(world: Leading) -> None:
        await begin(world)
        assert (await find(world, keys=[b"person"], **fields)).error_code == code

    simulate(run)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "one selector"),
        ({"keys": [b"secret"], "header_name": b"who"}, "one selector"),
        ({"keys": [b"secret"], "offsets": ((0, 0),)}, "one selector"),
        ({"offsets": ((5, 4),)}, "ends before"),
        ({"keys": [b"secret%d" % number for number in range(1001)]}, "1001 keys"),
        ({"keys": [b"secret" * 200_000]}, "1200000 bytes"),
        ({"keys": [b"secret"], "ranges_max": RANGES_MAX + 1}, "ranges_max"),
        ({"keys": [b"secret"], "ranges_max": -1}, "ranges_max"),
        ({"keys": [b"secret"], "search_id": bytes(16), "erase": True}, "needs an id"),
    ],
)
def test_selectors_that_are_refused(fields: dict[str, Any], reason: str) -> None:
    """Protects the broker from large selectors, and the person from being named in an error."""

    async def run(world: Leading) -> None:
        await begin(world)
        answer = await ask(world, **fields)
        assert (answer.error_code, answer.topics) == (ErrorCode.INVALID_REQUEST, [])
        assert reason in answer.error_message
        assert "secret" not in answer.error_message

    simulate(run)


def test_no_rows_and_too_many() -> None:
    """Protects the probe of a client, and the time of the broker."""

    async def run(world: Leading) -> None:
        await begin(world)
        request = FindRecordsRequest(search_id=ID, topics=[], timeout_ms=0)
        assert (await world.client.request(request, 0)).error_code == NONE
        rows = [FindRecordsPartition(partition_index=number) for number in range(PARTITIONS_MAX + 1)]
        request = FindRecordsRequest(
            search_id=ID, topics=[FindRecordsTopic(name="t", partitions=rows)], keys=[b"k"], timeout_ms=0
        )
        assert (await world.client.request(request, 0)).error_code == ErrorCode.INVALID_REQUEST

    simulate(run)


def test_other_parts_of_the_broker_can_search() -> None:
    """Protects erasing, which searches before it erases."""

    async def run(world: Leading) -> None:
        await begin(world)
        at = await produce(world, b"person", b"other")
        partition = world.partition()
        searches = world.broker.serving.observed.searches
        found = await searches.search(partition, KeySelector(frozenset([b"person"])), partition.log.log_end_offset)
        assert isinstance(found, SearchedLog)
        assert (list(found.records.offsets), len(searches)) == ([at], 0)

    simulate(run)


def test_what_another_erasure_names_has_its_end() -> None:
    """Protects against a success while replicas still have records that another request erases."""

    async def run(world: Leading) -> None:
        await begin(world)
        await world.create_topic(LEDGER_TOPIC, (1,))
        at = await produce(world, b"a", b"person", b"person", b"b")
        row = await find(world, keys=[b"nobody"], erase=True, search_id=b"0" * 16)
        start = world.partition().log.log_start_offset
        assert (row.error_code, row.erasures_end, row.log_start_offset) == (NONE, -1, start)
        waits = ErrorCode.REQUEST_TIMED_OUT  # No follower fetches, so it isn't committed.
        first = await find(world, keys=[b"person"], erase=True, timeout_ms=100)
        end = world.partition().log.log_end_offset
        assert (first.error_code, first.record_count, first.erasures_end) == (waits, 2, end)
        assert end > at + 4
        for search_id in (ID, b"1" * 16):
            again = await find(world, keys=[b"person"], erase=True, search_id=search_id, timeout_ms=100)
            assert (again.error_code, again.erasures_end, again.log_start_offset) == (waits, end, start)
        assert world.partition().log.log_end_offset == end

    simulate(run)
