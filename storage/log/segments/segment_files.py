"""Segments beside the log: those that left it and whose files are still to go, and those that may stay open.

Source: Kafka's LocalLog.deleteSegmentFiles.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, TypeAlias

from lowtide.protocol.types import Offset
from lowtide.runtime.filesystem import File, FileSystem
from lowtide.storage.errors import is_passing
from lowtide.storage.log.segments.open_files import FILES_MAX, OpenFiles
from lowtide.storage.log.segments.segment import Segment
from lowtide.storage.log.segments.segment_life import SegmentEvent, SegmentLife, next_life
from lowtide.storage.log.segments.segment_names import DELETED_SUFFIX, SEGMENT_SUFFIXES, offset_name

Readers: TypeAlias = "tuple[weakref.ref[File], ...]"
"""Open files that others hold, known only as long as they do."""


class RemovedSegment:
    """A segment that left the log, with the files that are still to go.

    A lock lets a worker rename them while the loop makes sure of the same before it uses their names again.
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
        """`suffixes` are those of the files that go, the `.log` first.

        With `readers`, the open files through which the `.log` may still be read, its room is given back as soon as
        they are gone: it lies below the durable log start, so that a start removes it whatever is in it. Without, its
        bytes stay until its name goes.
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
        """Whether nothing is to be renamed any more."""
        return self._life is not SegmentLife.LEFT

    @property
    def is_gone(self) -> bool:
        """Whether its files were removed, or go with their folder."""
        return self._life is SegmentLife.GONE

    def paths(self) -> list[str]:
        """Its files, of which some may not exist."""
        stem = f"{self.directory}/{offset_name(self.base_offset)}"
        return [stem + suffix for suffix in self._suffixes]

    def mark_deleted(self, filesystem: FileSystem) -> None:
        """Renames the files to `.deleted`, so that a start after a crash removes them.

        For a worker; done twice, it does nothing. Where the folder has no room for another name they go at once: what
        makes room can't wait for room. Who reads has them open. Errors: OSError; files that don't exist are none.
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
        """The folder goes as a whole: nothing is to be renamed in it any more, and its name may soon be another log's."""
        with self._lock:
            self._life = next_life(self._life, SegmentEvent.ABANDON)

    def unlink(self, filesystem: FileSystem) -> None:
        """Removes what `mark_deleted` renamed, once `file.delete.delay.ms` is over.

        For a worker; nothing, once it was abandoned.
        Errors: OSError; files that don't exist are none.
        """
        assert self.renamed, self.directory
        if self.is_gone:
            return
        _unlink(filesystem, self.paths())
        with self._lock:
            self._life = next_life(self._life, SegmentEvent.UNLINK)

    def is_read(self) -> bool:
        """Whether a reader may still look into the `.log`."""
        return any(file() is not None for file in self.readers or ())

    def free(self, filesystem: FileSystem) -> None:
        """Gives the room of the `.log` back, once it was renamed and no reader is left; its name stays.

        For a worker. Errors: OSError.
        """
        assert self.readers is not None, self.directory
        with self._lock:
            if self._life is SegmentLife.MARKED:
                free_file(filesystem, self.paths()[0] + DELETED_SUFFIX)

    def unlink_log(self, filesystem: FileSystem) -> None:
        """As `unlink`, the `.log` alone: nearly all of the room."""
        if self.is_gone:
            return
        _unlink(filesystem, self.paths()[:1])


def free_file(filesystem: FileSystem, path: str) -> None:
    """Empties a file; one that is gone needs nothing. Errors: OSError."""
    with contextlib.suppress(FileNotFoundError):
        filesystem.open(path, write=True).truncate(0)


def _unlink(filesystem: FileSystem, paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            filesystem.unlink(path + DELETED_SUFFIX)


CLOSED_SEGMENTS_MAX: Final = 256
"""Closed segments that are kept open, with their indexes in memory."""


class SegmentCache:
    """Which closed segments may keep their file open and their indexes in memory: those used last, of all logs that share it."""

    __slots__ = ("_index_bytes", "_index_bytes_max", "_open_max", "_recent", "files")

    def __init__(
        self, *, open_max: int = CLOSED_SEGMENTS_MAX, index_bytes_max: int = 64 << 20, files_max: int = FILES_MAX
    ) -> None:
        """At most `open_max` segments, with at most `index_bytes_max` of indexes together (the last used one is kept in any case).

        `files_max` bounds the open files of all segments, closed or written.
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
        """A closed segment was used; others may be forgotten for it."""
        self._index_bytes += segment.index_bytes - self._recent.pop(segment, 0)
        self._recent[segment] = segment.index_bytes
        while len(self._recent) > self._open_max or (
            self._index_bytes > self._index_bytes_max and len(self._recent) > 1
        ):
            oldest, index_bytes = self._recent.popitem(last=False)
            self._index_bytes -= index_bytes
            oldest.forget()

    def drop(self, segment: Segment) -> None:
        """The segment is gone, or becomes the one that is written: its file is closed."""
        self._index_bytes -= self._recent.pop(segment, 0)
        segment.forget_file()
