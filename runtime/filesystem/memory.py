"""The simulated disk: a file system in memory that knows what a power cut would leave.

Every file and every folder exists twice: as the process sees it, and as the platter holds it, with the list of changes
between the two. `sync` and `sync_directory` empty those lists; `power_cut` lets chance decide over them:

* each unsynced change of a file is kept, lost, or torn: some of its 512-byte sectors arrive, the file may have grown over the others,
  and they are zeros; of a torn hole some sectors are zeros. Changes are decided one by one, so a later one may survive
  an earlier one.
* of each folder's unsynced changes (create, rename, remove) a prefix survives; folders are independent of each other.

That is harsher than ext4 in its usual mode, on purpose: code that survives it relies on nothing but what the port
promises. Not modelled: renames between folders, hard links, permissions, space held by removed files that are still
open.

Sources: "All File Systems Are Not Created Equal" (Pillai and others, OSDI 2014) for what file systems reorder;
fsync(2).
"""

from __future__ import annotations

import errno
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from lowtide.runtime.filesystem.nodes import FileNode, Folder, FolderChange
from lowtide.runtime.filesystem.planned_faults import NEED_ROOM, Operation, PlannedFaults
from lowtide.runtime.filesystem.port import (
    DEFAULT_FILE_MODE,
    TEMPORARY_SUFFIX,
    AlreadyLockedError,
    Buffer,
    CannotPunchError,
)
from lowtide.runtime.filesystem.tree import (
    check_replacing,
    file_at,
    files_below,
    find,
    folder_at,
    parent_of,
    path_error,
    path_parts,
)
from lowtide.runtime.random import Random

FREE_BYTES_UNLIMITED: Final = 1 << 40
"""What `free_bytes` answers while no capacity is set."""


class SimulatedCrashError(BaseException):
    """The process dies here.

    No `except Exception` may stop it; the simulation catches it and calls crash_process or power_cut.
    """


class MemoryFile:
    """A handle on a simulated file; dead once the process or the machine has died."""

    __slots__ = ("__weakref__", "_disk", "_life", "_node", "_path", "_writable")

    def __init__(self, disk: MemoryFileSystem, path: str, node: FileNode, *, writable: bool) -> None:
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
        """Whether it wasn't closed, and its process lives."""
        return self._life == self._disk.lives_count

    def _check(self, operation: Operation) -> FileNode:
        """Return the content if the handle lives and no fault waits for the operation."""
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
        if nowait and self._disk.is_cold_read():
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
                self._write(self._node, data[: self._disk.random_below(len(data) + 1)], position)
            raise
        self._write(node, data, position)

    def _write(self, node: FileNode, data: bytes, position: int) -> None:
        """Write what there is space for; complain if that is not all."""
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
            # The kernel tells a failed write-back once and then takes the pages for clean: what had not arrived by now
            # never will.
            if error.errno != errno.EBADF:
                self._node.settle(self._disk.random)
            raise
        node.sync()

    def close(self) -> None:
        self._life = -1


