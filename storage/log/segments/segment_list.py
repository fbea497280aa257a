"""The segments of one log, oldest first, and reading across them.

Segments don't overlap: each ends before the next one's base offset. The last one is the active one, which is written.
It decides nothing; which offsets may be read is the log's business. Its methods that read raise StorageError.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, overload

import msgspec

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import FilePosition, Offset
from lowtide.storage.log.segments.open_files import OpenFiles
from lowtide.storage.log.segments.segment import Segment
from lowtide.storage.log.segments.segment_file import FileSlice, is_slice_of, size_at
from lowtide.storage.log.segments.segment_files import SegmentCache
from lowtide.storage.log.segments.segment_life import SegmentEvent

_EMPTY_BYTES_MAX: Final = 1 << 16
"""The bytes that a read looks through for records: about a thousand empty batches."""
_PASSED_OVER_MAX: Final = 64
"""The most segments without records that a read skips."""


class LogRead(msgspec.Struct, gc=False):
    """The result of a read: `slice` is None if there is nothing to read, or `error_code` isn't NONE."""

    slice: FileSlice | None
    error_code: ErrorCode = ErrorCode.NONE


NOTHING_READ: Final = LogRead(None)
READ_OUT_OF_RANGE: Final = LogRead(None, ErrorCode.OFFSET_OUT_OF_RANGE)


