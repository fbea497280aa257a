"""An open file of the simulated disk."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from lowtide.runtime.filesystem.nodes import FileNode
from lowtide.runtime.filesystem.planned_faults import Operation
from lowtide.runtime.filesystem.port import Buffer, CannotPunchError
from lowtide.runtime.filesystem.tree import path_error
from lowtide.runtime.random import Random


class FileDisk(Protocol):
    """What a file needs of its disk."""

    lives_count: int
    random: Random | None
    can_punch: bool
    cold_read_probability: float
    fault_counts: Counter[str]
    now_ms: Callable[[], int]

    def begin(self, operation: Operation, path: str) -> None:
        """Raises the fault that is due, if any."""

    def free_bytes(self, path: str) -> int:
        """Returns how many bytes fit on the disk."""


class SimulatedCrashError(BaseException):
    """The process dies here. No `except Exception` may stop it; the simulation catches it and crashes the process."""


class MemoryFile:
    """A handle of a simulated file; dead once the process or the machine has died."""

    __slots__ = ("__weakref__", "_disk", "_life", "_node", "_path", "_writable")

    def __init__(self, disk: FileDisk, path: str, node: FileNode, *, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._writable = writable
        self._life = disk.lives_count

    def __repr__(self) -> str:
        return f"MemoryFile({self._path!r})"

    @property
    def path(self) -> str:
        return self._path

    @property
    def is_open(self) -> bool:
        return self._life == self._disk.lives_count

    def _check(self, operation: Operation) -> FileNode:
        """Returns the content if the handle lives and no fault is due."""
        if self._life != self._disk.lives_count:
            raise path_error(errno.EBADF, self._path)
        if operation in {"write", "truncate", "punch"} and not self._writable:
            raise path_error(errno.EBADF, self._path)
        self._disk.begin(operation, self._path)
        return self._node

    def pread(self, size: int, position: int) -> bytes:
        assert size >= 0 <= position, (self._path, size, position)
        return self._check("read").read(size, position)

    def preadv(self, buffers: Sequence[bytearray | memoryview], position: int, *, nowait: bool = False) -> int:
        assert position >= 0, (self._path, position)
        node = self._check("read")
        if nowait and self._is_cold_read():
            raise BlockingIOError(errno.EAGAIN, "the pages are not in memory", self._path)
        total = 0
        for buffer in buffers:
            data = node.read(len(buffer), position + total)
            memoryview(buffer)[: len(data)] = data
            total += len(data)
            if len(data) < len(buffer):
                break
        return total

    def pwritev(self, parts: Sequence[Buffer], position: int) -> None:
        assert position >= 0, (self._path, position)
        data = b"".join(parts)
        try:
            node = self._check("write")
        except (OSError, SimulatedCrashError) as error:
            if not isinstance(error, OSError) or error.errno != errno.EBADF:
                self._write(self._node, data[: self._random_below(len(data) + 1)], position)
            raise
        self._write(node, data, position)

    def _write(self, node: FileNode, data: bytes, position: int) -> None:
        """Writes what fits; raises ENOSPC if that isn't everything."""
        growth = position + len(data) - node.size
        lacking = growth - self._disk.free_bytes(self._path) if growth > 0 else 0
        fitting = data if lacking <= 0 else data[: max(0, len(data) - lacking)]
        if fitting:
            node.write(fitting, position, self._disk.now_ms())
        if lacking > 0:
            self._disk.fault_counts["no_space"] += 1
            raise path_error(errno.ENOSPC, self._path)

    def truncate(self, size: int) -> None:
        assert size >= 0, (self._path, size)
        self._check("truncate").truncate(size, self._disk.now_ms())

    def allocate(self, size: int) -> None:
        assert size > 0, (self._path, size)
        node = self._check("write")
        if size - node.size > self._disk.free_bytes(self._path):
            self._disk.fault_counts["no_space"] += 1
            raise path_error(errno.ENOSPC, self._path)
        if size > node.size:
            node.truncate(size, self._disk.now_ms())

    def punch(self, position: int, size: int) -> None:
        assert size > 0 <= position, (self._path, position, size)
        node = self._check("punch")
        if not self._disk.can_punch:
            raise CannotPunchError(self._path)
        node.punch(position, size, self._disk.now_ms())

    def size(self) -> int:
        if self._life != self._disk.lives_count:
            raise path_error(errno.EBADF, self._path)
        return self._node.size

    def sync(self) -> None:
        try:
            node = self._check("sync")
        except OSError as error:
            # The kernel reports a failed write-back once and then considers the pages clean: what had not arrived never
            # will.
            if error.errno != errno.EBADF:
                self._node.settle(self._disk.random)
            raise
        node.sync()

    def close(self) -> None:
        self._life = -1

    def _random_below(self, limit: int) -> int:
        """Returns a number from 0 to `limit` (exclusive); 0 without randomness."""
        return self._disk.random.randrange(limit) if self._disk.random is not None else 0

    def _is_cold_read(self) -> bool:
        """Returns at random whether a read would have to wait."""
        disk = self._disk
        return (
            disk.random is not None
            and disk.cold_read_probability > 0
            and disk.random.random() < disk.cold_read_probability
        )
