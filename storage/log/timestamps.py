"""Finds offsets by timestamp: the two searches of ListOffsets that read records.

A search may meet a batch that takes long to read (compressed, or of many records), or very many batches. Then it
returns how to continue, so that the event loop never waits for it.

Sources: Kafka's UnifiedLog.fetchOffsetByTimestamp, LogSegment.findOffsetByTimestamp, FileRecords.searchForTimestamp;
KIP-79, KIP-734.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from lowtide.protocol import native
from lowtide.protocol.compression import Compression, DecompressedTooLargeError, decompress
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import (
    RECORD_BATCH_OVERHEAD,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    read_batch_header,
    read_record,
)
from lowtide.protocol.types import NO_LEADER_EPOCH, NO_TIMESTAMP, FilePosition, LeaderEpoch, Offset
from lowtide.storage.errors import DamagedSegmentError
from lowtide.storage.log.segments.index_repair import is_confirmed
from lowtide.storage.log.segments.segment import Segment
from lowtide.storage.log.segments.segment_files import load_timestamps, measure_timestamps

if TYPE_CHECKING:
    from lowtide.protocol.compression import Buffer
    from lowtide.storage.log.log import Log
    from lowtide.storage.log.segments.segment import Segment
    from lowtide.storage.log.segments.segment_list import SegmentList
    from lowtide.storage.log.validation.decompression_room import DecompressionRoom

DECOMPRESSED_BYTES_MAX: Final = 1 << 28
"""A batch that decompresses to more is damaged: a produce request is bounded by 100 MiB by default."""

QUICK_BYTES: Final = 1 << 20
"""A batch that is larger, or decompresses to more, is not looked into in the event loop."""

QUICK_PLAIN_BYTES: Final = 64 << 10
"""The same without the compiled form: a byte takes up to half a microsecond then."""

BATCHES_AT_ONCE: Final = 2_000
"""Headers read at once: some three milliseconds."""

_INT64: Final = 2**63 - 1


_HIDDEN_AT_ONCE: Final = 16
"""How many batches with erased records a search looks into, until their segments are rewritten."""


class TimestampedOffset(msgspec.Struct, gc=False):
    """A record that a search by timestamp found."""

    offset: Offset
    timestamp: int
    leader_epoch: LeaderEpoch


NO_RECORD: Final = NO_TIMESTAMP - 1
"""Smaller than any timestamp: a search for the largest one has found no record up to an offset."""


class LongSearch(msgspec.Struct, gc=False):
    """A batch that a thread must look into, by `find_in_batch`.

    Without a match the search continues at `next_offset`.
    """

    base_offset: Offset
    size_bytes: int
    timestamp_ms: int | None
    """None if the largest timestamp is searched: the search then continues at `next_offset` with the result."""
    start_offset: Offset
    next_offset: Offset


class SearchOn(msgspec.Struct, gc=False):
    """No result yet: the search continues from this offset, after other requests."""

    start_offset: Offset
    largest: TimestampedOffset | None = None
    """The largest timestamp so far, if that is searched. Its offset may be that of the first record of the batch."""


Found: TypeAlias = TimestampedOffset | LongSearch | SearchOn | None


def search_timestamp(log: Log, timestamp_ms: int, start_offset: Offset = 0) -> Found:
    """Returns the first record at or above the log start and `start_offset` with at least that timestamp.

    Returns None if there is none; the result may also tell how to continue. Unlike in Kafka, a segment whose newest
    records are deleted doesn't end the search; it continues in the next segment. Records that an erasure in effect
    names are skipped. Errors: StorageError.
    """
    start_offset, hidden = max(start_offset, log.log_start_offset), log.erasures.hidden(log.high_watermark)
    for _ in range(_HIDDEN_AT_ONCE):
        found = _search_from(log.segments, timestamp_ms, start_offset)
        if not isinstance(found, TimestampedOffset) or not hidden.contains(found.offset):
            return found
        start_offset = hidden.next_outside(found.offset)
    return SearchOn(start_offset)


def _search_from(segments: SegmentList, timestamp_ms: int, start_offset: Offset) -> Found:
    left = BATCHES_AT_ONCE
    for segment in segments:
        load_timestamps(segment)
        segments.used(segment)
        if not segment.size or segment.max_timestamp < timestamp_ms:
            continue
        entry = segment.indexes[1].entry_below(timestamp_ms)
        start = max(entry[1], start_offset) if is_confirmed(segment, *entry) else start_offset
        for position, header in segment.batches(_position_of(segment, start)):
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


def _position_of(segment: Segment, offset: Offset) -> FilePosition:
    """Returns where the first batch begins that ends at or after `offset`. Errors: StorageError."""
    place = segment.find(offset)
    return segment.size if place is None else place.position


def search_max_timestamp(log: Log, start_offset: Offset = 0, largest: TimestampedOffset | None = None) -> Found:
    """Returns the first record with the largest timestamp at or above the log start (KIP-734).

    Returns None if there is none; the result may also tell how to continue, with `start_offset` and `largest` of the
    next call. Unlike in Kafka, a deleted record is never the answer, even if its bytes are still there: the segment at
    the log start is read from there on, if its largest timestamp may be the answer. If an erasure in effect names the
    record, the answer is the next one with that timestamp, perhaps the erasure; None if there is none. Errors:
    StorageError.
    """
    found = _search_largest(log.segments, log.log_start_offset, start_offset, largest)
    if isinstance(found, TimestampedOffset) and log.erasures.hidden(log.high_watermark).contains(found.offset):
        return search_timestamp(log, found.timestamp, found.offset + 1)
    return found


def _search_largest(
    segments: SegmentList, log_start_offset: Offset, start_offset: Offset = 0, largest: TimestampedOffset | None = None
) -> Found:
    first = max(segments.number_of(log_start_offset), 0)
    partial = segments[first] if segments[first].base_offset < log_start_offset else None
    best: Segment | None = None
    for number in range(first, len(segments)):
        segment = segments[number]
        load_timestamps(segment)
        segments.used(segment)
        if segment is not partial and segment.size and (best is None or segment.max_timestamp > best.max_timestamp):
            best = segment
    if partial is not None and partial.size and (best is None or partial.max_timestamp >= best.max_timestamp):
        left = _largest_from(partial, log_start_offset, start_offset, largest)
        if not isinstance(left, TimestampedOffset):
            return left
        if left.timestamp > NO_RECORD and (best is None or left.timestamp >= best.max_timestamp):
            return _search_from(segments, left.timestamp, left.offset)
    return _first_with_largest(segments, best, log_start_offset) if best is not None else None


def _largest_from(
    segment: Segment, log_start_offset: Offset, start_offset: Offset, largest: TimestampedOffset | None
) -> TimestampedOffset | LongSearch | SearchOn:
    """Returns the largest timestamp of a segment from the log start on, with the offset of its record or batch.

    The result may also tell how to continue. Errors: StorageError.
    """
    if largest is None or largest.offset < log_start_offset:
        known = _known_largest(segment)
        if known is not None and known.offset >= log_start_offset:  # As mostly, since the newest record has it.
            return known
        start_offset, largest = log_start_offset, TimestampedOffset(log_start_offset, NO_RECORD, NO_LEADER_EPOCH)
    left = BATCHES_AT_ONCE
    for position, header in segment.batches(_position_of(segment, start_offset)):
        if header.last_offset < start_offset:
            continue
        left -= 1
        if not left:
            return SearchOn(header.base_offset, largest)
        if header.max_timestamp <= largest.timestamp:
            continue
        found: TimestampedOffset | LongSearch | None = TimestampedOffset(
            header.base_offset, header.max_timestamp, NO_LEADER_EPOCH
        )
        if header.base_offset < log_start_offset:  # The largest of its records may be a deleted one.
            found = _look_into(segment, position, header, None, log_start_offset)
        if isinstance(found, LongSearch):
            return found
        largest = found or largest
    return largest


def _known_largest(segment: Segment) -> TimestampedOffset | None:
    """Returns the remembered largest timestamp of a segment, with its batch's offset, if the batch confirms it.

    Errors: StorageError.
    """
    wanted = segment.max_timestamp_offset
    for _position, header in segment.batches(_position_of(segment, wanted)):
        if header.last_offset >= wanted:
            is_so = header.base_offset <= wanted and header.max_timestamp == segment.max_timestamp
            return TimestampedOffset(header.base_offset, header.max_timestamp, NO_LEADER_EPOCH) if is_so else None
    return None


def _first_with_largest(segments: SegmentList, best: Segment, log_start_offset: Offset) -> Found:
    """Returns the first record above the log start with a segment's largest timestamp. Errors: StorageError."""
    wanted = best.max_timestamp
    for position, header in best.batches(_position_of(best, best.max_timestamp_offset)):
        if header.max_timestamp == wanted:
            return _look_into(best, position, header, wanted, header.base_offset)
    measure_timestamps(best)  # That one was in a hole, or was erased.
    return _search_largest(segments, log_start_offset) if best.max_timestamp < wanted else None


