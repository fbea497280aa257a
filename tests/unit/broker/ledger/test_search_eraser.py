"""Erasing what was found: ledger, erasure, commit, ledger, mark. No success without all of them, and none twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from lowtide.broker.ledger import search_eraser
from lowtide.broker.ledger.erasure_ledger import LEDGER_REFUSED
from lowtide.broker.ledger.ledger_entries import ErasureRequest
from lowtide.broker.ledger.named_records import ReplayedSearch
from lowtide.broker.ledger.search_eraser import REPEATING, SearchEraser, SearchErasure
from lowtide.protocol.erasure_ledger_records import LedgerEntry, NamedRecords, NamedRun, SelectorKind
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.find_records import FoundPartition
from lowtide.protocol.types import TopicPartition
from lowtide.replication.refusal import Refusal
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.storage.erasures.log_search import SearchedLog, SearchFailure
from lowtide.storage.erasures.record_search import FoundRecords

NONE, LATER = ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE
ID = b"e" * 16
REQUEST = ErasureRequest(ID, SelectorKind.KEYS, b"", "User:a")
WALL_MS = 1_000
END = 1
WAIT_S = 2.5


def found(count: int = 2) -> SearchedLog:
    records = FoundRecords()
    for number in range(count):
        records.offsets.append(4 + number)
        records.timestamps.append(100 + number)
        records.leader_epochs.append(3)
    return SearchedLog(0, 9, records)


class ErasingBroker:
    """A broker that leads partitions. `events` has what happens in its order; each answer is given once."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.events: list[Any] = []
        self.ledger_answers: list[ErrorCode] = []
        self.mark_answers: list[ErrorCode] = []
        self.commit_answers: list[ErrorCode] = []
        self.append_answers: list[Any] = []
        self.on_ledger: Callable[[], None] = lambda: None
        broker: Any = SimpleNamespace(
            replicas=self,
            metadata=SimpleNamespace(broker_id=1),
            clock=SimpleNamespace(wall_ms=lambda: WALL_MS),
        )
        ledger: Any = SimpleNamespace(record=self.record)
        marks: Any = SimpleNamespace(note=self.note)
        self.eraser = SearchEraser(broker, ledger, marks)
        self.not_erasable: Refusal | None = None
        self.is_compacted = False

    async def record(self, entries: list[LedgerEntry], _deadline: float) -> ErrorCode:
        values = [each.value for each in entries if isinstance(each.value, NamedRecords)]
        if values:
            self.events.append(("ledger", [(value.committed_ms, value.erasures_end) for value in values]))
            self.on_ledger()
        return self.ledger_answers.pop(0) if entries and self.ledger_answers else NONE

    async def note(self, ends: dict[TopicPartition, int], _deadline: float) -> ErrorCode:
        if ends:
            self.events.append(("mark", {key.partition: end for key, end in ends.items()}))
        return self.mark_answers.pop(0) if self.mark_answers else NONE

    def erase_found(self, _replicas: Any, partition: Any, erasure_id: UUID, ranges: Any, now_ms: int) -> Any:
        assert (erasure_id, now_ms) == (UUID(bytes=ID), WALL_MS)
        answer = self.append_answers.pop(0) if self.append_answers else END
        self.events.append(("append", ranges.ranges()))
        if not isinstance(answer, ErrorCode):
            partition.log.erasures.known.append(SimpleNamespace(erasure_id=erasure_id, count=ranges.count))
        return answer

    def when_committed(
        self, partition: Any, offset: int, callback: Callable[[ErrorCode], None], *, timeout_ms: int
    ) -> None:
        assert partition.topic_partition.topic == "t"
        self.events.append(("commit", offset, timeout_ms))
        callback(self.commit_answers.pop(0) if self.commit_answers else NONE)

    def search(self, outcome: Any = None, *, number: int = 0, replay: ReplayedSearch | None = None) -> SearchErasure:
        key = TopicPartition("t", number)
        other = SimpleNamespace(erasure_id=UUID(bytes=b"o" * 16), count=70)
        log = SimpleNamespace(
            topic_id=b"t" * 16,
            topic_partition=key,
            log_start_offset=3,
            erasures=SimpleNamespace(withheld=False, known=[other]),
            config=SimpleNamespace(is_held=lambda now_ms: now_ms != WALL_MS, hold_sentence="held until then"),
        )
        partition = SimpleNamespace(log=log, topic_partition=key, is_leader=True)
        running: Any = SimpleNamespace(
            outcome=found() if outcome is None else outcome,
            log=log,
            partition=partition,
            leader_epoch=7,
            current=True,
        )
        running.is_current = lambda: running.current
        return SearchErasure(running, None, replay)

    async def erase(self, *erasures: SearchErasure) -> list[FoundPartition]:
        rows = [FoundPartition(partition_index=number, error_code=NONE) for number in range(len(erasures))]
        for row in rows:
            row.record_count, row.has_more = 2, True
        await self.eraser.erase(REQUEST, list(zip(rows, erasures, strict=True)), self.loop.time() + WAIT_S)
        return rows


