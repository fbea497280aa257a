"""Which offset a timestamp stands for: the two questions of ListOffsets that need to look into records.

Sources: Kafka's UnifiedLog.fetchOffsetByTimestamp, LogSegment.findOffsetByTimestamp, FileRecords.searchForTimestamp; KIP-79, KIP-734.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import BatchHeader, iterate_records
from lowtide.protocol.types import FilePosition, LeaderEpoch, Offset
from lowtide.storage.errors import DamagedSegmentError
from lowtide.storage.segment import Segment
from lowtide.storage.segment_list import SegmentList

DECOMPRESSED_BYTES_MAX: Final = 1 << 28
"""A batch that grows beyond this is damaged: nothing larger passes a produce request, whose frame is bounded by 100 MiB by default."""


class TimestampedOffset(msgspec.Struct, gc=False):
    """A record that a search by timestamp found."""

    offset: Offset
    timestamp: int
    leader_epoch: LeaderEpoch


def offset_for_timestamp(segments: SegmentList, timestamp_ms: int, log_start_offset: Offset) -> TimestampedOffset | None:
    """The first record at or after `log_start_offset` with a timestamp of at least `timestamp_ms`, or None.

    Other than Kafka, a segment whose newest records are deleted doesn't end the search: the next ones are looked at, too.
    Errors: StorageError.
    """
    for segment in segments:
        segment.load_timestamps()
        segments.used(segment)
        if not segment.size or segment.max_timestamp < timestamp_ms:
            continue
        offsets, times = segment.indexes
        start = max(times.lookup(timestamp_ms), log_start_offset)
        for position, header in segment.batches(offsets.lookup(start)):
            if header.max_timestamp < timestamp_ms or header.last_offset < log_start_offset:
                continue
            found = _first_record(segment, position, header, timestamp_ms, log_start_offset)
            if found is not None:
                return found
    return None


def offset_of_max_timestamp(segments: SegmentList) -> TimestampedOffset | None:
    """The first record with the largest timestamp that lies in the segments, or None when they are empty (KIP-734).

    As in Kafka it doesn't mind the log start: a record of a segment that is still there may be the answer though it is deleted.
    Errors: StorageError.
    """
    best: Segment | None = None
    for segment in segments:
        segment.load_timestamps()
        segments.used(segment)
        if segment.size and (best is None or segment.max_timestamp > best.max_timestamp):
            best = segment
    if best is None:
        return None
    wanted = best.max_timestamp
    start = best.indexes[0].lookup(best.max_timestamp_offset)
    for position, header in best.batches(start):
        if header.max_timestamp == wanted:
            return _first_record(best, position, header, wanted, header.base_offset)
    return None


def _first_record(
    segment: Segment, position: FilePosition, header: BatchHeader, timestamp_ms: int, start_offset: Offset
) -> TimestampedOffset | None:
    """The first record of the batch at `position` from `start_offset` on with at least that timestamp."""
    content = segment.read_batch(position, header.size_bytes)
    try:
        for record in iterate_records(content, max_bytes=DECOMPRESSED_BYTES_MAX):
            if record.timestamp >= timestamp_ms and record.offset >= start_offset:
                return TimestampedOffset(record.offset, record.timestamp, header.partition_leader_epoch)
    except ProtocolError as error:
        raise DamagedSegmentError(segment.path, f"the batch at byte {position} can't be read: {error}") from error
    return None
