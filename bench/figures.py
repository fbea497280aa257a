"""Computes percentiles, spreads over rounds, and ratios. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MEBIBYTE = 1 << 20


def percentile(ordered: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least `share` (0 to 1) of the ordered values don't exceed, or `nan`."""
    return float(ordered[int((len(ordered) - 1) * share)]) if ordered else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The results of the rounds of one metric."""

    least: float
    median: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    """Returns minimum, median and maximum of the values that are numbers; `nan` without any."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return Spread(least=math.nan, median=math.nan, most=math.nan)
    return Spread(least=min(known), median=statistics.median(known), most=max(known))


def ratio(value: float, base: float) -> float:
    """Returns the value divided by `base`; `nan` if that is undefined."""
    return value / base if base and not math.isnan(base) else math.nan


def show(value: float) -> str:
    """Formats a number with three significant digits; a dash for an unknown value."""
    if math.isnan(value):
        return "-"
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3g}"
