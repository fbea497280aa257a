"""When a segment's records are from, as retention asks it: from memory, or from the last entry of its time index."""

from __future__ import annotations

from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.errors import storage_error
from lowtide.storage.segment import Segment


class SegmentAges:
    """The times of segments whose files are in `filesystem`. Errors of its methods: StorageError."""

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem

    @staticmethod
    def largest_timestamp(segment: Segment) -> int:
        """Of its records; -1 when they have none. What had to be read for it isn't kept, but for the answer."""
        was_open = segment.is_open or segment.index_bytes > 0
        segment.load_timestamps()
        if not was_open and not segment.is_pinned:
            segment.forget()
        return segment.max_timestamp

    def modified_ms(self, segment: Segment) -> int:
        """When its file was last written."""
        try:
            return self._filesystem.modified_ms(segment.path)
        except OSError as error:
            raise storage_error(segment.path, error) from error
