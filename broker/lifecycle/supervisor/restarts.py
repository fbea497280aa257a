"""When a process that ended is started again: at once after a steady life, later and later where it doesn't stay up.

Values only.
"""

from __future__ import annotations

from typing import Final

FIRST_DELAY_MS: Final = 100
LAST_DELAY_MS: Final = 30_000

STEADY_MS: Final = 60_000
"""A process that served for so long is steady: when it ends, the count of its ends begins again."""

TOLD_MAX: Final = 5
"""Ends in a row that are logged one by one. The next one is logged as the last, until the process serves again."""


class Restarts:
    """The lives of one process."""

    def __init__(self) -> None:
        """None yet."""
        self.in_a_row = 0
        """Lives that ended, since the last steady one."""
        self._ready_ms: int | None = None

    def on_ready(self, now_ms: int) -> None:
        """It serves since now (monotonic)."""
        self._ready_ms = now_ms

    def on_ended(self, now_ms: int) -> int:
        """It has ended. Returns after how many ms it is to be started again."""
        if self._ready_ms is not None and now_ms - self._ready_ms >= STEADY_MS:
            self.in_a_row = 0
        self._ready_ms = None
        self.in_a_row += 1
        return min(FIRST_DELAY_MS << min(self.in_a_row - 1, 20), LAST_DELAY_MS)
