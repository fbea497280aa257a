"""Takes turns among long tasks: one slice per pass of the event loop, however many tasks there are.

A pause as long as a slice follows each slice, so small requests find the loop free at least half of the time. A task
that waits has no turns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from lowtide.broker.pending import Pending
from lowtide.runtime.clock import Clock

SLICE_MS: Final = 1
"""The length of a slice; longer steps are not interrupted."""

REST_MS: Final = 1
"""The pause between two slices."""

ResultT = TypeVar("ResultT")

Steps = Generator[Pending[Any] | None, None, Any]
"""Yields after each bounded step: None, or what it waits for."""


class Piece:
    """A task in steps. `on_failed` gets an exception of its steps; a dropped task calls nothing.

    With `goes_on` it also gets the next slice: it is short, or frees memory when done.
    """

    __slots__ = ("dropped", "goes_on", "on_failed", "steps")

    def __init__(self, steps: Steps, on_failed: Callable[[Exception], None]) -> None:
        self.steps = steps
        self.on_failed = on_failed
        self.dropped = False
        self.goes_on = False

    def drop(self) -> None:
        self.dropped = True


class Turns:
    """Gives tasks their turns. One per broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self.now_ms = clock.monotonic_ms
        self._ready: deque[Piece] = deque()
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, piece: Piece) -> None:
        """Adds a task at the end, starting in a later pass of the loop."""
        self._ready.append(piece)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._take_slice)

    def run(
        self,
        steps: Generator[None, None, ResultT],
        on_done: Callable[[ResultT], None],
        on_failed: Callable[[Exception], None],
    ) -> Piece | None:
        """Runs the first slice of `steps` now, and the others in turns; then calls `on_done` with their result.

        Returns the task, or None if one slice was enough. Exceptions of the first slice are raised here; later ones go
        to `on_failed`.
        """
        until_ms = self.now_ms() + SLICE_MS
        try:
            while True:
                next(steps)
                if self.now_ms() >= until_ms:
                    break
        except StopIteration as end:
            on_done(end.value)
            return None

        def rest() -> Steps:
            on_done((yield from steps))

        piece = Piece(rest(), on_failed)
        self.add(piece)
        return piece

    def _take_slice(self) -> None:
        until_ms = self.now_ms() + SLICE_MS
        while self._ready:
            piece = self._ready.popleft()
            if piece.dropped:
                piece.steps.close()
                continue
            if self._take_steps(piece, until_ms):
                (self._ready.appendleft if piece.goes_on else self._ready.append)(piece)
            if self.now_ms() >= until_ms:
                break
        self._is_scheduled = bool(self._ready)
        if self._ready:
            self._loop.call_later(REST_MS / 1000, self._take_slice)

    def _take_steps(self, piece: Piece, until_ms: int) -> bool:
        """Returns whether the task needs another turn."""
        try:
            for waited in piece.steps:
                if waited is not None and not waited.done:
                    waited.listen(lambda _answer: self.add(piece))
                    return False
                if self.now_ms() >= until_ms:
                    return True
        except Exception as error:  # noqa: BLE001  `on_failed` logs it
            piece.on_failed(error)
        return False


R = TypeVar("R")

APART_MS: Final = 2 * (SLICE_MS + REST_MS)
"""The time since the last request after which one is executed at once."""


class Pacing:
    """Executes requests at once, or in turns. One per broker and kind of request."""

    def __init__(self, turns: Turns, log: Any) -> None:
        """Logs errors of requests to `log`."""
        self._turns = turns
        self._log = log
        self._next_ms = 0

    def carry_out(self, act: Callable[[], R | Pending[R]]) -> R | Pending[R]:
        """Returns the result of `act`, or a promise. If the client disconnects before its turn, `act` is not called."""
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

        def on_failed(error: Exception) -> None:  # An unexpected error closes one connection.
            self._log.error("request failed", exc_info=error)
            promise.fail()

        piece = Piece(steps(), on_failed)
        promise.on_abandoned = piece.drop
        self._turns.add(piece)
        return promise