def erasing(test: Callable[[ErasingBroker], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: SimulatedLoop) -> None:
        broker = ErasingBroker(loop)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search_eraser, "erase_found", broker.erase_found)
            patch.setattr(search_eraser, "is_compacted", lambda _log: broker.is_compacted)
            patch.setattr(search_eraser, "why_not_erasable", lambda *_: broker.not_erasable)
            await asyncio.sleep(1)
            await test(broker)

    run_simulation(main, 1)


NAMED, APPENDED, WAITED = ("ledger", [(-1, -1)]), ("append", ((4, 5),)), ("commit", END, 2_500)
RECORDED, MARKED = ("ledger", [(WALL_MS, END)]), ("mark", {0: END})
EVERYTHING = [NAMED, APPENDED, WAITED, RECORDED, MARKED]


def test_the_ledger_is_written_before_and_after() -> None:
    async def test(broker: ErasingBroker) -> None:
        erasure = broker.search()
        [row] = await broker.erase(erasure)
        assert broker.events == EVERYTHING
        assert (row.error_code, row.record_count, row.has_more) == (NONE, 2, False)
        assert (row.erasures_end, row.log_start_offset, erasure.is_recorded) == (END, 3, True)
        broker.events.clear()
        [row] = await broker.erase(erasure)
        assert (row.error_code, row.record_count, row.erasures_end) == (NONE, 2, END)
        assert broker.events == [WAITED], "a repeated request only waits"

    erasing(test)


def test_if_nothing_is_found_only_the_ledger_says_so() -> None:
    async def test(broker: ErasingBroker) -> None:
        broker.append_answers = [-1]
        [row] = await broker.erase(broker.search(found(0)))
        assert broker.events == [("append", ()), ("ledger", [(WALL_MS, -1)])]
        assert (row.error_code, row.record_count, row.erasures_end) == (NONE, 0, -1)

    erasing(test)


