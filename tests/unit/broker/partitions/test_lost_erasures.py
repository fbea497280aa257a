"""A leader whose log lacks an acknowledged erasure shows consumers nothing until it has repeated it from the ledger."""

from __future__ import annotations

import asyncio
from unittest.mock import patch
from uuid import UUID

from lowtide.broker.ledger.erasure_ledger import ErasureLedger
from lowtide.broker.partitions.compacted_erasures import CompactedErasure
from lowtide.metadata.broker_image import BrokerImage
from lowtide.protocol.erasure_ledger_records import LedgerEntry, NamedKey, NamedRecords, NamedRun, encode_entry
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.find_records import FoundPartition, RecordOffsets
from lowtide.protocol.messages.write_erasures import LedgerRecord, WriteErasuresRequest
from lowtide.protocol.records import iterate_batches, iterate_records
from lowtide.replication.follower_reads import lacks_erasures

from .leading import NONE, Leading, simulate
from .test_erasure_ledger import ID, commit, erase, with_ledger
from .test_find_records import produce

LOST_END = 100
"""The erasure ended there, above what the new leader's log has."""


async def read(world: Leading) -> list[int]:
    """Returns the offsets that a consumer gets, who reads on until nothing comes."""
    topic_id = world.replicas.image.topics["t"].topic_id
    offsets: list[int] = []
    at = 0
    while True:
        rows = [FetchPartition(partition=0, fetch_offset=at, partition_max_bytes=1 << 20)]
        request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic_id=topic_id, partitions=rows)])
        row = (await world.client.request(request, 13)).responses[0].partitions[0]
        assert row.error_code == NONE
        content = bytes(row.records or b"")
        if not content:
            return offsets
        for start, header in iterate_batches(content):
            batch, at = content[start : start + header.size_bytes], header.last_offset + 1
            if not header.is_control:
                offsets += [each.offset for each in iterate_records(batch, max_bytes=1 << 20)]


async def record(world: Leading, *runs: NamedRun, committed_ms: int = 5) -> None:
    """Writes to the ledger what an earlier leader has erased."""
    topic_id = world.partition().log.topic_id
    assert topic_id is not None
    key = NamedKey(erasure_id=ID, topic_id=topic_id, partition=0, leader_epoch=0, searched_to=LOST_END)
    value = NamedRecords(
        topic="t",
        kind=0,
        commitment=b"",
        principal="User:a",
        leader_id=3,
        searched_from=0,
        log_start_offset=0,
        records=list(runs),
        named_ms=4,
        committed_ms=committed_ms,
        erasures_end=LOST_END,
    )
    encoded, content = encode_entry(LedgerEntry(key, value))
    request = WriteErasuresRequest(records=[LedgerRecord(key=encoded, value=content)], timeout_ms=1_000)
    assert (await world.client.request(request, 0)).error_code == NONE


async def lose(world: Leading) -> None:
    """Notes in the metadata that an erasure was acknowledged which this leader's log lacks."""
    await world.change(erasures_end=LOST_END, erasures_epoch=7)


async def until_repeated(world: Leading) -> None:
    while world.partition().log.erasures.withheld:
        await asyncio.sleep(0.01)


def test_the_records_are_erased_again_unless_others_have_their_offsets() -> None:
    async def run(world: Leading) -> None:
        await with_ledger(world)
        epoch = world.partition().leader_epoch
        assert await read(world) == [0, 1, 2, 3, 4, 5, 6]
        await record(
            world,
            NamedRun(first_offset=4, leader_epoch=epoch, timestamps=[1]),
            NamedRun(first_offset=5, leader_epoch=epoch, timestamps=[2]),  # Another time: not this record.
            NamedRun(first_offset=6, leader_epoch=epoch + 1, timestamps=[1]),  # Another epoch.
            NamedRun(first_offset=90, leader_epoch=epoch, timestamps=[1]),  # Lost with the log's end.
        )
        await lose(world)
        assert await read(world) == [], "nobody knows yet what is erased"
        await until_repeated(world)
        [repeated] = world.partition().log.erasures.known
        assert (repeated.erasure_id, repeated.count, repeated.left.first) == (UUID(bytes=ID), 1, 4)
        await commit(world)
        assert await read(world) == [0, 1, 2, 3, 5, 6]
        state = world.image()
        assert (state.erasures_end, state.erasures_epoch) == (repeated.end_offset, epoch)

    simulate(run)


