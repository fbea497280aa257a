"""ListTransactions: rows of many ids, by state, producer, age and pattern, without blocking the loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.coordinator.modern.subscription_patterns import NamePattern
from lowtide.broker.coordinator.transactions.transaction import Transaction
from lowtide.broker.coordinator.transactions.transaction_settings import TransactionSettings
from lowtide.broker.coordinator.transactions.transaction_shard import Transactions
from lowtide.broker.coordinator.transactions.transaction_state import TransactionState
from lowtide.broker.handlers import list_transactions
from lowtide.broker.pending import Pending
from lowtide.broker.turns import Turns
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.list_transactions import ListTransactionsRequest

ONE_SLICE: Any = Turns(None, SimpleNamespace(monotonic_ms=lambda: 0))
"""No time passes: each response is there at once."""

NOW_MS = 10_000
WORK: list[Any] = []
"""The work of a worker, and its listener."""


def known(*names: str) -> Any:
    """A shard with these ids. Producers are counted from 0; every second one has been open since 1,000."""
    state = Transactions(TransactionSettings(), ports=None)
    for number, name in enumerate(names):
        is_open = number % 2 == 1
        state.transactions[name] = Transaction(
            transactional_id=name,
            producer_id=number,
            producer_epoch=0,
            timeout_ms=60_000,
            state=TransactionState.ONGOING if is_open else TransactionState.EMPTY,
            started_ms=1_000 if is_open else -1,
        )
    return SimpleNamespace(state=state, unloaded=False)


def ask(shards: list[Any], **filters: Any) -> Any:
    clock = SimpleNamespace(wall_ms=lambda: NOW_MS)
    worker = SimpleNamespace(submit=lambda work, on_done: WORK.append((work, on_done)))
    service: Any = SimpleNamespace(
        loaded=lambda: shards, broker=SimpleNamespace(clock=clock, log=None, worker=worker, turns=ONE_SLICE)
    )
    handle: Any = list_transactions.handler(service).handle
    answer = handle(ListTransactionsRequest(**({"state_filters": [], "producer_id_filters": []} | filters)), None)
    while WORK:
        assert not answer.done
        work, on_done = WORK.pop()
        on_done(work())
    if not isinstance(answer, Pending):
        return answer
    assert answer.done, "one slice is enough"
    return answer.response


def names(answer: Any) -> list[str]:
    assert answer.error_code == ErrorCode.NONE
    return [row.transactional_id for row in answer.transaction_states]


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        (None, ["pay-1", "pay-2", "ship-1"]),
        ("", ["pay-1", "pay-2", "ship-1"]),
        ("pay-.*", ["pay-1", "pay-2"]),
        ("pay", []),
        (".*-1", ["pay-1", "ship-1"]),
    ],
)
def test_names_are_matched_as_a_whole(pattern: str | None, told: list[str]) -> None:
    assert names(ask([known("pay-1", "pay-2"), known("ship-1")], transactional_id_pattern=pattern)) == told


def test_long_names_are_matched_by_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of 32,000 characters blocks the loop for 0.1 s with the worst pattern."""
    short, long = "a" * 500, "a" * 501
    in_loop: list[int] = []
    matching = NamePattern.matching

    def noted(self: NamePattern, names: Any) -> Any:
        in_loop.extend(map(len, names))
        return matching(self, names)

    monkeypatch.setattr(NamePattern, "matching", noted)
    assert names(ask([known(long, short, "b" * 32_000)], transactional_id_pattern="a*")) == [short, long]
    assert in_loop == [500]
    assert names(ask([known(long)])) == [long]


def test_filters_go_together() -> None:
    shards = [known("a-1", "a-2", "b-1", "b-2")]
    assert names(ask(shards, transactional_id_pattern="b.*", state_filters=["Ongoing"])) == ["b-2"]
    assert names(ask(shards, transactional_id_pattern="a.*", duration_filter=8_000)) == ["a-2"]
    assert names(ask(shards, transactional_id_pattern="a.*", producer_id_filters=[2, 3])) == []
    assert names(ask(shards, duration_filter=9_000)) == []


@pytest.mark.parametrize("pattern", ["(", "a{1001}", "(?=a)", "x" * 5_000])
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    assert ask([known("a")], transactional_id_pattern=pattern).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_unknown_states_are_named() -> None:
    answer = ask([known("a", "b")], state_filters=["Nonsense"])
    assert (answer.unknown_state_filters, answer.transaction_states) == (["Nonsense"], [])
    assert names(ask([known("a", "b")], state_filters=["Nonsense", "Empty"])) == ["a"]
    answer = ask([known("a", "b")], state_filters=["PrepareEpochFence"])
    assert (answer.unknown_state_filters, answer.transaction_states) == ([], []), "a state without transactions"


def test_a_shard_that_another_broker_took_over_meanwhile_is_an_error() -> None:
    shard = known("a")
    shard.unloaded = True
    assert ask([shard]).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
