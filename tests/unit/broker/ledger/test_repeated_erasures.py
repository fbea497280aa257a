"""A leader repeats what its log lacks: in which partitions, when, which records, and what it notes after that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from lowtide.broker.ledger import lost_erasures
from lowtide.broker.ledger.lost_erasures import ATTEMPT_S, LostErasures
from lowtide.protocol.erasure_ledger_records import LedgerEntry, NamedKey, NamedRecords, NamedRun
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.types import TopicPartition
from lowtide.replication.refusal import Refusal
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.storage.erasures.log_search import SearchedLog, SearchFailure
from lowtide.storage.erasures.record_search import FoundRecords

TOPIC_ID = b"t" * 16
ID, OTHER_ID = UUID(bytes=b"e" * 16), UUID(bytes=b"o" * 16)
EPOCH, END, WALL_MS = 7, 50, 1_000


def found(*offsets: int, end_offset: int = END) -> SearchedLog:
    records = FoundRecords()
    for offset in offsets:
        records.offsets.append(offset)
        records.timestamps.append(offset)
        records.leader_epochs.append(1)
    return SearchedLog(0, end_offset, records)


def named(*offsets: int, erasure_id: UUID = ID, number: int = 0, committed_ms: int = 5) -> LedgerEntry:
    key = NamedKey(erasure_id=erasure_id.bytes, topic_id=TOPIC_ID, partition=number, leader_epoch=0, searched_to=90)
    value = NamedRecords(
        topic="t",
        kind=0,
        commitment=b"",
        principal="User:a",
        leader_id=3,
        searched_from=0,
        log_start_offset=0,
        records=[NamedRun(first_offset=each, leader_epoch=1, timestamps=[each]) for each in offsets],
        named_ms=4,
        committed_ms=committed_ms,
        erasures_end=90,
    )
    return LedgerEntry(key, value)


class StubEverywhere:
    """A search of all replicas."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.outcome: Any = None
        self.waits_for = "Broker 2 must still search."
        self.appended: list[tuple[UUID, int]] = []
        self.answer: Any = END + 1

    def append(self, erasure_id: UUID, now_ms: int) -> Any:
        self.appended.append((erasure_id, now_ms))
        return self.answer


