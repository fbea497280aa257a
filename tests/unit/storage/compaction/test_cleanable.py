"""What of a log may be compacted, when, and into which segments."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.storage.compaction.cleanable import GROUP_SEGMENTS_MAX, Cleanable, LogEnds, find_cleanable, group_segments

NOW_MS = 10_000


@dataclass(frozen=True)
class Config:
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    held: bool = False

    def is_held(self, now_ms: int) -> bool:
        assert now_ms == NOW_MS
        return self.held


@dataclass(frozen=True)
class FakeSegment:
    base_offset: int
    size: int = 100
    timestamp: int = 0


SEGMENTS = [FakeSegment(number * 10, timestamp=number * 1000) for number in range(5)]
"""Up to offset 50; the last one, from 40 on, is written."""


class Times:
    """Each segment's first batch is 500 ms older than its last."""

    @staticmethod
    def first_timestamp(segment: FakeSegment) -> int:
        return segment.timestamp - 500

    @staticmethod
    def largest_timestamp(segment: FakeSegment) -> int:
        return segment.timestamp

    @staticmethod
    def modified_ms(segment: FakeSegment) -> int:
        raise AssertionError(segment)


def find(
    checkpoint: int | None = None, config: Config | None = None, *, start: int = 0, stable: int = 50, on_disk: int = 50
) -> Cleanable:
    ends = LogEnds(start, stable, on_disk, 50)
    return find_cleanable(SEGMENTS, ends, checkpoint, config or Config(), Times(), NOW_MS)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (find(), (0, 40, 0, 400, True)),
        (find(None, Config(held=True)), (0, 40, 0, 400, False)),
        (find(20, Config(held=True, max_compaction_lag_ms=8000)), (20, 40, 200, 200, False)),
        (find(20), (20, 40, 200, 200, False)),
        (find(10), (10, 40, 100, 300, True)),
        (find(40), (40, 40, 400, 0, False)),
        (find(20, Config(min_cleanable_dirty_ratio=0.49)), (20, 40, 200, 200, True)),
        (find(20, Config(min_cleanable_dirty_ratio=0)), (20, 40, 200, 200, True)),
        (find(20, Config(max_compaction_lag_ms=8000)), (20, 40, 200, 200, True)),
        (find(20, Config(max_compaction_lag_ms=8500)), (20, 40, 200, 200, False)),
        (find(None, Config(min_compaction_lag_ms=8001)), (0, 20, 0, 200, True)),
        (find(None, Config(min_compaction_lag_ms=8000)), (0, 30, 0, 300, True)),
        (find(None, Config(min_compaction_lag_ms=10_001)), (0, 0, 0, 0, False)),
        (find(stable=15), (0, 10, 0, 100, True)),
        (find(stable=20), (0, 20, 0, 200, True)),
        (find(on_disk=29), (0, 20, 0, 200, True)),
        (find(25, stable=15), (25, 25, 100, 0, False)),
        (find(stable=0), (0, 0, 0, 0, False)),
        (find(5, start=25), (25, 40, 200, 200, False)),
        (find(51, start=3), (3, 40, 0, 400, True)),
        (find(start=45), (45, 45, 400, 0, False)),
    ],
)
def test_what_may_be_compacted(found: Cleanable, expected: tuple[object, ...]) -> None:
    """Kafka's LogCleanerManagerTest: a checkpoint outside of the log is reset to the log start."""
    assert tuple(found) == expected


def test_the_dirtiest_is_found_by_its_ratio() -> None:
    assert [find(at).dirty_ratio for at in (0, 10, 20, 40)] == [1.0, 0.75, 0.5, 0.0]
    assert find(stable=0).dirty_ratio == 0.0


def test_segments_are_put_together_up_to_their_size() -> None:
    def bases(end: int, segment_bytes: int) -> list[list[int]]:
        return [[segment.base_offset for segment in group] for group in group_segments(SEGMENTS, end, segment_bytes)]

    assert bases(50, 200) == [[0, 10], [20, 30]]
    assert bases(50, 299) == [[0, 10], [20, 30]]
    assert bases(50, 300) == [[0, 10, 20], [30]]
    assert bases(50, 10) == [[0], [10], [20], [30]]
    assert bases(20, 1000) == [[0, 10]]
    assert bases(21, 1000) == [[0, 10, 20]]
    assert bases(0, 1000) == []


def test_a_segment_never_spans_more_offsets_than_an_index_can_express() -> None:
    """KAFKA-6264."""
    far = [FakeSegment(0), FakeSegment(2**31 - 1), FakeSegment(2**31), FakeSegment(2**31 + 9)]
    assert [[segment.base_offset for segment in group] for group in group_segments(far, 2**40, 1000)] == [
        [0, 2**31 - 1],
        [2**31],
    ]


def test_not_too_many_are_replaced_at_once() -> None:
    many = [FakeSegment(number, 1) for number in range(2 * GROUP_SEGMENTS_MAX + 3)]
    assert [len(group) for group in group_segments(many, 10**6, 10**6)] == [GROUP_SEGMENTS_MAX, GROUP_SEGMENTS_MAX, 2]


@given(st.lists(st.integers(0, 300), min_size=1, max_size=12), st.integers(1, 500), st.integers(0, 130))
def test_each_segment_is_in_one_group_in_order(sizes: list[int], segment_bytes: int, end: int) -> None:
    segments = [FakeSegment(number * 10, size) for number, size in enumerate(sizes)]
    groups = group_segments(segments, end, segment_bytes)
    assert [segment for group in groups for segment in group] == [
        segment for segment in segments[:-1] if segment.base_offset < end
    ]
    for group in groups:
        assert len(group) == 1 or sum(segment.size for segment in group) <= segment_bytes
