"""Small file systems of a test's own, which can be filled up. Only root can mount them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_BLOCK = bytes(4096)


def missing_mounts() -> str | None:
    """The reason why nothing can be mounted here; None if mounting works."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return "a full disk needs a small file system, which only root can mount"
    folder = tempfile.mkdtemp()
    done = _mount(folder, 64 << 10)
    if done.returncode == 0:
        subprocess.run(["umount", folder], check=True)
    Path(folder).rmdir()
    return None if done.returncode == 0 else f"a small file system can't be mounted here: {done.stderr.strip()}"


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of this size in memory, mounted at `folder`, which is made."""
    folder.mkdir()
    _mount(str(folder), size_bytes).check_returncode()
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


class Ballast:
    """A file that takes the room of a disk."""

    def __init__(self, disk: Path) -> None:
        self._path = disk / "ballast"

    def drop_in(self, room_bytes: int) -> None:
        """Leave so much free space."""
        status = os.statvfs(self._path.parent)
        size = status.f_bavail * status.f_frsize - room_bytes
        assert size > 0
        self._path.write_bytes(bytes(size))

    def fill_up(self) -> None:
        """Leave no free space."""
        with self._path.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(_BLOCK)

    def throw_out(self) -> None:
        self._path.unlink()


def _mount(folder: str, size_bytes: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