class LackingBroker:
    """Broker 1, which leads partitions of one topic whose logs lack erasures."""

    def __init__(self, loop: SimulatedLoop, count: int = 1) -> None:
        self.loop = loop
        states = [SimpleNamespace(leader=1, leader_epoch=EPOCH, erasures_end=9) for _ in range(count)]
        self.topic = SimpleNamespace(name="t", partitions=states)
        self.image: Any = SimpleNamespace(topics={"t": self.topic})
        self.partitions: dict[TopicPartition, Any] = {key: self.partition(key) for key in self.keys(range(count))}
        self.replicas = SimpleNamespace(partitions=self.partitions)
        self.entries: list[LedgerEntry] | ErrorCode = []
        self.outcomes: dict[int, Any] = {}
        self.searched: list[tuple[int, Any]] = []
        self.read_of: list[int] = []
        self.deadlines: list[float] = []
        self.appended: list[tuple[UUID, Any]] = []
        self.append_error: ErrorCode | None = None
        self.noted: list[tuple[int, int]] = []
        self.after_search: Callable[[], None] = lambda: None
        self.compacted = False
        self.everywhere: Any = StubEverywhere()
        self.terms: Any = None
        self.not_searchable: Refusal | None = None
        self.warnings: list[str] = []
        self.errors: list[str] = []
        self.tasks_begun: list[asyncio.Task[None]] = []
        broker: Any = SimpleNamespace(
            metadata=SimpleNamespace(broker_id=1, image=self.image),
            replicas=self.replicas,
            clock=SimpleNamespace(wall_ms=lambda: WALL_MS),
            tasks=SimpleNamespace(spawn=lambda work, name: self.tasks_begun.append(asyncio.ensure_future(work))),
            log=SimpleNamespace(
                info=lambda *_, **__: None,
                error=lambda text, **_: self.errors.append(text),
                warning=lambda text, **_: self.warnings.append(text),
            ),
        )
        ledger: Any = SimpleNamespace(read=self.read)
        marks: Any = SimpleNamespace(note=self.note)
        searching: Any = SimpleNamespace(searches=SimpleNamespace(search=self.search))
        self.lost = LostErasures(broker, ledger, marks, searching)

    def keys(self, numbers: Any) -> list[TopicPartition]:
        return [TopicPartition("t", number) for number in numbers]

    def partition(self, key: TopicPartition) -> Any:
        erasures = SimpleNamespace(withheld=True, known=[])
        log = SimpleNamespace(erasures=erasures, log_end_offset=END)
        return SimpleNamespace(topic_id=TOPIC_ID, topic_partition=key, is_leader=True, leader_epoch=EPOCH, log=log)

    def of(self, number: int = 0) -> Any:
        return self.partitions[TopicPartition("t", number)]

    def see(self, *, created: bool = False, changed: set[int] | None = None) -> None:
        """Gives the image to the broker, as a change of the topic or of some partitions."""
        delta: Any = SimpleNamespace(
            topics_created=[self.topic] if created else [],
            topics_changed=[] if created else [self.topic],
            partitions_changed={} if changed is None else {"t": changed},
        )
        self.lost.on_image(self.image, delta)

    async def tick(self) -> list[tuple[int, int]]:
        """Returns what was noted until all work of a tick has ended."""
        self.noted.clear()
        self.lost.on_tick()
        await asyncio.gather(*self.tasks_begun)
        self.tasks_begun.clear()
        return list(self.noted)

    # what it uses
    async def read(self, places: Any, deadline: float) -> Any:
        self.read_of = [each.partition for each in places]
        self.deadlines.append(deadline - self.loop.time())
        await asyncio.sleep(0.1)
        return self.entries

    async def search(self, partition: Any, selector: Any, end_offset: int) -> Any:
        number = partition.topic_partition.partition
        assert end_offset == END
        self.searched.append((number, selector.ranges))
        self.after_search()
        return self.outcomes.get(number, found())

    async def note(self, ends: dict[TopicPartition, int], _deadline: float, *, replaces: bool) -> ErrorCode:
        assert replaces
        for key, end in ends.items():
            self.noted.append((key.partition, end))
            self.partitions[key].log.erasures.withheld = False
        return ErrorCode.NONE

    def append_erasures(self, _replicas: Any, partition: Any, erasure_id: UUID, ranges: Any, now_ms: int) -> Any:
        assert now_ms == WALL_MS
        if self.append_error is not None:
            return self.append_error
        self.appended.append((erasure_id, ranges.ranges()))
        partition.log.erasures.known.append(SimpleNamespace(left=ranges))
        return END + 1

    @contextmanager
    def search_everywhere(self, _parts: Any, _partition: Any, terms: Any, end_offset: int) -> Iterator[Any]:
        assert end_offset == END
        self.terms = terms
        yield self.everywhere


def lacking(test: Callable[[LackingBroker], Coroutine[Any, Any, None]], count: int = 1) -> None:
    async def main(loop: SimulatedLoop) -> None:
        broker = LackingBroker(loop, count)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lost_erasures, "append_erasures", broker.append_erasures)
            patch.setattr(lost_erasures, "is_compacted", lambda _log: broker.compacted)
            patch.setattr(lost_erasures, "searching_everywhere", broker.search_everywhere)
            patch.setattr(lost_erasures, "why_not_searchable", lambda *_: broker.not_searchable)
            await test(broker)

    run_simulation(main, 1)


def test_only_partitions_that_are_led_and_have_erasures_are_looked_at() -> None:
    """Protects the ledger's leader from being asked for nothing after each change of the metadata."""

    async def test(broker: LackingBroker) -> None:
        broker.topic.partitions[0].leader = 2
        broker.topic.partitions[1].erasures_end = 0
        broker.see(created=True)
        assert await broker.tick() == [(2, END)]
        assert (broker.read_of, await broker.tick()) == ([2], [])
        broker.of(2).log.erasures.withheld = broker.of(3).log.erasures.withheld = True
        broker.topic.partitions[3].erasures_end = 9
        broker.see(changed={3})
        assert (await broker.tick(), await broker.tick()) == ([(3, END)], [])
        broker.topic.partitions[0].leader = 1
        broker.see()
        assert sorted(await broker.tick()) == [(0, END), (2, END)]

    async def without_last(broker: LackingBroker) -> None:
        broker.topic.partitions[3].erasures_end = 0
        await test(broker)

    lacking(without_last, 4)


def lose_leadership(broker: LackingBroker) -> None:
    broker.topic.partitions[0].leader = 2


def delete_topic(broker: LackingBroker) -> None:
    broker.image.topics.clear()


def shrink_topic(broker: LackingBroker) -> None:
    del broker.topic.partitions[:]


def have_erasures(broker: LackingBroker) -> None:
    broker.of().log.erasures.withheld = False


