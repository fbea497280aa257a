"""The `.log` file of a segment: open while it is used, within the bound of all that are open.

Guards: a file that a slice or a barrier holds stays open for them when the segment lets go of it, also when it is unlinked.
"""

from __future__ import annotations

import weakref

from lowtide.runtime.filesystem import File, FileSystem, FileToSync, Syncable
from lowtide.storage.errors import storage_error
from lowtide.storage.log.open_files import OpenFiles


class SegmentFile:
    """The `.log` file of a segment. `size` is where the last whole batch ends."""

    __slots__ = ("_file", "_filesystem", "_pinned", "files", "path", "size", "used")

    def __init__(self, filesystem: FileSystem, path: str, size: int) -> None:
        self._filesystem = filesystem
        self._file: File | None = None
        self._pinned = False
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
