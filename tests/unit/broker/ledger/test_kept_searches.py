"""Searches that requests join: which one is joined, begun again or forgotten, and for whom there is room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.ledger import kept_searches
from lowtide.broker.ledger.kept_searches import (
    IDS_MAX,
    IDS_SHARE,
    KEPT_MS,
    NAMED_COMPACTED,
    REPLICAS_KEPT_MS,
    KeptSearch,
    KeptSearches,
    SearchKey,
)
from lowtide.broker.ledger.named_records import ReplayedSearch
from lowtide.broker.partitions.older_versions import ErasureTerms
from lowtide.protocol.erasure_ledger_records import NamedRun, SelectorKind
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition
from lowtide.replication.refusal import Refusal
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.storage.erasures.log_search import SearchedLog, SearchFailure
from lowtide.storage.erasures.record_search import FoundRecords, KeySelector, OffsetSelector

PERSON = ErasureTerms(KeySelector(frozenset([b"person"])))
OTHER = ErasureTerms(KeySelector(frozenset([b"other"])))
BY_OFFSET = ErasureTerms(OffsetSelector(((0, 1),)))
FOUND = SearchedLog(0, 9, FoundRecords())
LOOK_MS = 2_500


class StubSearch:
    """A search that ends when the test says so; it stands for a search of one log, and for one of all replicas."""

    def __init__(self, *given: Any) -> None:
        self.given = given
        self.partition = given[0]
        self.log = getattr(given[0], "log", None)
        self.outcome: Any = None
        self.done = asyncio.Event()
        self.current = True
        self.began = self.cancelled = False

    def is_current(self) -> bool:
        return self.current

    def begin(self, *_: Any) -> None:
        self.began = True

    def cancel(self) -> None:
        self.cancelled = True

    def end(self, outcome: Any = FOUND) -> None:
        self.outcome = outcome
        self.done.set()


class StubSearches:
    """Begins searches, as long as fewer than `room` are kept."""

    def __init__(self) -> None:
        self.room = 1_000
        self.kept: list[StubSearch] = []

    def begin(self, partition: Any, _selector: Any, end_offset: int, *, with_keys: bool) -> Any:
        if len(self.kept) >= self.room:
            return SearchFailure.BUSY
        assert end_offset == 9
        self.kept.append(StubSearch(partition, with_keys))
        return self.kept[-1]

    def forget(self, search: StubSearch) -> None:
        self.kept.remove(search)


def partition_of(*, compacted: bool = False) -> Any:
    config = SimpleNamespace(cleanup_policy=("compact",) if compacted else ("delete",))
    log = SimpleNamespace(
        config=config,
        swaps=SimpleNamespace(cleaned_to=None),
        erasures=SimpleNamespace(withheld=False),
        log_end_offset=9,
    )
    return SimpleNamespace(log=log)


class KeptWorld:
    """The kept searches of a broker on virtual time, and a partition of each kind."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.searches = StubSearches()
        parts: Any = SimpleNamespace(searches=self.searches, clock=SimulatedClock(loop), replicas=None, tasks=None)
        self.kept = KeptSearches(parts)
        self.loop = loop
        self.plain, self.compacted = partition_of(), partition_of(compacted=True)

    def join(
        self,
        search_id: int = 0,
        terms: ErasureTerms = PERSON,
        client: str = "a",
        *,
        erase: bool = False,
        partition: Any = None,
        number: int = 0,
        replay: ReplayedSearch | None = None,
    ) -> Any:
        key = SearchKey(bytes([search_id]) * 16, TopicPartition("t", number), erase)
        return self.kept.joined(key, partition or self.plain, terms, client, replay)

    async def answer(self, *kept: KeptSearch, outcome: Any = FOUND) -> None:
        """Ends searches, and lets a request read what they have found."""
        for each in kept:
            if each.outcome is None:
                running: Any = each.running
                running.end(outcome)
        await self.kept.wait(list(kept), self.loop.time() + 1)