def find_in_batch(
    content: Buffer, timestamp_ms: int | None, start_offset: Offset, room: DecompressionRoom | None = None
) -> TimestampedOffset | None:
    """Returns the first record at or above `start_offset` whose timestamp is at least `timestamp_ms`.

    If `timestamp_ms` is None, it returns the record with the largest timestamp. A worker thread passes `room` to
    decompress into. The event loop passes none; then large batches raise DecompressedTooLargeError. Errors:
    ProtocolError for an unsound batch.
    """
    header = read_batch_header(content)
    payload: Buffer = memoryview(content)[RECORD_BATCH_OVERHEAD : header.size_bytes]
    if header.compression is not Compression.NONE:
        if room is None:
            payload = decompress(header.compression, payload, max_bytes=QUICK_BYTES)
        else:
            payload = room.decompress(header.compression, payload, DECOMPRESSED_BYTES_MAX)
    appended_ms = (
        header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else None
    )  # That of all records, by LogAppendTime.
    if appended_ms is not None and timestamp_ms is not None and appended_ms < timestamp_ms:
        return None
    first = max(start_offset - header.base_offset, 0)
    if appended_ms is None and timestamp_ms is None:
        found = _largest_record(payload, header.record_count, first, quick=room is None)
    else:
        delta = -_INT64 if appended_ms is not None or timestamp_ms is None else timestamp_ms - header.base_timestamp
        found = _first_record(payload, header.record_count, min(max(delta, -_INT64), _INT64), first, quick=room is None)
    if found is None:
        return None
    timestamp = header.base_timestamp + found[1] if appended_ms is None else appended_ms
    return TimestampedOffset(header.base_offset + found[0], timestamp, header.partition_leader_epoch)


