"""Files are removed a few at a time: other work shares the worker, and no caller waits for all of them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.directory.file_removal import PIECES_AT_ONCE, SEGMENTS_AT_ONCE, FileRemoval
from lowtide.storage.log.segments.segment_files import RemovedSegment
from lowtide.storage.log.segments.segment_names import LOG_SUFFIX, SEGMENT_SUFFIXES, offset_name

FOLDER = "/data/t-0"


class HandWorker:
    """Does one piece of work when the test calls for it."""

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


def test_segments_are_removed_a_few_at_a_time_and_the_logs_first() -> None:
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


def test_bytes_are_counted_until_their_files_are_gone() -> None:
    removal, worker, _, _ = removal_of(SEGMENTS_AT_ONCE + 1)
    assert sum(removal.unfreed().values()) == SEGMENTS_AT_ONCE + 1
    removal.tick(100)
    worker.do_next()
    assert sum(removal.unfreed().values()) == 1, (
        "the logs of the first segments are gone; their indexes are hardly any bytes"
    )
    while worker.waiting:
        worker.do_next()
    assert sum(removal.unfreed().values()) == 0


def test_folders_wait_for_their_turn_too() -> None:
    filesystem, worker = MemoryFileSystem(), HandWorker()
    removal = FileRemoval(filesystem, worker, lambda _error: None)
    for number in range(10):
        filesystem.make_directories(f"/data/t-{number}-delete")
    removal.remove_folders({f"/data/t-{number}-delete": 5 for number in range(10)}, 0)
    removal.tick(0)
    assert (len(worker.waiting), len(removal), sum(removal.unfreed().values())) == (PIECES_AT_ONCE, 10, 50)
    while worker.waiting:
        worker.do_next()
    assert (filesystem.listdir("/data"), len(removal), sum(removal.unfreed().values())) == ([], 0, 0)


def test_a_stop_leaves_the_rest_to_the_next_start() -> None:
    """The worker is closed when its current work is done, and accepts no more."""
    removal, worker, filesystem, _ = removal_of(100)
    removal.tick(100)
    removal.stop()
    for _ in range(PIECES_AT_ONCE):
        worker.do_next()
    assert worker.waiting == []
    assert all(name.endswith(".deleted") for name in filesystem.listdir(FOLDER))


def test_a_disk_that_fails_is_reported_and_nothing_more_is_begun() -> None:
    removal, worker, filesystem, failures = removal_of(100)

    def unlink(path: str) -> None:
        raise OSError(errno.EIO, "the disk is gone", path)

    filesystem.unlink = unlink
    removal.tick(100)
    for _ in range(PIECES_AT_ONCE):
        worker.do_next()
    assert (len(failures), worker.waiting) == (PIECES_AT_ONCE, [])


def test_files_that_cannot_be_renamed_for_lack_of_room_are_removed_at_once() -> None:
    """A longer name may need a block: a removal, which frees space, must not fail the directory for lack of it."""
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


def test_a_folder_that_cannot_be_renamed_for_lack_of_room_is_removed_at_once() -> None:
    filesystem, worker = MemoryFileSystem(), HandWorker()
    removal = FileRemoval(filesystem, worker, lambda _error: None)
    removed_segments(filesystem, 1)
    filesystem.make_directories("/data/t-1")
    filesystem.fail_next("rename", errno.ENOSPC)
    outcomes: list[OSError | None] = []
    removal.rename_folders([(FOLDER, f"{FOLDER}-delete"), ("/data/t-1", "/data/t-1-delete")], outcomes.append)
    worker.do_next()
    assert (outcomes, filesystem.listdir("/data")) == ([None], ["t-1-delete"])


def test_what_was_abandoned_leaves_the_files_of_the_folder_that_has_its_name_now() -> None:
    """The folder was removed as a whole, and its topic created again."""
    filesystem = MemoryFileSystem()
    [segment] = removed_segments(filesystem, 1)
    segment.mark_deleted(filesystem)
    segment.abandon()
    others = [f"{FOLDER}/{offset_name(0)}{suffix}.deleted" for suffix in SEGMENT_SUFFIXES]
    for path in others:
        filesystem.write_bytes(path, b"of the new log")
    segment.unlink_log(filesystem)
    segment.unlink(filesystem)
    assert [filesystem.read_bytes(path) for path in others] == [b"of the new log"] * len(others)
