"""Quantiles of request times over the last minutes.

Snapshots of the counts are kept, and quantiles cover the time since the oldest. Times are assumed uniform within a
bucket; bounds are powers of two, so a quantile is right within a factor of two, and mostly much better.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import add
from typing import Final, NamedTuple

from lowtide.broker.network.routing.request_times import BUCKETS, FETCH_CONSUMER, FETCH_FOLLOWER, ApiTimes, RequestTimes

WINDOW_MS: Final = 300_000
"""The approximate time that quantiles cover; five minutes as in Kafka."""

STEP_MS: Final = 60_000
"""The time between two snapshots."""


class RequestCounts(NamedTuple):
    """The histograms of one API since the start, by bit length of nanoseconds."""

    total: Sequence[int]
    total_ns: int
    parts: dict[str, Sequence[int]]


def counts_of(times: ApiTimes) -> RequestCounts:
    """Merges the histograms of quick requests and of those that waited."""
    quick = times.quick
    nothing = _at_nothing(sum(quick))
    total = list(map(add, quick, times.total))
    waited = {"remote": times.remote, "response_queue": times.response_queue}
    parts: dict[str, Sequence[int]] = {name: list(map(add, nothing, counts)) for name, counts in waited.items()}
    for name, counts in (("queue", times.queue), ("send", times.send)):
        parts[name] = list(map(add, counts, _at_nothing(max(sum(total) - sum(counts), 0))))
    return RequestCounts(
        total, times.quick_ns + times.total_ns, {"total": total, "local": list(map(add, quick, times.local)), **parts}
    )


def _at_nothing(count: int) -> list[int]:
    return [count] + [0] * (BUCKETS - 1)


def both(one: RequestCounts, other: RequestCounts) -> RequestCounts:
    """Adds two."""
    parts: dict[str, Sequence[int]] = {
        name: list(map(add, counts, other.parts[name])) for name, counts in one.parts.items()
    }
    return RequestCounts(list(map(add, one.total, other.total)), one.total_ns + other.total_ns, parts)


def quantile_ms(counts: Sequence[int], quantile: float) -> float:
    """Returns a quantile in milliseconds; NaN without values."""
    rank, below = quantile * sum(counts), 0
    if not rank:
        return float("nan")
    for length, count in enumerate(counts):
        if count and below + count >= rank:
            low = (1 << length) >> 1
            return (low + ((1 << length) - low) * (rank - below) / count) / 1e6 if length else 0.0
        below += count
    return float("nan")


class RecentRequestTimes:
    """Snapshots of the counts over the last minutes."""

    def __init__(self, times: RequestTimes) -> None:
        self._times = times
        self._moments: deque[tuple[int, dict[str, RequestCounts]]] = deque(maxlen=WINDOW_MS // STEP_MS + 1)

    def look(self, now_ms: int) -> dict[str, tuple[RequestCounts, RequestCounts | None]]:
        """Returns the current counts of all APIs, and those of about `WINDOW_MS` ago."""
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
