"""The lag of an event loop: a histogram, and the causes of each sample.

A timer that fires late shows that something blocked the loop: our own code, a system call, or a machine without a free
processor. `LoopLag` gets each lateness with the thread's resource usage, and keeps two histograms: of the lateness that
clients feel, and of the part that the process caused. Pure. A snapshot has the form of Prometheus's histograms.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

import msgspec

from lowtide.runtime.thread_usage import ThreadUsage

BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
"""Upper bounds of the buckets, inclusive; one more bucket is above them."""

_NS_PER_MS: Final = 1_000_000


class HistogramSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram at one moment: `cumulative_counts[i]` samples were at most `BOUNDS_MS[i]`; the last counts all."""

    cumulative_counts: tuple[int, ...]
    sum_ms: float
    max_ms: float

    @property
    def count(self) -> int:
        return self.cumulative_counts[-1]


class LagHistogram:
    """Counts of milliseconds in fixed buckets."""

    __slots__ = ("_counts", "_max_ms", "_sum_ms")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._sum_ms = 0.0
        self._max_ms = 0.0

    def add(self, value_ms: float) -> None:
        self._counts[bisect_left(BOUNDS_MS, value_ms)] += 1
        self._sum_ms += value_ms
        self._max_ms = max(self._max_ms, value_ms)

    def snapshot(self) -> HistogramSnapshot:
        cumulative, total = [], 0
        for count in self._counts:
            total += count
            cumulative.append(total)
        return HistogramSnapshot(cumulative_counts=tuple(cumulative), sum_ms=self._sum_ms, max_ms=self._max_ms)


class Lateness(NamedTuple):
    """One sample: `lag_ms` is the sum of the other times."""

    lag_ms: float
    cpu_ms: float
    """Our own code, or the system on its behalf, ran."""
    blocked_ms: float
    """The thread waited for something: a disk, a lock, the interpreter."""
    starved_ms: float
    """The thread was ready, and the machine had no processor for it."""
    full_collections: int

    @property
    def held_ms(self) -> float:
        """The part that the process caused."""
        return self.lag_ms - self.starved_ms


class LoopLagSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Both histograms since the start."""

    lag: HistogramSnapshot
    held: HistogramSnapshot


class LoopLag:
    """Measures the loop's lag. Used from the loop's thread only."""

    __slots__ = ("_held", "_lag", "_last")

    def __init__(self, usage: ThreadUsage) -> None:
        """`usage` is the thread's usage before the first sample."""
        self._lag = LagHistogram()
        self._held = LagHistogram()
        self._last = usage

    def add(self, lag_ms: float, usage: ThreadUsage) -> Lateness:
        """Counts one sample: a timer fired `lag_ms` late, and the thread's usage is now `usage`.

        Some of the usage may lie before the due time. So each share is the largest possible one, starvation first, and
        a busy machine does not look like our fault.
        """
        last, self._last = self._last, usage
        starved_ms = min(lag_ms, (usage.starved_ns - last.starved_ns) / _NS_PER_MS)
        cpu_ms = min(lag_ms - starved_ms, (usage.cpu_ns - last.cpu_ns) / _NS_PER_MS)
        self._lag.add(lag_ms)
        self._held.add(lag_ms - starved_ms)
        return Lateness(
            lag_ms, cpu_ms, lag_ms - starved_ms - cpu_ms, starved_ms, usage.full_collections - last.full_collections
        )

    def snapshot(self) -> LoopLagSnapshot:
        return LoopLagSnapshot(lag=self._lag.snapshot(), held=self._held.snapshot())