@pytest.mark.parametrize("change", [lose_leadership, delete_topic, shrink_topic, have_erasures])
def test_what_needs_no_repetition_is_forgotten(change: Callable[[LackingBroker], None]) -> None:
    async def test(broker: LackingBroker) -> None:
        broker.see()
        before = list(broker.topic.partitions)
        change(broker)
        assert await broker.tick() == []
        broker.topic.partitions[:] = before
        broker.image.topics["t"] = broker.topic
        broker.topic.partitions[0].leader = 1
        broker.of().log.erasures.withheld = True
        assert await broker.tick() == [], "only a change of the metadata brings it back"
        broker.see()
        assert await broker.tick() == [(0, END)]

    lacking(test)


def is_away(broker: LackingBroker) -> None:
    del broker.partitions[TopicPartition("t", 0)]


def follows(broker: LackingBroker) -> None:
    broker.of().is_leader = False


def has_an_older_epoch(broker: LackingBroker) -> None:
    broker.of().leader_epoch = EPOCH - 1


@pytest.mark.parametrize("change", [is_away, follows, has_an_older_epoch])
def test_a_partition_that_is_not_led_yet_is_waited_for(change: Callable[[LackingBroker], None]) -> None:
    """The metadata are known before the partition has become the leader."""

    async def test(broker: LackingBroker) -> None:
        broker.see()
        change(broker)
        assert await broker.tick() == []
        key = TopicPartition("t", 0)
        broker.partitions[key] = broker.partition(key)
        assert (await broker.tick(), await broker.tick()) == ([(0, END)], [])

    lacking(test)


@pytest.mark.parametrize("is_forgotten", [False, True])
@pytest.mark.parametrize("ready", range(4))
def test_other_partitions_are_not_held_up(ready: int, is_forgotten: bool) -> None:
    async def test(broker: LackingBroker) -> None:
        broker.see()
        for number in set(range(4)) - {ready}:
            if is_forgotten:
                broker.topic.partitions[number].leader = 2
            else:
                broker.of(number).is_leader = False
        assert await broker.tick() == [(ready, END)]

    lacking(test, 4)


def test_attempts_do_not_overlap_and_are_repeated() -> None:
    """Consumers wait as long as the ledger can't be read."""

    async def test(broker: LackingBroker) -> None:
        broker.see()
        broker.entries = ErrorCode.COORDINATOR_NOT_AVAILABLE
        broker.lost.on_tick()
        broker.lost.on_tick()
        assert len(broker.tasks_begun) == 1
        assert await broker.tick() == []
        assert broker.deadlines == [ATTEMPT_S]
        assert (broker.searched, len(broker.warnings)) == ([], 1)
        broker.entries = []
        assert await broker.tick() == [(0, END)]

    lacking(test)


def test_each_partition_gets_its_own_erasures_again() -> None:
    """What a repeated erasure of the log names already is not erased twice."""

    async def test(broker: LackingBroker) -> None:
        broker.see()
        broker.entries = [
            named(4, 5, 6),
            named(6, 8, erasure_id=OTHER_ID),
            named(7, number=1),
            named(9, committed_ms=-1, erasure_id=UUID(int=1)),
        ]
        broker.outcomes = {0: found(4, 6, 8), 1: found(7)}
        broker.of(0).log.erasures.known.append(SimpleNamespace(left=OffsetRanges(((8, 8),))))
        assert sorted(await broker.tick()) == [(0, END), (1, END)]
        assert sorted(broker.searched) == [(0, ((4, 6), (8, 8))), (1, ((7, 7),))]
        assert sorted(broker.appended) == [(ID, ((4, 4), (6, 6))), (ID, ((7, 7),)), (OTHER_ID, ((6, 6),))]

    lacking(test, 2)


def log_moves(broker: LackingBroker) -> None:
    broker.of().log = broker.partition(TopicPartition("t", 0)).log


def epoch_changes(broker: LackingBroker) -> None:
    broker.of().leader_epoch += 1


def search_fails(broker: LackingBroker) -> None:
    broker.outcomes[0] = SearchFailure.CUT


def append_fails(broker: LackingBroker) -> None:
    broker.append_error = ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("change", [log_moves, epoch_changes, follows, search_fails, append_fails])
def test_nothing_is_noted_if_it_failed(change: Callable[[LackingBroker], None]) -> None:
    """Protects consumers: the mark says that the log has all erasures."""

    async def test(broker: LackingBroker) -> None:
        broker.see()
        broker.entries, broker.outcomes = [named(4)], {0: found(4)}
        broker.after_search = lambda: change(broker)
        assert await broker.tick() == []
        assert broker.appended == []
        broker.after_search = lambda: None
        broker.outcomes, broker.append_error = {0: found(4)}, None
        broker.of().is_leader, broker.topic.partitions[0].leader_epoch = True, broker.of().leader_epoch
        assert await broker.tick() == [(0, END)]
        assert broker.appended == [(ID, ((4, 4),))]

    lacking(test)


