"""How threads answer into the event loop: one wake-up for many answers, none of them lost when the loop is about to stop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any


class Completions:
    """Calls that threads have asked for, run in the event loop in the order in which they came."""

    __slots__ = ("_asked", "_loop", "_woken")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: deque[Sequence[tuple[Callable[[Any], None], Any]]] = deque()
        self._woken = False

    def add(self, calls: Sequence[tuple[Callable[[Any], None], Any]]) -> None:
        """Have the loop make the calls, each function with its argument. From any thread."""
        self._asked.append(calls)
        # Read after the append: if `run` has not cleared the flag yet, it has not looked at the queue yet either.
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self.run)
            except RuntimeError:
                # The loop is closed. The owner's close() runs what is left.
                assert self._loop.is_closed()

    def run(self) -> None:
        """Make the calls that have come in. In the loop's thread only; a call that raises does not keep the others from being made."""
        self._woken = False
        for _ in range(len(self._asked)):
            for function, argument in self._asked.popleft():
                try:
                    function(argument)
                except Exception as error:  # noqa: BLE001 - reported as asyncio reports a failing callback
                    self._loop.call_exception_handler({"message": f"{function!r} failed", "exception": error})
