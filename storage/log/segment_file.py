"""The `.log` file of a segment: open while it is used, within the bound of all that are open; places in it; slices of it.

A slice is bytes that are promised to a reader and read later, when its socket takes them.

Guards: a file that a slice or a barrier holds stays open for them when the segment lets go of it, also when it is unlinked.
"""

from __future__ import annotations

import weakref
from typing import Final

import msgspec

from lowtide.protocol.types import FilePosition, Offset
from lowtide.runtime.filesystem import File, FileSystem, FileToSync, Syncable
from lowtide.storage.errors import storage_error
from lowtide.storage.log.open_files import OpenFiles

KNOWN_STARTS: Final = 32
"""Batch starts remembered per generation; two generations exist. A tail reader lags the writer by fewer batches than that."""


class SliceToken:
    """Says whether a slice's bytes are still those that were promised. Shared by all slices of a segment since it was last cut."""

    __slots__ = ("valid",)

    def __init__(self) -> None:
        self.valid = True


class FileSlice(msgspec.Struct, gc=False):
    """Bytes of an open file, to be read later: `size` of them from `position` on, as long as `token` is valid.

    It keeps the file open, also when the segment is deleted meanwhile.
    """

    file: File
    position: FilePosition
    size: int
    token: SliceToken

    def __len__(self) -> int:
        return self.size


class SegmentFile:
    """The `.log` file of a segment. `size` is where the last whole batch ends."""

    __slots__ = ("_file", "_filesystem", "_known", "_known_before", "_pinned", "files", "path", "size", "used")

    def __init__(self, filesystem: FileSystem, path: str, size: int) -> None:
        self._filesystem = filesystem
        self._file: File | None = None
        self._pinned = False
        self._known: dict[Offset, FilePosition] = {}
        self._known_before: dict[Offset, FilePosition] = {}
        self.files: OpenFiles | None = None
        """Bounds the open files; None while no log has the segment yet."""
        self.path = path
        self.size = size
        self.used = False

    def forget_file(self) -> None:
        """Lets go of the open file; the next use opens it again."""
        if self._file is not None:
            file = weakref.ref(self._file)
            self._file = None
            if self.files is not None:
                self.files.closed(self, file)

    def try_close(self) -> bool:
        """Closes the file unless others hold it, too: slices, or barriers. Returns whether it did."""
        if self._file is None:
            return True
        file = weakref.ref(self._file)
        self._file = None
        self._file = file()
        return self._file is None

    @property
    def file(self) -> File:
        """The open file; opened now if it isn't. Errors: StorageError."""
        file = self._file
        if file is None:
            try:
                file = self._open(for_writing=False)
            except OSError as error:
                raise storage_error(self.path, error) from error
        self.used = True
        return file

    def _open(self, *, for_writing: bool) -> File:
        files = self.files
        if files is not None:
            files.make_room(self, for_writing=for_writing)
        file = self._file = self._filesystem.open(self.path, write=self._pinned)
        if files is not None:
            files.opened(self)
        return file

    def to_sync(self) -> Syncable:
        """Its file, to be synced by a barrier: the open one, or one that is opened for that."""
        return self._file or FileToSync(self._filesystem, self.path)

    @property
    def is_pinned(self) -> bool:
        """Whether it is the segment that is written."""
        return self._pinned

    @property
    def is_open(self) -> bool:
        """Whether its file is open."""
        return self._file is not None

    # Places that are known

    def remember_start(self, offset: Offset, position: FilePosition) -> None:
        """Notes that the batch at `position` begins with `offset`, so that the next reader needs no search."""
        if len(self._known) >= KNOWN_STARTS:
            self._known, self._known_before = {}, self._known
        self._known[offset] = position

    def known_start(self, offset: Offset) -> FilePosition | None:
        """The byte place of the batch that begins with `offset`, if it is remembered."""
        position = self._known.get(offset)
        return self._known_before.get(offset) if position is None else position

    def forget_starts(self) -> None:
        """Forgets the places of batches."""
        self._known, self._known_before = {}, {}
