"""`python -m tests.power.fuse_disk IMAGE FOLDER SEED UNIT`: serve a `VolatileDisk` as FOLDER/disk, until it is
unmounted.

A loop device over that file passes writes on as they come, and a flush as `fsync`. Reads commands from standard input:
`cut` cuts the power, `flushes` asks how many there were; each is answered by a line. A disk without power answers EIO.
From `lie` on a flush does nothing: cheap disks do that, and a test shows that it is noticed.
"""

from __future__ import annotations

import errno
import random
import stat
import sys
import threading
from typing import Any

import mfusepy

from .volatile_disk import VolatileDisk

NAME = "/disk"


class OneFile(mfusepy.Operations):  # type: ignore[misc]  # without its package it is Any
    """A file system with the disk in it."""

    use_ns = True

    def __init__(self, disk: VolatileDisk) -> None:
        self._disk = disk
        self._lock = threading.Lock()

    def cut(self) -> str:
        with self._lock:
            lost, kept = self._disk.cut()
        return f"{lost} {kept}"

    def flushes(self) -> str:
        return str(self._disk.flushes)

    def lie(self) -> str:
        self._disk.lies = True
        return ""

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
        if path != NAME:
            raise mfusepy.FuseOSError(errno.ENOENT)
        return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": self._disk.size_bytes}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", NAME[1:]]

    def open(self, path: str, flags: int) -> int:
        return 1

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        with self._lock:
            self._check_power()
            return self._disk.read(offset, size)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        with self._lock:
            self._check_power()
            self._disk.write(offset, data)
        return len(data)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        with self._lock:
            self._check_power()
            self._disk.flush()
        return 0

    def _check_power(self) -> None:
        if self._disk.is_cut:
            raise mfusepy.FuseOSError(errno.EIO)


def obey(files: OneFile) -> None:
    """Carry out commands until standard input ends."""
    for line in sys.stdin:
        print({"cut": files.cut, "flushes": files.flushes, "lie": files.lie}[line.strip()](), flush=True)


if __name__ == "__main__":
    files = OneFile(VolatileDisk(sys.argv[1], random.Random(sys.argv[3]), unit=int(sys.argv[4])))
    threading.Thread(target=obey, args=(files,), daemon=True).start()
    mfusepy.FUSE(files, sys.argv[2], foreground=True, nothreads=True)
