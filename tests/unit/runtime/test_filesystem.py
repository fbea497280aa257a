"""The guarantees of the port, for the real disk and the simulated one."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest

from lowtide.runtime.filesystem import AlreadyLockedError, FileSystem, OsFileSystem
from lowtide.runtime.filesystem.memory import MemoryFileSystem


@pytest.fixture(params=["os", "memory"])
def filesystem(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    """A file system with an empty folder to work in."""
    if request.param == "os":
        return OsFileSystem(), str(tmp_path)
    disk = MemoryFileSystem()
    disk.make_directories("/tmp/here")
    return disk, "/tmp/here"


def test_parts_are_written_one_after_the_other_and_a_gap_is_zeros(filesystem: tuple[FileSystem, str]) -> None:
    disk, folder = filesystem
    file = disk.open(f"{folder}/a", write=True, create=True)
    file.pwritev([b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], b""], 3)
    assert file.pread(100, 0) == b"\0\0\0abcdef"
    assert file.size() == disk.file_size(f"{folder}/a") == 9
    assert file.path == f"{folder}/a"
    file.pwritev([b"CD"], 5)
    assert file.pread(4, 4) == b"bCDe"


def test_reads_are_short_only_at_the_end(filesystem: tuple[FileSystem, str]) -> None:
    disk, folder = filesystem
    disk.write_bytes(f"{folder}/a", b"0123456789")
    file = disk.open(f"{folder}/a")
    assert [file.pread(4, 2), file.pread(4, 8), file.pread(4, 10), file.pread(4, 99), file.pread(0, 0)] == [
        b"2345",
        b"89",
        b"",
        b"",
        b"",
    ]
    first, second = bytearray(3), bytearray(b"......")
    assert file.preadv([first, memoryview(second)[1:5]], 4) == 6
    assert [bytes(first), bytes(second)] == [b"456", b".789.."]
    assert file.preadv([first], 10) == 0


def test_a_read_that_must_not_wait_reads_what_was_just_written(filesystem: tuple[FileSystem, str]) -> None:
    disk, folder = filesystem
    disk.write_bytes(f"{folder}/a", b"0123456789")
    buffer = bytearray(10)
    assert disk.open(f"{folder}/a").preadv([buffer], 0, nowait=True) == 10
    assert buffer == b"0123456789"


def test_truncate_cuts_and_lengthens_and_allocate_only_lengthens(filesystem: tuple[FileSystem, str]) -> None:
    disk, folder = filesystem
    file = disk.open(f"{folder}/a", write=True, create=True)
    file.pwritev([b"abcdef"], 0)
    file.truncate(3)
    assert file.pread(9, 0) == b"abc"
    file.truncate(5)
    assert file.pread(9, 0) == b"abc\0\0"
    file.allocate(4)
    assert file.pread(9, 0) == b"abc\0\0"
    file.allocate(7)
    assert file.pread(9, 0) == b"abc\0\0\0\0"
    file.sync()


def test_a_hole_is_zeros_takes_no_space_and_leaves_the_length(filesystem: tuple[FileSystem, str]) -> None:
    disk, folder = filesystem
    file = disk.open(f"{folder}/a", write=True, create=True)
    file.pwritev([b"x" * 100_000], 0)
    file.sync()
    before = disk.allocated_bytes(f"{folder}/a")
    file.punch(61, 81_920)
    assert before >= 100_000
    assert disk.allocated_bytes(f"{folder}/a") <= before - 19 * 4096
    assert file.pread(200_000, 0) == b"x" * 61 + bytes(81_920) + b"x" * (100_000 - 61 - 81_920)
    file.punch(99_000, 10_000)
    assert (file.size(), file.pread(2000, 98_999)) == (100_000, b"x" + bytes(1000))
    file.pwritev([b"y" * 4096], 8192)
    assert file.pread(4098, 8191) == b"\0" + b"y" * 4096 + b"\0"


def test_a_hole_needs_a_file_that_may_be_written(filesystem: tuple[FileSystem, str]) -> None:
    disk, folder = filesystem
    disk.write_bytes(f"{folder}/a", b"abc")
    with pytest.raises(OSError, match="/a'") as caught:
        disk.open(f"{folder}/a").punch(0, 1)
    assert (caught.value.errno, disk.read_bytes(f"{folder}/a")) == (errno.EBADF, b"abc")


def test_an_open_file_survives_its_name(filesystem: tuple[FileSystem, str]) -> None:
    disk, folder = filesystem
    disk.write_bytes(f"{folder}/a", b"content")
    reader, renamed = disk.open(f"{folder}/a"), disk.open(f"{folder}/a", write=True)
    disk.rename(f"{folder}/a", f"{folder}/b")
    renamed.pwritev([b"CON"], 0)
    disk.unlink(f"{folder}/b")
    assert reader.pread(7, 0) == b"CONtent"
    assert not disk.exists(f"{folder}/b")


def test_a_closed_file_raises_ebadf_and_may_be_closed_twice(filesystem: tuple[FileSystem, str]) -> None:
    disk, folder = filesystem
    file = disk.open(f"{folder}/a", write=True, create=True)
    file.close()
    file.close()
    for call in (
        lambda: file.pread(1, 0),
        lambda: file.pwritev([b"x"], 0),
        file.sync,
        file.size,
        lambda: file.truncate(0),
        lambda: file.punch(0, 1),
    ):
        with pytest.raises(OSError, match="/a'") as caught:
            call()
        assert caught.value.errno == errno.EBADF


def test_a_file_opened_for_reading_cannot_be_written_and_is_not_created(filesystem: tuple[FileSystem, str]) -> None:
    disk, folder = filesystem
    with pytest.raises(FileNotFoundError):
        disk.open(f"{folder}/none")
    with pytest.raises(FileNotFoundError):
        disk.open(f"{folder}/none", write=True)
    disk.write_bytes(f"{folder}/a", b"abc")
    with pytest.raises(OSError, match="/a'") as caught:
        disk.open(f"{folder}/a").pwritev([b"x"], 0)
    assert caught.value.errno == errno.EBADF
    assert disk.read_bytes(f"{folder}/a") == b"abc"


def test_creating_keeps_what_is_there(filesystem: tuple[FileSystem, str]) -> None:
    disk, folder = filesystem
    disk.write_bytes(f"{folder}/a", b"abc")
    assert disk.open(f"{folder}/a", write=True, create=True).pread(9, 0) == b"abc"


def test_replace_file_leaves_the_new_content_and_no_copy(filesystem: tuple[FileSystem, str]) -> None:
    disk, folder = filesystem
    disk.write_bytes(f"{folder}/a.tmp", b"a longer remnant of a crash")
    disk.replace_file(f"{folder}/a", b"first")
    disk.replace_file(f"{folder}/a", b"")
    disk.replace_file(f"{folder}/a", b"new", mode=0o600)
    assert disk.read_bytes(f"{folder}/a") == b"new"
    assert disk.listdir(folder) == ["a"]


def test_write_bytes_replaces_longer_content(filesystem: tuple[FileSystem, str]) -> None:
    disk, folder = filesystem
    disk.write_bytes(f"{folder}/a", b"longer")
    disk.write_bytes(f"{folder}/a", b"new")
    assert disk.read_bytes(f"{folder}/a") == b"new"


def test_folders(filesystem: tuple[FileSystem, str]) -> None:
    disk, folder = filesystem
    disk.make_directories(f"{folder}/x/y")
    disk.make_directories(f"{folder}/x/y")
    for name in ("c", "a", "b"):
        disk.write_bytes(f"{folder}/x/{name}", b"")
    assert disk.listdir(f"{folder}/x") == ["a", "b", "c", "y"]
    assert disk.is_directory(f"{folder}/x/y")
    assert not disk.is_directory(f"{folder}/x/a")
    assert not disk.is_directory(f"{folder}/none")
    disk.sync_directory(f"{folder}/x")
    disk.rename(f"{folder}/x", f"{folder}/z")
    assert disk.listdir(f"{folder}/z") == ["a", "b", "c", "y"]
    disk.remove_tree(f"{folder}/z")
    assert disk.listdir(folder) == []
    for call in (disk.remove_tree, disk.listdir, disk.sync_directory, disk.unlink, disk.file_size, disk.read_bytes):
        with pytest.raises(FileNotFoundError):
            call(f"{folder}/z")
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{folder}/z", f"{folder}/y")


def test_rename_replaces_a_file(filesystem: tuple[FileSystem, str]) -> None:
    disk, folder = filesystem
    disk.write_bytes(f"{folder}/a", b"new")
    disk.write_bytes(f"{folder}/b", b"old")
    disk.rename(f"{folder}/a", f"{folder}/b")
    assert disk.listdir(folder) == ["b"]
    assert disk.read_bytes(f"{folder}/b") == b"new"


def test_a_lock_keeps_out_a_second_holder_until_it_is_released(filesystem: tuple[FileSystem, str]) -> None:
    disk, folder = filesystem
    lock = disk.lock(f"{folder}/.lock")
    with pytest.raises(AlreadyLockedError, match="/.lock is locked"):
        disk.lock(f"{folder}/.lock")
    lock.release()
    second = disk.lock(f"{folder}/.lock")
    lock.release()
    with pytest.raises(AlreadyLockedError):
        disk.lock(f"{folder}/.lock")
    second.release()


def test_there_is_space_and_files_have_a_date(filesystem: tuple[FileSystem, str]) -> None:
    disk, folder = filesystem
    disk.write_bytes(f"{folder}/a", b"x")
    assert disk.free_bytes(folder) > 0
    assert disk.modified_ms(f"{folder}/a") >= 0


def test_an_empty_folder_is_removed_without_a_descriptor(tmp_path: Path) -> None:
    """A log that could not be created for lack of descriptors must leave no folder: another directory takes it."""
    disk, folder = OsFileSystem(), str(tmp_path / "a-0")
    disk.make_directories(folder)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            disk.write_bytes(f"{folder}/x", b"")
        disk.remove_tree(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not disk.exists(folder)
