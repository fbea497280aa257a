"""Which leaderships move between the processes of a machine: they reduce the largest load, and end."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.replication.leader_balance import (
    MARGIN,
    MOVED_LOAD_MIN,
    REPORT_INTERVAL_MS,
    REST_MS,
    SAMPLES,
    BalanceRules,
    BrokerLoad,
    LeaderBalance,
    LeaderMove,
    PartitionLoad,
    plan_moves,
)

FULL = 0.7
RULES = BalanceRules(FULL, 6)
QUIET_ROUNDS = REST_MS // REPORT_INTERVAL_MS + SAMPLES + 2
"""When nothing has moved for so long, nothing ever will: all partitions may move again, and all brokers are known."""


class Machine:
    """Brokers whose partitions cost the same wherever they are led, so loads are constant but for the moves.

    Each can lead each.
    """

    def __init__(self, leaders: Mapping[int, tuple[int, float]], brokers: int, rules: BalanceRules = RULES) -> None:
        """`leaders`: the leader of each partition, and what it costs."""
        self.balance = LeaderBalance(rules)
        self.brokers = range(brokers)
        self.leader = {number: leader for number, (leader, _) in leaders.items()}
        self.first = dict(self.leader)
        self.costs = {number: cost for number, (_, cost) in leaders.items()}
        self.now_ms = 0
        self.moves: list[LeaderMove] = []
        self.moved_ms: list[int] = []
        self.states = [tuple(self.leader.values())]

    def load(self, broker: int) -> float:
        return sum(cost for number, cost in self.costs.items() if self.leader[number] == broker)

    @property
    def largest(self) -> float:
        return max(map(self.load, self.brokers))

    def report(self, broker: int) -> BrokerLoad:
        others = tuple(each for each in self.brokers if each != broker)
        partitions = [
            PartitionLoad("t", number, cost, self.first[number], others)
            for number, cost in self.costs.items()
            if self.leader[number] == broker
        ]
        return BrokerLoad(broker, self.load(broker), tuple(partitions))

    def run(self, rounds: int) -> list[LeaderMove]:
        """So many reports of each, one after the other. Returns what was moved meanwhile."""
        before = len(self.moves)
        for _ in range(rounds):
            self.now_ms += REPORT_INTERVAL_MS
            for broker in self.brokers:
                self.balance.on_load(self.report(broker))
                for move in self.balance.moves(self.now_ms):
                    assert self.leader[move.partition] == move.giver
                    self.leader[move.partition] = move.receiver
                    self.moves.append(move)
                    self.moved_ms.append(self.now_ms)
                    self.states.append(tuple(self.leader.values()))
        return self.moves[before:]


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    brokers = draw(st.integers(2, 5))
    costs = st.floats(0, 1.2, allow_nan=False) | st.floats(0, 0.1)
    leaders = draw(st.lists(st.tuples(st.integers(0, brokers - 1), costs), max_size=8))
    rules = BalanceRules(draw(st.floats(0.1, 1)), draw(st.integers(1, 20)))
    return Machine(dict(enumerate(leaders)), brokers, rules)


@given(machines())
def test_moves_reduce_the_largest_load_and_end(machine: Machine) -> None:
    """Under a constant load: each move has a giver that is full and a receiver with room, and no state comes twice."""
    before = machine.largest
    for _ in range(len(machine.costs) ** 2 + 1):
        if machine.run(QUIET_ROUNDS) == []:
            break
    else:
        pytest.fail("it does not come to rest")
    for move in machine.moves:
        assert move.giver_load >= machine.balance._rules.full
        assert move.receiver_load + move.load + MARGIN <= move.giver_load + 1e-9
    assert machine.largest <= before + 1e-9
    assert len(set(machine.states)) == len(machine.states), "the same state came twice"
    for number, began_ms in enumerate(machine.moved_ms):
        within = [moved_ms for moved_ms in machine.moved_ms[number:] if moved_ms < began_ms + 60_000]
        assert len(within) <= machine.balance._rules.moves_per_minute


@given(machines())
def test_a_broker_that_is_the_busiest_alone_gets_less(machine: Machine) -> None:
    """Where there is anything to move from it, the first move makes the largest load smaller."""
    loads = sorted(map(machine.load, machine.brokers))
    machine.balance._rules = BalanceRules(machine.balance._rules.full, 1)
    before = machine.largest
    moves = machine.run(SAMPLES)
    if moves and moves[0].giver_load == before and loads[-2] < before - 1e-6:
        assert machine.largest < before


@given(
    st.dictionaries(st.integers(0, 3), st.floats(0, 1), min_size=2),
    st.lists(st.floats(0, 1), max_size=8),
    st.integers(0, 5),
)
def test_a_plan_keeps_to_its_numbers(loads: dict[int, float], costs: list[float], most: int) -> None:
    """Whatever is reported, also loads and partitions that do not add up."""
    giver = max(loads, key=lambda broker: loads[broker])
    movable = [PartitionLoad("t", number, cost, giver, (0, 1, 2, 3, 9)) for number, cost in enumerate(costs)]
    moves = plan_moves(giver, loads, movable, FULL, most)
    assert len(moves) <= most
    assert len({move.partition for move in moves}) == len(moves)
    for move in moves:
        assert move.giver == giver != move.receiver
        assert move.receiver in loads
        assert move.load >= MOVED_LOAD_MIN


def test_a_full_broker_gives_what_leaves_both_equal() -> None:
    """Not its largest partition, which would make the other one as full."""
    machine = Machine({0: (0, 0.7), 1: (0, 0.2), 2: (1, 0.1)}, 2)
    assert [(move.partition, move.receiver) for move in machine.run(SAMPLES)] == [(1, 1)]
    assert machine.run(100) == []


def test_one_large_partition_stays_where_it_is() -> None:
    """Nothing is gained by a move that makes another process as full."""
    assert Machine({0: (0, 0.95)}, 4).run(100) == []


def test_a_short_peak_moves_nothing() -> None:
    """A broker is full when each of several reports says so."""
    machine = Machine({0: (0, 0.5), 1: (0, 0.4)}, 2)
    for _ in range(20):
        assert machine.run(SAMPLES - 1) == []
        machine.costs[0] = 0.1
        assert machine.run(1) == []
        machine.costs[0] = 0.5


def test_a_receiver_has_room_when_each_report_shows_it() -> None:
    """One that was busy a moment ago may be again."""
    machine = Machine({0: (0, 0.5), 1: (0, 0.4), 2: (1, 0.8)}, 2)
    machine.run(1)
    machine.costs[2] = 0.0
    assert machine.run(SAMPLES - 1) == []
    assert machine.run(1) != []


def test_neither_takes_part_again_before_new_reports() -> None:
    """What is known of both was true before the move."""
    machine = Machine(dict.fromkeys(range(12), (0, 0.1)), 2, BalanceRules(FULL, 1))
    assert len(machine.run(SAMPLES)) == 1
    machine.balance._moved_ms.clear()  # As if a minute were over.
    assert machine.run(SAMPLES) == []
    assert len(machine.run(1)) == 1


def test_a_partition_rests_after_a_move() -> None:
    """Also where the load has changed since."""
    machine = Machine({0: (0, 0.5), 1: (0, 0.4)}, 2)
    (move,) = machine.run(SAMPLES)
    machine.costs = {number: 0.85 if number == move.partition else 0.0 for number in machine.costs}
    machine.leader = dict.fromkeys(machine.costs, 1)
    machine.costs[2], machine.leader[2], machine.first[2] = 0.02, 1, 1
    machine.balance._resting.pop(("t", 1 - move.partition), None)
    rounds = REST_MS // REPORT_INTERVAL_MS
    assert [each.partition for each in machine.run(rounds - 1)] == [2], "the other one may go"
    machine.costs[move.partition] = 0.8
    machine.costs[2], machine.leader[2] = 0.3, 1
    machine.balance._resting[("t", 2)] = 1 << 60
    assert [each.partition for each in machine.run(SAMPLES + 2)] == [move.partition]


def test_what_returns_to_its_preferred_replica_goes_first() -> None:
    """The controller would move it there too (`auto.leader.rebalance.enable`)."""
    machine = Machine({0: (0, 0.4), 1: (0, 0.3), 2: (0, 0.1)}, 2)
    machine.first[2] = 1
    assert next(move.partition for move in machine.run(SAMPLES)) == 2


@pytest.mark.parametrize("away", [0, 1])
def test_one_that_was_away_begins_again(away: int) -> None:
    """Its next life has other partitions."""
    machine = Machine(dict.fromkeys(range(10), (0, 0.1)), 2)
    machine.run(SAMPLES - 1)
    machine.balance.on_away(away)
    assert machine.run(SAMPLES - 1) == []
    assert machine.run(1) != []
