"""Which segments go: single rules, and all of them mixed against a model that applies them record by record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log_files import LogPlace
from lowtide.storage.log.log_values import LogConfig
from lowtide.storage.log.opening.loader import create_log
from lowtide.storage.log.retention.retention_plan import (
    NOTHING_GOES,
    Reason,
    RetentionOffsets,
    RetentionPlan,
    SegmentDeletion,
    plan_retention,
)
from lowtide.storage.log.retention.segment_ages import SegmentAges
from lowtide.storage.log.segments.new_segment import create_segment
from lowtide.storage.log.segments.segment import Segment
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce

NOW_MS = 1_000_000
KEEPS_ALL = LogConfig(retention_ms=-1)


@dataclass(frozen=True)
class FakeSegment:
    base_offset: int
    size: int
    timestamps: tuple[int, ...] = ()
    written_ms: int = NOW_MS


@dataclass
class FakeTimes:
    asked: list[int] = field(default_factory=list)

    def largest_timestamp(self, segment: FakeSegment) -> int:
        self.asked.append(segment.base_offset)
        return max(segment.timestamps, default=-1)

    def modified_ms(self, segment: FakeSegment) -> int:
        return segment.written_ms


def segments_of(*timestamps: Sequence[int], size: int = 10) -> list[FakeSegment]:
    """Segments with one record of `size` bytes for each timestamp, one offset after the other."""
    segments, offset = [], 0
    for some in timestamps:
        segments.append(FakeSegment(offset, size * len(some), tuple(some)))
        offset += len(some)
    return segments


def end_of(segments: list[FakeSegment]) -> int:
    return segments[-1].base_offset + len(segments[-1].timestamps)


def plan(
    segments: list[FakeSegment],
    config: LogConfig,
    *,
    start: int = 0,
    high_watermark: int | None = None,
    consumed: int | None = None,
) -> RetentionPlan:
    end = end_of(segments)
    offsets = RetentionOffsets(start, end if high_watermark is None else high_watermark, end, consumed)
    return plan_retention(segments, offsets, config, FakeTimes(), NOW_MS)


def told(decided: RetentionPlan) -> list[tuple[str, int, int]]:
    return [(deletion.reason.value, deletion.segment_count, deletion.end_offset) for deletion in decided.deletions]


def test_nothing_is_deleted_without_a_rule() -> None:
    assert plan(segments_of([1, 2], [3]), KEEPS_ALL) is NOTHING_GOES


def test_a_segment_is_as_old_as_its_newest_record() -> None:
    segments = segments_of([1, NOW_MS - 101], [5, NOW_MS - 100], [1])
    decided = plan(segments, replace(KEEPS_ALL, retention_ms=100))
    assert told(decided) == [("time", 1, 2)], "a segment exactly at the limit is kept, and so are later ones"


def test_a_segment_without_timestamps_is_as_old_as_its_file() -> None:
    segments = [FakeSegment(0, 10, (-1,), NOW_MS - 101), FakeSegment(1, 10, (-1,), NOW_MS - 5)]
    config = replace(KEEPS_ALL, retention_ms=100)
    assert told(plan(segments, config)) == [("time", 1, 1)]
    assert plan(segments, replace(KEEPS_ALL, log_retention_min_timestamp=NOW_MS)) is NOTHING_GOES, (
        "their age is unknown"
    )


def test_records_from_the_future_are_kept_by_time() -> None:
    segments = segments_of([NOW_MS + 10**9], [1])
    assert plan(segments, replace(KEEPS_ALL, retention_ms=0)) is NOTHING_GOES
    assert told(plan(segments, replace(KEEPS_ALL, retention_bytes=10))) == [("size", 1, 1)], "but not by size"


def test_size_never_goes_below_the_limit() -> None:
    """Kafka's UnifiedLogTest: a segment is deleted when the rest is still as large as `retention.bytes`."""
    segments = segments_of([1], [1], [1, 1], [1])
    assert [
        told(plan(segments, replace(KEEPS_ALL, retention_bytes=limit)))
        for limit in (50, 41, 40, 39, 31, 30, 29, 11, 10)
    ] == [
        [],
        [],
        [("size", 1, 1)],
        [("size", 1, 1)],
        [("size", 1, 1)],
        [("size", 2, 2)],
        [("size", 2, 2)],
        [("size", 2, 2)],
        [("size", 3, 4)],
    ]


