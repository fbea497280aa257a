"""The arguments of any request are parsed strictly."""

from __future__ import annotations

import pytest

from lowtide.console import arguments
from lowtide.console.answers import RefusedError, encoded


@pytest.mark.parametrize("value", [None, "", 1, [], {}, "x" * 250])
def test_a_topic_is_a_text(value):
    with pytest.raises(RefusedError):
        arguments.topic({"topic": value})


@pytest.mark.parametrize("value", ["-1", "1.5", "", "x", True, 1.5, [], "١", "9" * 30, -1, 2**31])  # noqa: RUF001
def test_a_number_is_within_its_limits(value):
    with pytest.raises(RefusedError):
        arguments.number({"partition": value}, "partition", 0, 2**31 - 1)


def test_a_number_may_be_a_text():
    """JavaScript rounds large ones."""
    assert arguments.number({"offset": "9007199254740993"}, "offset", 0, 2**63 - 1) == 9007199254740993
    assert arguments.number({}, "count", 1, 200, default=50) == 50


@pytest.mark.parametrize("values", [None, [], "0", [-1], ["x"], [None], list(range(10_001))])
def test_partitions_are_a_bounded_list(values):
    with pytest.raises(RefusedError):
        arguments.partitions({"partitions": values})


def test_a_large_number_is_not_rounded():
    """An offset must not become another one on its way to the page."""
    assert encoded({"a": 2**53 - 1, "b": 2**53, "c": [-(2**62)], "d": True}) == (
        b'{"a":9007199254740991,"b":"9007199254740992","c":["-4611686018427387904"],"d":true}'
    )