class TestEverywhere:
    """In a compacted log."""

    def compacted(self, test: Callable[[LackingBroker], Coroutine[Any, Any, None]]) -> None:
        async def ready(broker: LackingBroker) -> None:
            broker.compacted = True
            broker.entries = [named(4, 5, 49, 60), named(6, erasure_id=OTHER_ID)]
            broker.outcomes = {0: found(0, 4)}
            broker.everywhere.outcome = found(4, 6)
            broker.see()
            await test(broker)

        lacking(ready)

    def test_all_replicas_search_for_what_is_named(self) -> None:
        """But not where the leader has another record, nor above its log's end."""

        async def test(broker: LackingBroker) -> None:
            broker.everywhere.done.set()
            broker.entries = [named(0, 4, 5, 49, 50, 60), named(6, erasure_id=OTHER_ID)]
            changed = found(0, 4)
            changed.records.timestamps[0] = 77
            broker.outcomes = {0: changed}
            assert await broker.tick() == [(0, END)]
            assert (broker.terms.selector.ranges, broker.terms.force) == (((4, 6), (49, 49)), True)
            assert broker.everywhere.appended == [(OTHER_ID, WALL_MS)]
            assert broker.appended == []

        self.compacted(test)

    def test_the_first_record_of_the_log_is_searched_for(self) -> None:
        async def test(broker: LackingBroker) -> None:
            broker.everywhere.done.set()
            broker.entries = [named(0)]
            assert await broker.tick() == [(0, END)]
            assert broker.terms.selector.ranges == ((0, 0),)

        self.compacted(test)

    @pytest.mark.parametrize("is_empty", [False, True])
    def test_without_names_or_records_nobody_searches(self, is_empty: bool) -> None:
        async def test(broker: LackingBroker) -> None:
            if is_empty:
                broker.outcomes = {0: found(end_offset=0)}
            else:
                broker.entries = []
            assert await broker.tick() == [(0, END)]
            assert (broker.terms, broker.everywhere.appended) == (None, [])

        self.compacted(test)

    def test_consumers_wait_for_replicas_until_the_next_attempt(self) -> None:
        async def test(broker: LackingBroker) -> None:
            began_s = broker.loop.time()
            assert await broker.tick() == []
            assert broker.loop.time() - began_s == pytest.approx(ATTEMPT_S)
            assert broker.everywhere.appended == []
            broker.everywhere.done.set()
            assert await broker.tick() == [(0, END)]

        self.compacted(test)

    @pytest.mark.parametrize("trouble", ["not searchable", "not begun", "failed", "refused"])
    def test_nothing_is_noted_if_all_have_not_searched(self, trouble: str) -> None:
        async def test(broker: LackingBroker) -> None:
            whole = broker.everywhere
            whole.done.set()
            if trouble == "not searchable":
                broker.not_searchable = Refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "")
            elif trouble == "not begun":
                broker.everywhere = SearchFailure.BUSY
            elif trouble == "failed":
                whole.outcome = SearchFailure.CUT
            else:
                whole.answer = Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "")
            assert await broker.tick() == []
            assert len(whole.appended) == (trouble == "refused")

        self.compacted(test)


@pytest.mark.parametrize(
    ("entries", "marked_end", "errors", "warnings"),
    [
        ([named(4)], 90, [], []),
        ([named(4)], 91, [], ["the erasure ledger may lack the last erasures"]),
        ([named(4, number=1)], 90, ["the erasure ledger lacks the erasures"], []),
        ([], 90, ["the erasure ledger lacks the erasures"], []),
    ],
    ids=["whole", "older", "of another partition", "empty"],
)
def test_a_ledger_that_lacks_the_last_erasure_is_not_taken_for_a_whole_one(
    entries: list[LedgerEntry], marked_end: int, errors: list[str], warnings: list[str]
) -> None:
    """Protects from silence when the ledger was put back with the log, or was lost: nobody else knows the erasure."""

    async def test(broker: LackingBroker) -> None:
        broker.entries = entries
        broker.topic.partitions[0].erasures_end = marked_end
        broker.see()
        assert await broker.tick() == [(0, END)]
        assert [text.partition(" of a log")[0] for text in broker.errors] == errors
        assert [text.partition(" of a log")[0] for text in broker.warnings] == warnings

    lacking(test)