def test_the_last_segment_is_rolled_first_unless_it_is_empty() -> None:
    segments = segments_of([1], [1])
    decided = plan(segments, replace(KEEPS_ALL, retention_ms=0))
    assert (told(decided), decided.rolls, decided.log_start_offset) == ([("time", 2, 2)], True, 2)
    decided = plan([*segments, FakeSegment(2, 0)], replace(KEEPS_ALL, retention_ms=0))
    assert (told(decided), decided.rolls) == ([("time", 2, 2)], False)


def test_nothing_above_the_high_watermark_is_deleted() -> None:
    """KAFKA-5634."""
    segments = segments_of([1], [1, 1], [1])
    assert [told(plan(segments, replace(KEEPS_ALL, retention_ms=0), high_watermark=mark)) for mark in range(5)] == [
        [],
        [("time", 1, 1)],
        [("time", 1, 1)],
        [("time", 2, 3)],
        [("time", 3, 4)],
    ]


def test_segments_below_the_log_start_are_deleted_under_any_policy_but_never_the_last() -> None:
    """Kafka's UnifiedLogTest: shouldDeleteStartOffsetBreachedSegmentsWhenPolicyDoesNotIncludeDelete."""
    config = LogConfig(retention_ms=0, cleanup_policy=frozenset({"compact"}))
    segments = segments_of([1] * 5, [1] * 5, [1] * 5)
    assert [told(plan(segments, config, start=start)) for start in (1, 5, 6, 10, 15)] == [
        [],
        [("log-start", 1, 5)],
        [("log-start", 1, 5)],
        [("log-start", 2, 10)],
        [("log-start", 2, 10)],
    ]


def test_minimum_timestamp() -> None:
    """KIP-47: it is the newest record of a segment that counts."""
    segments = segments_of([3, 9], [4, 10], [1])
    assert told(plan(segments, replace(KEEPS_ALL, log_retention_min_timestamp=10))) == [("min-timestamp", 1, 2)]
    assert told(plan(segments, replace(KEEPS_ALL, log_retention_min_timestamp=11))) == [("min-timestamp", 3, 5)]
    assert plan(segments, replace(KEEPS_ALL, log_retention_min_timestamp=0)) is NOTHING_GOES


def test_consumed_by_all() -> None:
    """KIP-68: the largest offset is below every group's committed offset, and the segment is old enough."""
    segments = segments_of([1, 1], [1, NOW_MS - 51], [NOW_MS - 50])
    config = replace(KEEPS_ALL, retention_commitoffset_ms=50)
    assert [told(plan(segments, config, consumed=consumed)) for consumed in (None, 0, 1, 2, 3, 4, 5)] == [
        [],
        [],
        [],
        [("consumed", 1, 2)],
        [("consumed", 1, 2)],
        [("consumed", 2, 4)],
        [("consumed", 2, 4)],
    ]
    assert plan(segments, KEEPS_ALL, consumed=5) is NOTHING_GOES, "it isn't on"


def test_the_rules_follow_each_other() -> None:
    segments = segments_of([1], [1], [50], [NOW_MS], [2], [NOW_MS])
    config = replace(
        KEEPS_ALL, retention_commitoffset_ms=50, log_retention_min_timestamp=51, retention_bytes=20, retention_ms=0
    )
    decided = plan(segments, config, start=1, consumed=2)
    assert told(decided) == [
        ("log-start", 1, 1),
        ("consumed", 1, 2),
        ("min-timestamp", 1, 3),
        ("size", 1, 4),
        ("time", 1, 5),
    ]
    assert decided.deletions[2] == SegmentDeletion(Reason.MIN_TIMESTAMP, 1, 10, 2, 3)


