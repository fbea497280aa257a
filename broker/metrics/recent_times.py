"""Quantiles of the times of requests, of the last minutes.

Counts are kept of some moments, and quantiles are of what came since the oldest. In a bucket times are taken to be
spread evenly; its bounds are powers of two, so a quantile is right within a factor of two, and mostly much better.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import add
from typing import Final, NamedTuple

from lowtide.broker.network.routing.request_times import BUCKETS, FETCH_CONSUMER, FETCH_FOLLOWER, ApiTimes, RequestTimes

WINDOW_MS: Final = 300_000
"""What quantiles are of, about; Kafka's samples are of five minutes too."""

STEP_MS: Final = 60_000
"""Between two moments that are kept."""


class Counts(NamedTuple):
    """Histograms of one API since the start, by bit length of nanoseconds."""

    total: Sequence[int]
    total_ns: int
    parts: dict[str, Sequence[int]]


def counts_of(times: ApiTimes) -> Counts:
    """Put the histograms of quick requests and of those that waited together."""
    quick = times.quick
    nothing = _at_nothing(sum(quick))
    total = list(map(add, quick, times.total))
    waited = {"remote": times.remote, "response_queue": times.response_queue}
    parts: dict[str, Sequence[int]] = {name: list(map(add, nothing, counts)) for name, counts in waited.items()}
    for name, counts in (("queue", times.queue), ("send", times.send)):
        parts[name] = list(map(add, counts, _at_nothing(max(sum(total) - sum(counts), 0))))
    return Counts(
        total, times.quick_ns + times.total_ns, {"total": total, "local": list(map(add, quick, times.local)), **parts}
    )


def _at_nothing(count: int) -> list[int]:
    return [count] + [0] * (BUCKETS - 1)


def both(one: Counts, other: Counts) -> Counts:
    """The sum of two."""
    parts: dict[str, Sequence[int]] = {
        name: list(map(add, counts, other.parts[name])) for name, counts in one.parts.items()
    }
    return Counts(list(map(add, one.total, other.total)), one.total_ns + other.total_ns, parts)


def quantile_ms(counts: Sequence[int], quantile: float) -> float:
    """The time that so many of the counted ones didn't exceed, in milliseconds; NaN of none."""
    rank, below = quantile * sum(counts), 0
    if not rank:
        return float("nan")
    for length, count in enumerate(counts):
        if count and below + count >= rank:
            low = (1 << length) >> 1
            return (low + ((1 << length) - low) * (rank - below) / count) / 1e6 if length else 0.0
        below += count
    return float("nan")


class Recent:
    """Counts at some moments of the last minutes, so that quantiles can be of what came since."""

    def __init__(self, times: RequestTimes) -> None:
        self._times = times
        self._moments: deque[tuple[int, dict[str, Counts]]] = deque(maxlen=WINDOW_MS // STEP_MS + 1)

    def look(self, now_ms: int) -> dict[str, tuple[Counts, Counts | None]]:
        """The counts of all APIs now, and those of about `WINDOW_MS` ago."""
        counts = {
            name: counts_of(times)
            for name, times in list(self._times.by_name.items())
            if times.count or sum(times.queue)
        }
        fetches = [counts[name] for name in (FETCH_CONSUMER, FETCH_FOLLOWER) if name in counts]
        if fetches:
            counts["Fetch"] = fetches[0] if len(fetches) == 1 else both(*fetches)
        if not self._moments or now_ms - self._moments[-1][0] >= STEP_MS:
            self._moments.append((now_ms, counts))
        while len(self._moments) > 1 and now_ms - self._moments[1][0] >= WINDOW_MS:
            self._moments.popleft()
        at_ms, before = self._moments[0]
        is_young = at_ms == now_ms or len(self._moments) == 1
        return {name: (each, None if is_young else before.get(name)) for name, each in counts.items()}
