"""The rate of a quota is Kafka's: what the samples have, over at least all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.broker.quotas.sampled_rate import SampledRate, Window

WINDOW = Window()


def used(*events: tuple[int, float]) -> SampledRate:
    rate = SampledRate()
    for now_ms, amount in events:
        rate.record(amount, now_ms, WINDOW)
    return rate


def test_a_first_burst_is_spread_over_ten_seconds() -> None:
    rate = used((5_000, 1000.0))
    assert rate.per_second(5_000, WINDOW) == 100
    assert rate.throttle_ms(100, 5_000, WINDOW) == 0
    assert rate.throttle_ms(50, 5_000, WINDOW) == 10_000


@pytest.mark.parametrize("amount", [10.0, 100.0])
def test_a_client_that_waits_as_long_as_it_is_asked_to_keeps_its_limit(amount: float) -> None:
    """Over five minutes it has used at most two percent more, with requests of up to what it may use in a second."""
    rate, now_ms, total = SampledRate(), 0, 0.0
    while now_ms < 300_000:
        rate.record(amount, now_ms, WINDOW)
        total += amount
        now_ms += max(rate.throttle_ms(100, now_ms, WINDOW), 5)
    assert 98 < total * 1000 / now_ms < 102


def test_what_is_older_than_the_window_is_forgotten() -> None:
    rate = used((0, 1_000_000.0), (10_500, 10.0))
    assert rate.per_second(10_999, WINDOW) > 10_000
    assert rate.per_second(11_000, WINDOW) == 10 * 1000 / 10_500
    assert rate.per_second(30_000, WINDOW) == 0


def test_a_limit_near_zero_has_a_wait_that_fits_the_field() -> None:
    assert 0 < used((0, 1e12)).throttle_ms(1e-9, 0, WINDOW) < 1 << 31


@given(
    events=st.lists(st.tuples(st.integers(0, 3_000), st.floats(0, 1000)), min_size=1, max_size=60),
    samples=st.integers(2, 12),
    sample_ms=st.integers(1, 2_000),
)
def test_the_memory_is_bounded_and_the_sum_exact(events: list[tuple[int, float]], samples: int, sample_ms: int) -> None:
    """Against all events kept: the total is that of the samples which began within the window."""
    window, rate, now_ms = Window(samples, sample_ms), SampledRate(), 0
    begun: list[list[float]] = []
    for gap_ms, amount in events:
        now_ms += gap_ms
        rate.record(amount, now_ms, window)
        if not begun or now_ms - begun[-1][0] >= sample_ms:
            begun.append([now_ms, 0.0])
        begun[-1][1] += amount
        kept = [each for each in begun if each[0] > now_ms - samples * sample_ms]
        span_ms = now_ms - kept[0][0]
        span_ms += max(samples - 1 - int(span_ms // sample_ms), 0) * sample_ms
        assert abs(rate.per_second(now_ms, window) - sum(amount for _, amount in kept) * 1000 / span_ms) < 1e-6
        assert len(rate._samples) <= samples
