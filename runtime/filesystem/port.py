"""The port to the file system.

The rules of durability that callers rely on, and that the simulated disk enforces strictly:

* Written data is readable at once and survives the death of the process. It survives a power cut only after
  `File.sync`.
* A created, renamed or removed name survives a power cut only after `sync_directory` of its folder. `File.sync` of a
  new file does not make its name durable, even where some file systems do.
* After a failed `sync` nothing is known about data written since the last good one, and a repetition proves nothing.

All methods block, and raise `OSError` with the path. Paths are absolute or relative to the working directory, with
slashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes in memory. A memoryview has single bytes and is contiguous, so that `len` counts bytes."""

DEFAULT_FILE_MODE = 0o600
"""Only the broker's user reads its files."""
DIRECTORY_MODE = 0o700
OTHERS = 0o077
"""The permissions of the group and of all other users."""

TEMPORARY_SUFFIX = ".tmp"


class AlreadyLockedError(Exception):
    """Another owner, in this process or another one, holds the lock at `path`."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is locked by another process, or by another broker of this one")
        self.path = path


class CannotPunchError(Exception):
    """The file system of `path`, or the machine, can't make holes in files."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the file system of {path} makes no holes in files")
        self.path = path


class Lock(Protocol):
    """A lock that is held until `release`, or until the process dies."""

    def release(self) -> None:
        """Releases the lock; a second call does nothing. The lock's file stays."""


class File(Protocol):
    """An open file. Positions and sizes are in bytes. `path` is the name under which it was opened.

    It stays readable after it was unlinked or renamed, until the last reference to the object is gone.
    """

    @property
    def path(self) -> str: ...

    def pread(self, size: int, position: int) -> bytes:
        """Returns up to `size` bytes from `position`; fewer only at the end of the file."""

    def preadv(self, buffers: Sequence[bytearray | memoryview], position: int, *, nowait: bool = False) -> int:
        """Fills `buffers` in order from `position` and returns the number of bytes read.

        It reads less at the end of the file, and with `nowait` at the end of the cached pages.

        Errors: BlockingIOError with `nowait` if not even the first byte is in memory. Where the kernel or the file
        system can't tell, the call reads and may block.
        """

    def pwritev(self, parts: Sequence[Buffer], position: int) -> None:
        """Writes all `parts` in order at `position`; bytes between the end of the file and `position` become zero.

        Errors: OSError; an unspecified prefix has been written, and the caller truncates the file.
        """

    def truncate(self, size: int) -> None:
        """Makes the file exactly `size` bytes long: cut, or extended with zeros that need no space."""

    def allocate(self, size: int) -> None:
        """Makes the file at least `size` bytes long, with reserved space for new zeros; its content stays."""

    def punch(self, position: int, size: int) -> None:
        """Replaces the bytes by zeros and frees their space; the file's length stays.

        Only whole blocks are freed. Until a sync a power cut may undo it in parts: each block has its bytes or zeros.
        Errors: CannotPunchError; nothing has changed.
        """

    def size(self) -> int:
        """Returns the current length of the file."""

    def sync(self) -> None:
        """Makes everything written to the file by any writer durable; slow. For committers, start and stop only."""

    def close(self) -> None:
        """Closes the file; a second call does nothing. A call that runs in another thread finishes first."""


class FileSystem(Protocol):
    """Names and folders."""

    block_bytes: int
    """The size of a block: a hole of fewer bytes seldom frees one."""

    def open(self, path: str, *, write: bool = False, create: bool = False, mode: int = DEFAULT_FILE_MODE) -> File:
        """Opens a file to read, or with `write` for both; `create` (with `write`) creates a missing one with `mode`."""

    def read_bytes(self, path: str) -> bytes:
        """Returns the whole content of a small file."""

    def write_bytes(self, path: str, data: bytes) -> None:
        """Makes the file contain exactly `data`, without access for others. Neither atomic nor durable."""

    def replace_file(self, path: str, data: bytes, *, mode: int = DEFAULT_FILE_MODE) -> None:
        """Replaces the file atomically: readers and power cuts find the old or the new content; durable on return.

        Writes `<path>.tmp`, syncs it, renames it and syncs the folder. Blocks for two syncs: for start and stop only.
        """

    def exists(self, path: str) -> bool:
        """Returns whether `path` is a file or a folder."""

    def is_directory(self, path: str) -> bool:
        """Returns whether `path` is a folder."""

    def listdir(self, path: str) -> list[str]:
        """Returns the names in a folder, sorted."""

    def file_size(self, path: str) -> int:
        """Returns the length of a file in bytes."""

    def allocated_bytes(self, path: str) -> int:
        """Returns the allocated space of a file: without holes, with reservations."""

    def modified_ms(self, path: str) -> int:
        """Returns when the file was last written, in milliseconds since 1970."""

    def make_directories(self, path: str) -> None:
        """Creates the folder and its missing parents with DIRECTORY_MODE."""

    def make_private(self, path: str) -> None:
        """Removes the permissions of others from a folder and its direct contents, as far as this user owns them."""

    def rename(self, source: str, target: str) -> None:
        """Renames a file or folder within its folder, replacing a file; atomic, durable after sync_directory."""

    def unlink(self, path: str) -> None:
        """Removes a file's name. Errors: FileNotFoundError."""

    def remove_tree(self, path: str) -> None:
        """Removes a folder and its contents, not atomically. Errors: FileNotFoundError."""

    def sync_directory(self, path: str) -> None:
        """Makes the current names of the folder durable; slow."""

    def lock(self, path: str) -> Lock:
        """Takes the exclusive lock at `path`, creating the file if needed; never waits. Errors: AlreadyLockedError."""

    def free_bytes(self, path: str) -> int:
        """Returns how many bytes this process may still write to the disk of `path`."""

    def total_bytes(self, path: str) -> int:
        """Returns the size of the disk of `path` in bytes."""

    def absolute_path(self, path: str) -> str:
        """Returns the absolute path."""

    def page_cache_id(self) -> str | None:
        """Returns an id of the page cache: while it stays the same, all written data is there, even if a process ended.

        None if unknown.
        """


class Syncable(Protocol):
    """What a barrier syncs: an open file, or one that is opened for the sync."""

    @property
    def path(self) -> str: ...

    def sync(self) -> None:
        """Makes the content durable. Errors: OSError."""


class FileToSync:
    """The file at `path`. A missing file needs no sync: it was removed meanwhile.

    The sync also reports a failed write-back of pages that were written through other descriptors, if none has reported
    it yet (fsync(2), Linux 4.13 and later).
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
        """Opens, syncs and closes the file. Errors: OSError; EMFILE and ENFILE mean that nothing was tried."""
        try:
            file = self._filesystem.open(self.path)
        except FileNotFoundError:
            return
        file.sync()
        file.close()
