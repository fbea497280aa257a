"""A segment: a `.log` file with whole record batches and nothing else, and its two indexes.

Guards: `size` is where the last whole batch ends; what a failed write left behind it is cut before anything else
happens. Slices of a segment read bytes below the size that it had then, and are invalid once the segment is cut.

The indexes of the active segment are in memory and are written when it is rolled or closed. Those of the others are
read when needed and dropped by `SegmentCache`. The `.log` file is opened when needed and closed by `OpenFiles`.

It doesn't know log start, high watermark or producers, doesn't decide when to roll, and never syncs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, BatchHeader, read_batch_header
from lowtide.protocol.types import NO_TIMESTAMP, FilePosition, Offset
from lowtide.runtime.filesystem import Buffer, File, FileSystem
from lowtide.storage.errors import DamagedSegmentError, StorageError
from lowtide.storage.log.segments.hole import Hole
from lowtide.storage.log.segments.index import (
    MAX_RELATIVE_OFFSET,
    TIME_ENTRY_BYTES,
    OffsetIndex,
    TimeIndex,
    read_indexes,
)
from lowtide.storage.log.segments.index_repair import rebuild_indexes, reload_timestamps
from lowtide.storage.log.segments.open_files import OpenFiles
from lowtide.storage.log.segments.roll_limits import RollLimits, jitter_ms
from lowtide.storage.log.segments.segment_file import (
    KNOWN_STARTS,
    SCAN_BYTES,
    BatchPlace,
    SegmentFile,
    SliceToken,
    fill_hole,
    place_at,
)
from lowtide.storage.log.segments.segment_life import SegmentEvent
from lowtide.storage.log.segments.segment_names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, offset_name

_DENSE_BYTES: Final = 2 * SCAN_BYTES
"""Index entries further apart than this stand for large batches, with no others between them."""


class Segment(SegmentFile):
    """One segment. `base_offset` is at or below its first batch; it ends where the next segment begins."""

    __slots__ = (
        "_bytes_since_entry",
        "_indexes",
        "changed",
        "created_ms",
        "directory",
        "first_timestamp",
        "max_timestamp",
        "max_timestamp_offset",
        "token",
    )

    def __init__(
        self, filesystem: FileSystem, directory: str, base_offset: Offset, *, size: int, created_ms: int
    ) -> None:
        """A closed segment of `size` bytes, not opened yet. `created_ms` is when it was made, or else loaded."""
        super().__init__(filesystem, f"{directory}/{offset_name(base_offset)}{LOG_SUFFIX}", base_offset, size)
        self._indexes: tuple[OffsetIndex, TimeIndex] | None = None
        self._bytes_since_entry = 0
        self.directory = directory
        self.token = SliceToken()
        self.changed = False
        self.created_ms = created_ms
        self.first_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset

    # Opening and forgetting

    @classmethod
    def put_off(
        cls,
        filesystem: FileSystem,
        directory: str,
        base_offset: Offset,
        *,
        now_ms: int,
        create_file: Callable[[str], File],
        files: OpenFiles | None = None,
    ) -> Segment:
        """Returns a new, empty segment for writing. Its first use calls `create_file` with its path."""
        segment = cls(filesystem, directory, base_offset, size=0, created_ms=now_ms)
        segment.files, segment.create_file = files, create_file
        segment.on(SegmentEvent.ACTIVATE)
        segment._indexes = (OffsetIndex(base_offset), TimeIndex(base_offset))
        segment.changed = True
        return segment

    def open_for_writing(self) -> None:
        """Makes this the active segment: its indexes stay in memory until `unpin`.

        Errors: StorageError; OSError from creating the file, if that was put off.
        """
        if self.is_pinned:
            if self.create_file is not None:
                self._open(for_writing=True)
            return
        indexes = self.indexes
        self.forget_file()
        self.on(SegmentEvent.ACTIVATE)
        self._bytes_since_entry = self.size - indexes[0].last_position
        try:
            reload_timestamps(self)
        except StorageError:
            self.forget_file()
            self.on(SegmentEvent.CLOSE)
            raise

    def invalidate_slices(self) -> None:
        """Invalidates the slices that weren't sent yet, because what they promise may no longer be read."""
        self.token.valid = False
        self.token = SliceToken()

    def unpin(self) -> None:
        """Leaves file and indexes to the cache; the indexes have been written."""
        self.on(SegmentEvent.CLOSE)
        self.starts.clear()

    def leave_out(self, hole: Hole) -> None:
        """Stops reading the hole's bytes, and drops their index entries."""
        self.floor = hole.size
        self.first_offset = hole.next_offset
        if self._indexes is not None:
            _drop_hole(self._indexes, hole.size, hole.next_offset)
        # If the hole had the largest timestamp, it stays as a bound: none behind it is larger.
        self.max_timestamp_offset = max(self.max_timestamp_offset, hole.next_offset)

    def forget(self) -> None:
        """Releases the open file and the indexes; they are read again when needed."""
        assert not self.is_pinned, self.path
        self.forget_file()
        self._indexes = None
        self.starts.clear()

    @property
    def indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Offset and time index, read now, or rebuilt from the batches if their files are missing or invalid."""
        if self._indexes is None:
            found = read_indexes(self._filesystem, self.path.removesuffix(LOG_SUFFIX), self.base_offset, self.size)
            # A written time index ends with the largest timestamp; one without any is as good as missing.
            if found is None or (self.size > self.floor and not len(found[1])):
                rebuild_indexes(self, SCAN_BYTES)
            else:
                self._indexes = found
                if self.floor:
                    _drop_hole(found, self.floor, self.first_offset)
        assert self._indexes is not None
        return self._indexes

    @property
    def index_bytes(self) -> int:
        """The memory of loaded indexes, 0 if they aren't loaded."""
        return sum(index.size_bytes for index in self._indexes) if self._indexes else 0

    def reset_indexes(self) -> None:
        """Empties both indexes, for a scan that calls `note_batch` for each batch."""
        self._indexes = (OffsetIndex(self.base_offset), TimeIndex(self.base_offset))
        self._bytes_since_entry = 0
        self.first_timestamp = self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset

    def write_indexes(self) -> list[str]:
        """Writes both index files, with the last timestamp that Kafka expects at their end; returns their paths.

        Errors: OSError.
        """
        offsets, times = self.indexes
        times.maybe_append(self.max_timestamp, self.max_timestamp_offset)
        stem = self.path.removesuffix(LOG_SUFFIX)
        written = [stem + INDEX_SUFFIX, stem + TIME_INDEX_SUFFIX]
        self._filesystem.write_bytes(written[0], offsets.encode())
        self._filesystem.write_bytes(written[1], times.encode())
        self.changed = False
        return written

    # Writing

    def is_full_for(self, size: int, last_offset: Offset, max_timestamp: int, limits: RollLimits, now_ms: int) -> bool:
        """Returns whether a batch of that size, last offset and timestamp needs a new segment.

        Source: Kafka's LogSegment.shouldRoll. The age is counted in the records' own time if the first batch has one.
        """
        if self.size + size > limits.segment_bytes or last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if not self.size:
            return False
        age_ms = max_timestamp - self.first_timestamp if self.first_timestamp >= 0 else now_ms - self.created_ms
        if age_ms > limits.segment_ms - limits.segment_jitter_ms and age_ms > limits.segment_ms - jitter_ms(
            self.path, limits
        ):
            return True
        assert self._indexes is not None
        # The time index keeps one place for the entry that closing adds, and has the longer entries, though never more
        # of them.
        return (len(self._indexes[0].relative_offsets) + 2) * TIME_ENTRY_BYTES > limits.segment_index_bytes

    def has_room_for(
        self, batches: int, size: int, last_offset: Offset, max_timestamp: int, limits: RollLimits, now_ms: int
    ) -> bool:
        """Returns whether this non-empty segment takes so many batches of `size` bytes: none of them `is_full_for`."""
        if not self.size or self.is_full_for(size, last_offset, max_timestamp, limits, now_ms):
            return False
        assert self._indexes is not None
        return (len(self._indexes[0].relative_offsets) + 1 + batches) * TIME_ENTRY_BYTES <= limits.segment_index_bytes

    def write(self, parts: list[Buffer], size: int, *, counts: bool = True) -> None:
        """Appends the `size` bytes of `parts`, all or nothing. The caller then calls `note_batch` for each batch.

        Without `counts` the caller raises `size` too, batch by batch. Errors: OSError of the write; the file has been
        cut back. StorageError if that failed, too.
        """
        file = self.opened
        if file is None:
            file = self._open(for_writing=True)
        try:
            file.pwritev(parts, self.size)
        except OSError:
            try:
                file.truncate(self.size)
            except OSError as error:
                raise StorageError(self.path, f"a failed write can't be cut back: {error.strerror}") from error
            raise
        if counts:
            self.size += size

    def note_batch(
        self,
        last_offset: Offset,
        position: FilePosition,
        size: int,
        max_timestamp: int,
        interval_bytes: int,
        base_offset: Offset = -1,
    ) -> None:
        """Adds a batch at `position` to the indexes, which get an entry about every `interval_bytes`.

        With a `base_offset` the place is remembered, as by `KnownStarts.note`.
        """
        if base_offset >= 0:
            starts = self.starts
            if len(starts.recent) >= KNOWN_STARTS:
                starts.recent, starts.older = {}, starts.recent
            starts.recent[base_offset] = position
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if position == self.floor:
            self.first_timestamp = max_timestamp
        if self._bytes_since_entry > interval_bytes:
            assert self._indexes is not None
            self._indexes[0].append(last_offset, position)
            self._indexes[1].maybe_append(self.max_timestamp, self.max_timestamp_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size
        self.changed = True

    def cut(self, place: BatchPlace | None) -> None:
        """Removes the batch at `place` and all behind it (nothing, if None) from the active segment.

        Earlier slices are dead from now on. The index files are removed, too: after a crash a start then sees that this
        segment must be checked whole. Errors: StorageError.
        """
        assert self.is_pinned
        assert self._indexes is not None
        self.invalidate_slices()
        self.gone_offset = self.base_offset
        self.starts.clear()
        self.changed = True
        stem = self.path.removesuffix(LOG_SUFFIX)
        try:
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                with contextlib.suppress(FileNotFoundError):
                    self._filesystem.unlink(stem + suffix)
            if place is None:
                return
            if place.position < self.floor:
                self.abandon_hole()
            self.file.truncate(place.position)
        except OSError as error:
            raise StorageError(self.path, f"it can't be cut: {error.strerror}") from error
        offsets, times = self._indexes
        if place.position < self.floor:
            fill_hole(self)
        self.size = place.position
        offsets.truncate(place.base_offset)
        times.truncate(place.base_offset)
        self._bytes_since_entry = self.size - offsets.last_position
        reload_timestamps(self)

    # Reading

    def find(self, offset: Offset) -> BatchPlace | None:
        """Returns the first batch that ends at or after `offset`; None if all end before. Errors: StorageError."""
        indexes = self._indexes or self.indexes
        before, position, after = indexes[0].around(offset)
        if after - position > _DENSE_BYTES or position == 0 < after:
            # Batches are large here, so each has its entry: the one after `offset` is likely to hold it.
            place = place_at(self, after)
            if place is not None and place.base_offset <= offset <= place.last_offset:
                return place
        try:
            return self.scan(offset, position, before)
        except DamagedSegmentError:
            # The entry names a place where no batch begins: the index is damaged, or else the segment, which the scan
            # will show.
            rebuild_indexes(self, SCAN_BYTES)
            return self.scan(offset, self.indexes[0].lookup(offset), None)


def header_at(segment: Segment, offset: Offset) -> BatchHeader | None:
    """Returns the header of the segment's first batch that ends at or after `offset`.

    Returns None if there is no such batch, or if the segment begins above `offset`. Errors: StorageError.
    """
    if offset < segment.first_offset or segment.size <= segment.floor:
        return None
    place = segment.find(offset)
    return None if place is None else read_batch_header(segment.read_batch(place.position, RECORD_BATCH_OVERHEAD))


def _drop_hole(indexes: tuple[OffsetIndex, TimeIndex], size: FilePosition, next_offset: Offset) -> None:
    indexes[0].drop_before(size)
    indexes[1].drop_before(next_offset)
