"""Which transactions a listing has: by state, producer and age, and in steps."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.coordinator.transactions.transaction import Transaction
from lowtide.broker.coordinator.transactions.transaction_state import TransactionState
from lowtide.broker.handlers.list_transactions import LISTED_A_STEP, TransactionFilter

NOW_MS = 10_000
ANY_AGE = -1


def one(
    producer_id: int = 7, state: TransactionState = TransactionState.ONGOING, started_ms: int = 4_000
) -> Transaction:
    return Transaction(
        transactional_id=f"id-{producer_id}",
        producer_id=producer_id,
        producer_epoch=0,
        timeout_ms=1,
        state=state,
        started_ms=started_ms,
    )


def matches(transaction: Transaction, *, states: Any = (), producer_ids: Any = (), duration_ms: int = ANY_AGE) -> bool:
    return TransactionFilter(frozenset(states), frozenset(producer_ids), duration_ms).matches(transaction, NOW_MS)


def test_a_filter_that_names_nothing_matches_every_transaction() -> None:
    assert matches(one())
    assert matches(one(state=TransactionState.EMPTY, started_ms=-1))


def test_each_part_of_a_filter_has_to_match() -> None:
    every: dict[str, Any] = {"states": ["Ongoing", "Empty"], "producer_ids": [7, 8], "duration_ms": 5_000}
    assert matches(one(), **every)
    for part, other in {"states": ["Empty"], "producer_ids": [8], "duration_ms": 6_000}.items():
        assert not matches(one(), **every | {part: other}), part
        assert not matches(one(), **{part: other}), part


@pytest.mark.parametrize(("started_ms", "duration_ms", "expected"), [
    (4_000, 5_999, True),
    (4_000, 6_000, False),
    (0, 9_999, True),
    (0, 10_000, False),
    (NOW_MS - 1, 0, True),
    (NOW_MS, 0, False),
    (NOW_MS, ANY_AGE, True),
])  # fmt: skip
def test_a_transaction_has_to_be_open_for_longer_than_the_duration(
    started_ms: int, duration_ms: int, *, expected: bool
) -> None:
    assert matches(one(started_ms=started_ms), duration_ms=duration_ms) == expected


def test_what_has_not_begun_has_no_age() -> None:
    assert not matches(one(state=TransactionState.EMPTY, started_ms=-1), duration_ms=0)
    assert not matches(one(state=TransactionState.EMPTY, started_ms=-1), duration_ms=1)


def test_those_that_match_are_found_in_their_order_and_in_steps() -> None:
    count = 2 * LISTED_A_STEP + 1
    listed = {number: one(number) for number in reversed(range(count))}
    steps = TransactionFilter(frozenset(), frozenset({0, 3, count - 1}), ANY_AGE).select(listed.values(), NOW_MS)
    taken = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            assert [transaction.producer_id for transaction in end.value] == [count - 1, 3, 0]
            break
        taken += 1
        del listed[taken]  # Others change meanwhile.
    assert taken == 2


def test_a_step_is_over_after_as_many_as_a_step_has() -> None:
    every = TransactionFilter(frozenset(), frozenset(), ANY_AGE)
    short, exact = ([one(number) for number in range(count)] for count in (LISTED_A_STEP - 1, LISTED_A_STEP))
    assert len(list(every.select(short, NOW_MS))) == 0
    assert len(list(every.select(exact, NOW_MS))) == 1
