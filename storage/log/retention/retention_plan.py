"""Decides which segments of a partition are deleted, and why, from segments, offsets, configuration and time.

Each rule in turn deletes the oldest remaining segments, until it keeps one:

| reason | a segment is deleted when |
|---|---|
| `LOG_START` | the next one begins at or below the log start (KIP-107) |
| `CONSUMED` | every group is past its last record, and it is older than `retention.commitoffset.ms` (KIP-68) |
| `MIN_TIMESTAMP` | its largest timestamp is below `log.retention.min.timestamp` (KIP-47) |
| `SIZE` | without it the partition still has `retention.bytes` |
| `TIME` | it is older than `retention.ms` |

Guards: nothing at or above the high watermark is deleted (KAFKA-5634); whole segments only, oldest first; an empty last
segment stays. If the cleanup policy has no `delete`, only the first rule applies (KAFKA-7400). If the last segment is
deleted too (`RetentionPlan.rolls`), the caller rolls it first. It makes the new log start durable before it removes a
file. It touches no file itself.

A segment is as old as its newest record, or as its file if no record has a timestamp. A record from the future keeps
its segment. For `MIN_TIMESTAMP` only records' own timestamps count.

Source: Kafka's UnifiedLog.deleteOldSegments and deletableSegments.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from lowtide.protocol.types import NO_TIMESTAMP, Offset
from lowtide.storage.log.log_values import LogConfig


class Reason(Enum):
    """The reason of a deletion, as log lines name it. A retention pass never uses the first and the last."""

    REQUEST = "request"
    LOG_START = "log-start"
    CONSUMED = "consumed"
    MIN_TIMESTAMP = "min-timestamp"
    SIZE = "size"
    TIME = "time"
    COMPACTION = "compaction"


class SizedSegment(Protocol):
    """A segment of a log."""

    @property
    def base_offset(self) -> Offset: ...
    @property
    def size(self) -> int: ...


SegmentT = TypeVar("SegmentT", bound=SizedSegment)
SegmentT_contra = TypeVar("SegmentT_contra", bound=SizedSegment, contravariant=True)


class SegmentTimes(Protocol[SegmentT_contra]):
    """The times of a segment. Used only for segments that nothing else keeps; it may have to read a file."""

    def largest_timestamp(self, segment: SegmentT_contra) -> int:
        """Returns the largest timestamp of its records; -1 without any."""
        ...

    def modified_ms(self, segment: SegmentT_contra) -> int:
        """Returns when its file was last written."""
        ...


class RetentionOffsets(NamedTuple):
    """The offsets of a partition."""

    log_start_offset: Offset
    high_watermark: Offset
    """Exclusive."""
    log_end_offset: Offset
    """Exclusive."""
    consumed_offset: Offset | None = None
    """The smallest offset that any group has committed, the exclusive end of what all have consumed; None if in doubt.
    """


class SegmentDeletion(msgspec.Struct, frozen=True):
    """Segments that are deleted for one reason; they end at `end_offset` (exclusive)."""

    reason: Reason
    segment_count: int
    size_bytes: int
    first_offset: Offset
    end_offset: Offset


class RetentionPlan(msgspec.Struct, frozen=True):
    """The deletions, in order. `rolls`: the last segment is deleted too, and a new one must be begun before."""

    deletions: tuple[SegmentDeletion, ...] = ()
    rolls: bool = False

    @property
    def log_start_offset(self) -> Offset:
        """The first readable offset afterwards. Only for a plan with deletions."""
        return self.deletions[-1].end_offset


NOTHING_GOES = RetentionPlan()


def plan_retention(
    segments: Sequence[SegmentT],
    offsets: RetentionOffsets,
    rules: LogConfig,
    times: SegmentTimes[SegmentT],
    now_ms: int,
) -> RetentionPlan:
    """Decides which segments to delete now. `segments` are the log's, oldest first; `now_ms` is wall-clock time.

    It looks at the deleted segments and one more; with a limit of size at all segments once.
    """
    steps = retention_steps(segments, offsets, rules, times, now_ms)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            plan: RetentionPlan = done.value
            return plan


def retention_steps(
    segments: Sequence[SegmentT],
    offsets: RetentionOffsets,
    rules: LogConfig,
    times: SegmentTimes[SegmentT],
    now_ms: int,
) -> Generator[None, None, RetentionPlan]:
    """Returns the plan of `plan_retention`. Yields after each deleted segment."""
    deletions: list[SegmentDeletion] = []
    number = 0
    for reason, goes in active_rules(segments, offsets, rules, times, now_ms):
        first = number
        while number < len(segments) and may_go(segments, number, offsets) and goes(number):
            number += 1
            yield
        if number > first:
            size_bytes = sum(segments[each].size for each in range(first, number))
            end_offset = end_of(segments, number - 1, offsets)
            deletions.append(
                SegmentDeletion(reason, number - first, size_bytes, segments[first].base_offset, end_offset)
            )
    return RetentionPlan(tuple(deletions), rolls=number == len(segments)) if deletions else NOTHING_GOES


def may_go_as_consumed(
    segments: Sequence[SegmentT],
    offsets: RetentionOffsets,
    rules: LogConfig,
    times: SegmentTimes[SegmentT],
    now_ms: int,
) -> bool:
    """Returns whether anything would be deleted if the groups had consumed all: if not, they need not be asked."""
    if "delete" not in rules.cleanup_policy or rules.retention_commitoffset_ms < 0 or rules.is_held(now_ms):
        return False
    number = first_kept(segments, offsets)
    return (
        may_go(segments, number, offsets)
        and now_ms - written_ms(segments[number], times) > rules.retention_commitoffset_ms
    )


def first_kept(segments: Sequence[SegmentT], offsets: RetentionOffsets) -> int:
    """Returns the number of the oldest segment that doesn't lie below the log start; the last one never does."""
    number = 0
    while number + 1 < len(segments) and segments[number + 1].base_offset <= offsets.log_start_offset:
        number += 1
    return number


