"""An erasure is repeated from an export: the leader erases the named records, and none that has their offsets now."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from lowtide.broker.ledger.named_records import RecordName, names_of, offsets_of, still_there
from lowtide.protocol.erasure_ledger_records import NamedKey, NamedRecords, NamedRun, SelectorKind
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.find_records import NAMED_MAX, FindRecordsPartition, FindRecordsRequest, FindRecordsTopic
from lowtide.storage.erasures.record_search import FoundRecords

from .leading import NONE, Leading, simulate
from .test_erasure_ledger import ID, commit, entries, with_ledger
from .test_find_records import find
from .test_holds import delete_the_topic

COMMITMENT = b"c" * 32
HELD_MS = 300_000


def run_of(offset: int, epoch: int, *timestamps: int) -> NamedRun:
    return NamedRun(first_offset=offset, leader_epoch=epoch, timestamps=list(timestamps))


async def ask(world: Leading, *runs: NamedRun, number: int = 0, **fields: Any) -> Any:
    rows = [FindRecordsPartition(partition_index=number, named=list(runs))]
    given = {"search_id": ID, "timeout_ms": 2_000, "named_kind": SelectorKind.KEYS, "commitment": COMMITMENT} | fields
    request = FindRecordsRequest(topics=[FindRecordsTopic(name="t", partitions=rows)], **given)
    return await world.client.request(request, 1)


async def replayed(world: Leading, *runs: NamedRun, **fields: Any) -> Any:
    """Repeats an erasure; the followers fetch it."""
    asked = asyncio.ensure_future(ask(world, *runs, erase=True, **fields))
    while not asked.done():
        await commit(world)
        await asyncio.sleep(0.01)
    return (await asked).topics[0].partitions[0]


def test_a_record_has_the_offset_the_epoch_and_the_timestamp_that_are_named() -> None:
    found = FoundRecords()
    for offset, epoch, timestamp in [(4, 1, 10), (5, 1, 11), (6, 2, 12)]:
        found.offsets.append(offset)
        found.leader_epochs.append(epoch)
        found.timestamps.append(timestamp)
    names = names_of([run_of(3, 1, 9, 10), run_of(5, 1, 12), run_of(6, 1, 12), run_of(6, 2, 12)])
    assert RecordName(3, 1, 9) in names
    assert offsets_of(names).ranges() == ((3, 6),)
    left = still_there(found, names)
    assert [list(left.offsets), list(left.leader_epochs), list(left.timestamps)] == [[4, 6], [1, 2], [10, 12]]


def test_only_named_records_are_erased_and_others_are_counted() -> None:
    """Protects the records of others, which got the offsets after a restore."""

    async def run(world: Leading) -> None:
        ledger = await with_ledger(world)
        epoch, log = world.partition().leader_epoch, world.partition().log
        named = [run_of(4, epoch, 1), run_of(5, epoch, 2), run_of(6, epoch + 1, 1), run_of(90, epoch, 1)]
        row = (await ask(world, *named)).topics[0].partitions[0]
        assert (row.error_code, row.record_count, row.other_count) == (NONE, 1, 2)
        assert [(each.first_offset, each.last_offset) for each in row.offsets] == [(4, 4)]
        assert (list(log.erasures.known), entries(ledger)) == ([], []), "nothing is erased yet"
        row = await replayed(world, *named)
        assert (row.error_code, row.record_count, row.other_count) == (NONE, 1, 2)
        [known] = log.erasures.known
        assert (known.erasure_id, known.count, known.left.first) == (UUID(bytes=ID), 1, 4)
        entry = entries(ledger)[-1]
        assert isinstance(entry.key, NamedKey)
        assert isinstance(entry.value, NamedRecords)
        assert (entry.value.kind, bytes(entry.value.commitment)) == (SelectorKind.KEYS, COMMITMENT)
        assert (entry.value.principal, entry.value.is_replay) == ("User:ANONYMOUS", True)
        assert entry.value.records == [run_of(4, epoch, 1)]
        row = await replayed(world, *named)
        assert (row.error_code, row.record_count, len(log.erasures.known)) == (NONE, 1, 1), "it is repeatable"

    simulate(run)


def test_an_erasure_is_repeated_for_each_commitment_and_in_parts() -> None:
    """An id may have several commitments, and more records than a request can name."""

    async def run(world: Leading) -> None:
        ledger = await with_ledger(world)
        epoch = world.partition().leader_epoch
        row = await find(world, keys=[b"nobody"], erase=True, search_id=ID)
        assert (row.error_code, row.record_count) == (NONE, 0)
        assert (await replayed(world, run_of(4, epoch, 1))).record_count == 1
        assert (await replayed(world, run_of(6, epoch, 1))).record_count == 2
        row = await replayed(world, run_of(4, epoch, 1), commitment=b"d" * 32, named_kind=SelectorKind.HEADER)
        assert (row.error_code, row.record_count) == (NONE, 2)
        last = entries(ledger)[-1].value
        assert isinstance(last, NamedRecords)
        assert (last.kind, bytes(last.commitment)) == (SelectorKind.HEADER, b"d" * 32)
        assert [each.left.ranges() for each in world.partition().log.erasures.known] == [((4, 4),), ((6, 6),)]

    simulate(run)


def test_a_part_that_is_not_done_is_not_replaced() -> None:
    async def run(world: Leading) -> None:
        await with_ledger(world)
        epoch = world.partition().leader_epoch
        row = (await ask(world, run_of(4, epoch, 1), erase=True, timeout_ms=100)).topics[0].partitions[0]
        assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        row = (await ask(world, run_of(6, epoch, 1), erase=True, timeout_ms=100)).topics[0].partitions[0]
        assert (row.error_code, row.error_message) == (ErrorCode.INVALID_REQUEST, "Another search has this id.")

    simulate(run)


def test_a_search_of_a_deleted_topic_is_not_joined() -> None:
    """Protects a replay on a topic that was created again: the old search could erase nothing for a minute."""

    async def run(world: Leading) -> None:
        await with_ledger(world)
        epoch, before = world.partition().leader_epoch, world.partition()
        assert (await replayed(world, run_of(4, epoch, 1))).error_code == NONE
        assert await delete_the_topic(world) == (NONE, None)
        await world.create_topic("t", (1, 2, 3))
        assert world.partition() is not before
        row = (await ask(world, run_of(4, epoch, 1), erase=True)).topics[0].partitions[0]
        assert (row.error_code, row.record_count) == (NONE, 0)

    simulate(run)


def test_a_request_may_name_the_most_records_each_in_a_run_of_its_own() -> None:
    """Protects a long replay: a request may have 10,000 rows."""

    async def run(world: Leading) -> None:
        await with_ledger(world)
        row = (await ask(world, *(run_of(2 * each, 0, 1) for each in range(NAMED_MAX)))).topics[0].partitions[0]
        assert row.error_code == NONE

    simulate(run)


@pytest.mark.parametrize("erase", [False, True])
def test_a_compacted_topic_is_refused(erase: bool) -> None:
    """A restored replica may have a version of the key that nobody named."""

    async def run(world: Leading) -> None:
        await world.start()
        await world.create_topic("t", (1,), cleanup_policy="compact")
        row = (await ask(world, run_of(0, 0, 1), erase=erase)).topics[0].partitions[0]
        assert row.error_code == ErrorCode.POLICY_VIOLATION
        assert "lowtide records erase --keys-from" in row.error_message

    simulate(run)


def test_a_held_topic_is_refused() -> None:
    async def run(world: Leading) -> None:
        await world.start()
        until_ms = world.clock.wall_ms() + HELD_MS
        await world.create_topic("t", (1,), lowtide_hold_until=str(until_ms), lowtide_hold_reason="case 7")
        row = (await ask(world, run_of(0, 0, 1), erase=True)).topics[0].partitions[0]
        assert row.error_code == ErrorCode.POLICY_VIOLATION
        assert row.error_message.endswith("case 7.")

    simulate(run)


@pytest.mark.parametrize(
    ("runs", "fields", "reason"),
    [
        ([run_of(0, 0, *range(NAMED_MAX + 1))], {}, "names 4001 records"),
        ([run_of(0, 0)], {}, "is empty"),
        ([run_of(-1, 0, 5)], {}, "negative offset"),
        ([run_of(0, 0, 5)], {"keys": [b"secret"]}, "one selector"),
        ([run_of(0, 0, 5)], {"named_kind": 9}, "no kind of selector"),
        ([run_of(0, 0, 5)], {"named_kind": -1}, "no kind of selector"),
        ([], {"keys": [b"secret"]}, "needs named records"),
    ],
)
def test_names_that_are_refused(runs: list[NamedRun], fields: dict[str, Any], reason: str) -> None:
    """Protects the broker from long lists: they are counted before anything is made of them."""

    async def run(world: Leading) -> None:
        await with_ledger(world)
        answer = await ask(world, *runs, **fields)
        assert (answer.error_code, answer.topics) == (ErrorCode.INVALID_REQUEST, [])
        assert reason in answer.error_message
        assert "secret" not in answer.error_message

    simulate(run)
