"""Reads a log whose files still have erased records, without returning one.

Batches with erased records are written again in memory, until their segment is rewritten. Nearly all logs have none,
and their reads never come here.

A consumer's read skips erased records as far as it can: several clients loop on an answer without records. A follower
gets a batch that lost all its records as an empty one, because it needs the producer's sequence numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lowtide.protocol.batch_rewriting import without_records
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.records import BatchHeader, check_crc, read_batch_header
from lowtide.protocol.types import FilePosition, Offset
from lowtide.runtime.filesystem import Buffer
from lowtide.storage.errors import DamagedSegmentError
from lowtide.storage.log.log_erasures import LogErasures, RewrittenBatches
from lowtide.storage.log.segments.segment import Segment
from lowtide.storage.log.segments.segment_file import BatchPlace, FileSlice, is_slice_of, place_at
from lowtide.storage.log.segments.segment_list import NOTHING_READ, LogRead, SegmentList
from lowtide.storage.log.validation.validation_rules import MAXIMUM_DECOMPRESSED_BYTES

REWRITTEN_MAX: Final = 1 << 20
"""The most bytes of the file that one read writes again, except for one larger batch."""

SKIPPED_MAX: Final = 16
"""How often a consumer's read tries again behind batches that lost all their records."""


class BytesFile:
    """Bytes in memory that are read like a file."""

    __slots__ = ("_content", "path")

    def __init__(self, path: str, content: bytes) -> None:
        self.path = path
        self._content = content

    def pread(self, size: int, position: int) -> bytes:
        return self._content[position : position + size]

    def preadv(self, buffers: Sequence[bytearray | memoryview], position: int, *, nowait: bool = False) -> int:
        start = position
        for buffer in buffers:
            part = self._content[position : position + len(buffer)]
            buffer[: len(part)] = part
            position += len(part)
        return position - start


class ErasedReads:
    """Reads one log without the records at `hidden` offsets."""

    __slots__ = ("_hidden", "_rewritten", "_segments")

    def __init__(self, segments: SegmentList, hidden: OffsetRanges, rewritten: RewrittenBatches) -> None:
        self._segments = segments
        self._hidden = hidden
        self._rewritten = rewritten

    def read(
        self,
        offset: Offset,
        max_bytes: int,
        end_offset: Offset,
        log_end_offset: Offset,
        minimum_one_batch: bool,  # noqa: FBT001
        seeks_records: bool,  # noqa: FBT001
    ) -> LogRead:
        """Reads as `SegmentList.read`. Errors: StorageError."""
        for _ in range(SKIPPED_MAX):
            if seeks_records:
                offset = self._hidden.next_outside(offset)
                if offset >= end_offset:
                    return NOTHING_READ
            found = self._segments.read(offset, max_bytes, end_offset, log_end_offset, minimum_one_batch, seeks_records)
            if found.slice is None:
                return found
            segment = self._segment_of(found.slice, offset)
            place = None if segment is None else place_at(segment, found.slice.position)
            if segment is None or place is None:
                raise DamagedSegmentError(found.slice.file.path, f"no batch begins at byte {found.slice.position}")
            if not self._hidden.intersects(place.base_offset, place.last_offset):
                return LogRead(self._before_hidden(segment, place, found.slice))
            content, next_offset = self._rewrite(segment, place, found.slice, seeks_records=seeks_records)
            if content or not seeks_records:
                return LogRead(FileSlice(BytesFile(segment.path, content), 0, len(content), found.slice.token))
            offset = next_offset
        return NOTHING_READ

    def _segment_of(self, read: FileSlice, offset: Offset) -> Segment | None:
        first = max(self._segments.number_of(offset), 0)
        return next((each for each in self._segments[first:] if is_slice_of(each, read)), None)

    def _before_hidden(self, segment: Segment, place: BatchPlace, read: FileSlice) -> FileSlice:
        """Returns the beginning of a slice, up to the first batch with an erased record."""
        first = self._hidden.next_inside(place.last_offset + 1)
        found = None if first is None else segment.find(first)
        end: FilePosition = read.position + read.size
        if found is None or found.position >= end:
            return read
        return FileSlice(read.file, read.position, found.position - read.position, read.token)

    def _rewrite(
        self, segment: Segment, place: BatchPlace | None, read: FileSlice, *, seeks_records: bool
    ) -> tuple[bytes, Offset]:
        """Returns the first batches of a slice, which have erased records, without these; and the offset after them."""
        parts: list[bytes] = []
        begin, end, next_offset = read.position, read.position + read.size, 0
        while place is not None and self._hidden.intersects(place.base_offset, place.last_offset):
            batch_end = place.position + place.size
            if place.position > begin and (batch_end > end or batch_end - begin > REWRITTEN_MAX):
                break
            left = self._rewritten.get(place.base_offset)
            if left is None:
                batch = segment.read_batch(place.position, place.size)
                _, part = without_erased(segment.path, place.position, batch, self._hidden)
                left = self._rewritten.add(place.base_offset, bytes(part))
            if not seeks_records or read_batch_header(left).record_count:
                parts.append(left)
            next_offset = place.last_offset + 1
            place = place_at(segment, batch_end) if batch_end < end else None
        return b"".join(parts), next_offset


def without_erased(
    path: str, position: FilePosition, batch: Buffer, erased: OffsetRanges
) -> tuple[BatchHeader, Buffer]:
    """Returns the header of the batch at a position of a file, and the batch without the records at `erased` offsets.

    If it has none of these, it is the same object. Errors: DamagedSegmentError, also if the CRC is wrong.
    """
    try:
        header = read_batch_header(batch)
        if not check_crc(batch, 0, header):
            raise DamagedSegmentError(path, f"the CRC of the batch at byte {position} is wrong")
        return header, without_records(header, batch, erased, decompressed_bytes_max=MAXIMUM_DECOMPRESSED_BYTES)
    except ProtocolError as error:
        raise DamagedSegmentError(path, f"the batch at byte {position}: {error}") from error


def around_erased(
    segments: SegmentList, erasures: LogErasures, high_watermark: Offset, end_offset: Offset
) -> tuple[SegmentList | ErasedReads, Offset]:
    """Returns what reads a log without erased records, and the end up to which it may read, at most `end_offset`."""
    if end_offset <= high_watermark:
        end_offset = erasures.readable_end(end_offset, high_watermark)
    hidden = erasures.hidden(high_watermark)
    return ErasedReads(segments, hidden, erasures.rewritten) if hidden else segments, end_offset