class _MemoryLock:
    __slots__ = ("_locks", "_path")

    def __init__(self, locks: dict[str, _MemoryLock], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        if self._locks.get(self._path) is self:
            del self._locks[self._path]


class MemoryFileSystem:
    """A disk in memory, with the rules of durability described above.

    `random` decides what faults leave behind; without it they leave as little as they may. `now_ms` dates the files.
    `capacity_bytes` may be set at any time; None is no limit. `cold_read_probability` is the share of `nowait` reads that fail.
    `can_punch` says whether it makes holes in files.
    `open_files_max` is how many handles may be alive (RLIMIT_NOFILE); an open or a sync of a folder beyond it fails with EMFILE.
    `fault_counts` counts the faults that had an effect, by kind: a simulation that never lost a write has tested nothing.
    `lacks_room` is asked before each operation that may need room (`NEED_ROOM`), with the path: True lets it fail with ENOSPC.
    `operation_count` counts what may change the disk; before number `crash_at` (None: never) takes effect, `on_crash` is called and
    the operation raises SimulatedCrashError, as does every later one: nothing more changes until crash_process or
    power_cut.
    """

    def __init__(self, random: Random | None = None, now_ms: Callable[[], int] | None = None) -> None:
        self.random = random
        self.now_ms: Callable[[], int] = now_ms if now_ms is not None else lambda: 0
        self.capacity_bytes: int | None = None
        self.cold_read_probability = 0.0
        self.open_files_max: int | None = None
        self.fault_counts: Counter[str] = Counter()
        self.operation_count = 0
        self.crash_at: int | None = None
        self.on_crash: Callable[[], None] = lambda: None
        self.lacks_room: Callable[[Operation, str], bool] | None = None
        self.can_punch = True
        self.lives_count = self.power_cuts = 0
        self._crashed = False
        self._root = Folder()
        self._planned = PlannedFaults()
        self._handles: weakref.WeakSet[MemoryFile] = weakref.WeakSet()
        self._locks: dict[str, _MemoryLock] = {}

    # Faults and deaths

    def fail_next(self, operation: Operation, error_number: int, count: int = 1, path_contains: str = "") -> None:
        """Let the next `count` operations on paths that contain `path_contains` fail with the errno.

        A failing write may have written some of its bytes, and a failing sync has settled by chance what is durable,
        for good.
        """
        self._planned.add(operation, error_number, count, path_contains)

    def clear_faults(self) -> None:
        """Take back the faults that have not struck yet, and the crash that has not come."""
        self._planned.clear()
        self.lacks_room = None
        self.crash_at = None
        self._crashed = False

    def crash_process(self) -> None:
        """The process dies, the machine does not: nothing written is lost, handles are dead, locks are free."""
        self.lives_count += 1
        self._locks.clear()
        self.clear_faults()

    def power_cut(self, random: Random | None = None) -> None:
        """The machine dies: chance decides over everything that was not synced, and what is left is durable."""
        self.crash_process()
        self.power_cuts += 1
        self._root.power_cut(random or self.random, self.fault_counts)

    def contents(self, path: str) -> dict[str, bytes]:
        """For checkers: a folder's files with what is in them.

        No operation of the disk: no fault strikes, and none is counted.
        """
        files = folder_at(self._root, path).entries.items()
        return {name: node.read(node.size, 0) for name, node in files if isinstance(node, FileNode)}

    def copy_disk(self) -> Folder:
        """A copy of everything, such as a backup that is restored later."""
        return self._root.copy()

    def replace_disk(self, root: Folder) -> None:
        """While it is not in use: everything is gone, and `root`, of `copy_disk` or empty, is there instead."""
        self._root = root

    def begin(self, operation: Operation, path: str) -> None:
        """Count an operation that is about to happen, and let the fault that waits for it happen instead."""
        if (
            operation in {"open", "sync_directory"}
            and self.open_files_max is not None
            and self.open_files_count >= self.open_files_max
        ):
            self.fault_counts["no_descriptor"] += 1
            raise path_error(errno.EMFILE, path)
        if operation not in {"read", "open"}:
            self.operation_count += 1
            if self.crash_at is not None and self.operation_count >= self.crash_at:
                if not self._crashed:
                    self._crashed = True
                    self.fault_counts["crash"] += 1
                    self.on_crash()
                raise SimulatedCrashError(f"before {operation} of {path}, operation {self.operation_count}")
        if self.lacks_room is not None and operation in NEED_ROOM and self.lacks_room(operation, path):
            self.fault_counts["no_space"] += 1
            raise path_error(errno.ENOSPC, path)
        error_number = self._planned.strike(operation, path)
        if error_number is not None:
            self.fault_counts[operation] += 1
            raise path_error(error_number, path)

    def random_below(self, limit: int) -> int:
        """Return a number from 0 to `limit` (exclusive); 0 without randomness."""
        return self.random.randrange(limit) if self.random is not None else 0

    def is_cold_read(self) -> bool:
        """Throw the dice whether a read that must not wait would have to."""
        return (
            self.random is not None
            and self.cold_read_probability > 0
            and self.random.random() < self.cold_read_probability
        )

    # The port

    def open(
        self, path: str, *, write: bool = False, create: bool = False, mode: int = DEFAULT_FILE_MODE
    ) -> MemoryFile:
        assert write or not create, path
        self.begin("open", path)
        folder, name = parent_of(self._root, path)
        node = folder.entries.get(name)
        if node is None:
            if not create:
                raise path_error(errno.ENOENT, path)
            self.begin("create", path)
            node = FileNode(self.now_ms())
            folder.change(FolderChange(added=name, node=node))
        if isinstance(node, Folder):
            raise path_error(errno.EISDIR, path)
        file = MemoryFile(self, path, node, writable=write)
        self._handles.add(file)
        return file

    @property
    def open_files_count(self) -> int:
        """How many handles are open."""
        return sum(file.is_open for file in self._handles)

    def read_bytes(self, path: str) -> bytes:
        file = self.open(path)
        return file.pread(file.size(), 0)

    def write_bytes(self, path: str, data: bytes) -> None:
        file = self.open(path, write=True, create=True)
        file.truncate(0)
        if data:
            file.pwritev([data], 0)

    def replace_file(self, path: str, data: bytes, *, mode: int = DEFAULT_FILE_MODE) -> None:
        del mode
        temporary = path + TEMPORARY_SUFFIX
        try:
            self.write_bytes(temporary, data)
            self.open(temporary, write=True).sync()
            self.rename(temporary, path)
        except OSError:
            if self.exists(temporary):
                parent_of(self._root, temporary)[0].change(FolderChange(removed=path_parts(temporary)[-1]))
            raise
        self.sync_directory(path.rpartition("/")[0] or ("/" if path.startswith("/") else "."))

    def exists(self, path: str) -> bool:
        return find(self._root, path) is not None

    def is_directory(self, path: str) -> bool:
        return isinstance(find(self._root, path), Folder)

    def listdir(self, path: str) -> list[str]:
        return sorted(folder_at(self._root, path).entries)

    def file_size(self, path: str) -> int:
        return file_at(self._root, path).size

    def allocated_bytes(self, path: str) -> int:
        return file_at(self._root, path).allocated_bytes

    def modified_ms(self, path: str) -> int:
        return file_at(self._root, path).modified_ms

    def make_private(self, path: str) -> None: ...  # Permissions are not modelled.

    def make_directories(self, path: str) -> None:
        folder = self._root
        for name in path_parts(path):
            if (node := folder.entries.get(name)) is None:
                self.begin("make_directory", path)
                node = Folder()
                folder.change(FolderChange(added=name, node=node))
            if not isinstance(node, Folder):
                raise path_error(errno.EEXIST, path)
            folder = node

    def rename(self, source: str, target: str) -> None:
        assert path_parts(source)[:-1] == path_parts(target)[:-1], (
            f"a rename between folders is not modelled: {source} to {target}"
        )
        self.begin("rename", source)
        folder, source_name = parent_of(self._root, source)
        target_name = path_parts(target)[-1]
        node, replaced = folder.entries.get(source_name), folder.entries.get(target_name)
        if node is None:
            raise path_error(errno.ENOENT, source)
        if node is not replaced:
            check_replacing(node, replaced, target)
            folder.change(FolderChange(added=target_name, node=node, removed=source_name))

    def unlink(self, path: str) -> None:
        self.begin("unlink", path)
        if isinstance(find(self._root, path), Folder):
            raise path_error(errno.EISDIR, path)
        file_at(self._root, path)
        folder, name = parent_of(self._root, path)
        folder.change(FolderChange(removed=name))

    def remove_tree(self, path: str) -> None:
        folder = folder_at(self._root, path)
        for name, node in sorted(folder.entries.items()):
            inner = f"{path}/{name}"
            if isinstance(node, Folder):
                self.remove_tree(inner)
            else:
                self.unlink(inner)
        self.begin("unlink", path)
        parent, name = parent_of(self._root, path)
        parent.change(FolderChange(removed=name))

    def sync_directory(self, path: str) -> None:
        folder = folder_at(self._root, path)
        self.begin("sync_directory", path)
        folder.sync()

    def lock(self, path: str) -> _MemoryLock:
        if path in self._locks:
            raise AlreadyLockedError(path)
        self.open(path, write=True, create=True)
        lock = self._locks[path] = _MemoryLock(self._locks, path)
        return lock

    def free_bytes(self, path: str) -> int:
        del path
        if self.capacity_bytes is None:
            return FREE_BYTES_UNLIMITED
        return max(0, self.capacity_bytes - sum(node.allocated_bytes for node in files_below(self._root)))

    def total_bytes(self, path: str) -> int:
        folder_at(self._root, path)
        return FREE_BYTES_UNLIMITED if self.capacity_bytes is None else self.capacity_bytes

    def page_cache_id(self) -> str | None:
        return str(self.power_cuts)

    def absolute_path(self, path: str) -> str:
        return "/" + "/".join(path_parts(path))
