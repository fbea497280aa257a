"""Behaviour of the real disk that the simulated one does not have."""

from __future__ import annotations

import errno
import gc
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from lowtide.runtime.filesystem import AlreadyLockedError, Buffer, OsFileSystem, os_file


@pytest.fixture
def disk() -> OsFileSystem:
    return OsFileSystem()


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_a_short_write_is_continued(disk: OsFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may write fewer bytes than requested, for instance on a signal.

    The rest must follow at the right position.
    """
    whole = os.pwritev

    def at_most_three(number: int, parts: Sequence[Buffer], position: int) -> int:
        return whole(number, [b"".join(parts)[:3]], position)

    monkeypatch.setattr(os, "pwritev", at_most_three)
    file = disk.open(str(tmp_path / "a"), write=True, create=True)
    file.pwritev([b"ab", b"", memoryview(b"cdefg"), bytearray(b"hi")], 2)
    assert file.pread(99, 0) == b"\0\0abcdefghi"


def test_a_write_without_progress_raises_and_does_not_hang(
    disk: OsFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(str(tmp_path / "a"), write=True, create=True)
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(OSError, match="0 of 1 bytes") as caught:
        file.pwritev([b"x"], 0)
    assert caught.value.filename == str(tmp_path / "a")


def test_more_parts_than_the_kernel_takes_at_once(disk: OsFileSystem, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "a"), write=True, create=True)
    parts = [b"%04d" % number for number in range(2 * os_file.PARTS_PER_WRITE_MAX + 7)]
    file.pwritev(parts, 0)
    assert file.pread(1 << 20, 0) == b"".join(parts)


def test_short_reads_are_continued(disk: OsFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.write_bytes(str(tmp_path / "a"), b"0123456789")
    file = disk.open(str(tmp_path / "a"))
    read, read_into = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda number, size, position: read(number, min(size, 3), position))
    monkeypatch.setattr(
        os, "preadv", lambda number, buffers, position: read_into(number, [memoryview(buffers[0])[:3]], position)
    )
    assert file.pread(8, 1) == b"12345678"
    assert file.pread(99, 1) == b"123456789"
    first, second = bytearray(4), bytearray(5)
    assert file.preadv([first, second], 0) == 9
    assert [bytes(first), bytes(second)] == [b"0123", b"45678"]


def test_without_nowait_in_the_kernel_the_read_may_block(
    disk: OsFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.write_bytes(str(tmp_path / "a"), b"0123456789")
    plain, flags_seen = os.preadv, []

    def without_flags(number: int, buffers: Sequence[bytearray], position: int, flags: int = 0) -> int:
        flags_seen.append(flags)
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return plain(number, buffers, position)

    monkeypatch.setattr(os, "preadv", without_flags)
    monkeypatch.setattr(os_file, "RWF_NOWAIT", 8)
    file = disk.open(str(tmp_path / "a"))
    buffer = bytearray(4)
    assert file.preadv([buffer], 2, nowait=True) == 4
    assert file.preadv([buffer], 3, nowait=True) == 4
    assert buffer == b"3456"
    assert flags_seen == [8, 0, 0], "the flag is tried once per file"


def test_cold_pages_are_reported_as_blocking(
    disk: OsFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cold(*_: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "cold")

    disk.write_bytes(str(tmp_path / "a"), b"x")
    monkeypatch.setattr(os, "preadv", cold)
    monkeypatch.setattr(os_file, "RWF_NOWAIT", 8)
    with pytest.raises(BlockingIOError):
        disk.open(str(tmp_path / "a")).preadv([bytearray(1)], 0, nowait=True)


def test_allocate_where_the_file_system_cannot(
    disk: OsFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    monkeypatch.setattr(os_file, "ZEROS_PER_WRITE", 3)
    file = disk.open(str(tmp_path / "a"), write=True, create=True)
    file.pwritev([b"ab"], 0)
    file.allocate(10)
    assert file.pread(99, 0) == b"ab" + bytes(8)


def test_a_file_closes_with_its_last_reference(disk: OsFileSystem, tmp_path: Path) -> None:
    disk.write_bytes(str(tmp_path / "a"), b"x")
    gc.collect()
    before = descriptors()
    file = disk.open(str(tmp_path / "a"))
    assert descriptors() != before
    del file
    assert descriptors() == before


def test_close_during_a_call_of_another_thread_waits_for_it(
    disk: OsFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the sync would affect the next file that the kernel gives the number to."""
    began, closed, seen = threading.Event(), threading.Event(), []

    def slow_sync(number: int) -> None:
        began.set()
        assert closed.wait(10)
        seen.append(os.readlink(f"/proc/self/fd/{number}"))

    monkeypatch.setattr(os_file, "_sync_descriptor", slow_sync)
    file = disk.open(str(tmp_path / "a"), write=True, create=True)
    before = descriptors()
    thread = threading.Thread(target=file.sync)
    thread.start()
    assert began.wait(10)
    file.close()
    other = disk.open(str(tmp_path / "b"), write=True, create=True)
    closed.set()
    thread.join()
    assert seen == [str(tmp_path / "a")]
    other.close()
    assert len(descriptors()) < len(before)


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("no_umask")
def test_no_other_user_reads_what_is_created(disk: OsFileSystem, tmp_path: Path) -> None:
    disk.make_directories(str(tmp_path / "a" / "b" / "c"))
    assert [mode(each) for each in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c")] == [0o700] * 3
    disk.make_directories(str(tmp_path / "a" / "b"))
    disk.open(str(tmp_path / "opened"), write=True, create=True).close()
    disk.write_bytes(str(tmp_path / "written"), b"1")
    disk.replace_file(str(tmp_path / "replaced"), b"2")
    disk.lock(str(tmp_path / "lock")).release()
    assert {path.name: mode(path) for path in tmp_path.iterdir() if path.is_file()} == dict.fromkeys(
        ("opened", "written", "replaced", "lock"), 0o600
    )


def test_directories_are_not_made_below_a_file_or_of_nothing(disk: OsFileSystem, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in ("file", "file/below", "file/below/more"):
        with pytest.raises((FileExistsError, NotADirectoryError)):
            disk.make_directories(str(tmp_path / path))
    with pytest.raises(FileNotFoundError):
        disk.make_directories("")


def test_a_folder_is_made_private_with_what_is_in_it(disk: OsFileSystem, tmp_path: Path) -> None:
    """What is deeper stays as it is, and is out of reach; links are not followed."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    for path in (outside, root / "file", root / "folder" / "deep"):
        path.touch()
        path.chmod(0o664)
    (root / "folder").chmod(0o755)
    (root / "link").symlink_to(outside)
    root.chmod(0o2775)
    disk.make_private(str(root))
    assert [mode(each) for each in (root, root / "file", root / "folder", outside)] == [0o2700, 0o600, 0o700, 0o664]
    disk.write_bytes(str(root / "folder" / "deep"), b"1")
    assert mode(root / "folder" / "deep") == 0o600


def test_replace_file_has_the_mode_that_was_asked_for(disk: OsFileSystem, tmp_path: Path) -> None:
    """A secret must not be readable by all because an older copy was."""
    (tmp_path / "a.tmp").write_bytes(b"remnant")
    (tmp_path / "a.tmp").chmod(0o644)
    disk.replace_file(str(tmp_path / "a"), b"secret", mode=0o600)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_replace_file_does_its_steps_in_the_order_that_makes_it_durable(
    disk: OsFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    rename = os.rename

    def recorded_rename(source: str, target: str) -> None:
        steps.append(f"rename {os.path.basename(source)} {os.path.basename(target)}")
        rename(source, target)

    def recorder(name: str) -> Callable[[int], None]:
        return lambda number: steps.append(f"{name} {os.path.basename(os.readlink(f'/proc/self/fd/{number}'))}")

    monkeypatch.setattr(os, "rename", recorded_rename)
    monkeypatch.setattr(os_file, "_sync_descriptor", recorder("sync"))
    monkeypatch.setattr(os, "fsync", recorder("sync folder"))
    disk.replace_file(str(tmp_path / "a"), b"content")
    assert steps == ["sync a.tmp", "rename a.tmp a", f"sync folder {tmp_path.name}"]


def test_a_failed_replace_keeps_the_old_content_and_frees_the_space(
    disk: OsFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    disk.replace_file(str(tmp_path / "a"), b"old")
    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match="full"):
        disk.replace_file(str(tmp_path / "a"), b"new")
    assert disk.read_bytes(str(tmp_path / "a")) == b"old"
    assert disk.listdir(str(tmp_path)) == ["a"]


def test_a_lock_excludes_another_process_that_locks_as_kafka_does(disk: OsFileSystem, tmp_path: Path) -> None:
    """Apache Kafka takes a POSIX record lock; flock alone would not see it, nor be seen."""
    program = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+')\n"
        "try:\n    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError:\n    print('refused', flush=True)\n"
        "else:\n    print('locked', flush=True); sys.stdin.read()\n"
    )
    path = str(tmp_path / ".lock")
    lock = disk.lock(path)
    command = [sys.executable, "-c", program, path]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "refused\n"
    lock.release()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(AlreadyLockedError):
            disk.lock(path)
        other.communicate()
    disk.lock(path).release()