def _largest_record(payload: Buffer, count: int, offset_delta: int, *, quick: bool) -> tuple[int, int] | None:
    """Works as `_first_record` for the largest timestamp, in the one batch that holds the log start."""
    if quick and len(payload) > QUICK_PLAIN_BYTES:
        raise DecompressedTooLargeError(f"{len(payload)} bytes of records are looked at by a thread")
    position, largest = 0, None
    for _ in range(count):
        record, position = read_record(payload, position, 0, 0)
        if record.offset >= offset_delta and (largest is None or record.timestamp > largest[1]):
            largest = record.offset, record.timestamp
    return largest


def _first_record(
    payload: Buffer, count: int, timestamp_delta: int, offset_delta: int, *, quick: bool
) -> tuple[int, int] | None:
    """Returns offset and timestamp delta of the first record with at least these.

    Errors: ProtocolError; DecompressedTooLargeError if `quick`.
    """
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
    segment: Segment, position: FilePosition, header: BatchHeader, timestamp_ms: int | None, start_offset: Offset
) -> TimestampedOffset | LongSearch | None:
    if header.size_bytes <= QUICK_BYTES:
        try:
            return find_in_batch(segment.read_batch(position, header.size_bytes), timestamp_ms, start_offset)
        except DecompressedTooLargeError:
            pass
        except ProtocolError as error:
            raise DamagedSegmentError(segment.path, f"the batch at byte {position} can't be read: {error}") from error
    return LongSearch(header.base_offset, header.size_bytes, timestamp_ms, start_offset, header.last_offset + 1)
