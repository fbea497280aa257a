"""The throttle of replication, as numbers: the replicas that it covers, and its average rate."""

from __future__ import annotations

import pytest

from lowtide.replication.replication_quota import ReplicationQuota, throttled_partitions


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", []), ("*", [0, 1, 2, 7]), ("0:1, 2:1,7:2", [0, 2]), ("1:11", []), ("7:1", [7]), ("none", [])],
)
def test_replicas_are_named_by_partition_and_broker(text: str, expected: list[int]) -> None:
    found = throttled_partitions(text, 1)
    assert [number for number in (0, 1, 2, 7) if number in found] == expected


@pytest.mark.parametrize("fetch_bytes", [1_000, 250_000, 1_000_000])
def test_the_rate_is_kept_on_average(fetch_bytes: int) -> None:
    quota, rate, now_ms, sent = ReplicationQuota(), 500_000, 1_000, 0
    while sent < 20_000_000:
        now_ms += quota.wait_ms(rate, now_ms) or 1
        if quota.wait_ms(rate, now_ms) == 0:
            quota.record(fetch_bytes, now_ms)
            sent += fetch_bytes
    assert 0.8 < sent / rate / (now_ms / 1000) < 1.2
    assert quota.total_bytes == sent


def test_one_fetch_may_exceed_it_and_delays_the_next() -> None:
    quota = ReplicationQuota()
    assert quota.wait_ms(1000, 0) == 0
    quota.record(5000, 0)
    assert quota.wait_ms(1000, 0) == 5000
    assert quota.wait_ms(1000, 4999) == 1
    assert quota.wait_ms(1000, 5000) == 0
    assert quota.wait_ms(10_000, 1) == 0, "a raised rate applies at once"


def test_bytes_before_the_windows_do_not_count() -> None:
    quota = ReplicationQuota(windows=2, window_ms=1000)
    quota.record(1_000_000, 0)
    assert quota.wait_ms(1, 0) == 2000
    assert quota.wait_ms(0, 0) == 2000
    assert quota.wait_ms(1, 2000) == 0


def test_a_pause_gives_no_credit_beyond_the_windows() -> None:
    quota = ReplicationQuota(windows=11, window_ms=1000)
    quota.record(100, 0)
    quota.record(11_000, 60_000)
    assert quota.wait_ms(1000, 60_000) == 11_000
