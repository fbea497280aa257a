"""Sets of offsets: each answer is the one that a set of integers gives."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol.offset_ranges import OffsetRange, OffsetRanges

OFFSETS = st.sets(st.integers(0, 60), max_size=40)
RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6)).map(lambda each: (each[0], sum(each))), max_size=12)


def offsets_of(ranges: OffsetRanges) -> set[int]:
    return {offset for first, last in ranges for offset in range(first, last + 1)}


@given(RANGES)
def test_ranges_are_sorted_disjoint_and_not_adjacent(ranges: list[tuple[int, int]]) -> None:
    """Protects the encoding of an erasure, which relies on it."""
    built = OffsetRanges(ranges)
    assert offsets_of(built) == {offset for first, last in ranges for offset in range(first, last + 1)}
    shown = built.ranges()
    assert all(before.last + 1 < after.first for before, after in pairwise(shown))
    assert built == OffsetRanges(shown) == OffsetRanges.of_offsets(offsets_of(built))
    assert hash(built) == hash(OffsetRanges(shown))
    assert len(built) == len(shown)
    assert bool(built) is bool(ranges)


@given(OFFSETS, OFFSETS, st.integers(0, 62), st.integers(0, 62))
def test_answers_are_those_of_a_set(one: set[int], other: set[int], first: int, last: int) -> None:
    """Protects every reader that asks whether a batch has erased records."""
    ranges, others = OffsetRanges.of_offsets(one), OffsetRanges.of_offsets(other)
    window = set(range(first, last + 1))
    assert ranges.count == len(one)
    assert ranges.contains(first) is (first in one)
    assert ranges.union(others) == OffsetRanges.of_offsets(one | other)
    assert ranges.without(others) == OffsetRanges.of_offsets(one - other)
    assert ranges.between(first, last) == OffsetRanges.of_offsets(one & window)
    if window:
        assert ranges.intersects(first, last) is bool(one & window)


def test_a_range_must_not_end_before_it_starts() -> None:
    """Protects against swapped arguments."""
    with pytest.raises(ValueError, match="from 5 to 4"):
        OffsetRanges([(5, 4)])


def test_many_ranges_are_searched_quickly() -> None:
    """Protects fetches from a log with the most erased records: a question must not read all ranges."""
    many = OffsetRanges(OffsetRange(each * 3, each * 3) for each in range(100_000))
    began = time.process_time()
    for offset in range(0, 300_000, 30):
        assert many.contains(offset)
        assert not many.intersects(offset + 1, offset + 2)
        assert many.between(offset, offset + 5).count == 2
    assert time.process_time() - began < 5
