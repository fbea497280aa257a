"""The simulated disk: a file system in memory that knows what a power cut leaves.

Every file and folder has two states: what the process sees, and what the platter holds, with the list of changes
between them. `sync` and `sync_directory` empty those lists; `power_cut` decides at random:

* Each unsynced change of a file is kept, lost, or torn: some of its 512-byte sectors arrive; the file may have grown
  over the others, which are zeros; some sectors of a torn hole are zeros. Each change is decided separately, so a
  later one may survive an earlier one.
* Of each folder's unsynced changes (create, rename, remove) a prefix survives; folders are independent of each other.

That is deliberately harsher than ext4 in its usual mode: code that survives it relies only on the port's promises. Not
modelled: renames between folders, hard links, permissions, space of removed files that are still open.

Sources: "All File Systems Are Not Created Equal" (Pillai and others, OSDI 2014) for what file systems reorder;
fsync(2).
"""

from __future__ import annotations

import errno
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Final

from lowtide.runtime.filesystem.memory_file import MemoryFile, SimulatedCrashError
from lowtide.runtime.filesystem.nodes import BLOCK_BYTES, FileNode, Folder, FolderChange
from lowtide.runtime.filesystem.planned_faults import NEED_ROOM, Operation, PlannedFaults
from lowtide.runtime.filesystem.port import (
    DEFAULT_FILE_MODE,
    TEMPORARY_SUFFIX,
    AlreadyLockedError,
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

__all__ = ["FREE_BYTES_UNLIMITED", "MemoryFile", "MemoryFileSystem", "SimulatedCrashError"]

FREE_BYTES_UNLIMITED: Final = 1 << 40
"""`free_bytes` without a capacity."""


class _MemoryLock:
    __slots__ = ("_locks", "_path")

    def __init__(self, locks: dict[str, _MemoryLock], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        if self._locks.get(self._path) is self:
            del self._locks[self._path]


class MemoryFileSystem:
    """A disk in memory, with the durability rules described above.

    `random` decides what faults leave behind; without it they leave as little as allowed. `now_ms` dates the files.
    `capacity_bytes` may be set at any time; None is no limit. `cold_read_probability` is the share of failing `nowait`
    reads. `can_punch` tells whether it makes holes in files. `open_files_max` limits open handles (RLIMIT_NOFILE); an
    open or a folder sync beyond it fails with EMFILE. `fault_counts` counts the effective faults by kind: a simulation
    that never lost a write has tested nothing. `lacks_room` is called with the path before each operation that needs
    space (`NEED_ROOM`): True fails it with ENOSPC. `operation_count` counts operations that may change the disk. Before
    number `crash_at` (None: never) takes effect, `on_crash` is called; that operation and all later ones raise
    SimulatedCrashError until crash_process or power_cut.
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
        self.block_bytes = BLOCK_BYTES
        self.lives_count = self.power_cuts = 0
        self._crashed = False
        self.root = Folder()
        self._planned = PlannedFaults()
        self._handles: weakref.WeakSet[MemoryFile] = weakref.WeakSet()
        self._locks: dict[str, _MemoryLock] = {}

    def fail_next(self, operation: Operation, error_number: int, count: int = 1, path_contains: str = "") -> None:
        """Makes the next `count` operations on paths that contain `path_contains` fail.

        A failing write may have written some of its bytes; a failing sync has settled at random, for good, what is
        durable.
        """
        self._planned.add(operation, error_number, count, path_contains)

    def clear_faults(self) -> None:
        """Cancels pending faults and the pending crash."""
        self._planned.clear()
        self.lacks_room = None
        self.crash_at = None
        self._crashed = False

    def crash_process(self) -> None:
        """Kills the process but not the machine: written data stays, handles are dead, locks are free."""
        self.lives_count += 1
        self._locks.clear()
        self.clear_faults()

    def power_cut(self, random: Random | None = None) -> None:
        """Kills the machine: unsynced data is decided at random, and the rest is durable."""
        self.crash_process()
        self.power_cuts += 1
        self.root.power_cut(random or self.random, self.fault_counts)

    def contents(self, path: str) -> dict[str, bytes]:
        """Returns a folder's files with their contents, for checkers; not an operation that can fail."""
        files = folder_at(self.root, path).entries.items()
        return {name: node.read(node.size, 0) for name, node in files if isinstance(node, FileNode)}

    def begin(self, operation: Operation, path: str) -> None:
        """Counts an operation that is about to happen, or raises its fault."""
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

    def open(
        self, path: str, *, write: bool = False, create: bool = False, mode: int = DEFAULT_FILE_MODE
    ) -> MemoryFile:
        assert write or not create, path
        self.begin("open", path)
        folder, name = parent_of(self.root, path)
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
                parent_of(self.root, temporary)[0].change(FolderChange(removed=path_parts(temporary)[-1]))
            raise
        self.sync_directory(path.rpartition("/")[0] or ("/" if path.startswith("/") else "."))

    def exists(self, path: str) -> bool:
        return find(self.root, path) is not None

    def is_directory(self, path: str) -> bool:
        return isinstance(find(self.root, path), Folder)

    def listdir(self, path: str) -> list[str]:
        return sorted(folder_at(self.root, path).entries)

    def file_size(self, path: str) -> int:
        return file_at(self.root, path).size

    def allocated_bytes(self, path: str) -> int:
        return file_at(self.root, path).allocated_bytes

    def modified_ms(self, path: str) -> int:
        return file_at(self.root, path).modified_ms

    def make_private(self, path: str) -> None: ...  # Permissions are not modelled.

    def make_directories(self, path: str) -> None:
        folder = self.root
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
        folder, source_name = parent_of(self.root, source)
        target_name = path_parts(target)[-1]
        node, replaced = folder.entries.get(source_name), folder.entries.get(target_name)
        if node is None:
            raise path_error(errno.ENOENT, source)
        if node is not replaced:
            check_replacing(node, replaced, target)
            folder.change(FolderChange(added=target_name, node=node, removed=source_name))

    def unlink(self, path: str) -> None:
        self.begin("unlink", path)
        if isinstance(find(self.root, path), Folder):
            raise path_error(errno.EISDIR, path)
        file_at(self.root, path)
        folder, name = parent_of(self.root, path)
        folder.change(FolderChange(removed=name))

    def remove_tree(self, path: str) -> None:
        folder = folder_at(self.root, path)
        for name, node in sorted(folder.entries.items()):
            inner = f"{path}/{name}"
            if isinstance(node, Folder):
                self.remove_tree(inner)
            else:
                self.unlink(inner)
        self.begin("unlink", path)
        parent, name = parent_of(self.root, path)
        parent.change(FolderChange(removed=name))

    def sync_directory(self, path: str) -> None:
        folder = folder_at(self.root, path)
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
        return max(0, self.capacity_bytes - sum(node.allocated_bytes for node in files_below(self.root)))

    def total_bytes(self, path: str) -> int:
        folder_at(self.root, path)
        return FREE_BYTES_UNLIMITED if self.capacity_bytes is None else self.capacity_bytes

    def page_cache_id(self) -> str | None:
        return str(self.power_cuts)

    def absolute_path(self, path: str) -> str:
        return "/" + "/".join(path_parts(path))