def in_world(test: Callable[[KeptWorld], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: SimulatedLoop) -> None:
        await test(KeptWorld(loop))

    run_simulation(main, 1)


@pytest.fixture(autouse=True)
def _stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_searches, "CompactedErasure", lambda _parts, running, terms: StubSearch(running, terms))
    monkeypatch.setattr(kept_searches, "NewestSearch", lambda _searches, running: StubSearch(running))
    monkeypatch.setattr(kept_searches, "why_not_searchable", lambda *_: None)


def refused(found: Any) -> ErrorCode:
    assert isinstance(found, Refusal), found
    return ErrorCode(found.error_code)


def test_a_search_is_joined_with_its_id_selector_and_client() -> None:
    async def test(world: KeptWorld) -> None:
        first = world.join()
        assert world.join() is first
        assert refused(world.join(terms=OTHER)) == ErrorCode.INVALID_REQUEST
        assert refused(world.join(client="b")) == ErrorCode.INVALID_REQUEST
        assert world.join(erase=True) is not first, "an erasure is not a search with its id"
        assert len(world.searches.kept) == 2
        await world.answer(first)
        assert world.join() is first
        assert first.outcome is FOUND

    in_world(test)


@pytest.mark.parametrize("failure", [SearchFailure.CHANGED, SearchFailure.UNREADABLE])
def test_a_failed_search_is_begun_again_when_it_was_answered(failure: SearchFailure) -> None:
    """Protects a client that asks again: it would get the same failure for a minute."""

    async def test(world: KeptWorld) -> None:
        first = world.join()
        await world.answer(first, outcome=failure)
        second = world.join()
        assert (second is first, second.outcome, world.searches.kept) == (False, None, [second.running])

    in_world(test)


def test_a_refused_erasure_of_a_compacted_log_is_begun_again() -> None:
    async def test(world: KeptWorld) -> None:
        first = world.join(erase=True, partition=world.compacted)
        first.erasure.compacted.end(Refusal(ErrorCode.KAFKA_STORAGE_ERROR, ""))
        assert world.join(erase=True, partition=world.compacted) is not first
        assert first.erasure.compacted.cancelled

    in_world(test)


def test_a_search_of_an_earlier_leader_epoch_is_not_joined() -> None:
    async def test(world: KeptWorld) -> None:
        first = world.join()
        first.running.current = False
        second = world.join()
        assert (second is first, world.searches.kept) == (False, [second.running])

    in_world(test)


def test_a_search_of_a_topic_that_was_created_again_is_forgotten() -> None:
    async def test(world: KeptWorld) -> None:
        world.join()
        second = world.join(terms=OTHER, partition=partition_of())
        assert world.searches.kept == [second.running]

    in_world(test)


def replayed(offset: int) -> ReplayedSearch:
    return ReplayedSearch(SelectorKind.KEYS, b"", (NamedRun(first_offset=offset, leader_epoch=0, timestamps=[1]),))


@pytest.mark.parametrize("erase", [False, True])
def test_a_part_of_a_replay_follows_when_the_one_before_is_done(erase: bool) -> None:
    """Protects the part before: its records must be erased, and the ledger must have them."""

    async def test(world: KeptWorld) -> None:
        first = world.join(erase=erase, replay=replayed(0))
        first.join()
        assert refused(world.join(erase=erase, replay=replayed(1))) == ErrorCode.INVALID_REQUEST
        first.running.end()
        assert refused(world.join(erase=erase, replay=replayed(1))) == ErrorCode.INVALID_REQUEST, "somebody waits"
        first.leave(0)
        if erase:
            assert refused(world.join(erase=True, replay=replayed(1))) == ErrorCode.INVALID_REQUEST
            first.erasure.is_recorded = True
        assert world.join(erase=erase, replay=replayed(0)) is first
        assert refused(world.join(erase=erase)) == ErrorCode.INVALID_REQUEST, "a search for all is no next part"
        second = world.join(erase=erase, replay=replayed(1))
        assert world.searches.kept == [second.running]

    in_world(test)


