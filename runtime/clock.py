"""The only place that reads the time.

`monotonic_ms` orders events within one process and never goes back. `wall_ms` is for records and log lines and may
jump. The two can't be compared.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol

SIMULATION_WALL_START_MS: Final = 1_700_000_000_000
"""The start of a simulation's wall clock (14 November 2023): far from zero, so that a forgotten 0 stands out."""


class Clock(Protocol):
    """The clocks."""

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary moment of this process's life; never falls."""

    def monotonic_ns(self) -> int:
        """The same in nanoseconds, for how long a piece of work took."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; may jump either way."""


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    monotonic_ns = staticmethod(time.monotonic_ns)
    """Without a wrapper, because requests read it twice."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SimulatedClock:
    """The simulated loop's time. Setting `wall_offset_ms` makes the wall clock jump."""

    __slots__ = ("_loop", "_wall_start_ms", "wall_offset_ms")

    def __init__(self, loop: asyncio.AbstractEventLoop, wall_start_ms: int = SIMULATION_WALL_START_MS) -> None:
        self._loop = loop
        self._wall_start_ms = wall_start_ms
        self.wall_offset_ms = 0

    def monotonic_ms(self) -> int:
        # Rounded to microseconds before it is cut to milliseconds: a timer set for 1.005 s fires at a slightly smaller
        # float. Cut to 1004 ms, a deadline would not be reached yet, at a virtual time that no longer moves.
        return round(self._loop.time() * 1_000_000) // 1000

    def monotonic_ns(self) -> int:
        return round(self._loop.time() * 1_000_000) * 1000

    def wall_ms(self) -> int:
        return self._wall_start_ms + self.wall_offset_ms + self.monotonic_ms()
