"""A real file system on a disk that loses what it hasn't flushed when its power is cut: ext4, XFS or btrfs over loop
over FUSE.

Only root can make one, where the machine has loop devices, FUSE with libfuse3, and the tools of the file system.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).resolve().parents[2]
UNIT_BYTES: Final = {"ext4": 512, "xfs": 4096, "btrfs": 4096}
"""The unit that a file system writes atomically. XFS skips a block whose first sector is newer than the log."""

IMAGE_BYTES: Final = {"ext4": 256 << 20, "xfs": 512 << 20, "btrfs": 512 << 20}
_MAKE: Final = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}
_LIMIT_S: Final = 120.0


def missing(kind: str) -> str | None:
    """Returns why no such disk can be created here, or None."""
    if os.geteuid() != 0:
        return "only root can mount a disk"
    if not Path("/dev/fuse").exists() or not Path("/dev/loop-control").exists():
        return "there is no /dev/fuse or no /dev/loop-control"
    if importlib.util.find_spec("mfusepy") is None or ctypes.util.find_library("fuse3") is None:
        return "mfusepy or libfuse3 isn't installed"
    tools = [
        tool for tool in (_MAKE[kind][0], "losetup", "mount", "umount", "fusermount3") if shutil.which(tool) is None
    ]
    return f"{', '.join(tools)} can't be found" if tools else None


class PoweredDisk:
    """One disk over all its cuts. Used as `with`: nothing is mounted in the end."""

    def __init__(self, folder: Path, kind: str, seed: int) -> None:
        """`folder` gets the image and both mounts; `path` is where the file system is."""
        self.path = folder / "mounted"
        self._fuse, self._image = folder / "fuse", folder / "image"
        self._kind, self._seed, self._lives = kind, seed, 0
        self._server: subprocess.Popen[str] | None = None
        self._loop = ""
        self.lost = self.kept = 0
        """Units that weren't flushed when the power went, and those of them that survived."""

    def __enter__(self) -> Self:
        self.path.mkdir()
        self._fuse.mkdir()
        with self._image.open("wb") as image:
            image.truncate(IMAGE_BYTES[self._kind])
        run(*_MAKE[self._kind], str(self._image))
        self.switch_on()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._take_apart()

    def switch_on(self) -> None:
        """The file system recovers, and is there."""
        self._lives += 1
        words = [
            sys.executable,
            "-m",
            "tests.power.fuse_disk",
            str(self._image),
            str(self._fuse),
            f"{self._seed} {self._lives}",
        ]
        words.append(str(UNIT_BYTES[self._kind]))
        self._server = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        file = self._fuse / "disk"
        until(file.exists, "the disk")
        self._loop = run("losetup", "--find", "--show", str(file)).strip()
        run("mount", "-t", self._kind, self._loop, str(self.path))

    def cut(self) -> None:
        """The power goes. Nothing may use the file system; `switch_on` follows."""
        lost, kept = self._command("cut").split()
        self.lost, self.kept = self.lost + int(lost), self.kept + int(kept)
        self._take_apart()

    def flushes(self) -> int:
        """Returns the number of flushes since the disk was switched on."""
        return int(self._command("flushes"))

    def lie(self) -> None:
        """Flushes have no effect from now on, so a power cut loses all later writes."""
        self._command("lie")

    def _command(self, word: str) -> str:
        assert self._server is not None
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{word}\n")
        self._server.stdin.flush()
        return self._server.stdout.readline()

    def _take_apart(self) -> None:
        assert self._server is not None
        # What isn't written yet can't be any more: the file system may complain, and ends all the same.
        subprocess.run(["umount", str(self.path)], capture_output=True, check=False)
        if os.path.ismount(self.path):
            run("umount", "--lazy", str(self.path))
        if self._loop:
            run("losetup", "--detach", self._loop)
            until(lambda: not Path(f"/sys/block/{Path(self._loop).name}/loop").exists(), "the end of the loop device")
        run("fusermount3", "-u", str(self._fuse))
        self._server.wait(_LIMIT_S)
        for pipe in (self._server.stdin, self._server.stdout):
            assert pipe is not None
            pipe.close()
        self._server, self._loop = None, ""


def run(*words: str) -> str:
    """Errors: CalledProcessError."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"
    return done.stdout


def until(condition: object, what: str) -> None:
    """Polls: the kernel does it."""
    ends = time.monotonic() + _LIMIT_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < ends, f"{what} never came"
        time.sleep(0.01)
