"""Decides which partitions move from a busy broker to another one on the same machine.

Pure: loads and the time go in, moves come out. A load is a share of a core: 0.7 means that the loop runs 70 % of the
time.

Guards: under a constant load the moves end, and no state repeats. After each move the receiver is less busy than the
giver was, by at least `MARGIN`, so the sum of squares of the loads falls. The busiest known broker gives, so the
largest load never grows. Time limits bound the effect of wrong estimates: a broker gives or receives only after
`SAMPLES` reports since its last move, and a moved partition stays for `REST_MS`.

The leader decides on its image whether a move is safe (`leader_moves`), and so does the store.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.protocol.types import BrokerId  # Read at run time, by msgspec.

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

REPORT_INTERVAL_MS: Final = 10_000

SAMPLES: Final = 3
"""A broker is full when this many reports in a row say so, and has the room that all of them show."""

MARGIN: Final = 0.1
"""The least difference between the receiver's load after a move and the giver's before: far more than the error of
loads."""

MOVED_LOAD_MIN: Final = 0.005
"""A partition with a smaller load isn't worth the clients' search for the new leader."""

REST_MS: Final = 600_000
"""A moved partition stays at least this long."""

RESTING_MAX: Final = 10_000
"""More than can move within `REST_MS`: the largest configured rate per minute is a tenth of it."""

_MINUTE_MS: Final = 60_000


class BalanceRules(msgspec.Struct, frozen=True):
    """The configured load from which on a broker is full, and the most moves per minute."""

    full: float = 0.7
    moves_per_minute: int = 6


class PartitionLoad(msgspec.Struct, frozen=True):
    """The load of a partition on its leader.

    `preferred` is its first replica; `receivers` could lead it: in sync, and on the same machine.
    """

    topic: str
    partition: int
    load: float
    preferred: BrokerId
    receivers: tuple[BrokerId, ...]


class BrokerLoad(msgspec.Struct, frozen=True):
    """A broker's report: its load since the last report, and the largest partitions that it could give away."""

    broker: BrokerId
    load: float
    partitions: tuple[PartitionLoad, ...] = ()


class LeaderMove(msgspec.Struct, frozen=True):
    """A partition that should get another leader, with the loads that decided it."""

    topic: str
    partition: int
    giver: BrokerId
    receiver: BrokerId
    load: float
    giver_load: float
    receiver_load: float


class _Samples:
    """The last reports of one broker."""

    __slots__ = ("loads", "partitions", "skips")

    def __init__(self) -> None:
        self.loads: deque[float] = deque(maxlen=SAMPLES)
        self.partitions: tuple[PartitionLoad, ...] = ()
        self.skips = False

    @property
    def is_known(self) -> bool:
        return len(self.loads) == SAMPLES

    def add(self, load: BrokerLoad) -> None:
        """Adds a report. The first one after a move is skipped, because it partly precedes the move."""
        if self.skips:
            self.skips = False
            return
        self.loads.append(load.load)
        self.partitions = load.partitions

    def on_move(self) -> None:
        self.loads.clear()
        self.partitions = ()
        self.skips = True


class LeaderBalance:
    """The loads of a machine's brokers, and recent moves. Used from one event loop."""

    def __init__(self, rules: BalanceRules) -> None:
        self._rules = rules
        self._samples: dict[BrokerId, _Samples] = {}
        self._moved_ms: deque[int] = deque()
        self._resting: dict[tuple[str, int], int] = {}
        """When each may move again, in the order of the moves."""

    def on_load(self, load: BrokerLoad) -> None:
        self._samples.setdefault(load.broker, _Samples()).add(load)

    def on_away(self, broker: BrokerId) -> None:
        """Drops the reports of a broker that has ended."""
        self._samples.pop(broker, None)

    def moves(self, now_ms: int) -> list[LeaderMove]:
        """Returns the moves to make now. Each counts as made; if it is refused, the next reports show that."""
        self._forget(now_ms)
        known = {broker: samples for broker, samples in self._samples.items() if samples.is_known}
        giver = max(known, key=lambda broker: (min(known[broker].loads), -broker), default=None)
        if giver is None or min(known[giver].loads) < self._rules.full:
            return []
        loads = {broker: max(samples.loads) for broker, samples in known.items()}
        loads[giver] = min(known[giver].loads)
        movable = [each for each in known[giver].partitions if (each.topic, each.partition) not in self._resting]
        moves = plan_moves(giver, loads, movable, self._rules.full, self._rules.moves_per_minute - len(self._moved_ms))
        for move in moves:
            self._moved_ms.append(now_ms)
            self._resting[move.topic, move.partition] = now_ms + REST_MS
            for broker in (move.giver, move.receiver):
                self._samples[broker].on_move()
        return moves

    def _forget(self, now_ms: int) -> None:
        while self._moved_ms and self._moved_ms[0] <= now_ms - _MINUTE_MS:
            self._moved_ms.popleft()
        for key, until_ms in list(self._resting.items()):
            if until_ms > now_ms and len(self._resting) <= RESTING_MAX:
                break
            del self._resting[key]


def plan_moves(
    giver: BrokerId, loads: Mapping[BrokerId, float], movable: Iterable[PartitionLoad], full: float, moves_max: int
) -> list[LeaderMove]:
    """Returns moves from `giver` until it is no longer full; at most `moves_max`.

    `loads` has all brokers that take part, including the giver. Moves to a partition's preferred replica come first,
    then those that minimize the larger of the two loads.
    """
    loads = dict(loads)
    left = [each for each in movable if each.load >= MOVED_LOAD_MIN]
    moves: list[LeaderMove] = []
    while len(moves) < moves_max and loads[giver] >= full:
        found = [
            _ranked(each, receiver, loads[giver], loads[receiver])
            for each in left
            for receiver in _receivers(each, giver, loads)
        ]
        if not found:
            break
        _, each, receiver = min(found)
        moves.append(LeaderMove(each.topic, each.partition, giver, receiver, each.load, loads[giver], loads[receiver]))
        left.remove(each)
        loads[giver] -= each.load
        loads[receiver] += each.load
    return moves


def _receivers(each: PartitionLoad, giver: BrokerId, loads: Mapping[BrokerId, float]) -> list[BrokerId]:
    return [
        broker
        for broker in each.receivers
        if broker != giver and broker in loads and loads[broker] + each.load + MARGIN <= loads[giver]
    ]


def _ranked(
    each: PartitionLoad, receiver: BrokerId, giver_load: float, receiver_load: float
) -> tuple[tuple[bool, float, str, int, BrokerId], PartitionLoad, BrokerId]:
    larger = max(giver_load - each.load, receiver_load + each.load)
    return (receiver != each.preferred, larger, each.topic, each.partition, receiver), each, receiver
