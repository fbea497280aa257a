"""Work in slices that takes turns: however many pieces there are, one slice is taken in a pass of the event loop, and others have theirs.

Between two slices there is a rest as long as a slice, so that requests of usual size find the loop free at least half of the time. A piece
that waits for something else has no turns until that is there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from lowtide.broker.pending import Pending
from lowtide.runtime.clock import Clock

SLICE_MS: Final = 1
"""How long one slice holds the loop; a step that takes longer is not cut short."""

REST_MS: Final = 1
"""How long others have the loop to themselves between two slices."""

ResultT = TypeVar("ResultT")

Steps = Generator[Pending[Any] | None, None, Any]
"""Yields after each bounded step: None, or what it waits for."""


class Piece:
    """One piece of work. `on_failed` is called with what its steps raised; nothing is called for one that was dropped.

    One that `goes_on` has the next slice too, before all others: it is short, or what it has in memory goes when it is
    done.
    """

    __slots__ = ("dropped", "goes_on", "on_failed", "steps")

    def __init__(self, steps: Steps, on_failed: Callable[[Exception], None]) -> None:
        self.steps = steps
        self.on_failed = on_failed
        self.dropped = False
        self.goes_on = False

    def drop(self) -> None:
        """Take no more steps."""
        self.dropped = True


class Turns:
    """Gives pieces of work their turns. One for each broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self.now_ms = clock.monotonic_ms
        self._ready: deque[Piece] = deque()
        self._is_scheduled = False

    def __len__(self) -> int:
        """Pieces that wait for a turn."""
        return len(self._ready)

    def add(self, piece: Piece) -> None:
        """Give a piece its turn behind those that are there, the first one in a later pass of the loop."""
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
        """Take the first slice of `steps` now, and the others in turn; then `on_done` is called with what they return.

        Returns the piece that has turns, None where one slice was enough. What the first slice raises is raised here;
        later `on_failed` is called with it.
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
        """Whether the piece is to have another turn."""
        try:
            for waited in piece.steps:
                if waited is not None and not waited.done:
                    waited.listen(lambda _answer: self.add(piece))
                    return False
                if self.now_ms() >= until_ms:
                    return True
        except Exception as error:  # noqa: BLE001  a bug of ours costs one request, and is logged by who asked for the work
            piece.on_failed(error)
        return False
