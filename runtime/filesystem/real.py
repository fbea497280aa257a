"""The machine's own file system. Only this module, `os_file` and `file_space` call `os` for files.

Sources: flock(2), fcntl(2).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from pathlib import Path
from typing import Final

from lowtide.runtime.filesystem.os_file import OpenDescriptor, OsFile
from lowtide.runtime.filesystem.port import (
    DEFAULT_FILE_MODE,
    DIRECTORY_MODE,
    OTHERS,
    TEMPORARY_SUFFIX,
    AlreadyLockedError,
)

_WITHOUT_MODES: Final = frozenset({errno.EOPNOTSUPP, errno.EROFS, errno.ENOSYS})


def _keep_out_others(path: str) -> None:
    """Removes the permissions of other users, unless the file belongs to another user or has no permissions."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & OTHERS:
        with contextlib.suppress(PermissionError):
            try:
                os.chmod(path, mode & ~OTHERS)
            except OSError as error:
                if error.errno not in _WITHOUT_MODES:
                    raise


class _OsLock:
    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: OpenDescriptor) -> None:
        self._descriptor: OpenDescriptor | None = descriptor

    def release(self) -> None:
        self._descriptor = None


class OsFileSystem:
    """The file system of the process. Stateless: any number may exist, in any thread."""

    __slots__ = ()

    block_bytes = 4096

    def open(self, path: str, *, write: bool = False, create: bool = False, mode: int = DEFAULT_FILE_MODE) -> OsFile:
        assert write or not create, path
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0) | os.O_CLOEXEC
        return OsFile(path, os.open(path, flags, mode))

    def read_bytes(self, path: str) -> bytes:
        with open(path, "rb") as stream:
            return stream.read()

    def write_bytes(self, path: str, data: bytes) -> None:
        self._write_whole(path, data, DEFAULT_FILE_MODE)

    def replace_file(self, path: str, data: bytes, *, mode: int = DEFAULT_FILE_MODE) -> None:
        temporary = path + TEMPORARY_SUFFIX
        try:
            self._write_whole(temporary, data, mode).sync()
            os.rename(temporary, path)
        except OSError:
            # On a full disk the incomplete copy would take needed space.
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        self.sync_directory(os.path.dirname(path) or ".")

    def _write_whole(self, path: str, data: bytes, mode: int) -> OsFile:
        """Makes the file contain `data`. `mode` applies from the first byte, even if the file had a wider one."""
        file = OsFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode))
        if mode != DEFAULT_FILE_MODE:
            os.chmod(path, mode)
        else:
            _keep_out_others(path)
        if data:
            file.pwritev([data], 0)
        return file

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def allocated_bytes(self, path: str) -> int:
        return os.stat(path).st_blocks * 512

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def make_directories(self, path: str) -> None:
        # `os.makedirs` would give the mode to the last folder only.
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
        except FileNotFoundError:
            above = os.path.dirname(path.rstrip("/"))
            if not above or os.path.isdir(above):
                raise
            self.make_directories(above)
            self.make_directories(path)

    def make_private(self, path: str) -> None:
        _keep_out_others(path)
        with os.scandir(path) as entries:
            for entry in entries:
                if not entry.is_symlink():
                    _keep_out_others(entry.path)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        try:
            os.rmdir(path)  # Without a descriptor: there may be none left.
        except OSError:
            shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        descriptor = OpenDescriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        os.fsync(descriptor.number)

    def lock(self, path: str) -> _OsLock:
        descriptor = OpenDescriptor(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, DEFAULT_FILE_MODE))
        try:
            # flock excludes a second broker of this process, which fcntl's per-process locks don't. Apache Kafka takes
            # the latter (java.nio FileLock), and the two kinds don't see each other.
            fcntl.flock(descriptor.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(descriptor.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                raise AlreadyLockedError(path) from error
            raise
        return _OsLock(descriptor)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize

    def absolute_path(self, path: str) -> str:
        return os.path.abspath(path)

    def page_cache_id(self) -> str | None:
        # The kernel's boot: changes with a reboot, a power cut, or another machine.
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return None
