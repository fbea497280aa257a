"""Measures a rate over the last seconds as Kafka's quotas do, by samples of equal length.

The rate is the total of all samples, divided by the time that they span. That counts as at least all full samples, so
that a new client isn't slowed down for its first burst. Pure: time is passed in. Source: Kafka's `SampledStat`, `Rate`
and `QuotaUtils`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

MOST_THROTTLE_MS: Final = 1 << 30
"""The longest wait, about twelve days: limits near zero could otherwise overflow the field."""


class Window(msgspec.Struct, frozen=True):
    """The window of a rate: `samples` of `sample_ms` each, including the one being filled."""

    samples: int = 11
    sample_ms: int = 1000


class SampledRate:
    """Counts what was used in each of the last samples."""

    __slots__ = ("_samples", "_total")

    def __init__(self) -> None:
        self._samples: deque[list[float]] = deque()
        """The start in ms, and the amount."""
        self._total = 0.0

    def record(self, amount: float, now_ms: int, window: Window) -> None:
        """Adds what was used now."""
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= window.sample_ms:
            samples.append([now_ms, 0.0])
        samples[-1][1] += amount
        self._total += amount

    def per_second(self, now_ms: int, window: Window) -> float:
        """Returns the present rate."""
        return self.total(now_ms, window) * 1000 / self._span_ms(now_ms, window)

    def throttle_ms(self, limit: float, now_ms: int, window: Window) -> int:
        """Returns how long to wait until the rate is within the limit, 0 if it is."""
        rate = self.per_second(now_ms, window)
        if rate <= limit:
            return 0
        if limit <= 0:
            return MOST_THROTTLE_MS
        return min(round((rate - limit) / limit * self._span_ms(now_ms, window)), MOST_THROTTLE_MS)

    def total(self, now_ms: int, window: Window) -> float:
        """Returns the total of all samples, without old ones."""
        samples, oldest_ms = self._samples, now_ms - window.samples * window.sample_ms
        while samples and samples[0][0] <= oldest_ms:
            self._total -= samples.popleft()[1]
        if not samples:
            self._total = 0.0
        return self._total

    def _span_ms(self, now_ms: int, window: Window) -> int:
        """Returns the time since the oldest sample, at least that of all samples but the one being filled."""
        elapsed = int(now_ms - self._samples[0][0]) if self._samples else 0
        full, least = elapsed // window.sample_ms, window.samples - 1
        return elapsed + max(least - full, 0) * window.sample_ms
