"""Where new connections from an address wait that has just sent what makes no sense: they are served after all others.

A client that sends damaged frames over many connections, each of which is refused and opened again, costs a round over
all of them between two requests of an honest client. So a connection that comes from an address with more than
`REFUSALS_PER_S` malformed frames in about the last second is given turns: a frame each, a few of them in a pass of the
loop, and all other input is read between two passes. Its refusals, and so the connections that follow them, are paced
with that. It leaves the lane when it has sent enough that made sense, or its address is calm again.

A connection that is there stays what it is, so that an honest one costs nothing, nor does the lane slow down any number
of them that make sense. What waits here is bounded: a connection with a frame to be executed isn't read from.

`Refusals` decides and is pure, with the time passed in; `SlowLane` gives turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from lowtide.broker.turns import TurnQueue
from lowtide.runtime.addresses import network_of

REFUSALS_PER_S = 10
"""Malformed frames of one address in a second that are borne: a broken client that tries again sends one or two."""

TURNS = 32
"""After so many turns a connection has shown that it makes sense."""

TURNS_A_PASS = 2
"""Some 40 microseconds each. No more begin when a millisecond is over, should they be long."""

_ADDRESSES_MAX = 10_000
"""Addresses, or networks of IPv6, whose refusals are counted in one second; those of others beyond that are not."""


class Refusals:
    """Malformed frames by address, in this second and the last."""

    def __init__(self) -> None:
        self._second = 0
        self._now: Counter[str] = Counter()
        self._before: Counter[str] = Counter()

    def note(self, address: str, now_ms: int) -> None:
        """An address has sent one."""
        self._go_on(now_ms)
        if address in self._now or len(self._now) < _ADDRESSES_MAX:
            self._now[address] += 1

    def is_troubled(self, address: str, now_ms: int) -> bool:
        """Whether an address has sent too many."""
        if not self._now and not self._before:
            return False
        self._go_on(now_ms)
        return self._now[address] > REFUSALS_PER_S or self._before[address] > REFUSALS_PER_S

    def _go_on(self, now_ms: int) -> None:
        second = now_ms // 1000
        if second != self._second:
            self._before = self._now if second == self._second + 1 else Counter()
            self._now = Counter()
            self._second = second


class LaneTurns(Protocol):
    """When a connection executes (`execution`)."""

    def enter_slow_lane(self, turns: int) -> None:
        """Executes one frame in each turn from now on; until it has had so many, or may leave."""
        ...


class Laned(Protocol):
    """A connection in the lane."""

    @property
    def turns(self) -> LaneTurns:
        """When it executes."""
        ...

    @property
    def client_address(self) -> str:
        """Where it comes from."""
        ...

    def take_turn(self, *, may_leave: bool) -> None:
        """Execute the next frame that waits."""
        ...


class SlowLane(TurnQueue[Laned]):
    """Serves addresses that send damaged frames one request at a time. One for each broker."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms, TURNS_A_PASS, self._give_turn)
        self._refusals = Refusals()

    def on_connected(self, connection: Laned) -> None:
        """A connection is there, which may have to go into the lane."""
        if self._refusals.is_troubled(network_of(connection.client_address), self._now_ms()):
            connection.turns.enter_slow_lane(TURNS)

    def on_malformed(self, address: str) -> None:
        """An address has sent what makes no sense."""
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
