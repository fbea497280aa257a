"""Handshakes of TLS take turns: a few in a pass of the event loop, and all other input is read between two passes.

A handshake costs the loop a quarter of a millisecond or more, a hundred requests of small ones. Clients that connect
all at once, after a broker was started or a network came back, would hold the loop for as long as they are many. What
waits here is bounded: each connection waits once, and isn't read from meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lowtide.broker.network.admission.turn_queue import TurnQueue

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
