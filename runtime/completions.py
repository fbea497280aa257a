"""How threads answer into the event loop: one wake-up for many answers, none of them lost when the loop is about to stop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

Call: TypeAlias = tuple[Callable[[Any], None], Any]
"""A function and its only argument."""


def call_all(loop: asyncio.AbstractEventLoop, calls: Iterable[Call]) -> None:
    """Make the calls; one that raises is reported as asyncio reports a failing callback, and does not prevent the others."""
    for function, argument in calls:
        try:
            function(argument)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            loop.call_exception_handler({"message": f"{function!r} failed", "exception": error})


class Completions:
    """Calls that threads have asked for, run in the event loop in the order in which they came."""

    __slots__ = ("_asked", "_loop", "_woken")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: deque[Sequence[Call]] = deque()
        self._woken = False

    def add(self, calls: Sequence[Call]) -> None:
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
        """Make the calls that have come in. In the loop's thread only."""
        self._woken = False
        for _ in range(len(self._asked)):
            call_all(self._loop, self._asked.popleft())