def test_a_replay_in_a_compacted_log_is_refused() -> None:
    async def test(world: KeptWorld) -> None:
        for erase in (False, True):
            found = world.join(erase=erase, partition=world.compacted, replay=replayed(0))
            assert found == Refusal(ErrorCode.POLICY_VIOLATION, NAMED_COMPACTED)
        assert isinstance(world.join(replay=replayed(0)), KeptSearch)

    in_world(test)


@pytest.mark.parametrize(
    ("compacted", "erase", "names_newest", "by_offset", "expected"),
    [
        (False, True, True, True, "plain"),
        (False, False, True, True, "plain"),
        (True, False, False, True, "plain"),
        (True, False, True, False, "plain"),
        (True, False, True, True, "newest"),
        (True, True, False, False, "everywhere"),
        (True, True, True, True, "everywhere with keys"),
    ],
)
def test_what_is_searched_for(
    *, compacted: bool, erase: bool, names_newest: bool, by_offset: bool, expected: str
) -> None:
    """An erasure in a compacted log searches all replicas, with the keys of records that offsets name."""

    async def test(world: KeptWorld) -> None:
        terms = ErasureTerms((BY_OFFSET if by_offset else PERSON).selector, names_newest=names_newest)
        partition = world.compacted if compacted else world.plain
        kept = world.join(terms=terms, erase=erase, partition=partition)
        everywhere: Any = kept.erasure.compacted
        assert (everywhere is not None) == expected.startswith("everywhere")
        assert (kept.newest is not None) == (expected == "newest")
        assert kept.running.given[1] == (expected in {"newest", "everywhere with keys"})
        last = everywhere or kept.newest or kept.running
        assert last.began == (expected != "plain")
        last.outcome = FOUND
        assert (kept.done is last.done, kept.outcome) == (True, FOUND)
        assert kept.kept_ms == (REPLICAS_KEPT_MS if everywhere is not None else KEPT_MS)

    in_world(test)


def test_an_erasure_that_can_not_begin_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = Refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "Another erasure")
    monkeypatch.setattr(kept_searches, "why_not_searchable", lambda *_: refusal)

    async def test(world: KeptWorld) -> None:
        assert world.join(erase=True, partition=world.compacted) == refusal
        assert world.searches.kept == []
        for erase, partition in ((False, world.compacted), (True, world.plain)):
            assert isinstance(world.join(erase=erase, partition=partition), KeptSearch)

    in_world(test)


def test_lost_erasures_of_a_compacted_log_come_first() -> None:
    """Protects consumers: they wait until these are repeated, which another erasure under way would put off."""

    async def test(world: KeptWorld) -> None:
        for partition in (world.compacted, world.plain):
            partition.log.erasures.withheld = True
        refused = world.join(erase=True, partition=world.compacted)
        assert (refused.error_code, world.searches.kept) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, [])
        for erase, partition in ((False, world.compacted), (True, world.plain)):
            assert isinstance(world.join(erase=erase, partition=partition), KeptSearch)
        world.compacted.log.erasures.withheld = False
        assert isinstance(world.join(1, erase=True, partition=world.compacted), KeptSearch)

    in_world(test)


def test_a_client_has_a_share_of_the_ids() -> None:
    """Protects other clients. A finished search makes room, the one that was asked for longest ago; others never."""

    async def test(world: KeptWorld) -> None:
        found = [world.join(number) for number in range(IDS_SHARE)]
        assert refused(world.join(99)) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert isinstance(world.join(0, number=1), KeptSearch), "another partition of the same search"
        other = world.join(98, client="b")
        await world.answer(other)
        assert refused(world.join(99)) == ErrorCode.THROTTLING_QUOTA_EXCEEDED, "the result of another client stays"
        for number in (3, 2, 4):
            await asyncio.sleep(0.01)
            await world.answer(found[number])
        found[3].join()
        world.join(99)
        assert found[2].running not in world.searches.kept
        assert [found[number].running in world.searches.kept for number in (0, 3, 4)] == [True] * 3
        assert other.running in world.searches.kept

    in_world(test)


