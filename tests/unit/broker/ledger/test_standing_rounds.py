"""Rounds of standing erasures: from where a partition is searched, what is erased, and what the next leader knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lowtide.broker.ledger.ledger_entries import ErasureRequest
from lowtide.broker.ledger.standing_erasures import ERASE_S, NOTE_MS
from lowtide.metadata.changes import ChangePlan
from lowtide.protocol.erasure_ledger_records import LedgerEntry, NamedKey, SelectorKind, StandingKey, StandingSearch
from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition
from lowtide.replication.refusal import Refusal
from lowtide.storage.erasures.log_search import SearchFailure
from tests.unit.admin.ledger_rows import clean, named

from .standing_broker import (
    EPOCH,
    ID,
    INTERVAL_MS,
    NOBODY,
    NONE,
    OTHER,
    OTHER_ID,
    PERSON,
    TOPIC_ID,
    StandingBroker,
    standing,
    standing_broker,
)


def test_what_is_appended_is_searched_once() -> None:
    async def test(broker: StandingBroker) -> None:
        log = broker.lead(0, PERSON, NOBODY).log
        broker.see(e=standing(PERSON))
        assert (await broker.round(), broker.reads) == ([], []), "the request has searched that"
        log.keys += [NOBODY, PERSON, PERSON]
        assert await broker.round() == [(0, 2, 5)]
        assert broker.erased == [(ID, [3, 4])]
        assert broker.requests == [ErasureRequest(ID, SelectorKind.KEYS, b"c" * 32, "User:a")]
        assert broker.confirmations.added == [(ID, 0, EraseGoal(0, 6))]
        assert await broker.round() == [(0, 5, 6)]
        assert await broker.round() == []
        assert broker.forgotten == broker.begun

    standing_broker(test)


def test_only_led_partitions_of_its_topics_are_searched() -> None:
    async def test(broker: StandingBroker) -> None:
        broker.lead(0, PERSON)
        broker.lead(1, PERSON).is_leader = False
        broker.lead(2, PERSON, topic="u")
        broker.see(e=standing(PERSON), o=standing(OTHER))
        for partition in broker.partitions.values():
            partition.log.keys.append(NOBODY)
        assert await broker.round() == [(0, 1, 2)]
        assert broker.reads == []

    standing_broker(test)


def test_a_second_erasure_of_a_topic_leaves_the_place() -> None:
    """What was not searched yet is searched for both; when none is left, the place is forgotten."""

    async def test(broker: StandingBroker) -> None:
        log = broker.lead(0, NOBODY).log
        broker.see(e=standing(PERSON))
        log.keys.append(OTHER)
        broker.see(e=standing(PERSON), o=standing(OTHER))
        assert await broker.round() == [(0, 1, 2)]
        assert broker.erased == [(OTHER_ID, [1])]
        broker.see(o=standing(OTHER, topics=("u",)))
        assert await broker.round() == []
        log.keys += [PERSON] * 4
        broker.see(o=standing(OTHER))
        assert await broker.round() == [], "it begins with the new erasure"

    standing_broker(test)


def test_the_same_image_changes_nothing() -> None:
    async def test(broker: StandingBroker) -> None:
        broker.lead(0, PERSON)
        broker.see(e=standing(PERSON))
        index = broker.standing._index
        broker.standing.on_image(broker.image)
        assert broker.standing._index is index

    standing_broker(test)


def test_rounds_keep_their_interval_and_do_not_overlap() -> None:
    """Protects the CPU."""

    async def test(broker: StandingBroker) -> None:
        broker.lead(0)
        broker.standing.on_tick()
        assert broker.running == [], "nothing stands"
        broker.see(e=standing(PERSON))
        await asyncio.sleep(0.5)
        broker.standing.on_tick()
        await asyncio.gather(*broker.running)
        await asyncio.sleep(INTERVAL_MS / 1000 - 0.001)
        broker.standing.on_tick()
        assert len(broker.running) == 1
        await asyncio.sleep(0.001)
        broker.standing.on_tick()
        assert len(broker.running) == 2
        await asyncio.sleep(0.02)
        broker.partitions[TopicPartition("t", 0)].log.keys.append(NOBODY)
        gate = asyncio.Event()
        genuine = broker.search

        async def wait(*given: Any, **options: Any) -> Any:
            await gate.wait()
            return await genuine(*given, **options)

        broker.search = wait
        for _ in range(3):
            await asyncio.sleep(INTERVAL_MS / 1000)
            broker.standing.on_tick()
        assert len(broker.running) == 3
        gate.set()
        await asyncio.gather(*broker.running)
        await broker.round()
        assert broker.confirmations.rounds == 4

    standing_broker(test)


def test_the_controller_removes_what_has_ended() -> None:
    async def test(broker: StandingBroker) -> None:
        broker.see(e=standing(PERSON, ends_ms=1))
        await broker.round()
        assert not broker.swept
        broker.ended = True
        broker.standing.on_tick()
        broker.standing.on_tick()
        assert len(broker.running) == 1, "one at a time"
        broker.swept = [Refusal(ErrorCode.REQUEST_TIMED_OUT, "")]
        await asyncio.gather(*broker.running)
        broker.running.clear()
        broker.standing.on_tick()
        assert len(broker.running) == 1, "it is tried again"
        await asyncio.gather(*broker.running)
        broker.running.clear()
        broker.standing.on_tick()
        broker.swept = [ChangePlan(())]
        await asyncio.gather(*broker.running)
        broker.running.clear()
        broker.image.controller_id = 2
        broker.standing.on_tick()
        assert broker.running == []

    standing_broker(test)


@pytest.mark.parametrize(
    ("epoch", "searched_to", "first_offset"),
    [
        (None, 0, 0),
        (EPOCH, 8, 8),
        (EPOCH, 0, 0),
        (EPOCH, 30, 9),
        (3, 8, 5),
        (3, 4, 4),
        (0, 8, 2),
        (-1, 0, 0),
        (-1, 8, 0),
    ],
)
def test_a_new_leader_begins_where_the_logs_part(epoch: int | None, searched_to: int, first_offset: int) -> None:
    """Protects what an earlier leader has searched and the new one has not, since another record has its offset."""

    async def test(broker: StandingBroker) -> None:
        broker.see(e=standing(PERSON))
        broker.lead(0, *[NOBODY] * 9)
        broker.lead(1, *[NOBODY] * 9)
        if epoch is not None:
            key = StandingKey(topic_id=TOPIC_ID, partition=0)
            broker.entries = [
                LedgerEntry(key, StandingSearch(topic="t", searched_to=searched_to, leader_epoch=epoch, searched_ms=1))
            ]
        found = await broker.round()
        assert broker.reads == [[0, 1]]
        expected = [(0, first_offset, 9)] if first_offset < 9 else []
        assert sorted(found) == [*expected, (1, 0, 9)]

    standing_broker(test)


def test_a_new_leader_asks_for_the_confirmations_that_the_ledger_lacks() -> None:
    async def test(broker: StandingBroker) -> None:
        broker.see(e=standing(PERSON))
        broker.lead(0)
        entries = []
        for each, erasure_id in ((named(), ID), (clean(1), ID), (named(), OTHER_ID)):
            key: Any = each.key
            key.erasure_id, key.topic_id = erasure_id, TOPIC_ID
            entries.append(each)
        elsewhere: Any = clean(2).key
        elsewhere.erasure_id, elsewhere.topic_id, elsewhere.partition = ID, TOPIC_ID, 1
        tombstone = LedgerEntry(StandingKey(topic_id=TOPIC_ID, partition=0), None)
        broker.entries = [*entries, tombstone, LedgerEntry(elsewhere, clean(2).value)]
        await broker.round()
        assert broker.confirmations.resumed == {0: entries[:2]}
        assert isinstance(entries[0].key, NamedKey)

    standing_broker(test)


def test_without_the_ledger_a_new_leader_waits() -> None:
    async def test(broker: StandingBroker) -> None:
        broker.see(e=standing(PERSON))
        broker.lead(0, PERSON)
        broker.entries = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await broker.round(), broker.warnings) == ([], 1)
        broker.entries = []
        assert await broker.round() == [(0, 0, 1)]

    standing_broker(test)


def test_a_leader_epoch_that_ends_while_the_ledger_is_read_has_no_place() -> None:
    async def test(broker: StandingBroker) -> None:
        broker.see(e=standing(PERSON))
        partition = broker.lead(0, PERSON)

        def elect() -> None:
            partition.leader_epoch += 1
            broker.on_read = lambda: None

        broker.on_read = elect
        assert await broker.round() == []
        assert await broker.round() == [(0, 0, 1)]
        partition.topic_id = b"n" * 16
        broker.reads.clear()
        await broker.round()
        assert broker.reads == [[0]], "the topic was created again"

    standing_broker(test)


def test_short_parts_are_searched_before_long_ones() -> None:
    """Protects a small topic from waiting for a long log, which a new leader searches whole."""

    async def test(broker: StandingBroker) -> None:
        for number, count in ((0, 3), (1, 1), (2, 2)):
            broker.lead(number, *[NOBODY] * (4 - count))
        broker.see(e=standing(PERSON))
        for number, count in ((0, 3), (1, 1), (2, 2)):
            broker.partitions[TopicPartition("t", number)].log.keys += [NOBODY] * count
        assert [each[0] for each in await broker.round()] == [1, 2, 0]

    standing_broker(test)


@pytest.mark.parametrize("failure", [SearchFailure.TOO_MANY, SearchFailure.TOO_MANY_KEYS])
def test_too_many_records_are_searched_in_parts(failure: SearchFailure) -> None:
    async def test(broker: StandingBroker) -> None:
        log = broker.lead(0, NOBODY).log
        broker.see(e=standing(PERSON))
        log.keys += [PERSON] * 8
        broker.found_max = 3
        found = await broker.round()
        assert found[:3] == [(0, 1, 9), (0, 1, 5), (0, 1, 3)]
        assert sorted(offset for _, offsets in broker.erased for offset in offsets) == list(range(1, 9))
        await broker.round()
        broker.failure, first_offset = failure, log.log_end_offset
        log.keys += [NOBODY] * 4
        parts = [(0, first_offset, first_offset + size) for size in (4, 2, 1)]
        assert await broker.round() == parts, "one record alone is given up until the next round"
        assert await broker.round() == parts

    standing_broker(test)


def change_log(broker: StandingBroker) -> None:
    broker.partitions[TopicPartition("t", 0)].log = broker.lead(9, NOBODY, PERSON).log


def change_epoch(broker: StandingBroker) -> None:
    broker.partitions[TopicPartition("t", 0)].leader_epoch += 1


def lose_leadership(broker: StandingBroker) -> None:
    broker.partitions[TopicPartition("t", 0)].is_leader = False


def fail_search(broker: StandingBroker) -> None:
    broker.failure = SearchFailure.UNREADABLE


@pytest.mark.parametrize("change", [change_log, change_epoch, lose_leadership, fail_search])
def test_a_search_that_does_not_count_is_repeated(change: Callable[[StandingBroker], None]) -> None:
    async def test(broker: StandingBroker) -> None:
        partition = broker.lead(0, NOBODY)
        broker.see(e=standing(PERSON))
        log = partition.log
        log.keys.append(NOBODY)
        progress = broker.standing._known(partition)
        assert progress is not None
        broker.on_search = lambda: change(broker)
        assert await broker.round() == [(0, 1, 2)]
        assert progress.searched_to == 1
        broker.on_search, broker.failure = (lambda: None), None
        partition.log, partition.leader_epoch, partition.is_leader = log, EPOCH, True
        broker.partitions.pop(TopicPartition("t", 9), None)
        await broker.round()
        known = broker.standing._known(partition)
        assert known is not None
        assert known.searched_to == 2

    standing_broker(test)


def hold(broker: StandingBroker, log: Any) -> None:
    log.held = not log.held


def withhold(broker: StandingBroker, log: Any) -> None:
    log.erasures.withheld = not log.erasures.withheld


def refuse(broker: StandingBroker, log: Any) -> None:
    broker.refusal = None if broker.refusal else Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, "")


@pytest.mark.parametrize("toggle", [hold, withhold, refuse])
def test_what_can_not_be_erased_now_is_searched_later(toggle: Callable[[StandingBroker, Any], None]) -> None:
    async def test(broker: StandingBroker) -> None:
        log = broker.lead(0, NOBODY).log
        broker.see(e=standing(PERSON))
        log.keys.append(PERSON)
        toggle(broker, log)
        assert await broker.round() == []
        toggle(broker, log)
        assert (await broker.round(), broker.erased) == ([(0, 1, 2)], [(ID, [1])])

    standing_broker(test)


def refuse_erasing(broker: StandingBroker) -> None:
    broker.erase_errors = [ErrorCode.REQUEST_TIMED_OUT]


def refuse_the_second(broker: StandingBroker) -> None:
    broker.erase_errors = [NONE, ErrorCode.REQUEST_TIMED_OUT]


def be_busy(broker: StandingBroker) -> None:
    broker.on_search = lambda: refuse(broker, None)


def never_end(broker: StandingBroker) -> None:
    broker.never_done = True


def fail_late(broker: StandingBroker) -> None:
    broker.late_failure = SearchFailure.CUT


def not_searchable(broker: StandingBroker) -> None:
    broker.compacted, broker.not_searchable = True, Refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "")


def busy_everywhere(broker: StandingBroker) -> None:
    broker.compacted, broker.everywhere = True, SearchFailure.BUSY


def refuse_compacted(broker: StandingBroker) -> None:
    broker.compacted, broker.erase_errors = True, [ErrorCode.REQUEST_TIMED_OUT]


def refuse_the_second_compacted(broker: StandingBroker) -> None:
    broker.compacted, broker.erase_errors = True, [NONE, ErrorCode.REQUEST_TIMED_OUT]


@pytest.mark.parametrize(
    "trouble",
    [
        refuse_erasing,
        refuse_the_second,
        be_busy,
        never_end,
        fail_late,
        not_searchable,
        busy_everywhere,
        refuse_compacted,
        refuse_the_second_compacted,
    ],
)
def test_what_was_not_erased_is_searched_again(trouble: Callable[[StandingBroker], None]) -> None:
    """Protects the promise: the place is left only when all is erased, for each of the erasures."""

    async def test(broker: StandingBroker) -> None:
        log = broker.lead(0, NOBODY).log
        broker.see(e=standing(PERSON), o=standing(OTHER))
        log.keys += [PERSON, OTHER]
        trouble(broker)
        began_s = broker.loop.time()
        assert await broker.round() == [(0, 1, 3)]
        if trouble is never_end:
            assert broker.loop.time() - began_s > ERASE_S
        assert broker.warnings
        for name in ("never_done", "late_failure", "not_searchable", "everywhere", "refusal"):
            setattr(broker, name, None)
        broker.on_search = lambda: None
        assert (await broker.round())[0][:2] == (0, 1)
        assert log.keys[1:3] == [None, None]
        assert {erasure_id for erasure_id, _ in broker.erased} == {ID, OTHER_ID}
        assert broker.forgotten == broker.begun

    standing_broker(test)


def test_each_erasure_gets_its_own_records() -> None:
    """Of an erasure that has ended, or was ended meanwhile, nothing is erased; an empty key is a key."""

    async def test(broker: StandingBroker) -> None:
        log = broker.lead(0, NOBODY).log
        broker.see(
            a=standing(PERSON, ends_ms=1_000),
            b=standing(PERSON, ends_ms=1_001),
            c=standing(PERSON),
            e=standing(PERSON, b""),
            o=standing(OTHER),
        )
        log.keys += [PERSON, b"", OTHER, NOBODY]

        def end_one() -> None:
            broker.image.standing = {key: each for key, each in broker.image.standing.items() if key != b"c" * 16}
            broker.standing.on_image(broker.image)

        broker.on_search = end_one
        await broker.round()
        assert broker.erased == [(b"b" * 16, [1]), (ID, [1, 2]), (OTHER_ID, [3])]

    standing_broker(test)


@pytest.mark.parametrize("end", [-1, 1])
def test_replicas_confirm_only_what_was_appended(end: int) -> None:
    async def test(broker: StandingBroker) -> None:
        log = broker.lead(0, NOBODY).log
        broker.see(e=standing(PERSON))
        log.keys.append(PERSON)
        broker.erasures_end = end
        await broker.round()
        assert broker.confirmations.added == ([] if end < 0 else [(ID, 0, EraseGoal(0, end))])

    standing_broker(test)


def test_the_ledger_learns_how_far_a_log_is_searched() -> None:
    """At once, and then at most every ten minutes, with the epoch of the last record that was searched."""

    async def test(broker: StandingBroker) -> None:
        logs = [broker.lead(number).log for number in range(3)]
        logs[1].keys += [NOBODY] * 5
        logs[2].keys += [NOBODY] * 6
        broker.see(e=standing(PERSON))
        broker.record_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        await broker.round()
        broker.record_error = NONE
        await broker.round()
        began_s = broker.loop.time()
        found = [(each.key.partition, each.value) for each in broker.recorded if isinstance(each.value, StandingSearch)]
        assert [(number, value.searched_to, value.leader_epoch) for number, value in found] == [
            (0, 0, -1),
            (1, 5, 3),
            (2, 6, EPOCH),
        ]
        assert {(value.topic, value.searched_ms) for _, value in found} == {("t", 1_000)}
        broker.recorded.clear()
        logs[1].keys.append(NOBODY)
        while broker.loop.time() - began_s < NOTE_MS / 1000 - 2 * INTERVAL_MS / 1000:
            await broker.round()
            assert broker.recorded == []
        await broker.round()
        await broker.round()
        assert [each.key.partition for each in broker.recorded] == [1]

    standing_broker(test)
