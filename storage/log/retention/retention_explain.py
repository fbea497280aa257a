"""Explains why a partition's oldest segment is still there and when it will be deleted (`retention_plan`).

`boundaries` returns how far each rule alone would delete. The result is for people: the verdict of each rule now, and
the time of deletion for rules of time. Passes run at intervals (`log.retention.check.interval.ms`), so a segment is
deleted by the first pass after that time.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from enum import Enum
from typing import Final

import msgspec

from lowtide.protocol.types import NO_TIMESTAMP, Offset
from lowtide.storage.log.log_values import LogConfig
from lowtide.storage.log.retention.retention_plan import (
    Reason,
    RetentionOffsets,
    SegmentT,
    SegmentTimes,
    active_rules,
    end_of,
    first_kept,
    may_go,
    written_ms,
)

NOT_KNOWN: Final = -1


class Hold(Enum):
    """A reason that keeps a segment whatever the rules decide."""

    EMPTY = "empty"
    """It is the only segment, and empty."""
    NOT_REPLICATED = "not-replicated"
    """It reaches to or above the high watermark."""
    COMPACTED = "compacted"
    """The cleanup policy is `compact` alone."""
    NO_POLICY = "no-policy"
    """The cleanup policy is empty."""
    HELD = "held"
    """`lowtide.hold.until` has not come."""


class Outlook(msgspec.Struct, frozen=True):
    """The verdict of an active rule on a segment."""

    reason: Reason
    goes_at_ms: int | None = None
    """The first wall-clock millisecond in which it goes; may be past. None if time alone isn't enough."""
    bytes_missing: int | None = None
    """How many bytes must be written until it goes."""


class KeptSegment(msgspec.Struct, frozen=True):
    """The oldest segment of a partition, `[first_offset, end_offset)`, and the reasons that keep it.

    Without `outlooks` it stays.
    """

    first_offset: Offset
    end_offset: Offset
    size_bytes: int
    is_active: bool
    """Whether it is the active one, which is closed when it goes."""
    hold: Hold | None = None
    outlooks: tuple[Outlook, ...] = ()


def explain(
    segments: Sequence[SegmentT],
    offsets: RetentionOffsets,
    rules: LogConfig,
    times: SegmentTimes[SegmentT],
    now_ms: int,
) -> KeptSegment:
    """Explains why the oldest segment that doesn't lie below the log start stays.

    For a rule that waits for something other than time or size it only reports that the rule is on.
    """
    number = first_kept(segments, offsets)
    segment, end_offset = segments[number], end_of(segments, number, offsets)
    is_active = number + 1 == len(segments)
    first_offset = max(segment.base_offset, offsets.log_start_offset)
    hold: Hold | None = None
    if is_active and not segment.size:
        hold = Hold.EMPTY
    elif rules.is_held(now_ms):
        hold = Hold.HELD
    elif "delete" not in rules.cleanup_policy:
        hold = Hold.COMPACTED if rules.cleanup_policy else Hold.NO_POLICY
    outlooks = () if hold is not None else _outlooks(segments[number:], end_offset, offsets, rules, times, now_ms)
    if hold is None and not may_go(segments, number, offsets):
        hold = Hold.NOT_REPLICATED
    return KeptSegment(first_offset, end_offset, segment.size, is_active, hold, outlooks)


class Boundary(msgspec.Struct, frozen=True):
    """How far an active rule alone would delete now: segments below `offset` (exclusive).

    `limit` is its threshold: the timestamp below which records are old enough, the bytes that are kept, or the consumed
    offset; -1 if unknown.
    """

    reason: Reason
    offset: Offset
    limit: int


def boundaries(
    segments: Sequence[SegmentT],
    offsets: RetentionOffsets,
    rules: LogConfig,
    times: SegmentTimes[SegmentT],
    now_ms: int,
) -> Generator[None, None, list[Boundary]]:
    """Returns the boundary of each active rule, in order. Yields after each segment that a rule has looked at."""
    limits = {
        Reason.CONSUMED: NOT_KNOWN if offsets.consumed_offset is None else offsets.consumed_offset,
        Reason.MIN_TIMESTAMP: rules.log_retention_min_timestamp,
        Reason.SIZE: rules.retention_bytes,
        Reason.TIME: now_ms - rules.retention_ms,
    }
    found = []
    start = first_kept(segments, offsets)
    if rules.retention_commitoffset_ms >= 0 and offsets.consumed_offset is None and "delete" in rules.cleanup_policy:
        found.append(Boundary(Reason.CONSUMED, offsets.log_start_offset, NOT_KNOWN))
    for reason, goes in active_rules(segments[start:], offsets, rules, times, now_ms):
        if reason not in limits:
            continue
        number = start
        while number < len(segments) and may_go(segments, number, offsets) and goes(number - start):
            number += 1
            yield
        offset = (
            max(end_of(segments, number - 1, offsets), offsets.log_start_offset)
            if number > start
            else offsets.log_start_offset
        )
        found.append(Boundary(reason, offset, limits[reason]))
    return found


def _outlooks(
    segments: Sequence[SegmentT],
    end_offset: Offset,
    offsets: RetentionOffsets,
    rules: LogConfig,
    times: SegmentTimes[SegmentT],
    now_ms: int,
) -> tuple[Outlook, ...]:
    """Returns the verdicts of the active rules, in order, on the first of these segments."""
    oldest, found = segments[0], []
    if rules.retention_commitoffset_ms >= 0:
        is_past = offsets.consumed_offset is not None and end_offset <= offsets.consumed_offset
        goes_at_ms = written_ms(oldest, times) + rules.retention_commitoffset_ms + 1
        found.append(Outlook(Reason.CONSUMED, goes_at_ms if is_past else None))
    if rules.log_retention_min_timestamp > 0:
        is_before = NO_TIMESTAMP < times.largest_timestamp(oldest) < rules.log_retention_min_timestamp
        found.append(Outlook(Reason.MIN_TIMESTAMP, now_ms if is_before else None))
    if rules.retention_bytes >= 0:
        missing = rules.retention_bytes - sum(segment.size for segment in segments[1:])
        found.append(Outlook(Reason.SIZE, now_ms) if missing <= 0 else Outlook(Reason.SIZE, bytes_missing=missing))
    if rules.retention_ms >= 0:
        found.append(Outlook(Reason.TIME, written_ms(oldest, times) + rules.retention_ms + 1))
    return tuple(found)
