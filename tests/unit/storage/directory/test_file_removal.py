"""Files go a few at a time: others wait for the same worker, and nobody waits for all of them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.directory.file_removal import PIECES_AT_ONCE, SEGMENTS_AT_ONCE, FileRemoval
from lowtide.storage.log.segment import LOG_SUFFIX, SEGMENT_SUFFIXES, offset_name
from lowtide.storage.log.segment_files import RemovedSegment

FOLDER = "/data/t-0"


class HandWorker:
    """Does one piece of work when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def submit(self, work: Callable[[], Any], on_done: Callable[[Any], None]) -> None:
        self.waiting.append((work, on_done))

    def do_next(self) -> None:
        work, on_done = self.waiting.pop(0)
        try:
            outcome = work()
        except OSError as error:
            outcome = error
        on_done(outcome)

    def close(self) -> None: ...


def removed_segments(filesystem: MemoryFileSystem, count: int) -> list[RemovedSegment]:
    filesystem.make_directories(FOLDER)
    for number in range(count):
        for suffix in SEGMENT_SUFFIXES:
            filesystem.write_bytes(f"{FOLDER}/{offset_name(number)}{suffix}", b"x")
    return [RemovedSegment(FOLDER, number, 1) for number in range(count)]


def removal_of(count: int) -> tuple[FileRemoval, HandWorker, MemoryFileSystem, list[OSError]]:
    """Segments that are renamed, and due at 100."""
    filesystem, worker = MemoryFileSystem(), HandWorker()
    failures: list[OSError] = []
    removal = FileRemoval(filesystem, worker, failures.append)
    removal.remove_segments(removed_segments(filesystem, count), 100)
    worker.do_next()
    assert all(name.endswith(".deleted") for name in filesystem.listdir(FOLDER))
    removal.tick(99)
    assert (len(removal), worker.waiting) == (1, [])
    return removal, worker, filesystem, failures


def test_of_many_segments_a_few_go_at_a_time_and_the_logs_first() -> None:
    removal, worker, filesystem, _ = removal_of(100)
    removal.tick(100)
    while worker.waiting:
        assert len(worker.waiting) <= PIECES_AT_ONCE
        before = filesystem.listdir(FOLDER)
        worker.do_next()
        gone = set(before) - set(filesystem.listdir(FOLDER))
        assert 0 < len(gone) <= SEGMENTS_AT_ONCE * len(SEGMENT_SUFFIXES)
        has_logs = any(f"{LOG_SUFFIX}." in name for name in before)
        assert all(f"{LOG_SUFFIX}." in name for name in gone) == has_logs
    assert (filesystem.listdir(FOLDER), len(removal)) == ([], 0)


def test_folders_wait_for_their_turn_too() -> None:
    filesystem, worker = MemoryFileSystem(), HandWorker()
    removal = FileRemoval(filesystem, worker, lambda _error: None)
    for number in range(10):
        filesystem.make_directories(f"/data/t-{number}-delete")
    removal.remove_folders([f"/data/t-{number}-delete" for number in range(10)], 0)
    removal.tick(0)
    assert (len(worker.waiting), len(removal)) == (PIECES_AT_ONCE, 10)
    while worker.waiting:
        worker.do_next()
    assert (filesystem.listdir("/data"), len(removal)) == ([], 0)


def test_a_stop_leaves_the_rest_to_the_next_start() -> None:
    """The worker is closed when it is done with what it has, and takes nothing more."""
    removal, worker, filesystem, _ = removal_of(100)
    removal.tick(100)
    removal.stop()
    for _ in range(PIECES_AT_ONCE):
        worker.do_next()
    assert worker.waiting == []
    assert all(name.endswith(".deleted") for name in filesystem.listdir(FOLDER))


def test_a_disk_that_fails_is_told_and_nothing_more_is_begun() -> None:
    removal, worker, filesystem, failures = removal_of(100)

    def unlink(path: str) -> None:
        raise OSError(errno.EIO, "the disk is gone", path)

    filesystem.unlink = unlink  # type: ignore[method-assign]
    removal.tick(100)
    for _ in range(PIECES_AT_ONCE):
        worker.do_next()
    assert (len(failures), worker.waiting) == (PIECES_AT_ONCE, [])


def test_where_there_is_no_room_for_another_name_files_go_at_once() -> None:
    """A directory may need another block for longer names: what makes room mustn't take the log directory offline for want of it."""
    filesystem, worker = MemoryFileSystem(), HandWorker()
    failures: list[OSError] = []
    removal = FileRemoval(filesystem, worker, failures.append)
    removed = removed_segments(filesystem, 3)
    filesystem.fail_next("rename", errno.ENOSPC, count=2)
    removal.remove_segments(removed, 100)
    worker.do_next()
    left = filesystem.listdir(FOLDER)
    assert (len(left), all(name.endswith(".deleted") for name in left)) == (3 * len(SEGMENT_SUFFIXES) - 2, True)
    removal.tick(100)
    while worker.waiting:
        worker.do_next()
    assert (filesystem.listdir(FOLDER), failures) == ([], [])


def test_a_folder_for_whose_other_name_there_is_no_room_goes_at_once() -> None:
    filesystem, worker = MemoryFileSystem(), HandWorker()
    removal = FileRemoval(filesystem, worker, lambda _error: None)
    removed_segments(filesystem, 1)
    filesystem.make_directories("/data/t-1")
    filesystem.fail_next("rename", errno.ENOSPC)
    outcomes: list[OSError | None] = []
    removal.rename_folders([(FOLDER, f"{FOLDER}-delete"), ("/data/t-1", "/data/t-1-delete")], outcomes.append)
    worker.do_next()
    assert (outcomes, filesystem.listdir("/data")) == ([None], ["t-1-delete"])
