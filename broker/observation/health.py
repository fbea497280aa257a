"""How a broker is: where the figures are that its parts keep, and its loop's lateness as rows."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lowtide.protocol.messages.describe_health import LagBucket, LoopLagHistogram
from lowtide.runtime.loop_lag import BOUNDS_MS, HistogramSnapshot, LoopLagSnapshot


class Vitals(msgspec.Struct, frozen=True):
    """Figures of other parts."""

    began_ms: int
    """When the broker began, on the monotonic clock."""
    loop_lag: Callable[[], LoopLagSnapshot]
    connections: Callable[[], int]


def lag_histogram(snapshot: HistogramSnapshot) -> LoopLagHistogram:
    """A histogram with a count for each bucket."""
    counts = snapshot.cumulative_counts
    alone = [count - before for before, count in zip((0, *counts), counts, strict=False)]
    buckets = [
        LagBucket(up_to_ms=float(bound), count=count) for bound, count in zip((*BOUNDS_MS, -1), alone, strict=True)
    ]
    return LoopLagHistogram(count=snapshot.count, sum_ms=snapshot.sum_ms, max_ms=snapshot.max_ms, buckets=buckets)
