"""Decides which part of a log may be compacted, whether it is due, and which segments become one. It touches no file.

The part below `first_dirty_offset` is already compacted. The dirty part reaches from there to
`first_uncleanable_offset`, where a segment begins. The active segment stays. So do segments with anything that isn't
stable, isn't on the disk, or is younger than `min.compaction.lag.ms`. A log is due when the dirty part is more than
`min.cleanable.dirty.ratio` of both, or when a record in it has waited longer than `max.compaction.lag.ms` (KIP-354).

Unlike in Kafka, the dirty part must be on the disk. Otherwise a power cut could take the new record for whose sake an
old one was removed.

Source: Kafka's LogCleanerManager.cleanableOffsets, maxCompactionDelay, LogToClean, Cleaner.groupSegmentsBySize.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from lowtide.protocol.types import Offset
from lowtide.storage.log.log_values import LogConfig
from lowtide.storage.log.retention.retention_plan import SegmentT, SegmentT_contra, SegmentTimes, written_ms

RELATIVE_OFFSET_MAX: Final = 2**31 - 1
"""The limit of a segment's indexes."""

GROUP_SEGMENTS_MAX: Final = 64
"""Segments replaced by one: their files are renamed in one turn of the loop."""

NO_LAG_LIMIT: Final = 2**63 - 1
"""`max.compaction.lag.ms` if it is not set."""


class CleanableTimes(SegmentTimes[SegmentT_contra], Protocol):
    """The times of a segment's records. Used only if a time limit is set, because it may have to read a file."""

    def first_timestamp(self, segment: SegmentT_contra) -> int:
        """Returns the largest timestamp of its first batch; -1 without any."""
        ...


class LogEnds(NamedTuple):
    """The ends of a log."""

    log_start_offset: Offset
    last_stable_offset: Offset
    """Exclusive."""
    recovery_point: Offset
    """The exclusive end of what is on the disk."""
    log_end_offset: Offset
    """Exclusive."""


class Cleanable(NamedTuple):
    """The part of a log that may be compacted now."""

    first_dirty_offset: Offset
    first_uncleanable_offset: Offset
    """Exclusive."""
    clean_bytes: int
    dirty_bytes: int
    is_due: bool

    @property
    def dirty_ratio(self) -> float:
        """The dirty share. The log with the largest share is compacted first."""
        return self.dirty_bytes / total if (total := self.clean_bytes + self.dirty_bytes) else 0.0


def find_cleanable(
    segments: Sequence[SegmentT],
    ends: LogEnds,
    checkpoint: Offset | None,
    config: LogConfig,
    times: CleanableTimes[SegmentT],
    now_ms: int,
) -> Cleanable:
    """Decides what may be compacted. `checkpoint` is how far the log was compacted before; None if never.

    `now_ms` is wall-clock time. A checkpoint outside of the log is ignored, because the log was truncated or restarted.
    """
    start = ends.log_start_offset
    first_dirty = checkpoint if checkpoint is not None and start <= checkpoint <= ends.log_end_offset else start
    bases = [segment.base_offset for segment in segments]
    end = max(bisect_right(bases, min(ends.last_stable_offset, ends.recovery_point, bases[-1])) - 1, 0)
    first = max(bisect_right(bases, first_dirty) - 1, 0)
    if config.min_compaction_lag_ms > 0:
        young_ms = now_ms - config.min_compaction_lag_ms
        end = next((number for number in range(first, end) if written_ms(segments[number], times) > young_ms), end)
    clean_bytes = sum(segment.size for segment in segments[: min(first, end)])
    dirty = segments[first:end]
    dirty_bytes = sum(segment.size for segment in dirty)
    found = Cleanable(first_dirty, max(bases[end], first_dirty), clean_bytes, dirty_bytes, is_due=False)
    is_due = dirty_bytes > 0 and not config.is_held(now_ms) and found.first_uncleanable_offset > first_dirty
    if is_due and found.dirty_ratio <= config.min_cleanable_dirty_ratio:
        is_due = config.max_compaction_lag_ms < NO_LAG_LIMIT and any(
            0 < times.first_timestamp(segment) < now_ms - config.max_compaction_lag_ms for segment in dirty
        )
    return found._replace(is_due=is_due)


def group_segments(segments: Sequence[SegmentT], end_offset: Offset, segment_bytes: int) -> list[list[SegmentT]]:
    """Groups segments below `end_offset` (exclusive), in order, so that each group fits into one segment.

    A group may only shrink, so present sizes count. The last of `segments` is never included, because it is active.
    """
    groups: list[list[SegmentT]] = []
    size = 0
    for number, segment in enumerate(segments[:-1]):
        if segment.base_offset >= end_offset:
            break
        last_offset = segments[number + 1].base_offset - 1
        fits = (
            groups
            and size + segment.size <= segment_bytes
            and last_offset - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX
        )
        if fits and len(groups[-1]) < GROUP_SEGMENTS_MAX:
            groups[-1].append(segment)
            size += segment.size
        else:
            groups.append([segment])
            size = segment.size
    return groups
