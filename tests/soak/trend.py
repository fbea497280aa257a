"""Detects whether a figure rises during a run: the slope of a line through its samples, and its confidence interval.

Pure. Neighbouring samples resemble each other (a cache fills, a segment is rolled), so samples are averaged in blocks
of time first, and the line goes through the blocks. The interval is that of least squares with Student's t: it holds
the slope in 95 of 100 such runs, if blocks are long enough not to resemble each other.

A run may consist of pieces, each of which begins with new processes, or on another machine. Then each piece has its own
height and all have one slope: lines through the pieces are parallel.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

BLOCKS = 20
"""Into which a piece is divided, where it has as many samples."""

WARM_SHARE, WARM_MAX_S = 0.2, 1800.0
"""The first part of a piece isn't counted: caches fill, first segments are written, retention has nothing to delete."""

_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
"""Student's t for 95 % (two-sided), by degrees of freedom from one on."""

Line = Sequence[tuple[float, float]]
"""`(seconds, value)` of one piece, in order of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The slope in units an hour, with the ends of its interval, and the medians of the first and the last quarter."""

    per_hour: float
    low: float
    high: float
    first: float
    last: float
    hours: float
    """The sum over pieces of the time from the first counted sample to the last."""

    @property
    def gained(self) -> float:
        """The rise during the run at the lower end of the interval; 0 if it may not have risen."""
        return max(self.low, 0.0) * self.hours


def warm(samples: Line) -> list[tuple[float, float]]:
    """Without the first part of the time."""
    if not samples:
        return []
    begin, end = samples[0][0], samples[-1][0]
    return [sample for sample in samples if sample[0] >= begin + min((end - begin) * WARM_SHARE, WARM_MAX_S)]


def trend(*pieces: Line) -> Trend | None:
    """Returns the trend of a run. Pieces with too few samples are left out; None if there is no other."""
    counted = [(samples, points) for samples in pieces if len(points := blocks(samples, BLOCKS)) >= 4]
    if not counted:
        return None
    apart = [
        (seconds / 3600 - mean_h, value - mean_v)
        for _, points in counted
        for mean_h, mean_v in [_means(points)]
        for seconds, value in points
    ]
    values = [value for _, points in counted for _, value in points]
    spread = sum(hour**2 for hour, _ in apart)
    slope = sum(hour * value for hour, value in apart) / spread
    left = len(apart) - len(counted) - 1
    error = (sum((value - slope * hour) ** 2 for hour, value in apart) / left / spread) ** 0.5
    wide = _T[min(left, len(_T)) - 1] * error
    quarter = max(len(values) // 4, 1)
    return Trend(
        per_hour=slope,
        low=slope - wide,
        high=slope + wide,
        first=statistics.median(values[:quarter]),
        last=statistics.median(values[-quarter:]),
        hours=sum(samples[-1][0] - samples[0][0] for samples, _ in counted) / 3600,
    )


def _means(points: Line) -> tuple[float, float]:
    """Returns the mean hour and the mean value."""
    return (
        statistics.fmean(seconds for seconds, _ in points) / 3600,
        statistics.fmean(value for _, value in points),
    )


def blocks(samples: Line, count: int) -> list[tuple[float, float]]:
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
