"""A file that is to be synced and isn't open: it is opened for the sync, where that is done, and closed after it.

So the number of files that wait for a sync isn't bounded by the process's limit of open files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lowtide.runtime.filesystem.port import FileSystem


class Syncable(Protocol):
    """What a barrier makes durable: an open file, or one that is opened for that."""

    @property
    def path(self) -> str: ...

    def sync(self) -> None:
        """Make the content durable. Errors: OSError."""
        ...


class FileToSync:
    """The file at `path`.

    One that is gone when its turn comes needs no sync: what was removed with it isn't asked for any more. A sync
    reports a failed write-back of the pages that were written through other descriptors, too, if none has reported it
    yet (fsync(2), Linux 4.13 and later).
    """

    __slots__ = ("_filesystem", "path")

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self.path = path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileToSync) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def sync(self) -> None:
        """Open, sync and close. Errors: OSError; EMFILE and ENFILE mean that nothing was tried."""
        try:
            file = self._filesystem.open(self.path)
        except FileNotFoundError:
            return
        file.sync()
        file.close()
