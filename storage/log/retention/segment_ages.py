"""The times of a segment's records, for retention: from memory, or from the last entry of its time index."""

from __future__ import annotations

from lowtide.protocol.types import NO_TIMESTAMP
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.errors import storage_error
from lowtide.storage.log.segments.segment import Segment
from lowtide.storage.log.segments.segment_files import load_timestamps


class SegmentAges:
    """The times of segments whose files are in `filesystem`. Errors: StorageError."""

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem

    @staticmethod
    def largest_timestamp(segment: Segment) -> int:
        """Returns the largest timestamp of its records; -1 without any. Keeps nothing in memory but the result."""
        was_open = segment.is_open or segment.index_bytes > 0
        load_timestamps(segment)
        if not was_open and not segment.is_pinned:
            segment.forget()
        return segment.max_timestamp

    @staticmethod
    def first_timestamp(segment: Segment) -> int:
        """Returns the largest timestamp of its first batch; -1 without any."""
        if segment.first_timestamp == NO_TIMESTAMP:
            was_open = segment.is_open or segment.index_bytes > 0
            segment.first_timestamp = next((header.max_timestamp for _, header in segment.batches(0)), NO_TIMESTAMP)
            if not was_open:
                segment.forget_file()
        return segment.first_timestamp

    def newest_ms(self, segment: Segment) -> int:
        """Returns its largest timestamp, or else when its file was last written."""
        timestamp = self.largest_timestamp(segment)
        return timestamp if timestamp >= 0 else self.modified_ms(segment)

    def modified_ms(self, segment: Segment) -> int:
        """Returns when its file was last written."""
        try:
            return self._filesystem.modified_ms(segment.path)
        except OSError as error:
            raise storage_error(segment.path, error) from error
