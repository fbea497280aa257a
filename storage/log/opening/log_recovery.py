"""Checks every byte of a segment after an unclean stop.

Its cost is reading and CRC-32C: headers are unpacked in one call, nothing is copied, and no object is created per
batch.

Source: Kafka's LogSegment.recover.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Final

import msgspec

from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.records import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER_STRUCT,
    CONTROL_BIT,
    CRC_POSITION,
    CURRENT_MAGIC,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    RECORD_BATCH_OVERHEAD,
    SMALLEST_BATCH_LENGTH,
)
from lowtide.protocol.types import NO_LEADER_EPOCH, FilePosition, Offset
from lowtide.runtime.filesystem import File
from lowtide.storage.errors import storage_error
from lowtide.storage.log.offsets import LeaderEpochs
from lowtide.storage.log.segments.hole import Hole
from lowtide.storage.log.segments.index import MAX_RELATIVE_OFFSET
from lowtide.storage.log.segments.segment import Segment, header_at
from lowtide.storage.log.segments.segment_file import place_at

EPOCHS_CHECKED_MAX: Final = 100
"""Each takes a start 20 microseconds, and a log may have many."""

_CHUNK_BYTES: Final = 1 << 20
"""The size of a read. A larger batch is read and checksummed in pieces."""


class SegmentCheck(msgspec.Struct, gc=False):
    """The sound part of a segment: this many bytes of whole batches, which end before `next_offset`.

    `reason` says what stopped the check.
    """

    valid_bytes: int
    next_offset: Offset
    reason: str | None
    has_markers: bool
    """Whether transactions end in it."""


def check_segment(segment: Segment, epochs: LeaderEpochs, interval_bytes: int) -> SegmentCheck:
    """Checks a closed segment from the end of its hole on, rebuilds its indexes, and records its leader epochs.

    If batches contradict recorded epochs, the batches win. An epoch whose batches compaction has removed stays.
    Otherwise a replica that has other batches, of an older epoch, in their place would not be seen to diverge. The
    caller cuts the segment. Errors: StorageError if reading fails.
    """
    segment.reset_indexes()
    check = _Check(segment, epochs, interval_bytes)
    buffer = memoryview(bytearray(min(_CHUNK_BYTES, max(segment.size, 1))))
    position = segment.floor
    while position < segment.size and check.reason is None:
        got = _read(segment.file, buffer[: segment.size - position], position)
        if got == 0:
            check.reason = "the file ends early"
        position += check.chunk(buffer[:got], position)
    segment.indexes[1].maybe_append(segment.max_timestamp, segment.max_timestamp_offset)
    return SegmentCheck(
        position,
        check.next_offset,
        check.reason and f"{segment.path}, byte {position}: {check.reason}",
        check.has_markers,
    )


def begins_behind(segment: Segment, hole: Hole) -> bool:
    """Returns whether the first batch after a hole is sound and in its place. Errors: StorageError if reading fails."""
    place = place_at(segment, hole.size)
    if place is None or place.base_offset != hole.next_offset + hole.gap or hole.base_offset != segment.base_offset:
        return False
    head = segment.read_batch(place.position, RECORD_BATCH_OVERHEAD)
    if len(head) < RECORD_BATCH_OVERHEAD or head[MAGIC_POSITION] != CURRENT_MAGIC:
        return False
    buffer = memoryview(bytearray(min(_CHUNK_BYTES, place.size)))
    return _crc_in_pieces(segment.file, place.position, place.size, buffer) == int.from_bytes(
        head[CRC_POSITION:ATTRIBUTES_POSITION], "big"
    )


def are_confirmed(
    epochs: LeaderEpochs, segments: list[Segment], log_start_offset: Offset, log_end_offset: Offset
) -> bool:
    """Returns whether the batches have these leader epochs, where each begins and ends: their file has no checksum.

    Compaction may have removed these batches. Only the newest epochs are checked. Errors: StorageError.
    """
    bases = [segment.base_offset for segment in segments]
    entries = epochs.entries()[-EPOCHS_CHECKED_MAX:]
    for (epoch, start), (_, end) in pairwise([*entries, (NO_LEADER_EPOCH, log_end_offset)]):
        before, first, last = (
            header_at(segments[max(bisect_right(bases, offset) - 1, 0)], offset)
            for offset in (start - 1, start, end - 1)
        )
        is_earlier = start > log_start_offset and before is not None and before.base_offset < start
        if is_earlier and before is not None and before.partition_leader_epoch >= epoch:
            return False
        if any(each and each.base_offset < end and each.partition_leader_epoch != epoch for each in (first, last)):
            return False
    return True


class _Check:
    """The state of one check. `reason` says why it has ended."""

    __slots__ = ("_epochs", "_interval_bytes", "_largest_offset", "_segment", "has_markers", "next_offset", "reason")

    def __init__(self, segment: Segment, epochs: LeaderEpochs, interval_bytes: int) -> None:
        self._segment = segment
        self._epochs = epochs
        self._interval_bytes = interval_bytes
        self._largest_offset = segment.base_offset + MAX_RELATIVE_OFFSET
        self.next_offset = segment.first_offset
        self.reason: str | None = None
        self.has_markers = False

    def chunk(self, chunk: memoryview, position: FilePosition) -> int:
        """Checks the batches that begin in `chunk`, the bytes from `position` on; returns their size in bytes.

        A batch that ends beyond the chunk is left for the next one, unless it begins this one. Then it is read in
        pieces.
        """
        segment, epochs, unpack = self._segment, self._epochs, BATCH_HEADER_STRUCT.unpack_from
        confirmed, confirmed_to = NO_LEADER_EPOCH, 0
        left = segment.size - position
        at = 0
        while len(chunk) - at >= RECORD_BATCH_OVERHEAD:
            base_offset, length, epoch, magic, crc, attributes, delta, _, max_timestamp, _, _, _, _ = unpack(chunk, at)
            end = at + length + LOG_OVERHEAD
            last_offset = base_offset + delta
            in_order = self.next_offset <= base_offset <= last_offset <= self._largest_offset
            if magic != CURRENT_MAGIC or length < SMALLEST_BATCH_LENGTH or not in_order or end > left:
                self.reason = "no whole record batch begins here"
                return at
            if end <= len(chunk):
                found_crc = crc32c(chunk[at + ATTRIBUTES_POSITION : end])
            elif at:
                return at
            else:
                found_crc = _crc_in_pieces(segment.file, position, end, chunk)
            if found_crc != crc:
                self.reason = "the CRC of the batch that begins here is wrong"
                return at
            segment.note_batch(last_offset, position + at, end - at, max_timestamp, self._interval_bytes)
            if attributes & CONTROL_BIT:
                self.has_markers = True
            if epoch != confirmed or last_offset >= confirmed_to:
                confirmed, confirmed_to = epoch, epochs.confirm(epoch, base_offset, last_offset)
            self.next_offset = last_offset + 1
            at = end
        if at < len(chunk) == left:
            self.reason = "a record batch is cut in its header"
        return at


def _read(file: File, buffer: memoryview, position: FilePosition) -> int:
    try:
        return file.preadv([buffer], position)
    except OSError as error:
        raise storage_error(file.path, error) from error


def _crc_in_pieces(file: File, position: FilePosition, size: int, buffer: memoryview) -> int:
    """Returns the CRC of a batch that is larger than the buffer, which is overwritten."""
    crc, done = 0, ATTRIBUTES_POSITION
    while done < size:
        got = _read(file, buffer[: size - done], position + done)
        if got == 0:
            break
        crc = crc32c(buffer[:got], crc)
        done += got
    return crc
