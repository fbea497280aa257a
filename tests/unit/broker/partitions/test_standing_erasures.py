"""While an erasure stands, its keys are erased again when they return, whoever leads, and nothing else is."""

from __future__ import annotations

import asyncio
import os
from typing import Any
from unittest.mock import patch

import pytest

from lowtide.admin.receipts.issuing import described as statements
from lowtide.admin.receipts.issuing import partitions_of
from lowtide.metadata import keys
from lowtide.metadata.store import Delete
from lowtide.protocol.erasure_ledger_records import (
    CleanReplica,
    LedgerEntry,
    NamedRecords,
    StandingKey,
    StandingSearch,
    encode_entry,
)
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.key_digest import key_digest
from lowtide.protocol.messages.alter_standing_erasures import AlterStandingErasuresRequest
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest
from lowtide.protocol.messages.describe_standing_erasures import DescribeStandingErasuresRequest
from lowtide.protocol.messages.write_erasures import LedgerRecord, WriteErasuresRequest
from lowtide.replication.topic_names import LEDGER_TOPIC
from lowtide.storage.erasures import log_search

from .leading import NONE, PREFIX, Leading, simulate
from .test_erasure_ledger import entries
from .test_find_records import produce
from .test_lost_erasures import read

ID, OTHER_ID = b"e" * 16, b"o" * 16
PERSON, OTHER = b"person", b"other"
SECRET = bytes(range(32))
INTERVAL_S = 10
HOUR_MS = 3_600_000
ROUNDS = int(os.environ.get("ROUNDS", "10"))


async def start(world: Leading, **configs: str) -> None:
    await world.start(lowtide_erasure_standing_interval_ms=str(INTERVAL_S * 1000))
    await create(world, **configs)
    await world.create_topic(LEDGER_TOPIC, (1,))


async def create(world: Leading, **configs: str) -> None:
    """Creates a topic whose records are old, and are kept."""
    await world.create_topic("t", (1,), **({"retention_ms": "-1"} | configs))


def request_of(erasure_id: bytes = ID, person: bytes = PERSON, **fields: Any) -> AlterStandingErasuresRequest:
    given = {"lasts_ms": HOUR_MS, "topics": ["t"], "secret": SECRET, "commitment": b"c" * 32} | fields
    given.setdefault("digests", [key_digest(SECRET, person)])
    return AlterStandingErasuresRequest(erasure_id=erasure_id, **given)


async def stand(world: Leading, erasure_id: bytes = ID, person: bytes = PERSON, **fields: Any) -> int:
    answer = await world.client.request(request_of(erasure_id, person, **fields), 0)
    assert answer.error_code == NONE, answer
    ends_ms: int = answer.ends_ms
    return ends_ms


async def two_intervals() -> None:
    await asyncio.sleep(2 * INTERVAL_S)


async def lead_again(world: Leading) -> None:
    """Lets the broker lead in another epoch, as after an election."""
    await world.change(leader_epoch=world.image().leader_epoch + 1)


def test_a_key_that_returns_many_times_is_erased_each_time() -> None:
    """Protects the promise of --standing: within two intervals, while all other records stay."""

    async def run(world: Leading) -> None:
        await start(world)
        await produce(world, OTHER, PERSON)
        ends_ms = await stand(world)
        assert 0 <= world.clock.wall_ms() + HOUR_MS - ends_ms < 1_000
        live, expected = [0, 1], 2
        for number in range(ROUNDS):
            await produce(world, OTHER, PERSON, OTHER)
            live += [expected, expected + 2]
            await two_intervals()
            found = await read(world)
            assert found == live, number
            expected = world.partition().log.log_end_offset
            if number % 10 == 4:
                await lead_again(world)
        ledger = entries(world.partition(topic=LEDGER_TOPIC).log)
        named = [each.value for each in ledger if isinstance(each.value, NamedRecords)]
        assert {(each.commitment, each.principal) for each in named} == {(b"c" * 32, "User:ANONYMOUS")}
        assert [each for each in ledger if isinstance(each.value, CleanReplica)], "the leader asks for confirmations"

    simulate(run)


