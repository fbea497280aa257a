"""Connections that take turns: a few in a pass of the event loop, and all other input is read between two passes.

What waits is bounded: each connection waits once. TLS handshakes take turns too (`HandshakeTurns`): one costs the loop
a
quarter of a millisecond or more, a hundred small requests, and after a start all clients connect at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class TurnQueue(Generic[T]):
    """Gives turns in the order in which they are asked for."""

    def __init__(self, now_ms: Callable[[], int], turns_a_pass: int, take_turn: Callable[[T, int], None]) -> None:
        """A pass has at most `turns_a_pass` and lasts about a millisecond. `take_turn` gets when it began."""
        self._now_ms = now_ms
        self._turns_a_pass = turns_a_pass
        self._take_turn = take_turn
        self._queue: OrderedDict[T, None] = OrderedDict()
        self._is_scheduled = False

    def __len__(self) -> int:
        """Connections that wait for a turn."""
        return len(self._queue)

    def enter(self, connection: T) -> None:
        """Give a connection a turn when those before it have had theirs; once, however often it asks."""
        self._queue[connection] = None
        self._schedule()

    def leave(self, connection: T) -> None:
        """The connection is gone."""
        self._queue.pop(connection, None)

    def _schedule(self) -> None:
        if self._queue and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._give_turns)

    def _give_turns(self) -> None:
        self._is_scheduled = False
        began_ms = self._now_ms()
        try:
            for _ in range(min(self._turns_a_pass, len(self._queue))):
                connection, _none = self._queue.popitem(last=False)
                self._take_turn(connection, began_ms)
                if not self._queue or self._now_ms() != began_ms:
                    break
        finally:
            self._schedule()


HANDSHAKES_A_PASS = 4
"""No more begin when a millisecond is over, as where the key of the certificate is a large one of RSA."""


class ShakesHands(Protocol):
    """A connection whose client has sent a part of its handshake."""

    def take_turn(self) -> None:
        """Go on with it."""
        ...


class HandshakeTurns(TurnQueue[ShakesHands]):
    """The handshakes of one broker."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms, HANDSHAKES_A_PASS, lambda connection, _began_ms: connection.take_turn())
