"""Has Python's collector of reference cycles wait while there are very many values that hold no cycles and go soon.

The rows of large requests and of their answers are in lists, and a collection goes through each list that is younger than the last one, in
one go: with 90,000 rows it held the loop for 20 to 30 ms, and with four such requests at once for 100. They are freed without it when they
are answered. What else becomes garbage meanwhile is collected when they are gone, and every `PAUSE_MS_MAX` in any case.

It works on the whole process, so it is for a process that is one broker and nothing else.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lowtide.runtime.clock import Clock

ROWS_MIN: Final = 5_000
"""Fewer are gone through in a millisecond."""

PAUSE_MS_MAX: Final = 30_000
"""So long there is no collection while there are large requests all the time. What one finds then takes a tenth of a second or so."""


class CollectorPause:
    """Counts large requests, and pauses the collector of cycles while there are any."""

    __slots__ = ("_clock", "_since_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ms: int | None = None

    def note(self, rows: int) -> None:
        """So many rows are in memory now, or will be soon."""
        if rows < ROWS_MIN:
            if self._since_ms is not None:
                self._since_ms = None
                gc.enable()
        elif self._since_ms is None:
            self._since_ms = self._clock.monotonic_ms()
            gc.disable()

    def on_tick(self) -> None:
        """Look whether the pause is long enough. To be called about once a second."""
        now_ms = self._clock.monotonic_ms()
        if self._since_ms is not None and now_ms - self._since_ms >= PAUSE_MS_MAX:
            self._since_ms = now_ms
            gc.collect(1)
