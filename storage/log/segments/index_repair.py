"""Rebuilds a segment's indexes from its batches if their files are missing, invalid, or contradicted by the batches.

Guards: a timestamp of an index counts only if a batch confirms it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, read_batch_header
from lowtide.protocol.types import NO_TIMESTAMP, FilePosition, Offset
from lowtide.storage.log.segments.segment_file import SCAN_BYTES
from lowtide.storage.log.segments.segment_names import LOG_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lowtide.protocol.records import BatchHeader
    from lowtide.storage.log.segments.index import OffsetIndex, TimeIndex
    from lowtide.storage.log.segments.segment_file import BatchPlace


class IndexedSegment(Protocol):
    """What a repair needs of a segment."""

    path: str
    size: int
    floor: FilePosition
    first_timestamp: int
    max_timestamp: int
    max_timestamp_offset: Offset

    @property
    def indexes(self) -> tuple[OffsetIndex, TimeIndex]: ...
    def reset_indexes(self) -> None: ...
    def note_batch(
        self, last_offset: Offset, position: FilePosition, size: int, max_timestamp: int, interval_bytes: int
    ) -> None: ...
    def write_indexes(self) -> list[str]: ...
    def batches(self, position: FilePosition) -> Iterator[tuple[FilePosition, BatchHeader]]: ...
    def find(self, offset: Offset) -> BatchPlace | None: ...
    def read_batch(self, position: FilePosition, size: int) -> bytes: ...


def rebuild_indexes(segment: IndexedSegment, interval_bytes: int) -> None:
    """Rebuilds indexes and timestamps from all headers, of a closed segment or one being opened, and writes them.

    Errors: StorageError.
    """
    _index_batches(segment, interval_bytes)
    # Without them the next start builds them again: a full disk is no reason to fail here.
    with contextlib.suppress(OSError):
        if segment.path.endswith(LOG_SUFFIX):
            segment.write_indexes()


def _index_batches(segment: IndexedSegment, interval_bytes: int) -> None:
    segment.reset_indexes()
    for position, header in segment.batches(0):
        segment.note_batch(header.last_offset, position, header.size_bytes, header.max_timestamp, interval_bytes)


def reload_timestamps(segment: IndexedSegment) -> None:
    """Finds first and largest timestamp again, from the time index and the batches after its last entry.

    If no batch confirms that entry, both indexes are built again in memory. Errors: StorageError.
    """
    segment.max_timestamp, segment.max_timestamp_offset = segment.indexes[1].last_entry
    if not is_confirmed(segment, segment.max_timestamp, segment.max_timestamp_offset):
        _index_batches(segment, SCAN_BYTES)
        return
    segment.first_timestamp = next((header.max_timestamp for _, header in segment.batches(0)), NO_TIMESTAMP)
    raise_largest(segment, segment.indexes[0].lookup(segment.max_timestamp_offset))


def is_confirmed(segment: IndexedSegment, timestamp_ms: int, offset: Offset) -> bool:
    """Returns whether the batch that holds `offset` has this largest timestamp, as an entry of the time index says.

    Time indexes have no checksum, and name batches that are in a hole or were erased. Without a timestamp (-1) there is
    nothing to confirm. Errors: StorageError.
    """
    if timestamp_ms == NO_TIMESTAMP or segment.size <= segment.floor:
        return True
    place = segment.find(offset)
    if place is None or place.base_offset > offset:
        return False
    return read_batch_header(segment.read_batch(place.position, RECORD_BATCH_OVERHEAD)).max_timestamp == timestamp_ms


def raise_largest(segment: IndexedSegment, position: FilePosition) -> None:
    """Raises the segment's largest timestamp if a batch from `position` on has a larger one. Errors: StorageError."""
    for _, header in segment.batches(position):
        if header.max_timestamp > segment.max_timestamp:
            segment.max_timestamp, segment.max_timestamp_offset = header.max_timestamp, header.last_offset
