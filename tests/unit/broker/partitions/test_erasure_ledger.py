"""The ledger has what is erased before it is erased, and what a broker has erased before it says so."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

from lowtide.protocol.erasure_ledger_records import CleanKey, LedgerEntry, NamedKey, NamedRecords, decode_entry
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.erase_records import EraseRecordsPartition, EraseRecordsRequest, EraseRecordsTopic
from lowtide.protocol.messages.write_erasures import LedgerRecord, WriteErasuresRequest, WriteErasuresResponse
from lowtide.protocol.records import iterate_batches, iterate_records
from lowtide.replication.topic_names import LEDGER_TOPIC
from lowtide.storage.log.log import Log

from .leading import NONE, Leading, simulate
from .test_find_records import find, produce
from .test_leading_deletes import begin

ID = b"e" * 16


def entries(log: Log) -> list[LedgerEntry]:
    """Returns what is in the ledger."""
    found = []
    read = log.read(log.log_start_offset, 1 << 20, end_offset=log.log_end_offset).slice
    content = b"" if read is None else read.file.pread(read.size, read.position)
    for at, header in iterate_batches(content):
        for record in iterate_records(content[at : at + header.size_bytes], max_bytes=1 << 20):
            entry = decode_entry(record.key, record.value)
            assert entry is not None
            found.append(entry)
    return found


async def with_ledger(world: Leading) -> Log:
    second, third = await begin(world)
    await world.create_topic(LEDGER_TOPIC, (1,))
    await produce(world, b"a", b"person", b"b", b"person")
    await second.catch_up()
    await third.catch_up()
    return world.partition(topic=LEDGER_TOPIC).log


async def erase(world: Leading, **fields: Any) -> Any:
    return await find(world, keys=[b"person"], erase=True, search_id=ID, **fields)


async def commit(world: Leading) -> None:
    for broker_id in (2, 3):
        await (await world.follower(broker_id)).catch_up()


def test_the_records_are_named_before_the_erasure_is_appended() -> None:
    async def run(world: Leading) -> None:
        ledger = await with_ledger(world)
        log = world.partition().log
        asked = asyncio.ensure_future(erase(world))
        while not log.erasures.known:
            await asyncio.sleep(0.001)
        [named] = entries(ledger)
        assert isinstance(named.key, NamedKey)
        assert isinstance(named.value, NamedRecords)
        assert (named.key.erasure_id, named.key.searched_to, named.value.committed_ms) == (ID, 7, -1)
        assert [(each.first_offset, each.timestamps) for each in named.value.records] == [(4, [1]), (6, [1])]
        await commit(world)
        row = await asked
        assert (row.error_code, row.record_count) == (NONE, 2)
        committed = entries(ledger)[-1]
        assert isinstance(committed.value, NamedRecords)
        assert committed.key == named.key
        assert (committed.value.erasures_end, committed.value.principal) == (row.erasures_end, "User:ANONYMOUS")
        count = len(entries(ledger))
        row = await erase(world)
        assert (row.error_code, len(entries(ledger))) == (NONE, count), "a repeated request writes nothing"

    simulate(run)


def test_nothing_is_erased_while_the_ledger_cannot_be_written() -> None:
    """Protects evidence: without it nobody could say later what is missing, or erase it again."""

    async def run(world: Leading) -> None:
        await with_ledger(world)
        log, ledger = world.partition().log, world.partition(topic=LEDGER_TOPIC)
        end = log.log_end_offset
        with patch.object(type(ledger), "has_enough_in_sync", False):
            row = await erase(world, timeout_ms=1_000)
            assert row.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        with patch("lowtide.broker.ledger.erasure_ledger.ErasureLedger.append", _unavailable):
            row = await erase(world, timeout_ms=1_000)
            assert (row.error_code, row.error_message) == (
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "The ledger of erasures could not be written.",
            )
        assert (log.log_end_offset, list(log.erasures.known)) == (end, [])
        asked = asyncio.ensure_future(erase(world))
        while log.log_end_offset == end:
            await asyncio.sleep(0.001)
        await commit(world)
        assert (await asked).error_code == NONE

    simulate(run)


async def _unavailable(*_: Any) -> WriteErasuresResponse:
    return WriteErasuresResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_a_commit_that_the_ledger_lacks_is_written_by_a_repeated_request() -> None:
    async def run(world: Leading) -> None:
        ledger = await with_ledger(world)
        log = world.partition().log
        asked = asyncio.ensure_future(erase(world, timeout_ms=2_000))
        while not log.erasures.known:
            await asyncio.sleep(0.001)
        with patch("lowtide.broker.ledger.erasure_ledger.ErasureLedger.append", _unavailable):
            await commit(world)
            assert (await asked).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await erase(world)).error_code == NONE
        last = entries(ledger)[-1].value
        assert isinstance(last, NamedRecords)
        assert last.committed_ms >= 0

    simulate(run)


def test_a_replica_is_clean_in_the_ledger_before_the_broker_says_so() -> None:
    async def run(world: Leading) -> None:
        ledger = await with_ledger(world)
        rows = [EraseRecordsPartition(partition_index=0, offset=0)]
        topics = [EraseRecordsTopic(name="t", partitions=rows)]
        request = EraseRecordsRequest(topics=topics, timeout_ms=2_000, erasure_id=ID)
        with patch("lowtide.broker.ledger.erasure_ledger.ErasureLedger.append", _unavailable):
            answer = await world.client.request(request, 1)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        answer = await world.client.request(request, 1)
        assert answer.topics[0].partitions[0].error_code == NONE
        [clean] = entries(ledger)
        topic_id = world.partition().log.topic_id
        assert clean.key == CleanKey(erasure_id=ID, topic_id=topic_id, partition=0, broker_id=1)
        without_id = EraseRecordsRequest(topics=topics, timeout_ms=2_000)
        assert (await world.client.request(without_id, 1)).topics[0].partitions[0].error_code == NONE
        assert entries(ledger) == [clean], "a request without an id is not recorded"

    simulate(run)


def test_other_brokers_write_through_the_leader() -> None:
    async def run(world: Leading) -> None:
        ledger = await with_ledger(world)

        async def write(*records: tuple[bytes, bytes | None]) -> Any:
            rows = [LedgerRecord(key=key, value=value) for key, value in records]
            return (await world.client.request(WriteErasuresRequest(records=rows, timeout_ms=1_000), 0)).error_code

        assert await write() == ErrorCode.INVALID_REQUEST
        assert await write((b"\x00\x07", None)) == ErrorCode.INVALID_REQUEST, "an unknown type"
        assert await write((b"\x00\x00", None)) == ErrorCode.INVALID_RECORD, "a damaged key"
        key = b"\x00\x01" + ID + ID + b"\x00\x00\x00\x05\x00\x00\x00\x02\x00"
        assert await write((key, None)) == NONE
        assert [each.key for each in entries(ledger)] == [
            CleanKey(erasure_id=ID, topic_id=ID, partition=5, broker_id=2)
        ]

    simulate(run)
