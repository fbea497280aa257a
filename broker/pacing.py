"""Requests that begin something that stays, such as a member's first heartbeat: one now and then at once, many together in turns.

Each is a millisecond's work or less, and is answered as soon as it is done, so a client that sends one after the other on several
connections would have the loop to itself. In turns they have half of it, all of them together (`broker/turns.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from lowtide.broker.pending import Pending
from lowtide.broker.turns import REST_MS, SLICE_MS, Piece, Steps, Turns

R = TypeVar("R")

APART_MS: Final = 2 * (SLICE_MS + REST_MS)
"""One is carried out at once when so long has passed since the last one."""


class Pacing:
    """Carries out requests at once, or in turns. One for each broker and kind of request."""

    def __init__(self, turns: Turns, log: Any) -> None:
        """`log` gets a line about a request that raised in its turn."""
        self._turns = turns
        self._log = log
        self._next_ms = 0

    def carry_out(self, act: Callable[[], R | Pending[R]]) -> R | Pending[R]:
        """What `act` returns, or a promise of it. For a client that goes before its turn nothing is done."""
        now_ms = self._turns.now_ms()
        is_due, self._next_ms = now_ms >= self._next_ms, now_ms + APART_MS
        return act() if is_due else self._in_turn(act)

    def _in_turn(self, act: Callable[[], R | Pending[R]]) -> Pending[R]:
        promise: Pending[R] = Pending()

        def steps() -> Steps:
            answer = act()
            if isinstance(answer, Pending):
                promise.on_abandoned = answer.abandon
                answer.listen(lambda response: promise.fail() if response is None else promise.complete(response))
            else:
                promise.complete(answer)
            yield None

        def on_failed(error: Exception) -> None:  # A bug of ours costs one connection.
            self._log.error("request failed", exc_info=error)
            promise.fail()

        piece = Piece(steps(), on_failed)
        promise.on_abandoned = piece.drop
        self._turns.add(piece)
        return promise
