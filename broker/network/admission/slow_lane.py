"""Serves new connections from addresses that send malformed frames after all others.

A client that sends malformed frames over many connections, and reconnects whenever one is closed, would otherwise take
a turn on each of them between two requests of an honest client. So new connections from an address with more than
`REFUSALS_PER_S` malformed frames in about the last second wait for turns: one frame each, a few in a pass of the loop.
This also paces the reconnections. A connection leaves the lane after `TURNS` valid frames, or when its address has
stopped. Existing connections are not affected. The lane is bounded, because a connection with a waiting frame is not
read.

`Refusals` is pure; `SlowLane` gives turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from lowtide.broker.turns import TurnQueue
from lowtide.runtime.addresses import network_of

REFUSALS_PER_S = 10
"""The malformed frames of an address that are tolerated per second: a broken client that retries sends one or two."""

TURNS = 32
"""The turns after which a connection leaves the lane."""

TURNS_A_PASS = 2
"""Some 40 microseconds each. Fewer begin if a millisecond is over."""

_ADDRESSES_MAX = 10_000
"""The addresses, or IPv6 networks, that are counted in one second."""


class Refusals:
    """Counts malformed frames by address, in this second and the last one."""

    def __init__(self) -> None:
        self._second = 0
        self._now: Counter[str] = Counter()
        self._before: Counter[str] = Counter()

    def note(self, address: str, now_ms: int) -> None:
        self._advance(now_ms)
        if address in self._now or len(self._now) < _ADDRESSES_MAX:
            self._now[address] += 1

    def is_troubled(self, address: str, now_ms: int) -> bool:
        """Returns whether an address has sent too many malformed frames."""
        if not self._now and not self._before:
            return False
        self._advance(now_ms)
        return self._now[address] > REFUSALS_PER_S or self._before[address] > REFUSALS_PER_S

    def _advance(self, now_ms: int) -> None:
        second = now_ms // 1000
        if second != self._second:
            self._before = self._now if second == self._second + 1 else Counter()
            self._now = Counter()
            self._second = second


class LaneTurns(Protocol):
    """The execution state of a connection (`execution`)."""

    def enter_slow_lane(self, turns: int) -> None: ...


class Laned(Protocol):
    """A connection in the lane."""

    @property
    def turns(self) -> LaneTurns: ...
    @property
    def client_address(self) -> str: ...
    def take_turn(self, *, may_leave: bool) -> None:
        """Executes the next waiting frame."""
        ...


class SlowLane(TurnQueue[Laned]):
    """The slow lane of one broker."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms, TURNS_A_PASS, self._give_turn)
        self._refusals = Refusals()

    def on_connected(self, connection: Laned) -> None:
        """Puts a new connection into the lane if its address has sent too many malformed frames."""
        if self._refusals.is_troubled(network_of(connection.client_address), self._now_ms()):
            connection.turns.enter_slow_lane(TURNS)

    def on_malformed(self, address: str) -> None:
        """Counts a malformed frame."""
        self._refusals.note(network_of(address), self._now_ms())

    def _give_turn(self, connection: Laned, began_ms: int) -> None:
        connection.take_turn(may_leave=not self._refusals.is_troubled(network_of(connection.client_address), began_ms))


HANDSHAKES_A_PASS = 4
"""Fewer begin if a millisecond is over, such as with a large RSA key."""


class ShakesHands(Protocol):
    """A connection whose client has sent a part of its TLS handshake."""

    def take_turn(self) -> None:
        """Continues the handshake."""
        ...


class HandshakeTurns(TurnQueue[ShakesHands]):
    """The TLS handshakes of a broker, in turns.

    One costs the loop a quarter of a millisecond or more, a hundred small requests, and after a start all clients
    connect at once.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms, HANDSHAKES_A_PASS, lambda connection, _began_ms: connection.take_turn())
