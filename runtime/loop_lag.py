"""How late an event loop is: a histogram, and for each sample the share of each cause.

A timer that rings late tells that something held the loop: our own code, a system call that it waited for, or a machine
that had no processor to spare. `LoopLag` is given each lateness, with what the loop's thread used since the sample
before, and keeps two histograms: of the lateness as clients feel it, and of the part that is ours, which is what a
broker can be blamed for.

Pure: it reads no clock. A snapshot is what metrics show, in the form of Prometheus's histograms.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

import msgspec

from lowtide.runtime.thread_usage import ThreadUsage

BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
"""Upper bounds of the buckets, inclusive; one more bucket has what is above."""

_NS_PER_MS: Final = 1_000_000


class HistogramSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram at one moment: `cumulative_counts[i]` samples were at most `BOUNDS_MS[i]`; the last entry counts all."""

    cumulative_counts: tuple[int, ...]
    sum_ms: float
    max_ms: float

    @property
    def count(self) -> int:
        """All samples."""
        return self.cumulative_counts[-1]

    def count_above(self, bound_ms: int) -> int:
        """Samples above one of the bounds."""
        return self.count - self.cumulative_counts[BOUNDS_MS.index(bound_ms)]


class LagHistogram:
    """Counts of milliseconds in fixed buckets."""

    __slots__ = ("_counts", "_max_ms", "_sum_ms")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._sum_ms = 0.0
        self._max_ms = 0.0

    def add(self, value_ms: float) -> None:
        """Count one sample, not negative."""
        self._counts[bisect_left(BOUNDS_MS, value_ms)] += 1
        self._sum_ms += value_ms
        self._max_ms = max(self._max_ms, value_ms)

    def snapshot(self) -> HistogramSnapshot:
        """The counts now; later samples don't change it."""
        cumulative, total = [], 0
        for count in self._counts:
            total += count
            cumulative.append(total)
        return HistogramSnapshot(cumulative_counts=tuple(cumulative), sum_ms=self._sum_ms, max_ms=self._max_ms)


class Lateness(NamedTuple):
    """One sample: `lag_ms` is the sum of the other times."""

    lag_ms: float
    cpu_ms: float
    """Our own code, or the system on its behalf, was running."""
    blocked_ms: float
    """The thread waited for something: a disk, a lock, the interpreter."""
    starved_ms: float
    """The thread was ready to run, and the machine had no processor for it."""
    full_collections: int

    @property
    def held_ms(self) -> float:
        """What the process did to itself."""
        return self.lag_ms - self.starved_ms


class LoopLagSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Both histograms since the start."""

    lag: HistogramSnapshot
    held: HistogramSnapshot


class LoopLag:
    """Measures how late the loop is. Used from the loop's thread only."""

    __slots__ = ("_held", "_lag", "_last")

    def __init__(self, usage: ThreadUsage) -> None:
        """`usage` is what the thread has used before the first sample."""
        self._lag = LagHistogram()
        self._held = LagHistogram()
        self._last = usage

    def add(self, lag_ms: float, usage: ThreadUsage) -> Lateness:
        """Count one sample: a timer rang `lag_ms` late, and until now the thread has used `usage`.

        What was used since the sample before may in part lie before the timer was due, so each share is the most that
        it can have been, starvation first: a busy machine must not look like a fault of ours.
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
        """What metrics show."""
        return LoopLagSnapshot(lag=self._lag.snapshot(), held=self._held.snapshot())
