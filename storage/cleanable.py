"""What of a log may be compacted, whether it is time, and which segments become one: decided from segments, offsets and configuration.

The part below `first_dirty_offset` has been compacted; the dirty part reaches from there to `first_uncleanable_offset`: the active segment,
what isn't stable yet, and what is younger than `min.compaction.lag.ms` are left alone. It is time when the dirty part is more than
`min.cleanable.dirty.ratio` of both, or when a record in it waits for longer than `max.compaction.lag.ms` (KIP-354).

Source: Kafka's LogCleanerManager.cleanableOffsets, LogToClean, Cleaner.groupSegmentsBySize.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from lowtide.protocol.types import Offset
from lowtide.storage.retention import SizedSegment

RELATIVE_OFFSET_MAX: Final = 2**31 - 1
"""A segment's indexes have no room for more."""

SegmentT = TypeVar("SegmentT", bound=SizedSegment)


class CompactionConfig(Protocol):
    """Part of a log's configuration."""

    @property
    def min_cleanable_dirty_ratio(self) -> float: ...
    @property
    def min_compaction_lag_ms(self) -> int: ...
    @property
    def max_compaction_lag_ms(self) -> int: ...


class LogEnds(NamedTuple):
    """Where a log stands."""

    log_start_offset: Offset
    last_stable_offset: Offset
    """An exclusive end."""
    log_end_offset: Offset
    """An exclusive end."""


class Cleanable(NamedTuple):
    """What of a log may be compacted now."""

    first_dirty_offset: Offset
    first_uncleanable_offset: Offset
    """An exclusive end."""
    clean_bytes: int
    dirty_bytes: int
    is_due: bool

    @property
    def dirty_ratio(self) -> float:
        """How much of it is dirty: of several logs the one with the most is compacted first."""
        return self.dirty_bytes / total if (total := self.clean_bytes + self.dirty_bytes) else 0.0


def find_cleanable(
    segments: Sequence[SegmentT],
    ends: LogEnds,
    checkpoint: Offset | None,
    config: CompactionConfig,
    largest_timestamp: Callable[[SegmentT], int],
    now_ms: int,
) -> Cleanable:
    """`checkpoint` is how far the log was compacted before; None if it never was. `largest_timestamp` is a segment's, or its file's time.

    A checkpoint outside of the log is worth nothing: it was truncated, or begun anew. `now_ms` is wall-clock time.
    """
    start = ends.log_start_offset
    first_dirty = checkpoint if checkpoint is not None and start <= checkpoint <= ends.log_end_offset else start
    limit = max(min(segments[-1].base_offset, ends.last_stable_offset), first_dirty)
    clean_bytes = dirty_bytes = 0
    is_overdue = False
    for number, segment in enumerate(segments[:-1]):
        if segment.base_offset >= limit:
            break
        if segments[number + 1].base_offset <= first_dirty:
            clean_bytes += segment.size
            continue
        age_ms = now_ms - largest_timestamp(segment)
        if config.min_compaction_lag_ms > 0 and age_ms < config.min_compaction_lag_ms:
            limit = max(segment.base_offset, first_dirty)
            break
        dirty_bytes += segment.size
        is_overdue = is_overdue or age_ms > config.max_compaction_lag_ms
    found = Cleanable(first_dirty, limit, clean_bytes, dirty_bytes, is_due=False)
    is_due = dirty_bytes > 0 and limit > first_dirty and (is_overdue or found.dirty_ratio > config.min_cleanable_dirty_ratio)
    return found._replace(is_due=is_due)


def group_segments(segments: Sequence[SegmentT], end_offset: Offset, segment_bytes: int) -> list[list[SegmentT]]:
    """The segments below `end_offset` (exclusive), those together that fit into one by their present size, in their order.

    The last of `segments` is never among them: it is written.
    """
    groups: list[list[SegmentT]] = []
    size = 0
    for number, segment in enumerate(segments[:-1]):
        if segment.base_offset >= end_offset:
            break
        last_offset = segments[number + 1].base_offset - 1
        fits = groups and size + segment.size <= segment_bytes and last_offset - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX
        if fits:
            groups[-1].append(segment)
            size += segment.size
        else:
            groups.append([segment])
            size = segment.size
    return groups
