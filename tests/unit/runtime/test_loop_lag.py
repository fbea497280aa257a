"""Lag in buckets, and its cause."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lowtide.runtime.loop_lag import BOUNDS_MS, HistogramSnapshot, LagHistogram, LoopLag
from lowtide.runtime.thread_usage import ThreadUsage, ThreadUsageReader, no_usage


def count_above(seen: HistogramSnapshot, bound_ms: int) -> int:
    return seen.count - seen.cumulative_counts[BOUNDS_MS.index(bound_ms)]


def usage(cpu_ms: float = 0, starved_ms: float = 0, collections: int = 0) -> ThreadUsage:
    return ThreadUsage(round(cpu_ms * 1e6), round(starved_ms * 1e6), collections)


def test_bounds_are_inclusive_and_rise() -> None:
    assert list(BOUNDS_MS) == sorted(set(BOUNDS_MS))
    histogram = LagHistogram()
    for value in (0, 1, 1.5, 20, 20.1, 10_001):
        histogram.add(value)
    seen = histogram.snapshot()
    assert seen.cumulative_counts == (2, 3, 3, 3, 4, 5, 5, 5, 5, 5, 5, 5, 5, 6)
    assert (seen.count, count_above(seen, 20), count_above(seen, 1), seen.max_ms) == (6, 2, 4, 10_001)


@given(st.lists(st.floats(0, 1e6)))
def test_a_histogram_counts_all_and_never_falls(values: list[float]) -> None:
    histogram = LagHistogram()
    for value in values:
        histogram.add(value)
    seen = histogram.snapshot()
    assert seen.count == len(values)
    assert list(seen.cumulative_counts) == sorted(seen.cumulative_counts)
    assert [count_above(seen, bound) for bound in BOUNDS_MS] == [
        sum(value > bound for value in values) for bound in BOUNDS_MS
    ]


def test_a_snapshot_does_not_change() -> None:
    lag = LoopLag(no_usage())
    lag.add(3, no_usage())
    before = lag.snapshot()
    lag.add(4000, no_usage())
    assert before.lag.count == before.held.count == 1
    assert lag.snapshot().lag.max_ms == 4000


def test_own_work_counts_as_the_broker_s() -> None:
    late = LoopLag(usage(500)).add(80, usage(585, collections=1))
    assert (late.cpu_ms, late.blocked_ms, late.starved_ms, late.held_ms, late.full_collections) == (80, 0, 0, 80, 1)


def test_waiting_for_a_disk_counts_as_the_broker_s_too() -> None:
    late = LoopLag(usage(500)).add(80, usage(510))
    assert (late.cpu_ms, late.blocked_ms, late.held_ms) == (10, 70, 80)


def test_waiting_for_a_processor_does_not() -> None:
    lag = LoopLag(usage(500, 1000))
    late = lag.add(80, usage(590, 1075))
    assert (late.starved_ms, late.cpu_ms, late.held_ms) == (75, 5, 5)
    seen = lag.snapshot()
    assert (count_above(seen.lag, 20), count_above(seen.held, 20)) == (1, 0)


@given(st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 1e5))
def test_the_shares_sum_to_the_whole(lag_ms: float, cpu_ms: float, starved_ms: float) -> None:
    late = LoopLag(no_usage()).add(lag_ms, usage(cpu_ms, starved_ms))
    shares = (late.cpu_ms, late.blocked_ms, late.starved_ms)
    assert min(shares) >= 0
    assert abs(sum(shares) - late.lag_ms) < 1e-6


def test_the_system_reports_the_usage_of_a_thread() -> None:
    """Work appears as CPU time; no value ever falls."""
    read = ThreadUsageReader()
    before = read()
    sum(range(300_000))
    after = read()
    assert after.cpu_ns > before.cpu_ns
    assert after.starved_ns >= before.starved_ns
    assert after.full_collections >= before.full_collections
