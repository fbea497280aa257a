"""Where a share group begins in a partition of which it has no start offset: `share.auto.offset.reset`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lowtide.broker.partitions.timestamp_search import LongRow, Progress, TimestampSearches, Unfinished
from lowtide.broker.pending import answer_of
from lowtide.protocol.types import Offset
from lowtide.storage.errors import StorageError
from lowtide.storage.log.timestamps import LongSearch, SearchOn, search_timestamp

if TYPE_CHECKING:
    from lowtide.broker.config.offset_reset import OffsetReset
    from lowtide.broker.partitions.batch_lane import BatchLane
    from lowtide.broker.slices import RequestSlices
    from lowtide.replication.partition import Partition


async def begin_offset(
    partition: Partition, reset: OffsetReset, wall_ms: int, slices: RequestSlices, lane: BatchLane, log: Any
) -> Offset:
    """The start offset of a group that begins now. What can't be searched counts as having no record of that age."""
    if reset.is_earliest:
        return partition.log.log_start_offset
    if reset.duration_ms is None:
        return partition.log.high_watermark
    timestamp_ms = wall_ms - reset.duration_ms

    def look_up(progress: Progress) -> Offset | Unfinished | None:
        found = progress.found
        if found is None or found.offset < partition.log.log_start_offset:
            try:
                step = search_timestamp(partition.log, timestamp_ms, progress.start_offset)
            except StorageError as error:
                fail(error)
                return None
            if isinstance(step, LongSearch | SearchOn):
                return Unfinished(partition, step)
            found = step
        return None if found is None else found.offset

    def fail(error: Exception) -> None:
        log.error("offsets could not be read", partition=str(partition.topic_partition), error=str(error))

    found = look_up(Progress())
    if isinstance(found, Unfinished):
        rows: list[Offset | None] = [None]
        searches = TimestampSearches[Offset | None](slices, lane, log)
        searches.add(LongRow(found, look_up, partial(rows.__setitem__, 0), fail))
        await answer_of(searches.start(rows))
        found = rows[0]
    high_watermark = partition.log.high_watermark
    return high_watermark if found is None else min(found, high_watermark)
