"""The segments and replicas of a partition, as rows.

It reads the time index of each segment that is not in memory, so each segment is a step.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from lowtide.metadata.image import MetadataImage
from lowtide.protocol.messages.describe_retention import UNKNOWN
from lowtide.protocol.messages.describe_segments import DescribedReplica, DescribedSegment
from lowtide.protocol.types import Offset
from lowtide.replication.leadership import NEVER_MS
from lowtide.replication.partition import Partition
from lowtide.storage.log.log import Log
from lowtide.storage.log.retention.retention_plan import SegmentTimes
from lowtide.storage.log.retention.segment_ages import SegmentAges
from lowtide.storage.log.segments.segment import Segment

SEGMENTS_MAX: Final = 10_000
"""The maximum number of rows of a response: less than a megabyte."""


def segment_rows(
    log: Log, times: SegmentTimes[Segment], first_offset: Offset, rows_max: int
) -> Generator[None, None, list[DescribedSegment]]:
    """Returns the oldest segments that end above `first_offset`, at most `rows_max`. Errors: StorageError."""
    segments, rows = tuple(log.segments), list[DescribedSegment]()
    for number, segment in enumerate(segments):
        is_active = number + 1 == len(segments)
        end_offset = log.log_end_offset if is_active else segments[number + 1].base_offset
        if len(rows) >= rows_max:
            break
        if end_offset <= first_offset and not is_active:
            continue
        below = 0
        if segment.base_offset < log.log_start_offset:
            is_below = end_offset <= log.log_start_offset
            below = (
                segment.size if is_below else log.bytes_between(segment.base_offset, log.log_start_offset, segment.size)
            )
        rows.append(
            DescribedSegment(
                base_offset=segment.base_offset,
                end_offset=end_offset,
                size_bytes=segment.size,
                bytes_below_start=min(below, segment.size),
                first_timestamp=SegmentAges.first_timestamp(segment) if segment.size else UNKNOWN,
                largest_timestamp=times.largest_timestamp(segment),
                is_active=is_active,
            )
        )
        yield
    return rows


def replica_rows(partition: Partition, image: MetadataImage | None, now_ms: int) -> list[DescribedReplica]:
    """Returns the replicas of a led partition: the leader, then its followers by id."""
    log, leadership = partition.log, partition.leadership
    rows = [
        DescribedReplica(
            broker_id=partition.local_broker_id,
            is_leader=True,
            is_in_sync=True,
            is_live=True,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            silent_ms=0,
        )
    ]
    if leadership is None or image is None:
        return rows
    for broker_id, follower in sorted(leadership.followers.items()):
        last_ms = follower.last_fetch_ms
        rows.append(
            DescribedReplica(
                broker_id=broker_id,
                is_leader=False,
                is_in_sync=broker_id in leadership.state.isr,
                is_live=leadership.is_live(broker_id, follower, image, now_ms),
                log_start_offset=leadership.reported_log_start(broker_id, follower, image, now_ms),
                log_end_offset=follower.log_end_offset,
                silent_ms=UNKNOWN if last_ms == NEVER_MS else now_ms - last_ms,
            )
        )
    return rows