def test_what_the_log_had_is_left_to_the_request_that_began_it() -> None:
    """Protects the CPU: the request has searched the whole log already."""

    async def run(world: Leading) -> None:
        await start(world)
        await produce(world, PERSON)
        await stand(world)
        await two_intervals()
        assert await read(world) == [0]

    simulate(run)


@pytest.mark.parametrize(
    ("searched_to", "epochs_later", "left"),
    [(None, 0, []), (2, 0, [0, 1]), (2, 9, []), (1, 0, [0])],
    ids=["no entry", "entry", "entry of an epoch that the log lacks", "entry before the end"],
)
def test_a_new_leader_continues_where_the_ledger_says(
    searched_to: int | None, epochs_later: int, left: list[int]
) -> None:
    """Protects records that came before an election, also where the log was cut since the entry was written."""

    async def run(world: Leading) -> None:
        await start(world)
        await produce(world, PERSON)
        await produce(world, PERSON)
        partition = world.partition()
        if searched_to is not None:
            key = StandingKey(topic_id=partition.topic_id, partition=0)
            epoch = partition.leader_epoch + epochs_later
            value = StandingSearch(topic="t", searched_to=searched_to, leader_epoch=epoch, searched_ms=1)
            encoded, content = encode_entry(LedgerEntry(key, value))
            rows = [LedgerRecord(key=encoded, value=content)]
            assert (
                await world.client.request(WriteErasuresRequest(records=rows, timeout_ms=1000), 0)
            ).error_code == NONE
        with patch("lowtide.broker.ledger.standing_erasures.StandingErasures._known", lambda *_: None):
            await stand(world)
        await lead_again(world)
        await two_intervals()
        assert await read(world) == left

    simulate(run)


def test_replicas_confirm_also_what_was_deleted_before() -> None:
    """Protects a receipt: the leader doesn't search below its log start, so replicas must be clean below it too."""

    async def run(world: Leading) -> None:
        await start(world)
        for number in range(4):
            await produce(world, OTHER)
            if number == 1:
                await stand(world)
        assert (await world.delete(3)).error_code == NONE
        await produce(world, PERSON)
        await two_intervals()
        [statement] = statements(partitions_of(entries(world.partition(topic=LEDGER_TOPIC).log), ID), None)
        assert statement.searches[-1].log_start_offset == 3
        assert ([each.broker for each in statement.confirmed], statement.not_confirmed) == ([1], [])

    simulate(run)


def test_it_ends_by_itself_and_leaves_no_digest() -> None:
    async def run(world: Leading) -> None:
        await start(world)
        await stand(world, lasts_ms=60_000)
        await stand(world, OTHER_ID, b"somebody else")
        assert [each.key_count for each in (await described(world)).erasures] == [1, 1]
        await asyncio.sleep(61)
        await produce(world, PERSON, b"somebody else")
        await two_intervals()
        assert await read(world) == [0]
        assert [bytes(each.erasure_id) for each in (await described(world)).erasures] == [OTHER_ID]
        assert list(world.replicas.image.standing) == [OTHER_ID]

    simulate(run)


async def described(world: Leading) -> Any:
    answer = await world.client.request(DescribeStandingErasuresRequest(), 0)
    assert answer.error_code == NONE
    return answer


def test_it_can_be_ended_and_replaced() -> None:
    async def run(world: Leading) -> None:
        await start(world)
        await stand(world)
        await stand(world, person=b"the right person")
        await produce(world, PERSON, b"the right person")
        await two_intervals()
        assert await read(world) == [0]
        await stand(world, lasts_ms=0, topics=[], digests=[])
        await produce(world, b"the right person")
        await two_intervals()
        assert len(await read(world)) == 2
        answer = await world.client.request(request_of(lasts_ms=0, topics=[]), 0)
        assert answer.error_code == ErrorCode.RESOURCE_NOT_FOUND

    simulate(run)


