"""Answers from threads into the event loop: one wake-up for many answers, none lost when the loop stops."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

Call: TypeAlias = tuple[Callable[[Any], None], Any]


def call_all(loop: asyncio.AbstractEventLoop, calls: Iterable[Call]) -> None:
    """Makes the calls. A call that raises is reported like a failing callback and doesn't prevent the others."""
    for function, argument in calls:
        try:
            function(argument)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            loop.call_exception_handler({"message": f"{function!r} failed", "exception": error})


class Completions:
    """Calls that threads request, made in the event loop in order."""

    __slots__ = ("_asked", "_loop", "_woken")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: deque[Sequence[Call]] = deque()
        self._woken = False

    def add(self, calls: Sequence[Call]) -> None:
        """Makes the loop call each function with its argument. From any thread."""
        self._asked.append(calls)
        # Read after the append: if `run` has not cleared the flag yet, it has not looked at the queue yet either.
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self.run)
            except RuntimeError:
                # The loop is closed; the owner's close() runs the rest.
                assert self._loop.is_closed()

    def run(self) -> None:
        """Makes the requested calls. In the loop's thread only."""
        self._woken = False
        for _ in range(len(self._asked)):
            call_all(self._loop, self._asked.popleft())
