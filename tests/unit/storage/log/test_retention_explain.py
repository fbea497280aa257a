"""Why the oldest segment is still there, and when it goes: the explanation agrees with a retention pass."""

from __future__ import annotations

from hypothesis import given, settings
from msgspec.structs import replace

from lowtide.storage.log.log_values import LogConfig
from lowtide.storage.log.retention.retention_explain import Hold, Outlook, explain
from lowtide.storage.log.retention.retention_plan import (
    Reason,
    RetentionOffsets,
    first_kept,
    may_go_as_consumed,
    plan_retention,
)

from .test_retention_plan import KEEPS_ALL, NOW_MS, FakeSegment, FakeTimes, end_of, segments_of, situations


def outlooks(segments: list[FakeSegment], config: LogConfig, consumed: int | None = None) -> tuple[Outlook, ...]:
    end = end_of(segments)
    return explain(segments, RetentionOffsets(0, end, end, consumed), config, FakeTimes(), NOW_MS).outlooks


def test_rules_of_time_report_when_they_apply() -> None:
    segments = segments_of([5, NOW_MS - 100], [1])
    config = replace(KEEPS_ALL, retention_ms=1000, retention_commitoffset_ms=200)
    assert outlooks(segments, config) == (Outlook(Reason.CONSUMED), Outlook(Reason.TIME, NOW_MS + 901))
    assert outlooks(segments, config, 1)[0] == Outlook(Reason.CONSUMED), "a group has not reached its end"
    assert outlooks(segments, config, 2)[0] == Outlook(Reason.CONSUMED, NOW_MS + 101)


def test_the_rule_of_size_reports_how_much_is_missing() -> None:
    segments = segments_of([1], [1, 1])
    told = [outlooks(segments, replace(KEEPS_ALL, retention_bytes=limit)) for limit in (21, 20)]
    assert told == [(Outlook(Reason.SIZE, bytes_missing=1),), (Outlook(Reason.SIZE, NOW_MS),)]


def test_the_minimum_timestamp_waits_for_a_change_of_the_configuration() -> None:
    segments = segments_of([9], [1])
    told = [outlooks(segments, replace(KEEPS_ALL, log_retention_min_timestamp=limit)) for limit in (9, 10)]
    assert told == [(Outlook(Reason.MIN_TIMESTAMP),), (Outlook(Reason.MIN_TIMESTAMP, NOW_MS),)]


def test_what_keeps_it_whatever_the_rules_say() -> None:
    config = replace(KEEPS_ALL, retention_ms=0)
    end = RetentionOffsets(0, 0, 0)
    assert explain([FakeSegment(0, 0)], end, config, FakeTimes(), NOW_MS).hold is Hold.EMPTY
    segments = segments_of([1])
    assert explain(segments, RetentionOffsets(0, 0, 1), config, FakeTimes(), NOW_MS).hold is Hold.NOT_REPLICATED
    compacted = replace(config, cleanup_policy=frozenset({"compact"}))
    kept = explain(segments, RetentionOffsets(0, 1, 1), compacted, FakeTimes(), NOW_MS)
    assert (kept.hold, kept.outlooks) == (Hold.COMPACTED, ())
    assert (
        explain(
            segments, RetentionOffsets(0, 1, 1), replace(config, cleanup_policy=frozenset()), FakeTimes(), NOW_MS
        ).hold
        is Hold.NO_POLICY
    )


def test_the_explained_segment_is_the_first_above_the_log_start() -> None:
    kept = explain(segments_of([1], [1, 1], [1]), RetentionOffsets(2, 4, 4), KEEPS_ALL, FakeTimes(), NOW_MS)
    assert (kept.first_offset, kept.end_offset, kept.is_active) == (2, 3, False)
    assert kept.outlooks == ()


@settings(deadline=None)
@given(situations())
def test_a_pass_deletes_it_exactly_when_a_rule_is_due(
    situation: tuple[list[FakeSegment], RetentionOffsets, LogConfig],
) -> None:
    """A caller that does not ask the groups would not have learned more from them."""
    segments, offsets, config = situation
    kept = explain(segments, offsets, config, FakeTimes(), NOW_MS)
    due = [row.reason for row in kept.outlooks if row.goes_at_ms is not None and row.goes_at_ms <= NOW_MS]
    plan = plan_retention(segments, offsets, config, FakeTimes(), NOW_MS)
    reasons = [deletion.reason for deletion in plan.deletions if deletion.reason is not Reason.LOG_START]
    assert reasons[:1] == (due[:1] if kept.hold is None else [])
    if not may_go_as_consumed(segments, offsets, config, FakeTimes(), NOW_MS):
        assert Reason.CONSUMED not in reasons
    number = first_kept(segments, offsets)
    assert number == 0 or segments[number].base_offset <= offsets.log_start_offset


@settings(deadline=None)
@given(situations())
def test_the_time_that_is_explained_is_right(situation: tuple[list[FakeSegment], RetentionOffsets, LogConfig]) -> None:
    """At that millisecond a pass deletes the segment, and not one before."""
    segments, offsets, config = situation
    kept = explain(segments, offsets, config, FakeTimes(), NOW_MS)
    times = [row.goes_at_ms for row in kept.outlooks if row.goes_at_ms is not None]
    if kept.hold is not None or not times or min(times) <= NOW_MS:
        return

    def goes(now_ms: int) -> bool:
        deletions = plan_retention(segments, offsets, config, FakeTimes(), now_ms).deletions
        return any(deletion.reason is not Reason.LOG_START for deletion in deletions)

    assert [goes(min(times) - 1), goes(min(times))] == [False, True]