def test_a_hold_is_stronger() -> None:
    async def run(world: Leading) -> None:
        await start(world)
        await stand(world)
        await produce(world, PERSON)
        with patch.object(type(world.partition().log.config), "is_held", lambda *_: True):
            await two_intervals()
            assert await read(world) == [0]
        await two_intervals()
        assert await read(world) == []

    simulate(run)


def test_a_pattern_covers_topics_that_come_later_and_come_again() -> None:
    """Protects against positions of a deleted topic, whose log was longer than the new one's."""

    async def run(world: Leading) -> None:
        await start(world)
        await stand(world, topics=[], patterns=["[s-u]*"])
        for _ in range(5):
            await produce(world, OTHER)
        await two_intervals()
        await world.client.request(DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000), 5)
        await world.see()
        await create(world)
        await produce(world, PERSON, OTHER)
        await two_intervals()
        assert await read(world) == [1]

    simulate(run)


def test_more_records_than_a_search_may_find_are_erased_in_parts() -> None:
    async def run(world: Leading) -> None:
        await start(world)
        await stand(world)
        with patch.object(log_search, "FOUND_MAX", 3):
            for _ in range(10):
                await produce(world, PERSON, OTHER)
            await two_intervals()
        assert all(offset % 2 for offset in await read(world))
        assert len(await read(world)) == 10

    simulate(run)


def test_two_erasures_may_name_one_key() -> None:
    async def run(world: Leading) -> None:
        await start(world)
        await stand(world)
        await stand(world, OTHER_ID)
        await produce(world, PERSON, OTHER)
        await two_intervals()
        assert await read(world) == [1]
        ids = {
            bytes(each.key.erasure_id)
            for each in entries(world.partition(topic=LEDGER_TOPIC).log)
            if isinstance(each.value, NamedRecords)
        }
        assert ids == {ID, OTHER_ID}

    simulate(run)


def test_a_compacted_topic_loses_all_versions() -> None:
    async def run(world: Leading) -> None:
        await start(world, cleanup_policy="compact")
        await stand(world)
        await produce(world, PERSON, OTHER, PERSON)
        await two_intervals()
        assert await read(world) == [1]

    simulate(run)


def test_an_unreadable_record_erases_nothing() -> None:
    """Protects the start of a broker when another version wrote what this one can't read."""

    async def run(world: Leading) -> None:
        await start(world)
        await stand(world)
        await world.put(keys.standing(ID), b"{")
        await produce(world, PERSON)
        await two_intervals()
        assert await read(world) == [0]
        await world.store.transact([], [Delete(PREFIX + keys.standing(ID))])
        await world.see()

    simulate(run)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"lasts_ms": -1}, "lasts_ms is -1"),
    ({"lasts_ms": 1 << 62}, "which are ten years"),
    ({"topics": []}, "needs topics or patterns"),
    ({"topics": ["t"] * 101}, "at most 100 topics"),
    ({"topics": ["__consumer_offsets"]}, "internal topic"),
    ({"topics": ["a b"]}, "no valid topic name"),
    ({"patterns": [""]}, "from 1 to 249 characters"),
    ({"digests": []}, "has 0 digests"),
    ({"digests": [b"short"]}, "A digest has 36 bytes"),
    ({"secret": b""}, "the secret 32"),
    ({"commitment": b""}, "The commitment has 0 bytes"),
]


def test_bad_requests_are_refused_with_a_sentence() -> None:
    async def run(world: Leading) -> None:
        await start(world)
        for fields, sentence in BAD:
            answer = await world.client.request(request_of(**fields), 0)
            assert answer.error_code == ErrorCode.INVALID_REQUEST, fields
            assert sentence in answer.error_message, answer
        assert not world.replicas.image.standing
        answer = await world.client.request(AlterStandingErasuresRequest(erasure_id=bytes(16), lasts_ms=1), 0)
        assert answer.error_code == NONE, "without an id it is only a question"

    simulate(run)