def end_of(segments: Sequence[SegmentT], number: int, offsets: RetentionOffsets) -> Offset:
    """Returns the exclusive end of a segment's offsets."""
    return segments[number + 1].base_offset if number + 1 < len(segments) else offsets.log_end_offset


def may_go(segments: Sequence[SegmentT], number: int, offsets: RetentionOffsets) -> bool:
    """Returns whether a segment lies below the high watermark and isn't the last one without records."""
    is_last_and_empty = number + 1 == len(segments) and not segments[number].size
    return not is_last_and_empty and end_of(segments, number, offsets) <= offsets.high_watermark


def written_ms(segment: SegmentT, times: SegmentTimes[SegmentT]) -> int:
    """Returns the time of a segment: of its newest record, or of its file if no record has a timestamp."""
    timestamp = times.largest_timestamp(segment)
    return timestamp if timestamp >= 0 else times.modified_ms(segment)


def active_rules(
    segments: Sequence[SegmentT],
    offsets: RetentionOffsets,
    rules: LogConfig,
    times: SegmentTimes[SegmentT],
    now_ms: int,
) -> list[tuple[Reason, Callable[[int], bool]]]:
    """Returns the active rules in order. Each rule decides whether a segment, by its number, is deleted.

    A rule is called once for each number, in order.
    """

    def is_below_start(number: int) -> bool:
        return number + 1 < len(segments) and segments[number + 1].base_offset <= offsets.log_start_offset

    def is_older_than(number: int, age_ms: int) -> bool:
        return now_ms - written_ms(segments[number], times) > age_ms

    def is_consumed(number: int) -> bool:
        consumed = offsets.consumed_offset
        is_past = consumed is not None and end_of(segments, number, offsets) <= consumed
        return is_past and is_older_than(number, rules.retention_commitoffset_ms)

    def is_before_minimum(number: int) -> bool:
        return NO_TIMESTAMP < times.largest_timestamp(segments[number]) < rules.log_retention_min_timestamp

    asked: list[tuple[Reason, Callable[[int], bool]]] = [(Reason.LOG_START, is_below_start)]
    if "delete" in rules.cleanup_policy and not rules.is_held(now_ms):
        if offsets.consumed_offset is not None and rules.retention_commitoffset_ms >= 0:
            asked.append((Reason.CONSUMED, is_consumed))
        if rules.log_retention_min_timestamp > 0:
            asked.append((Reason.MIN_TIMESTAMP, is_before_minimum))
        if rules.retention_bytes >= 0:
            asked.append((Reason.SIZE, _size_rule(segments, rules.retention_bytes)))
        if rules.retention_ms >= 0:
            asked.append((Reason.TIME, lambda number: is_older_than(number, rules.retention_ms)))
    return asked


def _size_rule(segments: Sequence[SegmentT], retention_bytes: int) -> Callable[[int], bool]:
    """Returns the rule of size: whether the partition stays large enough without a segment and all before it."""
    left = -1

    def is_too_much(number: int) -> bool:
        nonlocal left
        if left < 0:
            left = sum(segments[each].size for each in range(number, len(segments)))
        if left - segments[number].size < retention_bytes:
            return False
        left -= segments[number].size
        return True

    return is_too_much
