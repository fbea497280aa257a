"""Detects whether a figure rises during a run: the slope of a line through its samples, and its confidence interval.

Pure. Neighbouring samples resemble each other (a cache fills, a segment is rolled), so samples are averaged in blocks
of time first, and the line goes through the blocks. The interval is that of least squares with Student's t: it holds
the slope in 95 of 100 such runs, if blocks are long enough not to resemble each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

BLOCKS = 20
"""Into which a run is divided, where it has as many samples."""

WARM_SHARE = 0.2
"""The first part of a run isn't counted: caches fill, first segments are written, retention has nothing to delete."""

_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
"""Student's t for 95 % (two-sided), by degrees of freedom from one on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The slope in units an hour, with the ends of its interval, and the medians of the first and the last quarter."""

    per_hour: float
    low: float
    high: float
    first: float
    last: float
    hours: float
    """The time from the first counted sample to the last."""

    @property
    def gained(self) -> float:
        """The rise during the run at the lower end of the interval; 0 if it may not have risen."""
        return max(self.low, 0.0) * self.hours


def warm(samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without the first part of the time."""
    if not samples:
        return []
    begin, end = samples[0][0], samples[-1][0]
    return [sample for sample in samples if sample[0] >= begin + (end - begin) * WARM_SHARE]


def trend(samples: Sequence[tuple[float, float]]) -> Trend | None:
    """Returns the trend of `(seconds, value)` samples in order of time; None if there are too few for an interval."""
    points = blocks(samples, BLOCKS)
    if len(points) < 4:
        return None
    hours, values = [seconds / 3600 for seconds, _ in points], [value for _, value in points]
    slope, intercept = statistics.linear_regression(hours, values)
    left = len(points) - 2
    mean = statistics.fmean(hours)
    spread = sum((hour - mean) ** 2 for hour in hours)
    error = (
        sum((value - intercept - slope * hour) ** 2 for hour, value in zip(hours, values, strict=True)) / left / spread
    ) ** 0.5
    wide = _T[min(left, len(_T)) - 1] * error
    quarter = max(len(values) // 4, 1)
    return Trend(
        per_hour=slope,
        low=slope - wide,
        high=slope + wide,
        first=statistics.median(values[:quarter]),
        last=statistics.median(values[-quarter:]),
        hours=(samples[-1][0] - samples[0][0]) / 3600,
    )


def blocks(samples: Sequence[tuple[float, float]], count: int) -> list[tuple[float, float]]:
    """Returns the means of so many spans of equal time; spans without a sample are left out."""
    if not samples or samples[-1][0] == samples[0][0]:
        return []
    begin, width = samples[0][0], (samples[-1][0] - samples[0][0]) / count
    spans: dict[int, list[tuple[float, float]]] = {}
    for sample in samples:
        spans.setdefault(min(int((sample[0] - begin) / width), count - 1), []).append(sample)
    return [
        (statistics.fmean(time for time, _ in span), statistics.fmean(value for _, value in span))
        for span in spans.values()
    ]