@pytest.mark.parametrize("kept", [100, 10_000])
def test_what_is_kept_costs_nothing(kept: int) -> None:
    segments = segments_of(*[[1]] * 3, *[[NOW_MS]] * kept)
    times = FakeTimes()
    end = end_of(segments)
    decided = plan_retention(segments, RetentionOffsets(0, end, end), replace(KEEPS_ALL, retention_ms=1), times, NOW_MS)
    assert told(decided) == [("time", 3, 3)]
    assert times.asked == [0, 1, 2, 3]


def naive(
    segments: list[FakeSegment], offsets: RetentionOffsets, config: LogConfig, now_ms: int = NOW_MS
) -> list[tuple[str, int]]:
    """Each deleted segment, with reason and base offset: the rules restated over records, one deletion at a time."""
    records = [
        (segment.base_offset + number, segment.base_offset, timestamp)
        for segment in segments
        for number, timestamp in enumerate(segment.timestamps)
    ]
    left, start, gone = list(segments), offsets.log_start_offset, []
    wanted = ["log-start"]
    if "delete" in config.cleanup_policy:
        wanted += ["consumed", "min-timestamp", "size", "time"]
    for reason in wanted:
        while left:
            oldest = left[0]
            here = [(offset, timestamp) for offset, base, timestamp in records if base == oldest.base_offset]
            end = left[1].base_offset if len(left) > 1 else offsets.log_end_offset
            newest = max((timestamp for _, timestamp in here), default=-1)
            age = now_ms - (newest if newest >= 0 else oldest.written_ms)
            uncommitted = any(offset >= offsets.high_watermark for offset, _ in here) or end > offsets.high_watermark
            if uncommitted or (len(left) == 1 and not here):
                break
            consumed = offsets.consumed_offset is not None and all(
                offset < offsets.consumed_offset for offset, _ in here
            )
            consumed = consumed and offsets.consumed_offset is not None and end <= offsets.consumed_offset
            size_without = sum(segment.size for segment in left[1:])
            goes = {
                "log-start": len(left) > 1 and left[1].base_offset <= start,
                "consumed": config.retention_commitoffset_ms >= 0
                and consumed
                and age > config.retention_commitoffset_ms,
                "min-timestamp": newest >= 0 and newest < config.log_retention_min_timestamp,
                "size": 0 <= config.retention_bytes <= size_without,
                "time": 0 <= config.retention_ms < age,
            }
            if not goes[reason]:
                break
            gone.append((reason, oldest.base_offset))
            start = max(start, end)
            left.pop(0)
    return gone


some_times = st.sampled_from([-1, 0, 1, 50, NOW_MS - 100, NOW_MS - 50, NOW_MS - 1, NOW_MS, NOW_MS + 500])
timestamps_drawn = st.lists(some_times, min_size=1, max_size=4)
limits_drawn = st.sampled_from([-1, 0, 1, 49, 50, 51, 99, 100, NOW_MS])


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[FakeSegment], RetentionOffsets, LogConfig]:
    segments, offset = [], draw(st.integers(0, 3))
    for some in draw(st.lists(timestamps_drawn, min_size=1, max_size=6)):
        written_ms = draw(st.sampled_from([0, NOW_MS - 100, NOW_MS - 50, NOW_MS]))
        segments.append(FakeSegment(offset, draw(st.integers(1, 30)), tuple(some), written_ms))
        offset += len(some) + draw(st.integers(0, 1))  # Compaction leaves gaps.
    if draw(st.booleans()):
        segments.append(FakeSegment(offset, 0))
    end = max(offset, segments[-1].base_offset)
    start = draw(st.integers(segments[0].base_offset, end))
    high_watermark = draw(st.integers(start, end))
    consumed = draw(st.none() | st.integers(0, end))
    config = LogConfig(
        retention_ms=draw(limits_drawn),
        retention_bytes=draw(st.sampled_from([-1, 0, 1, 20, 40, 1000])),
        retention_commitoffset_ms=draw(limits_drawn),
        log_retention_min_timestamp=draw(st.sampled_from([0, 1, 2, 51, NOW_MS, NOW_MS + 501])),
        cleanup_policy=frozenset(draw(st.sampled_from([("delete",), ("compact",), ("compact", "delete"), ()]))),
    )
    return segments, RetentionOffsets(start, high_watermark, end, consumed), config


