"""The verdict of a soak: a leak is found among noise, and noise alone is none."""

from __future__ import annotations

import random

import pytest

from tests.soak.report import rising, table, trends
from tests.soak.trend import Trend, blocks, trend, warm

HOUR = 3600.0


def run(per_hour: float, *, noise: float = 2.0, hours: float = 4.0, seed: int = 7) -> list[tuple[float, float]]:
    chosen = random.Random(seed)
    return [
        (second, 100 + per_hour * second / HOUR + chosen.gauss(0, noise)) for second in range(0, int(hours * HOUR), 15)
    ]


@pytest.mark.parametrize("per_hour", [-3.0, 0.5, 3.0])
def test_the_slope_of_a_noisy_line_is_in_its_interval(per_hour: float):
    found = trend(run(per_hour))
    assert found is not None
    assert found.low < per_hour < found.high
    assert found.high - found.low < 1.0


def test_most_intervals_of_a_flat_line_have_zero_in_them():
    found = [trend(run(0.0, seed=seed)) for seed in range(200)]
    assert sum(each is not None and each.low < 0 < each.high for each in found) >= 180


def test_an_exact_line_has_an_exact_slope():
    found = trend([(hour * HOUR, 10.0 + 2 * hour) for hour in range(21)])
    assert found is not None
    assert (found.per_hour, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert found.hours == 20


def test_few_samples_have_no_trend():
    assert trend([]) is None
    assert trend([(1.0, 1.0)]) is None
    assert trend([(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)]) is None


def test_blocks_are_spans_of_time_and_empty_ones_are_left_out():
    assert blocks([(0.0, 1.0), (1.0, 3.0), (100.0, 5.0)], 10) == [(0.5, 2.0), (100.0, 5.0)]


def test_the_first_fifth_does_not_count():
    assert warm([(0.0, 9.0), (19.0, 9.0), (20.0, 1.0), (100.0, 1.0)]) == [(20.0, 1.0), (100.0, 1.0)]
    assert warm([]) == []


def samples(**per_hour: float) -> list[tuple[float, dict[str, float]]]:
    """Of four hours; `_` stands for a blank."""
    lines = {name.replace("_", " "): run(slope) for name, slope in per_hour.items()}
    return [
        (second, {name: line[index][1] for name, line in lines.items()}) for index, (second, _) in enumerate(run(0.0))
    ]


def test_what_rises_is_named_if_it_must_not():
    found = trends(
        samples(
            broker_3_resident_MiB=5.0,
            broker_1_resident_MiB=5.0,
            broker_1_disk_MiB=5.0,
            etcd_file_MiB=5.0,
            produce_p99_ms=5.0,
        )
    )
    assert rising(found, ["broker 3 "]) == ["broker 3 resident MiB", "broker 1 disk MiB"]


def test_a_slight_or_uncertain_rise_is_none():
    assert rising(trends(samples(broker_3_resident_MiB=0.5, etcd_in_use_MiB=-5.0)), ["broker 3 "]) == []
    unsure = Trend(per_hour=50.0, low=-1.0, high=101.0, first=10.0, last=50.0, hours=1.0)
    assert rising({"broker 3 descriptors": unsure}, ["broker 3 "]) == []


def test_the_table_has_a_row_a_figure():
    rows = table(trends(samples(produce_p99_ms=0.0, etcd_file_MiB=1.0)))
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| etcd file MiB", "| produce p99 ms"]
