"""An open file of the machine.

A descriptor closes with its last reference. So `close` and a call in another thread can't collide on a descriptor
number that the kernel has reused for another file.

Sources: pwritev(2), preadv2(2) for RWF_NOWAIT, fdatasync(2); "PostgreSQL's fsync() surprise"
(lwn.net/Articles/752063).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from lowtide.runtime.filesystem.file_space import UNSUPPORTED_ERRNOS, make_hole, reserve
from lowtide.runtime.filesystem.port import Buffer

PARTS_PER_WRITE_MAX: Final = 1024
"""IOV_MAX of Linux: the kernel refuses a longer list of buffers."""

ZEROS_PER_WRITE: Final = 1 << 20
RWF_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)


def _sync_function() -> Callable[[int], None]:
    """Returns the cheapest durable sync: macOS's fsync doesn't reach the platter, F_FULLFSYNC does."""
    full_sync: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:
        command = full_sync

        def sync_fully(descriptor: int) -> None:
            fcntl.fcntl(descriptor, command)

        return sync_fully
    return os.fdatasync


_sync_descriptor = _sync_function()


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Adds the path to errors of calls that know only a descriptor."""
    try:
        yield
    except OSError as error:
        error.filename = path
        raise


class OpenDescriptor:
    """Owns a descriptor number, and closes it with the last reference."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        # The sync reported what close(2) could report; no caller can handle it here.
        with contextlib.suppress(OSError):
            os.close(self.number)


class OsFile:
    """An open file of the machine."""

    __slots__ = ("__weakref__", "_descriptor", "_nowait_flag", "_path")

    def __init__(self, path: str, number: int) -> None:
        self._path = path
        self._descriptor: OpenDescriptor | None = OpenDescriptor(number)
        self._nowait_flag = RWF_NOWAIT

    def __repr__(self) -> str:
        return f"OsFile({self._path!r}{'' if self._descriptor else ', closed'})"

    @property
    def path(self) -> str:
        return self._path

    @property
    def descriptor(self) -> OpenDescriptor | None:
        """Returns the file descriptor, or None if the file is closed. A reference to it keeps the file open."""
        return self._descriptor

    def _opened(self) -> OpenDescriptor:
        # Callers keep the returned object in a local variable while they use its number, which keeps it open.
        descriptor = self._descriptor
        if descriptor is None:
            raise OSError(errno.EBADF, "the file is closed", self._path)
        return descriptor

    def pread(self, size: int, position: int) -> bytes:
        assert size >= 0 <= position, (self._path, size, position)
        descriptor = self._opened()
        with _naming(self._path):
            data = os.pread(descriptor.number, size, position)
            if len(data) == size or not data:
                return data
            parts, missing = [data], size - len(data)
            while missing and (data := os.pread(descriptor.number, missing, position + size - missing)):
                parts.append(data)
                missing -= len(data)
            return b"".join(parts)

    def preadv(self, buffers: Sequence[bytearray | memoryview], position: int, *, nowait: bool = False) -> int:
        assert position >= 0, (self._path, position)
        descriptor = self._opened()
        try:
            if nowait and self._nowait_flag:
                try:
                    return os.preadv(descriptor.number, buffers, position, self._nowait_flag)
                except OSError as error:
                    if error.errno not in UNSUPPORTED_ERRNOS:
                        raise
                    self._nowait_flag = 0
            read_bytes = os.preadv(descriptor.number, buffers, position)
            wanted = sum(map(len, buffers))
            while 0 < read_bytes < wanted:
                more = os.preadv(descriptor.number, _after(buffers, read_bytes), position + read_bytes)
                if more == 0:
                    break
                read_bytes += more
        except OSError as error:
            error.filename = self._path
            raise
        return read_bytes

    def pwritev(self, parts: Sequence[Buffer], position: int) -> None:
        assert position >= 0, (self._path, position)
        descriptor = self._descriptor or self._opened()
        wanted = sum(map(len, parts))
        try:
            written = os.pwritev(
                descriptor.number, parts if len(parts) <= PARTS_PER_WRITE_MAX else parts[:PARTS_PER_WRITE_MAX], position
            )
            while written < wanted:
                more = os.pwritev(descriptor.number, _after(parts, written)[:PARTS_PER_WRITE_MAX], position + written)
                if more == 0:
                    raise OSError(errno.EIO, f"the kernel wrote {written} of {wanted} bytes and no more")  # noqa: TRY301 - named below
                written += more
        except OSError as error:
            error.filename = self._path
            raise

    def truncate(self, size: int) -> None:
        assert size >= 0, (self._path, size)
        descriptor = self._opened()
        with _naming(self._path):
            os.ftruncate(descriptor.number, size)

    def allocate(self, size: int) -> None:
        assert size > 0, (self._path, size)
        descriptor = self._opened()
        with _naming(self._path):
            if reserve(descriptor.number, size):
                return
        for position in range(self.size(), size, ZEROS_PER_WRITE):
            self.pwritev([bytes(min(ZEROS_PER_WRITE, size - position))], position)

    def punch(self, position: int, size: int) -> None:
        assert size > 0 <= position, (self._path, position, size)
        descriptor = self._opened()
        make_hole(self._path, descriptor.number, position, size)

    def size(self) -> int:
        descriptor = self._opened()
        with _naming(self._path):
            return os.fstat(descriptor.number).st_size

    def sync(self) -> None:
        descriptor = self._opened()
        try:
            _sync_descriptor(descriptor.number)
        except OSError as error:
            error.filename = self._path
            raise

    def close(self) -> None:
        self._descriptor = None


def _after(parts: Sequence[Buffer], done: int) -> list[memoryview]:
    """Returns what follows the first `done` bytes of `parts`, uncopied."""
    rest = []
    for part in parts:
        if done < len(part):
            rest.append(memoryview(part)[done:])
        done = max(0, done - len(part))
    return rest
