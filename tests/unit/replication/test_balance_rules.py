"""Each rule of the balance of leaders by itself.

Who gives, what goes, how much in a minute, and for how long it stays.
"""

from __future__ import annotations

import pytest

from lowtide.replication import leader_balance
from lowtide.replication.leader_balance import (
    MARGIN,
    MOVED_LOAD_MIN,
    REST_MS,
    SAMPLES,
    BalanceRules,
    BrokerLoad,
    LeaderBalance,
    PartitionLoad,
    plan_moves,
)

FULL = 0.7
MINUTE_MS = 60_000


def parts(*loads: float, receivers: tuple[int, ...] = (1, 2), preferred: int = 0) -> list[PartitionLoad]:
    return [PartitionLoad("t", number, load, preferred, receivers) for number, load in enumerate(loads)]


def moved(loads: dict[int, float], movable: list[PartitionLoad], moves_max: int = 9) -> list[tuple[int, int]]:
    return [(move.partition, move.receiver) for move in plan_moves(0, loads, movable, FULL, moves_max)]


def test_it_gives_until_it_is_not_full() -> None:
    assert moved({0: 0.75, 1: 0.0}, parts(0.1, 0.1, 0.1)) == [(0, 1)]
    assert moved({0: FULL, 1: 0.0}, parts(0.1, 0.1)) == [(0, 1)], "just full"
    assert moved({0: 0.69, 1: 0.0}, parts(0.1)) == []
    assert len(moved({0: 0.95, 1: 0.0}, parts(0.1, 0.1, 0.1, 0.1))) == 3
    assert len(moved({0: 0.95, 1: 0.0}, parts(0.1, 0.1, 0.1, 0.1), 2)) == 2


def test_what_a_receiver_has_got_counts() -> None:
    assert moved({0: 0.95, 1: 0.6, 2: 0.6}, parts(0.1, 0.1)) == [(0, 1), (1, 2)]


def test_a_receiver_is_less_busy_after_than_the_giver_was_before() -> None:
    giver = 0.5 + 0.25 + MARGIN
    assert moved({0: giver, 1: 0.5}, parts(0.25)) == [(0, 1)]
    assert moved({0: giver, 1: 0.501}, parts(0.25)) == []
    assert moved({0: giver}, parts(0.25)) == [], "of the receivers nothing is known"


def test_the_one_goes_that_leaves_the_larger_load_smallest() -> None:
    assert moved({0: 0.9, 1: 0.0}, parts(0.1, 0.3, 0.7))[0] == (1, 1)
    assert moved({0: 0.9, 1: 0.3}, parts(0.1, 0.3, 0.5))[0] == (1, 1)


def test_what_costs_next_to_nothing_stays() -> None:
    assert moved({0: 0.7, 1: 0.0}, parts(MOVED_LOAD_MIN)) == [(0, 1)]
    assert moved({0: 0.7, 1: 0.0}, parts(MOVED_LOAD_MIN * 0.99)) == []


class Brokers:
    """Broker 0 has partitions, 1 and 2 have room."""

    def __init__(self, rules: BalanceRules | None = None) -> None:
        self.balance = LeaderBalance(rules or BalanceRules(FULL, 100))

    def moves(
        self, now_ms: int, loads: list[float], movable: list[PartitionLoad], others: tuple[float, float] = (0.0, 0.0)
    ) -> list[int]:
        """What goes after each of these loads of broker 0 was reported."""
        for load in loads:
            self.balance.on_load(BrokerLoad(0, load, tuple(movable)))
            self.balance.on_load(BrokerLoad(1, others[0]))
            self.balance.on_load(BrokerLoad(2, others[1]))
        return [move.partition for move in self.balance.moves(now_ms)]


AGAIN = [0.9] * (SAMPLES + 1)
"""After a move the first report doesn't count."""


def test_the_busiest_by_its_least_report_gives() -> None:
    balance = LeaderBalance(BalanceRules(FULL, 100))
    for peak in (0.95, 0.1, 0.95):
        balance.on_load(BrokerLoad(0, peak, tuple(parts(0.2))))
        balance.on_load(BrokerLoad(1, 0.75, tuple(parts(0.2, receivers=(2,), preferred=1))))
        balance.on_load(BrokerLoad(2, 0.0))
    assert [move.giver for move in balance.moves(0)] == [1]


def test_a_giver_counts_with_its_least_report() -> None:
    assert Brokers().moves(0, [0.95, 0.75, 0.85], parts(0.1, 0.1, 0.1)) == [0]
    assert Brokers().moves(0, [0.7, 0.9, 0.9], parts(0.1)) == [0], "just full in one of them"
    assert Brokers().moves(0, [0.69, 0.9, 0.9], parts(0.1)) == []


def test_so_many_move_in_a_minute() -> None:
    brokers = Brokers(BalanceRules(FULL, 3))
    small = parts(*[0.02] * 20)
    assert brokers.moves(1000, [0.75] * SAMPLES, small) == [0, 1, 2]
    assert brokers.moves(1001, AGAIN, small) == []
    assert brokers.moves(999 + MINUTE_MS, [0.9], small) == []
    assert len(brokers.moves(1000 + MINUTE_MS, [0.9], small)) == 3
    assert brokers.moves(1001 + MINUTE_MS, AGAIN, small) == []


def test_each_move_counts_for_its_own_minute() -> None:
    brokers = Brokers(BalanceRules(FULL, 2))
    small = parts(*[0.06] * 20)
    assert len(brokers.moves(0, [0.75] * SAMPLES, small)) == 1
    assert len(brokers.moves(30_000, [0.75] * (SAMPLES + 1), small)) == 1
    assert brokers.moves(40_000, AGAIN, small) == []
    assert len(brokers.moves(MINUTE_MS, [0.9], small)) == 1, "the first one's minute is over"
    assert brokers.moves(MINUTE_MS + 1, AGAIN, small) == []


def test_a_partition_that_was_moved_rests() -> None:
    brokers = Brokers()
    one = parts(0.25)
    assert brokers.moves(0, [0.9] * SAMPLES, one) == [0]
    assert brokers.moves(1, AGAIN, one) == [], "it has come back, by another way"
    assert brokers.moves(REST_MS - 1, [0.9], one) == []
    assert brokers.moves(REST_MS, [0.9], one) == [0]
    assert brokers.moves(REST_MS + 1, AGAIN, one) == []


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest may move again before its time."""
    monkeypatch.setattr(leader_balance, "RESTING_MAX", 2)
    brokers = Brokers()
    three = parts(0.1, 0.1, 0.1)
    assert brokers.moves(0, [0.85] * SAMPLES, three[:2]) == [0, 1]
    assert brokers.moves(1, AGAIN, three[:2]) == [], "two are"
    assert brokers.moves(2, [0.75], three[2:]) == [2]
    assert brokers.moves(3, AGAIN, three) == [0]