@pytest.mark.parametrize(
    ("answers", "events", "error", "message", "later"),
    [
        ({"ledger_answers": [LATER]}, [NAMED], LATER, LEDGER_REFUSED, EVERYTHING),
        (
            {"append_answers": [ErrorCode.KAFKA_STORAGE_ERROR]},
            [NAMED, APPENDED],
            ErrorCode.KAFKA_STORAGE_ERROR,
            None,
            EVERYTHING,
        ),
        (
            {"commit_answers": [ErrorCode.REQUEST_TIMED_OUT]},
            [NAMED, APPENDED, WAITED],
            ErrorCode.REQUEST_TIMED_OUT,
            None,
            [WAITED, RECORDED, MARKED],
        ),
        (
            {"ledger_answers": [NONE, LATER]},
            [NAMED, APPENDED, WAITED, RECORDED],
            LATER,
            LEDGER_REFUSED,
            [WAITED, RECORDED, MARKED],
        ),
        ({"mark_answers": [LATER]}, EVERYTHING, LATER, LEDGER_REFUSED, [WAITED, RECORDED, MARKED]),
    ],
    ids=["named", "append", "commit", "recorded", "mark"],
)
def test_what_fails_is_no_success_and_is_continued_by_a_repeated_request(
    answers: dict[str, Any], events: list[Any], error: ErrorCode, message: str | None, later: list[Any]
) -> None:
    """Protects from an answer for an erasure that a new leader may lack, and from two erasures for one request."""

    async def test(broker: ErasingBroker) -> None:
        for name, value in answers.items():
            setattr(broker, name, value)
        erasure = broker.search()
        [row] = await broker.erase(erasure)
        assert (broker.events, row.error_code, row.error_message) == (events, error, message)
        assert not erasure.is_recorded
        if APPENDED not in later:
            assert row.erasures_end == END
        broker.events.clear()
        [row] = await broker.erase(erasure)
        assert (broker.events, row.error_code, erasure.is_recorded) == (later, NONE, True)

    erasing(test)


def test_an_append_that_is_refused_has_erased_nothing() -> None:
    async def test(broker: ErasingBroker) -> None:
        broker.append_answers = [ErrorCode.KAFKA_STORAGE_ERROR]
        [row] = await broker.erase(broker.search())
        assert (row.record_count, row.has_more, row.erasures_end) == (0, False, -1)

    erasing(test)


def withhold(broker: ErasingBroker, erasure: SearchErasure) -> None:
    erasure.running.log.erasures.withheld = True


def hold(broker: ErasingBroker, erasure: SearchErasure) -> None:
    config: Any = erasure.running.log.config
    config.is_held = lambda now_ms: now_ms == WALL_MS


def follow(broker: ErasingBroker, erasure: SearchErasure) -> None:
    partition: Any = erasure.running.partition
    partition.is_leader = False


def change_epoch(broker: ErasingBroker, erasure: SearchErasure) -> None:
    running: Any = erasure.running
    running.current = False


def lose_replicas(broker: ErasingBroker, erasure: SearchErasure) -> None:
    broker.not_erasable = Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, "too few")


def compact(broker: ErasingBroker, erasure: SearchErasure) -> None:
    broker.is_compacted = True


REFUSALS = [
    (withhold, LATER, REPEATING),
    (hold, ErrorCode.POLICY_VIOLATION, "held until then"),
    (follow, ErrorCode.NOT_LEADER_OR_FOLLOWER, None),
    (change_epoch, ErrorCode.NOT_LEADER_OR_FOLLOWER, None),
    (lose_replicas, ErrorCode.NOT_ENOUGH_REPLICAS, "too few"),
    (compact, ErrorCode.NOT_LEADER_OR_FOLLOWER, None),
]


@pytest.mark.parametrize("while_written", [False, True])
@pytest.mark.parametrize(("change", "error", "message"), REFUSALS)
def test_nothing_is_erased_if_the_partition_has_changed(
    change: Callable[[ErasingBroker, SearchErasure], None], error: ErrorCode, message: str | None, while_written: bool
) -> None:
    """Also while the ledger is written. What has become a success before stays one."""

    async def test(broker: ErasingBroker) -> None:
        erasure = broker.search()
        if while_written:
            broker.on_ledger = lambda: change(broker, erasure)
        else:
            change(broker, erasure)
        [row] = await broker.erase(erasure)
        assert (row.error_code, row.error_message, erasure.is_recorded) == (error, message, False)
        assert broker.events == ([NAMED] if while_written or change is compact else [])

    erasing(test)


def test_a_repeated_request_is_answered_after_a_change() -> None:
    async def test(broker: ErasingBroker) -> None:
        erasure = broker.search()
        await broker.erase(erasure)
        hold(broker, erasure)
        [row] = await broker.erase(erasure)
        assert (row.error_code, row.erasures_end) == (NONE, END), "it is erased already"

    erasing(test)


