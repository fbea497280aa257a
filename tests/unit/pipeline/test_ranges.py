"""Positions as Spark's checkpoint has them, and how records are divided into batches and tasks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.pipeline.ranges import (
    ReadRange,
    positions_from_json,
    positions_from_text,
    positions_to_json,
    rate_limited,
    split,
)
from lowtide.protocol.types import TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
T10 = TopicPartition("t", 10)


def test_positions_are_written_as_sparks_kafka_source_writes_them_in_one_order():
    """Spark compares them as text: a different order would be a new batch."""
    assert json.dumps(positions_to_json({U0: 1, T10: 2, T1: 3})) == '{"t": {"1": 3, "10": 2}, "u": {"0": 1}}'
    assert positions_from_text('{"t":{"1":3,"10":2},"u":{"0":1},"@topicIds":{"t":"x"}}') == {U0: 1, T10: 2, T1: 3}


@pytest.mark.parametrize(
    "text",
    ['{"t": 5}', '{"t": {"x": 5}}', '{"t": {"0": true}}', "[]", "no JSON", '{"t": {"0": "five"}}', '{"t": {"0": 1.5}}'],
)
def test_an_invalid_position_is_refused(text):
    with pytest.raises(ValueError):
        positions_from_text(text)
    assert positions_from_json({}) == {}


def test_a_limit_is_shared_in_proportion_and_starves_no_partition():
    start, latest = {T0: 0, T1: 0, U0: 7}, {T0: 1000, T1: 1, U0: 7}
    assert rate_limited(start, latest, 100) == {T0: 99, T1: 1, U0: 7}
    assert rate_limited(start, latest, 1001) == latest
    assert rate_limited(start, latest, 1) == {T0: 1, T1: 1, U0: 7}


def test_a_partition_that_has_become_shorter_is_reported_unchanged():
    """The planner of the batch detects an end before its start, and reports a loss."""
    assert rate_limited({T0: 10, T1: 0}, {T0: 3, T1: 100}, 50) == {T0: 3, T1: 50}


def test_ranges_are_cut_as_sparks_kafka_source_cuts_them():
    """The expectations are those of Spark's KafkaOffsetRangeCalculatorSuite."""
    ranges = [ReadRange(T0, 0, 40), ReadRange(T1, 0, 90), ReadRange(U0, 5, 5)]
    assert split(ranges, None, None) == ranges[:2]
    assert split(ranges, 2, None) == ranges[:2]
    assert [one.size for one in split(ranges, 4, None)] == [40, 30, 30, 30]
    assert split([ReadRange(T0, 0, 100)], 3, None) == [
        ReadRange(T0, 0, 33),
        ReadRange(T0, 33, 66),
        ReadRange(T0, 66, 100),
    ]
    assert [one.size for one in split(ranges, None, 50)] == [40, 45, 45]
    assert len(split([ReadRange(T0, 0, 3)], 10, None)) == 3


sizes = st.lists(st.integers(0, 10_000), min_size=1, max_size=8)


@settings(deadline=None)
@given(sizes, st.none() | st.integers(1, 50), st.none() | st.integers(1, 5000))
def test_pieces_cover_the_ranges_exactly(sizes, partitions_min, rows_max):
    ranges = [ReadRange(TopicPartition("t", index), 10, 10 + size) for index, size in enumerate(sizes)]
    pieces = split(ranges, partitions_min, rows_max)
    assert all(piece.size > 0 and (rows_max is None or piece.size <= rows_max) for piece in pieces)
    for whole in ranges:
        edges = [piece for piece in pieces if piece.partition == whole.partition]
        assert [one.until for one in edges[:-1]] == [one.start for one in edges[1:]]
        assert not edges if not whole.size else (edges[0].start, edges[-1].until) == (whole.start, whole.until)


@settings(deadline=None)
@given(sizes, st.integers(1, 20_000))
def test_a_limit_always_makes_progress_and_ends(sizes, limit):
    start = {TopicPartition("t", index): 5 for index in range(len(sizes))}
    latest = {TopicPartition("t", index): 5 + size for index, size in enumerate(sizes)}
    limited = rate_limited(start, latest, limit)
    assert all(
        start[partition] < offset <= latest[partition] for partition, offset in limited.items() if latest[partition] > 5
    )
    assert sum(limited.values()) - sum(start.values()) <= max(limit, 0) + len(sizes)
