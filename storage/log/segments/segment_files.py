"""Segments that left the log, whose files are still to be removed, and the cache of closed segments.

Source: Kafka's LocalLog.deleteSegmentFiles.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, TypeAlias

from lowtide.protocol.types import NO_TIMESTAMP, Offset
from lowtide.runtime.filesystem import File, FileSystem
from lowtide.storage.errors import is_passing
from lowtide.storage.log.segments.index_repair import is_confirmed, raise_largest, rebuild_indexes
from lowtide.storage.log.segments.open_files import FILES_MAX, OpenFiles
from lowtide.storage.log.segments.segment import Segment
from lowtide.storage.log.segments.segment_file import SCAN_BYTES
from lowtide.storage.log.segments.segment_life import SegmentEvent, SegmentLife, next_life
from lowtide.storage.log.segments.segment_names import DELETED_SUFFIX, SEGMENT_SUFFIXES, offset_name

Readers: TypeAlias = "tuple[weakref.ref[File], ...]"
"""Open files that others hold; they are known only as long as they are held."""


class RemovedSegment:
    """A segment that left the log, with files that are still to be removed.

    A lock lets a worker rename them while the loop makes sure of it before it reuses their names.
    """

    __slots__ = ("_life", "_lock", "_suffixes", "base_offset", "directory", "readers", "size")

    def __init__(
        self,
        directory: str,
        base_offset: Offset,
        size: int,
        suffixes: Sequence[str] = SEGMENT_SUFFIXES,
        readers: Readers | None = None,
    ) -> None:
        """`suffixes` are those of the files to remove, the `.log` first.

        `readers` are the open files through which the `.log` may still be read. With them its room is freed as soon as
        they are gone: it lies below the durable log start, so that a start removes it whatever is in it. Without, its
        bytes stay until it is unlinked.
        """
        self.readers = readers
        self._lock = threading.Lock()
        self._suffixes = suffixes
        self.directory = directory
        self.base_offset = base_offset
        self.size = size
        self._life = SegmentLife.LEFT

    @property
    def renamed(self) -> bool:
        """Whether nothing is left to be renamed."""
        return self._life is not SegmentLife.LEFT

    @property
    def is_gone(self) -> bool:
        """Whether its files were removed, or go with their folder."""
        return self._life is SegmentLife.GONE

    def paths(self) -> list[str]:
        """Returns its files, some of which may not exist."""
        stem = f"{self.directory}/{offset_name(self.base_offset)}"
        return [stem + suffix for suffix in self._suffixes]

    def mark_deleted(self, filesystem: FileSystem) -> None:
        """Renames the files to `.deleted`, so that a start after a crash removes them.

        For a worker; it may be repeated.

        If there is no room for another name they are removed at once: a step that makes room can't wait for room.
        Readers have them open. Errors: OSError; missing files are none.
        """
        with self._lock:
            marked = next_life(self._life, SegmentEvent.MARK)
            for path in () if self.renamed else self.paths():
                with contextlib.suppress(FileNotFoundError):
                    try:
                        filesystem.rename(path, path + DELETED_SUFFIX)
                    except OSError as error:
                        if not is_passing(error):
                            raise
                        filesystem.unlink(path)
            self._life = marked

    def abandon(self) -> None:
        """Stops all renaming: the folder goes as a whole, and its name may soon be another log's."""
        with self._lock:
            self._life = next_life(self._life, SegmentEvent.ABANDON)

    def unlink(self, filesystem: FileSystem) -> None:
        """Removes the files that `mark_deleted` renamed, after `file.delete.delay.ms`.

        Does nothing if they were abandoned.

        For a worker. Errors: OSError; missing files are none.
        """
        assert self.renamed, self.directory
        if self.is_gone:
            return
        _unlink(filesystem, self.paths())
        with self._lock:
            self._life = next_life(self._life, SegmentEvent.UNLINK)

    def is_read(self) -> bool:
        """Returns whether a reader may still look into the `.log`."""
        return any(file() is not None for file in self.readers or ())

    def free(self, filesystem: FileSystem) -> None:
        """Frees the room of the `.log`, once it was renamed and no reader is left; its name stays.

        For a worker. Errors: OSError.
        """
        assert self.readers is not None, self.directory
        with self._lock:
            if self._life is SegmentLife.MARKED:
                free_file(filesystem, self.paths()[0] + DELETED_SUFFIX)

    def unlink_log(self, filesystem: FileSystem) -> None:
        """Removes the `.log` alone, which has nearly all of the room."""
        if self.is_gone:
            return
        _unlink(filesystem, self.paths()[:1])


def free_file(filesystem: FileSystem, path: str) -> None:
    """Empties a file, if it exists. Errors: OSError."""
    with contextlib.suppress(FileNotFoundError):
        filesystem.open(path, write=True).truncate(0)


def _unlink(filesystem: FileSystem, paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            filesystem.unlink(path + DELETED_SUFFIX)


CLOSED_SEGMENTS_MAX: Final = 256
"""Closed segments that stay open, with their indexes in memory."""


class SegmentCache:
    """The closed segments with open files and loaded indexes: those used last, of all logs that share it."""

    __slots__ = ("_index_bytes", "_index_bytes_max", "_open_max", "_recent", "files")

    def __init__(
        self, *, open_max: int = CLOSED_SEGMENTS_MAX, index_bytes_max: int = 64 << 20, files_max: int = FILES_MAX
    ) -> None:
        """Keeps at most `open_max` segments, with at most `index_bytes_max` of indexes (always the last used one).

        `files_max` bounds the open files of all segments, closed or active.
        """
        assert open_max >= 1
        self.files = OpenFiles(files_max)
        self._open_max = open_max
        self._index_bytes_max = index_bytes_max
        self._index_bytes = 0
        self._recent: OrderedDict[Segment, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recent)

    def touch(self, segment: Segment) -> None:
        """Notes that a closed segment was used; others may be forgotten for it."""
        self._index_bytes += segment.index_bytes - self._recent.pop(segment, 0)
        self._recent[segment] = segment.index_bytes
        while len(self._recent) > self._open_max or (
            self._index_bytes > self._index_bytes_max and len(self._recent) > 1
        ):
            oldest, index_bytes = self._recent.popitem(last=False)
            self._index_bytes -= index_bytes
            oldest.forget()

    def drop(self, segment: Segment) -> None:
        """Drops a segment that is gone or becomes active: its file is closed."""
        self._index_bytes -= self._recent.pop(segment, 0)
        segment.forget_file()


def load_timestamps(segment: Segment) -> None:
    """Reads the largest timestamp of a closed segment from its time index, which is rebuilt if no batch confirms it.

    Errors: StorageError.
    """
    if segment.max_timestamp == NO_TIMESTAMP and segment.size and not segment.is_pinned:
        segment.max_timestamp, segment.max_timestamp_offset = segment.indexes[1].last_entry
        if not is_confirmed(segment, segment.max_timestamp, segment.max_timestamp_offset):
            rebuild_indexes(segment, SCAN_BYTES)


def measure_timestamps(segment: Segment) -> None:
    """Finds the largest timestamp again from all headers. Errors: StorageError."""
    segment.max_timestamp, segment.max_timestamp_offset = NO_TIMESTAMP, segment.first_offset
    raise_largest(segment, 0)
