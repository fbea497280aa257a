"""What Lowtide asks of a file system.

The rules of durability that callers rely on, and that the simulated disk enforces strictly:

* What was written is readable at once and survives the death of the process. It survives a power cut only after `File.sync`.
* That a name exists, was renamed or is gone survives a power cut only after `sync_directory` of the folder that holds the name.
  `File.sync` of a new file does not make its name durable, even where some file systems happen to do so.
* After a failed `sync` nothing is known of what was written since the last good one, and trying again proves nothing.

All methods block, and raise `OSError` with the path in it. Paths are absolute or relative to the working directory,
with slashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes in memory. A memoryview is of single bytes and contiguous, so that `len` counts bytes."""

DEFAULT_FILE_MODE = 0o600
"""Only the user that a broker runs as reads what it writes."""
DIRECTORY_MODE = 0o700
OTHERS = 0o077
"""The rights of the group and of all other users."""

TEMPORARY_SUFFIX = ".tmp"


class AlreadyLockedError(Exception):
    """Another owner, in this process or another one, holds the lock at `path`."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is locked by another process, or by another broker of this one")
        self.path = path


class CannotPunchError(Exception):
    """The file system that holds `path`, or the machine, makes no holes in files."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the file system of {path} makes no holes in files")
        self.path = path


class Lock(Protocol):
    """A lock that is held until `release`, or until the process dies."""

    def release(self) -> None:
        """Give the lock up; the second call does nothing. The lock's file stays."""
        ...


class File(Protocol):
    """An open file. Positions and sizes are in bytes.

    A file stays readable through this object after it was unlinked or renamed, and until the last reference to the
    object is gone.
    `path` is the name under which it was opened.
    """

    @property
    def path(self) -> str: ...

    def pread(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def preadv(self, buffers: Sequence[bytearray | memoryview], position: int, *, nowait: bool = False) -> int:
        """Fill `buffers` in order from `position` and return the number of bytes read.

        The number is smaller than the buffers' sum at the end of the file, and with `nowait` also where the cached
        pages end.

        Raises:
            BlockingIOError: with `nowait`, when not even the first byte is in memory. Where the kernel or the file
            system cannot
                tell, the call reads, and may block.
        """
        ...

    def pwritev(self, parts: Sequence[Buffer], position: int) -> None:
        """Write all `parts`, one after the other, at `position`; bytes between the end of the file and `position` become zero.

        Raises:
            OSError: an unspecified prefix of the parts has been written. The caller cuts the file back.
        """
        ...

    def truncate(self, size: int) -> None:
        """Make the file exactly `size` bytes long: cut it, or lengthen it with zeros that need not take space."""
        ...

    def allocate(self, size: int) -> None:
        """Make the file at least `size` bytes long, with zeros for which space is reserved; what it holds stays."""
        ...

    def punch(self, position: int, size: int) -> None:
        """Make the bytes zeros and give the space back that they took; the file's length stays.

        Only whole blocks give space back; the rest of the range is zeros all the same. Until a sync a power cut may
        undo it in parts: each block has its bytes or zeros.

        Raises:
            CannotPunchError: the file system makes no holes; nothing has changed.
        """
        ...

    def size(self) -> int:
        """Return the length of the file as it is now."""
        ...

    def sync(self) -> None:
        """Make everything written to the file so far durable, by any writer; slow.

        For committers, start and stop only.
        """
        ...

    def close(self) -> None:
        """Let the file go; the second call does nothing. A call that is running in another thread finishes first."""
        ...


class FileSystem(Protocol):
    """Names and folders."""

    def open(self, path: str, *, write: bool = False, create: bool = False, mode: int = DEFAULT_FILE_MODE) -> File:
        """Open a file for reading, or with `write` for both; `create` (with `write`) makes one of `mode` where none is."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """Return the whole content. For small files."""
        ...

    def write_bytes(self, path: str, data: bytes) -> None:
        """Make the file hold exactly `data`, and take the rights of others from it. Neither atomic nor durable."""
        ...

    def replace_file(self, path: str, data: bytes, *, mode: int = DEFAULT_FILE_MODE) -> None:
        """Replace the file by `data`: a reader, and a power cut, finds the old content or the new; durable on return.

        Writes `<path>.tmp`, syncs it, renames it and syncs the folder. Blocks for two syncs: for start and stop only.
        """
        ...

    def exists(self, path: str) -> bool:
        """Tell whether `path` names a file or a folder."""
        ...

    def is_directory(self, path: str) -> bool:
        """Tell whether `path` names a folder."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        ...

    def file_size(self, path: str) -> int:
        """Return the length of a file in bytes."""
        ...

    def allocated_bytes(self, path: str) -> int:
        """Return the space that a file takes: without its holes, and with what is reserved for it."""
        ...

    def modified_ms(self, path: str) -> int:
        """Return when the file was last written, in milliseconds since 1970."""
        ...

    def make_directories(self, path: str) -> None:
        """Make the folder and those above it, as far as they are missing, with DIRECTORY_MODE."""
        ...

    def make_private(self, path: str) -> None:
        """Take the rights of others from a folder and from what is directly in it, as far as that belongs to this user."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or folder within its folder, replacing a file that has the name already; atomic, durable after sync_directory."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file's name. Raises FileNotFoundError where there is none."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a folder with all in it. Not atomic. Raises FileNotFoundError where there is none."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in the folder durable, as they are now; slow."""
        ...

    def lock(self, path: str) -> Lock:
        """Take the exclusive lock at `path`, making the file if need be; never waits.

        Raises:
            AlreadyLockedError: another process, or another lock of this one, holds it.
        """
        ...

    def free_bytes(self, path: str) -> int:
        """Return how many bytes this process may still write on the disk that holds `path`."""
        ...

    def total_bytes(self, path: str) -> int:
        """Return how large the disk is that holds `path`, in bytes."""
        ...

    def absolute_path(self, path: str) -> str:
        """Return the path from the root, however it was given."""
        ...

    def page_cache_id(self) -> str | None:
        """Names the memory that files are written through: while it is the same, all that was written is there, though a process ended.

        None where that isn't known.
        """
        ...
