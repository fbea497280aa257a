"""A rate over the last seconds, as Kafka's quotas measure it: samples of equal length, and what is older is forgotten.

The rate is what all samples have, divided by the time that they span, which counts as at least all full samples: a
client that has just begun is not slowed down for its first burst. Pure: time is passed in. Source: Kafka's
`SampledStat`, `Rate` and `QuotaUtils`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

MOST_THROTTLE_MS: Final = 1 << 30
"""The longest time that a client is asked to wait, about twelve days: a limit near zero may ask for more than the field can carry."""


class Window(msgspec.Struct, frozen=True):
    """Over what a rate is measured: `samples` of `sample_ms` each, the one that is being filled included."""

    samples: int = 11
    sample_ms: int = 1000


class SampledRate:
    """What was used in each of the last samples."""

    __slots__ = ("_samples", "_total")

    def __init__(self) -> None:
        self._samples: deque[list[float]] = deque()
        """Beginning in ms, and amount."""
        self._total = 0.0

    def record(self, amount: float, now_ms: int, window: Window) -> None:
        """Add what was used just now."""
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= window.sample_ms:
            samples.append([now_ms, 0.0])
        samples[-1][1] += amount
        self._total += amount

    def per_second(self, now_ms: int, window: Window) -> float:
        """The rate now."""
        return self._forget(now_ms, window) * 1000 / self._span_ms(now_ms, window)

    def total(self, now_ms: int, window: Window) -> float:
        """What all samples have together."""
        return self._forget(now_ms, window)

    def throttle_ms(self, limit: float, now_ms: int, window: Window) -> int:
        """How long to wait until the rate is within the limit again; 0 while it is."""
        rate = self.per_second(now_ms, window)
        if rate <= limit:
            return 0
        if limit <= 0:
            return MOST_THROTTLE_MS
        return min(round((rate - limit) / limit * self._span_ms(now_ms, window)), MOST_THROTTLE_MS)

    def _forget(self, now_ms: int, window: Window) -> float:
        """Drop what is too old; returns the total of the rest."""
        samples, oldest_ms = self._samples, now_ms - window.samples * window.sample_ms
        while samples and samples[0][0] <= oldest_ms:
            self._total -= samples.popleft()[1]
        if not samples:
            self._total = 0.0
        return self._total

    def _span_ms(self, now_ms: int, window: Window) -> int:
        """The time that the samples span: from the oldest one on, and at least all samples but the one that is being filled."""
        elapsed = int(now_ms - self._samples[0][0]) if self._samples else 0
        full, least = elapsed // window.sample_ms, window.samples - 1
        return elapsed + max(least - full, 0) * window.sample_ms
