"""The verdict of a soak: a leak is found among noise, and noise alone is none."""

from __future__ import annotations

import random

import pytest

from tests.soak.report import report, rising, table, trends
from tests.soak.samples import Piece, Sample
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


def test_the_warm_part_of_a_long_piece_is_bounded():
    assert warm([(0.0, 9.0), (1799.0, 9.0), (1800.0, 1.0), (36_000.0, 1.0)]) == [(1800.0, 1.0), (36_000.0, 1.0)]


def test_pieces_of_different_heights_have_one_slope():
    """Each piece begins 1,000 lower than the one before: a line through all samples would fall."""
    pieces = [[(second, value - 1000 * number) for second, value in run(3.0, seed=number)] for number in range(3)]
    found = trend(*pieces)
    assert found is not None
    assert found.low < 3.0 < found.high
    assert found.high - found.low < 1.0
    assert found.hours == pytest.approx(12, rel=0.01)


def test_a_piece_that_is_too_short_is_left_out():
    whole = run(3.0)
    assert trend(whole, [(0.0, 9000.0), (15.0, 0.0)]) == trend(whole)


def piece(**per_hour: float) -> Piece:
    """Of four hours; `_` stands for a blank."""
    lines = {name.replace("_", " "): run(slope) for name, slope in per_hour.items()}
    samples = [
        Sample(1, int(second), {name: line[index][1] for name, line in lines.items()})
        for index, (second, _) in enumerate(run(0.0))
    ]
    return Piece("ab", 1, "2026-01-02T03:04:05Z", "1a2b3c", "2 cores", [], samples)


def test_what_rises_is_named_if_it_must_not():
    found = trends(
        [
            piece(
                broker_3_resident_MiB=5.0,
                broker_1_resident_MiB=5.0,
                broker_1_disk_MiB=5.0,
                etcd_file_MiB=5.0,
            )
        ]
    )
    assert rising(found, ["broker 3 "]) == ["broker 3 resident MiB", "broker 1 disk MiB"]


def test_what_rises_slowly_shows_when_pieces_are_joined():
    """One piece of four hours gains too little, three gain more than is allowed."""
    pieces = [piece(broker_3_resident_MiB=1.0) for _ in range(3)]
    assert rising(trends(pieces[:1]), ["broker 3 "]) == []
    assert rising(trends(pieces), ["broker 3 "]) == ["broker 3 resident MiB"]


def test_a_slight_or_uncertain_rise_is_none():
    assert rising(trends([piece(broker_3_resident_MiB=0.3, etcd_in_use_MiB=-5.0)]), ["broker 3 "]) == []
    unsure = Trend(per_hour=50.0, low=-1.0, high=101.0, first=10.0, last=50.0, hours=1.0)
    assert rising({"broker 3 descriptors": unsure}, ["broker 3 "]) == []


def test_nothing_is_judged_in_the_first_hour():
    short = Piece("ab", 1, "", "", "", [], piece(broker_3_resident_MiB=50.0).samples[:240])
    assert rising(trends([short]), ["broker 3 "]) == []
    assert report([short], "broker 3 ")[0].endswith("Slopes are judged from 1 hour on")


def test_the_table_has_a_row_a_figure():
    rows = table(trends([piece(etcd_file_MiB=1.0, etcd_in_use_MiB=0.0)]))
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| etcd file MiB", "| etcd in use MiB"]
