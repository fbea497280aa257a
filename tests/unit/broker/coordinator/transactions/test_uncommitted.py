"""What may be lost counts as changing: records until they are committed, and a whole log after a load."""

from __future__ import annotations

import pytest

from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.transactions.transaction import Transaction
from lowtide.broker.coordinator.transactions.uncommitted import TransactionChange, UncommittedTransactions
from lowtide.protocol.errors import ErrorCode

NONE, TOO_LONG, NOT_LEADER = ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER
RECORD = (b"key", b"value")
STATE = Transaction(transactional_id="a", producer_id=1, producer_epoch=0, timeout_ms=1)


def effects() -> Effects:
    return Effects(0, 0)


def go_on(before: Effects, error: ErrorCode = NONE) -> Effects:
    """Commits or fails what was requested."""
    (then,) = before.then
    later = effects()
    then(error, later)
    return later


def append(uncommitted: UncommittedTransactions, name: str = "a") -> tuple[Effects, list[ErrorCode]]:
    answered: list[ErrorCode] = []
    asked = effects()
    uncommitted.append(name, STATE, RECORD, asked, lambda error, _: answered.append(error))
    return asked, answered


def test_an_id_is_changing_until_its_record_is_committed() -> None:
    uncommitted = UncommittedTransactions()
    assert not uncommitted.is_settling
    asked, answered = append(uncommitted)
    assert (asked.records, asked.changes) == ([RECORD], [TransactionChange("a", STATE)])
    assert (
        [uncommitted.includes(name) for name in "ab"]
        == [uncommitted.has_record_of(name) for name in "ab"]
        == [True, False]
    )
    assert not answered
    go_on(asked)
    assert (uncommitted.includes("a"), uncommitted.has_record_of("a"), answered) == (False, False, [NONE])


def test_a_record_that_is_refused_changes_nothing() -> None:
    uncommitted = UncommittedTransactions()
    asked, answered = append(uncommitted)
    go_on(asked, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert (uncommitted.includes("a"), answered) == (False, [ErrorCode.COORDINATOR_NOT_AVAILABLE])


def test_a_record_that_takes_too_long_is_in_the_log_and_may_be_lost_until_it_is_committed() -> None:
    uncommitted = UncommittedTransactions()
    for offset in (7, 9, 8):
        uncommitted.note(offset)
    asked, answered = append(uncommitted)
    waits = go_on(asked, TOO_LONG)
    assert answered == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert uncommitted.has_record_of("a")
    assert waits.barrier == 9
    waits = go_on(waits, TOO_LONG)
    assert uncommitted.has_record_of("a")
    assert waits.barrier == 9, "asked again, for what it came with took too long"
    assert not go_on(waits).then
    assert not uncommitted.has_record_of("a")


def test_a_later_barrier_of_a_decision_stays() -> None:
    uncommitted = UncommittedTransactions()
    uncommitted.note(3)
    loaded = effects()
    loaded.barrier = 5
    uncommitted.on_loaded(loaded)
    assert loaded.barrier == 5


@pytest.mark.parametrize("failures", [[], [TOO_LONG], [ErrorCode.NOT_ENOUGH_REPLICAS, TOO_LONG]])
def test_every_id_is_changing_until_what_was_loaded_is_committed(failures: list[ErrorCode]) -> None:
    uncommitted = UncommittedTransactions()
    uncommitted.note(41)
    waits = effects()
    uncommitted.on_loaded(waits)
    for error in failures:
        waits = go_on(waits, error)
    assert (uncommitted.is_settling, uncommitted.includes("any"), waits.barrier) == (True, True, 41)
    assert not uncommitted.has_record_of("any"), "only what was appended since"
    assert not go_on(waits).then
    assert (uncommitted.is_settling, uncommitted.includes("any")) == (False, False)


def test_nothing_is_settled_where_another_coordinator_follows() -> None:
    """Its successor may have lost what this one has loaded."""
    uncommitted = UncommittedTransactions()
    loaded = effects()
    uncommitted.on_loaded(loaded)
    assert not go_on(loaded, NOT_LEADER).then
    assert uncommitted.is_settling
