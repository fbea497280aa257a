"""The health of a broker: its event loop and its log directories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from typing import Final

import msgspec

from lowtide.broker.observation.history import LogHistory
from lowtide.broker.partitions.log_searches import LogSearches
from lowtide.protocol.messages.describe_health import LagBucket, LoopLagHistogram
from lowtide.runtime.loop_lag import BOUNDS_MS, HistogramSnapshot, LoopLagSnapshot
from lowtide.storage.directory.directory_reports import DirectoryUsage
from lowtide.storage.directory.log_directories import LogDirectorySet
from lowtide.storage.log.segments.unfreed import UnfreedReason


class Vitals(msgspec.Struct, frozen=True):
    """Sources of health figures."""

    began_ms: int
    """The monotonic start time."""
    loop_lag: Callable[[], LoopLagSnapshot]
    connections: Callable[[], int]


def lag_histogram(snapshot: HistogramSnapshot) -> LoopLagHistogram:
    """Converts cumulative counts to counts per bucket."""
    counts = snapshot.cumulative_counts
    alone = [count - before for before, count in zip((0, *counts), counts, strict=False)]
    buckets = [
        LagBucket(up_to_ms=float(bound), count=count) for bound, count in zip((*BOUNDS_MS, -1), alone, strict=True)
    ]
    return LoopLagHistogram(count=snapshot.count, sum_ms=snapshot.sum_ms, max_ms=snapshot.max_ms, buckets=buckets)


class BrokerObservation(msgspec.Struct, frozen=True):
    """The history and the vitals of one broker, and the searches of its logs."""

    history: LogHistory
    vitals: Vitals
    searches: LogSearches


LOGS_A_STEP: Final = 50


class Space(msgspec.Struct):
    """The space of one log directory."""

    live_bytes: int
    """The size of segments above the log start offsets."""
    deleted: Counter[UnfreedReason]


def space_of(directories: LogDirectorySet, path: str, usage: DirectoryUsage) -> Generator[None, None, Space]:
    """Returns the space of an online directory: live bytes, and deleted bytes by cause. In steps."""
    space = Space(0, Counter(usage.unfreed))
    for number, log in enumerate(usage.logs, 1):
        space.live_bytes += log.size_bytes
        unfreed = directories.unfreed(path, log)
        if unfreed is not None:
            space.live_bytes -= unfreed.size_bytes
            space.deleted[unfreed.waits_for] += unfreed.size_bytes
        if number % LOGS_A_STEP == 0:
            yield
    return space
