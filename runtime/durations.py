"""Durations: a histogram by powers of two, the sum and the longest, as numbers that only rise.

One thread adds, any may read; a reader may miss the newest.
"""

from __future__ import annotations

from typing import Final

BUCKETS: Final = 27
"""Buckets by the bit length of microseconds: the last one has everything above half a minute."""

BOUNDS_S: Final = tuple((1 << length) / 1e6 for length in range(BUCKETS - 1))
"""Upper bounds of all but the last."""


class Durations:
    """Durations of one kind."""

    __slots__ = ("counts", "longest_ns", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total_ns = self.longest_ns = 0

    def add(self, took_ns: int) -> None:
        self.counts[min((took_ns // 1000).bit_length(), BUCKETS - 1)] += 1
        self.total_ns += took_ns
        self.longest_ns = max(self.longest_ns, took_ns)