def test_rows_of_a_request_are_independent() -> None:
    """A refused row does not hold up the others, and an answered one is not written again."""

    async def test(broker: ErasingBroker) -> None:
        first, second, third = (broker.search(number=number) for number in range(3))
        await broker.erase(first)
        broker.events.clear()
        hold(broker, second)
        rows = await broker.erase(first, second, third)
        assert [row.error_code for row in rows] == [NONE, ErrorCode.POLICY_VIOLATION, NONE]
        assert broker.events == [NAMED, WAITED, APPENDED, WAITED, RECORDED, ("mark", {2: END})]
        assert third.is_recorded
        fourth, fifth = broker.search(number=3), broker.search(number=4)
        broker.events.clear()
        broker.commit_answers = [ErrorCode.REQUEST_TIMED_OUT, NONE]
        rows = await broker.erase(fourth, fifth)
        assert [row.error_code for row in rows] == [ErrorCode.REQUEST_TIMED_OUT, NONE]
        assert broker.events[-2:] == [RECORDED, ("mark", {4: END})]
        assert (fourth.is_recorded, fifth.is_recorded) == (False, True)
        broker.ledger_answers = [NONE, LATER]
        rows = await broker.erase(first, broker.search(number=5))
        assert ([row.error_code for row in rows], first.is_recorded) == ([NONE, LATER], True)

    erasing(test)


def test_after_the_deadline_a_commit_is_not_waited_for() -> None:
    async def test(broker: ErasingBroker) -> None:
        row = FoundPartition(partition_index=0, error_code=NONE)
        await broker.eraser.erase(REQUEST, [(row, broker.search())], broker.loop.time() - 1)
        assert broker.events[2] == ("commit", END, 0)

    erasing(test)


def test_of_a_replay_only_named_records_count() -> None:
    async def test(broker: ErasingBroker) -> None:
        run = NamedRun(first_offset=5, leader_epoch=3, timestamps=[101])
        replay = ReplayedSearch(SelectorKind.KEYS, b"", (run,))
        erasure = broker.search(found(3), replay=replay)
        outcome = erasure.outcome
        assert isinstance(outcome, SearchedLog)
        assert (list(outcome.records.offsets), erasure.other_count) == ([5], 2)
        assert (outcome.first_offset, outcome.end_offset, erasure.outcome is outcome) == (0, 9, True)
        assert broker.search(SearchFailure.CUT, replay=replay).outcome is SearchFailure.CUT
        assert broker.search().other_count == 0
        await broker.erase(erasure)
        assert broker.events[1] == ("append", ((5, 5),))

    erasing(test)


def test_in_a_compacted_log_all_replicas_decide() -> None:
    async def test(broker: ErasingBroker) -> None:
        refusal = Refusal(ErrorCode.REASSIGNMENT_IN_PROGRESS, "moves")
        everywhere: Any = SimpleNamespace(
            outcome=found(1), waits_for="Broker 2 must still search.", why_over=lambda: None
        )
        everywhere.append = lambda erasure_id, now_ms: 44 if (erasure_id.bytes, now_ms) == (ID, WALL_MS) else 0
        erasure = SearchErasure(broker.search().running, everywhere)
        assert (erasure.outcome, erasure.waits_for) == (everywhere.outcome, everywhere.waits_for)
        assert broker.search().waits_for is None
        [row] = await broker.erase(erasure)
        assert (row.error_code, row.erasures_end) == (NONE, 44)
        for name in ("why_over", "append"):
            refused: Any = SimpleNamespace(**(vars(everywhere) | {name: lambda *_: refusal}))
            [row] = await broker.erase(SearchErasure(broker.search().running, refused))
            assert (row.error_code, row.error_message) == (ErrorCode.REASSIGNMENT_IN_PROGRESS, "moves")
        assert APPENDED not in broker.events

    erasing(test)
