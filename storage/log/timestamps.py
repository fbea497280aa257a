"""Which offset a timestamp stands for: the two questions of ListOffsets that need to look into records.

A search may come to a batch that takes long to look into (compressed, or of many records), or to very many batches in a row: it then
returns how to continue, and nothing waits for it in the event loop.

Sources: Kafka's UnifiedLog.fetchOffsetByTimestamp, LogSegment.findOffsetByTimestamp, FileRecords.searchForTimestamp; KIP-79, KIP-734.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from lowtide.protocol import native
from lowtide.protocol.compression import Compression, DecompressedTooLargeError, decompress
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, TIMESTAMP_TYPE_BIT, BatchHeader, read_batch_header, read_record
from lowtide.protocol.types import FilePosition, LeaderEpoch, Offset
from lowtide.storage.errors import DamagedSegmentError

if TYPE_CHECKING:
    from lowtide.protocol.compression import Buffer
    from lowtide.storage.log.decompression_room import DecompressionRoom
    from lowtide.storage.log.segment import Segment
    from lowtide.storage.log.segment_list import SegmentList

DECOMPRESSED_BYTES_MAX: Final = 1 << 28
"""A batch that grows beyond this is damaged: nothing larger passes a produce request, whose frame is bounded by 100 MiB by default."""

QUICK_BYTES: Final = 1 << 20
"""A batch that is larger, or decompresses to more, is not looked into in the event loop."""

QUICK_PLAIN_BYTES: Final = 64 << 10
"""The same where there is no compiled form: a byte takes up to half a microsecond then."""

BATCHES_AT_ONCE: Final = 2_000
"""So many headers are looked at in one go: some three milliseconds."""

_INT64: Final = 2**63 - 1


class TimestampedOffset(msgspec.Struct, gc=False):
    """A record that a search by timestamp found."""

    offset: Offset
    timestamp: int
    leader_epoch: LeaderEpoch


class LongSearch(msgspec.Struct, gc=False):
    """A batch that a thread has to look into, by `find_in_batch`. If it has no such record the search continues at `next_offset`."""

    base_offset: Offset
    size_bytes: int
    timestamp_ms: int
    start_offset: Offset
    next_offset: Offset


class SearchOn(msgspec.Struct, gc=False):
    """No result yet: the search continues from this offset, after other requests."""

    start_offset: Offset


Found: TypeAlias = TimestampedOffset | LongSearch | SearchOn | None


def search_timestamp(segments: SegmentList, timestamp_ms: int, start_offset: Offset) -> Found:
    """The first record at or after `start_offset` with a timestamp of at least `timestamp_ms`, or None, or how to continue.

    Other than Kafka, a segment whose newest records are deleted doesn't end the search: the next ones are looked at, too.
    Errors: StorageError.
    """
    left = BATCHES_AT_ONCE
    for segment in segments:
        segment.load_timestamps()
        segments.used(segment)
        if not segment.size or segment.max_timestamp < timestamp_ms:
            continue
        offsets, times = segment.indexes
        start = max(times.lookup(timestamp_ms), start_offset)
        for position, header in segment.batches(offsets.lookup(start)):
            if header.last_offset < start:
                continue
            left -= 1
            if not left:
                return SearchOn(header.base_offset)
            if header.max_timestamp < timestamp_ms:
                continue
            found = _look_into(segment, position, header, timestamp_ms, start_offset)
            if found is not None:
                return found
    return None


def search_max_timestamp(segments: SegmentList) -> TimestampedOffset | LongSearch | None:
    """The first record with the largest timestamp that lies in the segments, or None when they are empty (KIP-734).

    As in Kafka it doesn't mind the log start: a record whose bytes are still there may be the answer though it is deleted.
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
            return _look_into(best, position, header, wanted, header.base_offset)
    best.measure_timestamps()  # That one was in a hole, or was erased.
    return search_max_timestamp(segments) if best.max_timestamp < wanted else None


def find_in_batch(
    content: Buffer, timestamp_ms: int, start_offset: Offset, room: DecompressionRoom | None = None
) -> TimestampedOffset | None:
    """The first record of the batch from `start_offset` on with at least that timestamp.

    In a thread with `room` to decompress into. Without it the event loop waits: what takes long raises DecompressedTooLargeError.
    Errors: ProtocolError for what is no sound batch.
    """
    header = read_batch_header(content)
    payload: Buffer = memoryview(content)[RECORD_BATCH_OVERHEAD : header.size_bytes]
    if header.compression is not Compression.NONE:
        if room is None:
            payload = decompress(header.compression, payload, max_bytes=QUICK_BYTES)
        else:
            payload = room.decompress(header.compression, payload, DECOMPRESSED_BYTES_MAX)
    appended_ms = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else None  # That of all records, by LogAppendTime.
    if appended_ms is not None and appended_ms < timestamp_ms:
        return None
    delta = -_INT64 if appended_ms is not None else min(max(timestamp_ms - header.base_timestamp, -_INT64), _INT64)
    found = _first_record(payload, header.record_count, delta, max(start_offset - header.base_offset, 0), quick=room is None)
    if found is None:
        return None
    timestamp = header.base_timestamp + found[1] if appended_ms is None else appended_ms
    return TimestampedOffset(header.base_offset + found[0], timestamp, header.partition_leader_epoch)


def _first_record(payload: Buffer, count: int, timestamp_delta: int, offset_delta: int, *, quick: bool) -> tuple[int, int] | None:
    """Offset and timestamp delta of the first record with at least these. Errors: ProtocolError; DecompressedTooLargeError if `quick`."""
    if native.compiled is not None:
        compiled = native.compiled.find_record(payload, count, timestamp_delta, offset_delta)
        if compiled is not None:
            return compiled or None
    if quick and len(payload) > QUICK_PLAIN_BYTES:
        raise DecompressedTooLargeError(f"{len(payload)} bytes of records are looked at by a thread")
    position = 0
    for _ in range(count):
        record, position = read_record(payload, position, 0, 0)
        if record.offset >= offset_delta and record.timestamp >= timestamp_delta:
            return record.offset, record.timestamp
    if position != len(payload):
        raise ProtocolError(f"{len(payload) - position} bytes follow the last of {count} records")
    return None


def _look_into(
    segment: Segment, position: FilePosition, header: BatchHeader, timestamp_ms: int, start_offset: Offset
) -> TimestampedOffset | LongSearch | None:
    """Errors: StorageError."""
    if header.size_bytes <= QUICK_BYTES:
        try:
            return find_in_batch(segment.read_batch(position, header.size_bytes), timestamp_ms, start_offset)
        except DecompressedTooLargeError:
            pass
        except ProtocolError as error:
            raise DamagedSegmentError(segment.path, f"the batch at byte {position} can't be read: {error}") from error
    return LongSearch(header.base_offset, header.size_bytes, timestamp_ms, start_offset, header.last_offset + 1)
