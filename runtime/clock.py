"""The only place that reads the time.

`monotonic_ms` orders events within one process and never goes back. `wall_ms` is for records and log lines and may
jump. The two can't be compared.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The clocks."""

    def monotonic_ms(self) -> int:
        """Returns milliseconds since an arbitrary moment of this process's life; never falls."""

    def monotonic_ns(self) -> int:
        """Returns the same in nanoseconds, to measure short work."""

    def wall_ms(self) -> int:
        """Returns milliseconds since 1970-01-01 UTC; may jump either way."""

    def wall_ns(self) -> int:
        """Returns the same in nanoseconds."""


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    monotonic_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)
    """Both without a wrapper, because every request reads them."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