def test_the_ids_of_all_clients_are_bounded() -> None:
    """Protects the memory for keys."""

    async def test(world: KeptWorld) -> None:
        found = [world.join(number, client=str(number // IDS_SHARE)) for number in range(IDS_MAX)]
        assert refused(world.join(99, client="new")) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert world.join(5, client="0") is found[5]
        for number in (20, 10):
            await asyncio.sleep(0.01)
            await world.answer(found[number])
        world.join(99, client="new")
        assert found[20].running not in world.searches.kept
        assert found[10].running in world.searches.kept
        assert len(world.searches.kept) == IDS_MAX

    in_world(test)


def test_finished_searches_make_room_for_others() -> None:
    async def test(world: KeptWorld) -> None:
        first, second = world.join(1), world.join(2)
        world.searches.room = 2
        refusal = world.join(3)
        assert refusal == Refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED, SearchFailure.BUSY.sentence)
        await world.answer(first)
        third = world.join(3)
        assert world.searches.kept == [second.running, third.running]

    in_world(test)


@pytest.mark.parametrize(("compacted", "kept_ms"), [(False, KEPT_MS), (True, REPLICAS_KEPT_MS)])
def test_what_nobody_asks_for_is_forgotten(compacted: bool, kept_ms: int) -> None:
    """Protects memory; and replicas that can't join the ISR while a search of all replicas is kept."""

    async def test(world: KeptWorld) -> None:
        partition = world.compacted if compacted else world.plain
        kept = world.join(erase=True, partition=partition)
        waiting = asyncio.ensure_future(world.kept.wait([kept], world.loop.time() + 100))
        await asyncio.sleep(99)
        assert world.searches.kept == [kept.running], "somebody waits"
        await waiting
        await asyncio.sleep((kept_ms - 1) / 1000)
        assert world.searches.kept == [kept.running]
        await asyncio.sleep((LOOK_MS + 2) / 1000)
        assert world.searches.kept == []
        assert kept.erasure.compacted is None or kept.erasure.compacted.cancelled
        again = world.join(erase=True, partition=partition)
        await world.answer(again)
        await asyncio.sleep((kept_ms + LOOK_MS + 1) / 1000)
        assert world.searches.kept == [], "it is looked after again"

    in_world(test)


def test_one_timer_looks_after_all_and_ends_with_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects an idle broker from waking up."""
    looks: list[int] = []
    genuine = KeptSearches._on_timer

    def look(self: KeptSearches) -> None:
        looks.append(1)
        genuine(self)

    monkeypatch.setattr(KeptSearches, "_on_timer", look)

    async def test(world: KeptWorld) -> None:
        for number in range(4):
            world.join(number)
        await asyncio.sleep((3 * LOOK_MS + 1) / 1000)
        assert len(looks) == 3
        await asyncio.sleep(KEPT_MS / 1000)
        assert world.searches.kept == []
        looks.clear()
        await asyncio.sleep(KEPT_MS / 1000)
        assert looks == []

    in_world(test)


def test_a_search_for_newest_versions_ends_when_it_is_forgotten() -> None:
    async def test(world: KeptWorld) -> None:
        terms = ErasureTerms(BY_OFFSET.selector, names_newest=True)
        kept = world.join(terms=terms, partition=world.compacted)
        await asyncio.sleep((KEPT_MS + LOOK_MS + 1) / 1000)
        assert (world.searches.kept, kept.newest.cancelled) == ([], True)

    in_world(test)


def test_a_request_waits_for_all_its_searches() -> None:
    async def test(world: KeptWorld) -> None:
        first, second = world.join(number=0), world.join(number=1)
        began_s = world.loop.time()
        waiting = asyncio.ensure_future(world.kept.wait([first, second], began_s + 5))
        await asyncio.sleep(1)
        second.running.end()
        await asyncio.sleep(1)
        assert not waiting.done()
        assert (first.askers, second.askers) == (1, 1)
        first.running.end()
        await waiting
        assert world.loop.time() == began_s + 2
        assert (first.askers, second.askers) == (0, 0)
        third = world.join(number=2)
        await world.kept.wait([first, third], began_s + 3)
        assert (world.loop.time(), third.askers, third.left_ms > first.left_ms - 1) == (began_s + 3, 0, True)

    in_world(test)
