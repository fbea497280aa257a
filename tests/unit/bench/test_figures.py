"""Percentiles, spreads and ratios: the computation of every figure of the bench."""

from __future__ import annotations

import math

import pytest

from bench.figures import percentile, ratio, show, spread


def test_a_percentile_is_one_of_the_values():
    values = [float(number) for number in range(1, 101)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile(values, 1) == 100
    assert percentile([7.0], 0.99) == 7


def test_without_values_there_is_no_figure():
    assert math.isnan(percentile([], 0.5))
    assert math.isnan(spread([]).median)
    assert math.isnan(spread([math.nan]).most)


def test_a_spread_leaves_out_unknown_values():
    """A round whose process had no /proc entry must not hide the others."""
    found = spread([3.0, math.nan, 1.0, 2.0, 10.0])
    assert (found.least, found.median, found.most) == (1, 2.5, 10)


@pytest.mark.parametrize(("value", "base", "expected"), [(6.0, 3.0, 2.0), (0.0, 4.0, 0.0)])
def test_ratios(value: float, base: float, expected: float):
    assert ratio(value, base) == expected


@pytest.mark.parametrize("base", [0.0, math.nan])
def test_a_ratio_to_nothing_is_unknown(base: float):
    """Not infinite: `inf` in a table would claim more than was measured."""
    assert math.isnan(ratio(1.0, base))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "-"),
        (0.0, "0"),
        (0.01234, "0.0123"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (123.4, "123"),
        (123_456.7, "123,457"),
        (2000.0, "2,000"),
        (-0.5, "-0.5"),
        (-12.34, "-12.3"),
    ],
)
def test_numbers_have_three_significant_digits(value: float, text: str):
    assert show(value) == text