def test_in_a_compacted_log_all_in_sync_replicas_search_and_others_start_over() -> None:
    """A follower may have a named record that the leader has compacted away."""

    async def run(world: Leading) -> None:
        await with_ledger(world)
        partition = world.partition()
        epoch = partition.leader_epoch
        asked: list[tuple[int, list[tuple[int, int]]]] = []

        async def answer(search: CompactedErasure, broker: BrokerImage, _epoch: int) -> FoundPartition:
            request = search._request(0)
            rows = request.topics[0].partitions[0].offsets
            asked.append((broker.broker_id, [(each.first_offset, each.last_offset) for each in rows]))
            assert request.keys == [b"person"]
            own = {
                "offsets": [RecordOffsets(first_offset=0, last_offset=0)],
                "timestamps": [1],
                "leader_epochs": [epoch],
            }
            found = own if broker.broker_id == 2 else {}
            return FoundPartition(partition_index=0, error_code=NONE, **found)

        with (
            patch.object(CompactedErasure, "_answer", answer),
            patch("lowtide.broker.ledger.lost_erasures.is_compacted", lambda _log: True),
        ):
            await record(
                world,
                NamedRun(first_offset=4, leader_epoch=epoch, timestamps=[1]),
                NamedRun(first_offset=5, leader_epoch=epoch, timestamps=[2]),
                NamedRun(first_offset=90, leader_epoch=epoch, timestamps=[2]),
            )
            await lose(world)
            assert await read(world) == []
            for _ in range(100):
                await asyncio.sleep(0.1)
                await commit(world)  # Followers are asked when they have the log.
                if not partition.log.erasures.withheld:
                    break
        assert sorted(asked) == [(2, [(4, 4)]), (3, [(4, 4)])]
        [repeated] = partition.log.erasures.known
        print(repeated)
        assert repeated.has_search
        assert repeated.left.ranges() == ((0, 0), (4, 4))
        await commit(world)
        assert await read(world) == [1, 2, 3, 5, 6]

    simulate(run)


def test_an_erasure_that_was_not_committed_is_not_repeated() -> None:
    async def run(world: Leading) -> None:
        await with_ledger(world)
        epoch = world.partition().leader_epoch
        await record(world, NamedRun(first_offset=4, leader_epoch=epoch, timestamps=[1]), committed_ms=-1)
        await lose(world)
        await until_repeated(world)
        assert (await read(world), world.partition().log.erasures.known) == ([0, 1, 2, 3, 4, 5, 6], [])
        assert world.image().erasures_end == world.partition().log.log_end_offset

    simulate(run)


def test_consumers_wait_while_the_ledger_cannot_be_read() -> None:
    async def run(world: Leading) -> None:
        await with_ledger(world)
        epoch = world.partition().leader_epoch
        await record(world, NamedRun(first_offset=4, leader_epoch=epoch, timestamps=[1]))
        with patch.object(ErasureLedger, "_led", lambda *_: ErrorCode.NOT_LEADER_OR_FOLLOWER):
            await lose(world)
            await asyncio.sleep(5)  # Before retention begins to delete
            assert await read(world) == []
            row = await erase(world)
            assert (row.error_code, row.error_message) == (
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "The leader repeats erasures that its log lacks.",
            )
        await until_repeated(world)
        await commit(world)
        assert await read(world) == [0, 1, 2, 3, 5, 6]

    simulate(run)


def test_a_log_with_the_end_of_the_erasure_is_served_at_once() -> None:
    async def run(world: Leading) -> None:
        await with_ledger(world)
        asked = asyncio.ensure_future(erase(world))
        while not world.partition().log.erasures.known:
            await asyncio.sleep(0.001)
        await commit(world)
        row = await asked
        assert (row.error_code, row.erasures_end) == (NONE, world.image().erasures_end)
        assert not world.partition().log.erasures.withheld
        offset = await produce(world, b"x")
        await commit(world)
        assert await read(world) == [0, 1, 2, 3, 5, offset]
        assert not lacks_erasures(world.partition().log)

    simulate(run)


def test_a_long_ledger_is_read_in_several_pages() -> None:
    async def run(world: Leading) -> None:
        await with_ledger(world)
        epoch = world.partition().leader_epoch
        with (
            patch("lowtide.broker.ledger.erasure_ledger.STEPS", 1),
            patch("lowtide.broker.ledger.erasure_ledger.STEP_BYTES", 300),
        ):
            for offset in (4, 6):
                await record(world, NamedRun(first_offset=offset, leader_epoch=epoch, timestamps=[1]))
                for number in range(10):
                    await record(
                        world,
                        NamedRun(first_offset=offset, leader_epoch=epoch, timestamps=[1]),
                        NamedRun(first_offset=number, leader_epoch=99, timestamps=[1]),
                    )
            await lose(world)
            await until_repeated(world)
        await commit(world)
        assert await read(world) == [0, 1, 2, 3, 4, 5], "the last record with a key counts"

    simulate(run)