@settings(deadline=None)
@given(situations())
@example((segments_of([1]), RetentionOffsets(0, 1, 1, 1), replace(KEEPS_ALL, retention_commitoffset_ms=0)))
def test_all_rules_mixed_as_a_naive_model_has_them(
    situation: tuple[list[FakeSegment], RetentionOffsets, LogConfig],
) -> None:
    segments, offsets, config = situation
    decided = plan_retention(segments, offsets, config, FakeTimes(), NOW_MS)
    flat: list[tuple[str, int]] = []
    for deletion in decided.deletions:
        bases = [segment.base_offset for segment in segments][len(flat) : len(flat) + deletion.segment_count]
        assert deletion.first_offset == bases[0]
        assert deletion.size_bytes == sum(
            segment.size for segment in segments[len(flat) : len(flat) + deletion.segment_count]
        )
        flat += [(deletion.reason.value, base) for base in bases]
    assert flat == naive(segments, offsets, config)
    assert decided.rolls == (len(flat) == len(segments) > 0)
    if decided.deletions:
        assert decided.log_start_offset <= offsets.high_watermark
    left = segments[len(flat) :]
    if left and decided.deletions:
        after = offsets._replace(log_start_offset=max(offsets.log_start_offset, decided.log_start_offset))
        again = plan_retention(left, after, replace(config, retention_bytes=-1), FakeTimes(), NOW_MS)
        assert again is NOTHING_GOES or config.retention_bytes >= 0, "a second pass finds nothing"


def test_the_timestamp_of_a_segment_is_read_without_keeping_it_in_memory() -> None:
    """After a start closed segments are unknown; if timestamps are -1, the file's modification time is used."""
    filesystem = MemoryFileSystem()
    ages = SegmentAges(filesystem)
    log = create_log(
        LogPlace(
            filesystem=filesystem,
            directory="/disk/t-0",
            config=LogConfig(),
            topic_partition=TopicPartition("t", 0),
            topic_id=bytes(16),
        ),
        now_ms=NOW_MS,
    )
    content = build_batch([(5, None, b"v", ()), (9, None, b"v", ()), (7, None, b"v", ())])
    rules = ValidationRules(timestamp_after_max_ms=2**62)
    validated = validate_produce(memoryview(content), rules, NOW_MS)
    assert isinstance(validated, ValidatedBatch)
    log.append_as_leader(validated, leader_epoch=0, now_ms=NOW_MS)
    assert ages.largest_timestamp(log.segments[0]) == 9
    log.roll(NOW_MS)
    closed = Segment(filesystem, "/disk/t-0", 0, size=log.segments[0].size, created_ms=NOW_MS)
    assert ages.largest_timestamp(closed) == 9
    assert (closed.is_open, closed.index_bytes) == (False, 0)
    assert ages.modified_ms(closed) == filesystem.modified_ms(closed.path)
    filesystem.unlink(closed.path)
    with pytest.raises(StorageError):
        ages.modified_ms(closed)


def test_segments_are_closed_at_different_ages_up_to_the_jitter() -> None:
    """As `segment.jitter.ms` says: never later than `segment.ms`, never earlier than by the jitter."""
    filesystem = MemoryFileSystem()
    config = LogConfig(segment_ms=1000, segment_jitter_ms=400)
    ages = []
    for number in range(20):
        filesystem.make_directories(f"/disk/u-{number}")
        segment = create_segment(filesystem, f"/disk/u-{number}", 0, now_ms=0)
        segment.write([bytes(70)], 70)
        segment.note_batch(0, 0, 70, 100, 4096)
        full = [age for age in range(1200) if segment.is_full_for(70, 1, 100 + age, config, 0)]
        ages.append(full[0])
        assert full == list(range(full[0], 1200))
    assert 600 < min(ages) < 700
    assert 900 < max(ages) <= 1001