class SegmentList(Sequence[Segment]):
    """One log's segments. `active` is the last one, `bases` their base offsets."""

    __slots__ = ("_cache", "_segments", "active", "bases")

    def __init__(self, segments: list[Segment], cache: SegmentCache) -> None:
        """`cache` bounds how many closed segments stay open."""
        assert segments
        assert segments[-1].is_pinned
        self._cache = cache
        self._segments = segments
        for segment in segments:
            segment.files = cache.files
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]

    @property
    def files(self) -> OpenFiles:
        """The bound of open files, shared with others."""
        return self._cache.files

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @overload
    def __getitem__(self, number: int) -> Segment: ...
    @overload
    def __getitem__(self, number: slice) -> list[Segment]: ...
    def __getitem__(self, number: int | slice) -> Segment | list[Segment]:
        return self._segments[number]

    @property
    def size_bytes(self) -> int:
        """The bytes of all `.log` files, without the hole at the beginning."""
        return sum(segment.size for segment in self._segments) - self._segments[0].punched

    def unfreed_bytes(self, log_start_offset: Offset, log_end_offset: Offset, number: int = 0) -> int:
        """Returns about how many bytes of a segment lie below the log start, or would, and are still there.

        An estimate: it assumes that all offsets behind a hole take equally many bytes.
        """
        segment, bases = self._segments[number], self.bases
        end_offset = bases[number + 1] if len(bases) > number + 1 else log_end_offset
        first_offset = max(segment.first_offset, segment.gone_offset)
        offsets = end_offset - first_offset
        deleted = min(log_start_offset, end_offset) - first_offset
        left_out = segment.floor - segment.punched
        return left_out + ((segment.size - segment.floor) * deleted // offsets if deleted > 0 else 0)

    def number_of(self, offset: Offset) -> int:
        """Returns the number of the segment whose range holds `offset`; -1 below the first one."""
        return bisect_right(self.bases, offset) - 1

    def holds(self, segment: Segment) -> bool:
        """Returns whether this very segment is one of the log's."""
        number = self.number_of(segment.base_offset)
        return number >= 0 and self._segments[number] is segment

    def used(self, segment: Segment) -> None:
        """Notes that a segment was read, for the cache."""
        if segment is not self.active:
            self._cache.touch(segment)

    # Changes

    def append(self, segment: Segment) -> None:
        """Adds the new active segment. The old one has been unpinned."""
        self._segments.append(segment)
        self.bases.append(segment.base_offset)
        old, self.active = self.active, segment
        self._cache.touch(old)

    def activate(self, number: int) -> Segment:
        """Makes segment `number`, the last one, the active one."""
        assert number + 1 == len(self._segments)
        segment = self._segments[number]
        self._cache.drop(segment)
        segment.open_for_writing()
        self.active = segment
        return segment

    def remove_first(self, count: int) -> list[Segment]:
        """Removes the `count` oldest segments, never the active one."""
        assert 0 <= count < len(self._segments)
        removed = self._segments[:count]
        del self._segments[:count], self.bases[:count]
        for segment in removed:
            segment.abandon_hole()
            segment.on(SegmentEvent.LEAVE)
            self._cache.drop(segment)
        return removed

    def remove_last(self) -> Segment:
        """Removes the newest segment and kills its slices; the caller then calls `activate` or `restart`."""
        segment = self._segments.pop()
        del self.bases[-1]
        segment.token.valid = False
        segment.abandon_hole()
        segment.on(SegmentEvent.LEAVE)
        self._cache.drop(segment)
        return segment

    def replace(self, number: int, count: int, segment: Segment) -> None:
        """Replaces `count` closed segments from `number` on by another one. Slices of these stay good."""
        assert 0 <= number < number + count < len(self._segments)
        for old in self._segments[number : number + count]:
            old.abandon_hole()
            old.on(SegmentEvent.LEAVE)
            self._cache.drop(old)
        segment.files = self._cache.files
        self._segments[number : number + count] = [segment]
        self.bases[number : number + count] = [segment.base_offset]

    def restart(self, segment: Segment) -> None:
        """Starts over with a single segment; all others have been removed."""
        assert not self._segments
        self._segments.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment

    def abandon_holes(self) -> None:
        """Stops all holes that aren't half made. Bytes that reads leave out already stay left out."""
        for segment in self._segments:
            if segment.hole is not None and segment.hole.stop():
                segment.hole = None

    # Reading

    def read(
        self,
        offset: Offset,
        max_bytes: int,
        end_offset: Offset,
        log_end_offset: Offset,
        minimum_one_batch: bool,  # noqa: FBT001
        seeks_records: bool = False,  # noqa: FBT001, FBT002
    ) -> LogRead:
        """Reads as `Log.read`, at a readable offset below `end_offset` and `log_end_offset`."""
        segment = self.active
        if offset >= segment.base_offset:
            return (
                self._read_segment(segment, offset, max_bytes, end_offset, log_end_offset, minimum_one_batch)
                or NOTHING_READ
            )
        # A segment in which compaction left nothing from the offset on is skipped.
        bases = self.bases
        empty: LogRead | None = None
        first = max(bisect_right(bases, offset) - 1, 0)
        for number in range(first, len(bases)):
            if bases[number] >= end_offset:
                break
            segment = self._segments[number]
            segment_end = bases[number + 1] if number + 1 < len(bases) else log_end_offset
            found = self._read_segment(segment, offset, max_bytes, end_offset, segment_end, minimum_one_batch)
            self.used(segment)
            if found is None:
                continue
            if found.slice is None:
                break
            if (
                not seeks_records
                or number - first >= _PASSED_OVER_MAX
                or not _ends_without_records(segment, found.slice)
            ):
                return found
            empty = found
        return empty or NOTHING_READ

    @staticmethod
    def _read_segment(
        segment: Segment,
        offset: Offset,
        max_bytes: int,
        end_offset: Offset,
        segment_end: Offset,
        minimum_one_batch: bool,  # noqa: FBT001
    ) -> LogRead | None:
        """Reads in one segment, which ends before the offset `segment_end`.

        Returns None if it has nothing from `offset` on.
        """
        first_size = 0
        starts = segment.starts
        position = starts.recent.get(offset)
        if position is None and (position := starts.older.get(offset)) is None:
            place = segment.find(offset)
            if place is None:
                return None
            position, first_size = place.position, place.size
            if place.base_offset == offset:
                starts.note(offset, position)
        size = (segment.size if end_offset >= segment_end else _end_position(segment, end_offset)) - position
        if size <= 0:
            return NOTHING_READ
        if size > max_bytes:
            if first_size == 0:
                first_size = size_at(segment, position)
            if first_size > max_bytes and not minimum_one_batch:
                return NOTHING_READ
            size = max_bytes if max_bytes > first_size else first_size  # noqa: FURB136 - thrice as fast as max
        segment.used = True
        return LogRead(FileSlice(segment.opened or segment.file, position, size, segment.token))

    def end_of(self, read: FileSlice, offset: Offset, log_end_offset: Offset) -> Offset:
        """Returns an exclusive end of what a slice read at `offset` holds, not much above its last record."""
        bases = self.bases
        for number in range(max(bisect_right(bases, offset) - 1, 0), len(bases)):
            segment = self._segments[number]
            if is_slice_of(segment, read):
                found = segment.indexes[0].offset_at(read.position + read.size)
                if found is not None:
                    return found
                return bases[number + 1] if number + 1 < len(bases) else log_end_offset
        return log_end_offset

    def bytes_between(self, offset: Offset, end_offset: Offset, log_end_offset: Offset, limit: int) -> int:
        """Counts bytes as `Log.bytes_between`."""
        if offset >= end_offset:
            return 0
        total = 0
        bases = self.bases
        for number in range(max(bisect_right(bases, offset) - 1, 0), len(bases)):
            if bases[number] >= end_offset or total >= limit:
                break
            segment = self._segments[number]
            segment_end = bases[number + 1] if number + 1 < len(bases) else log_end_offset
            start = _end_position(segment, offset) if offset > segment.base_offset else 0
            total += (segment.size if end_offset >= segment_end else _end_position(segment, end_offset)) - start
            self.used(segment)
        return total


def _ends_without_records(segment: Segment, read: FileSlice) -> bool:
    """Returns whether a slice is the end of a closed segment, with empty batches only."""
    if segment.is_pinned or read.size > _EMPTY_BYTES_MAX or read.position + read.size < segment.size:
        return False
    return not any(header.record_count for _, header in segment.batches(read.position))


def _end_position(segment: Segment, end_offset: Offset) -> FilePosition:
    """Returns the byte place after the last batch that lies wholly below `end_offset`."""
    position = segment.starts.find(end_offset)
    if position is not None:
        return position
    place = segment.find(end_offset)
    if place is None:
        return segment.size
    if place.base_offset == end_offset:
        segment.starts.note(end_offset, place.position)
    return place.position
