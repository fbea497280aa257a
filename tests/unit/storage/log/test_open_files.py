"""Open files of segments: bounded for any number of logs, and pinned by their readers."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.errors import FailureKind, StorageError
from lowtide.storage.log.durability import LogDurability
from lowtide.storage.log.log import AppendedBatch, Log, LogConfig, SegmentCache
from lowtide.storage.log.log_files import LogPlace
from lowtide.storage.log.opening.known_log import KnownLog
from lowtide.storage.log.opening.loader import create_log, load_log
from lowtide.storage.log.segments.open_files import OpenFiles
from lowtide.storage.log.segments.segment_file import FileSlice
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce

NOW_MS = 1_700_000_000_000
SMALL_SEGMENTS = LogConfig(segment_bytes=400, index_interval_bytes=100)


class Disk:
    """Logs on one disk that share a cache."""

    def __init__(self, files_max: int, open_files_max: int | None = None) -> None:
        self.filesystem = MemoryFileSystem()
        self.filesystem.open_files_max = open_files_max
        self.cache = SegmentCache(files_max=files_max)

    def create(self, name: str) -> Log:
        return create_log(
            LogPlace(
                filesystem=self.filesystem,
                directory=f"/d/{name}-0",
                config=SMALL_SEGMENTS,
                cache=self.cache,
                **_identity(name),
            ),
            now_ms=NOW_MS,
        )

    def load(self, name: str, *, clean: bool) -> Log:
        return load_log(
            LogPlace(
                filesystem=self.filesystem,
                directory=f"/d/{name}-0",
                config=SMALL_SEGMENTS,
                **_identity(name),
                cache=self.cache,
            ),
            KnownLog(recovery_point=0, log_start_offset=0, clean=clean),
            now_ms=NOW_MS,
        )


def _identity(name: str) -> dict[str, Any]:
    return {"topic_partition": TopicPartition(name, 0), "topic_id": name.encode().ljust(16, b"\0")}


def append(log: Log, value: bytes = b"v") -> AppendedBatch | ErrorCode:
    batch = validate_produce(
        memoryview(build_batch([(NOW_MS, None, value, ())])), ValidationRules(timestamp_after_max_ms=2**62), NOW_MS
    )
    assert isinstance(batch, ValidatedBatch)
    return log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)


def read(log: Log, offset: int = 0) -> FileSlice:
    found = log.read(offset, 1 << 20, end_offset=log.log_end_offset)
    assert found.slice is not None
    return found.slice


def content(part: FileSlice) -> bytes:
    return part.file.pread(part.size, part.position)


def test_many_logs_are_written_and_read_in_few_descriptors():
    disk = Disk(files_max=4, open_files_max=6)
    logs = [disk.create(f"t{number}") for number in range(100)]
    for turn in range(3):
        for log in logs:
            assert isinstance(append(log, b"x" * 150), AppendedBatch), f"turn {turn}"
    for log in logs:
        assert [len(content(read(log, offset))) > 150 for offset in range(3)] == [True] * 3
    assert len(disk.cache.files) <= 4
    assert disk.filesystem.open_files_count <= 4


@pytest.mark.parametrize("clean", [True, False])
def test_many_logs_are_loaded_in_few_descriptors(clean: bool):
    disk = Disk(files_max=4, open_files_max=6)
    for number in range(50):
        log = disk.create(f"t{number}")
        for _ in range(4):
            append(log, b"x" * 150)
        LogDurability(log).close()
    disk.filesystem.crash_process()
    disk.cache = SegmentCache(files_max=4)
    logs = [disk.load(f"t{number}", clean=clean) for number in range(50)]
    assert [log.log_end_offset for log in logs] == [4] * 50
    assert disk.filesystem.open_files_count <= 4
    for log in logs:
        assert isinstance(append(log), AppendedBatch)


def test_a_log_with_many_segments_is_flushed_in_few_descriptors():
    """A flush opens closed files when it syncs them."""
    disk = Disk(files_max=3, open_files_max=5)
    log = disk.create("t")
    for _ in range(20):
        append(log, b"x" * 150)
    barrier = LogDurability(log).flush_barrier()
    assert barrier is not None
    assert len(barrier.files) > 20
    assert disk.filesystem.open_files_count <= 3
    for file in barrier.files:
        file.sync()
    assert disk.filesystem.open_files_count <= 3


def test_a_slice_keeps_its_file_open_when_the_log_has_closed_and_removed_it():
    disk = Disk(files_max=2)
    first = disk.create("first")
    append(first, b"kept")
    part, path = read(first), first.segments[0].path
    first.segments[0].forget_file()
    disk.filesystem.unlink(path)
    assert b"kept" in content(part)


def test_a_file_that_is_used_stays_open_while_others_come_and_go():
    disk = Disk(files_max=8)
    hot, closed_count = disk.create("hot"), 0
    for number in range(80):
        append(hot)
        append(disk.create(f"t{number}"))
        closed_count += not hot.segments[-1].is_open
    assert closed_count <= 80 / 8, "the clock algorithm closes a used file at most once a round"


def test_reads_never_take_more_than_there_are():
    """Waiting answers hold all files: further reads fail for lack of descriptors, not as a disk failure."""
    disk = Disk(files_max=4)
    logs = [disk.create(f"t{number}") for number in range(10)]
    for log in logs:
        append(log)
    held = [read(log) for log in logs[:4]]
    with pytest.raises(StorageError) as caught:
        read(logs[5])
    assert caught.value.kind is FailureKind.NO_RESOURCE
    assert disk.filesystem.open_files_count <= 5
    held.pop()
    assert content(read(logs[5]))


def test_writes_continue_while_answers_hold_all_files():
    disk = Disk(files_max=8)
    logs = [disk.create(f"t{number}") for number in range(10)]
    for log in logs:
        append(log)
    held = [read(log) for log in logs[:8]]
    assert isinstance(append(logs[9]), AppendedBatch)
    assert isinstance(append(logs[8]), AppendedBatch)
    assert len(disk.cache.files) <= 8 + disk.cache.files.held_max
    assert all(map(content, held))


def test_an_append_that_finds_no_descriptor_is_refused_and_leaves_the_log_online():
    disk = Disk(files_max=2)
    logs = [disk.create(f"t{number}") for number in range(4)]
    disk.filesystem.open_files_max = 0
    assert append(logs[0]) is ErrorCode.KAFKA_STORAGE_ERROR
    assert (logs[0].offline, logs[0].disk_full) == (False, False)
    disk.filesystem.open_files_max = None
    assert isinstance(append(logs[0]), AppendedBatch)


def test_a_roll_that_finds_no_descriptor_leaves_the_log_as_it_was():
    disk = Disk(files_max=4)
    log = disk.create("t")
    append(log, b"x" * 150)
    append(log, b"x" * 150)
    before = [segment.base_offset for segment in log.segments]
    disk.filesystem.open_files_max = 0
    assert append(log, b"x" * 200) is ErrorCode.KAFKA_STORAGE_ERROR
    assert [segment.base_offset for segment in log.segments] == before
    disk.filesystem.open_files_max = None
    assert isinstance(append(log, b"x" * 200), AppendedBatch)
    assert len(content(read(log, 2))) > 200


def test_an_append_to_an_open_file_makes_no_system_call_for_it(monkeypatch: pytest.MonkeyPatch):
    disk = Disk(files_max=4)
    log = disk.create("t")

    def asked(*_: object, **__: object) -> None:
        raise AssertionError

    for name in ("make_room", "opened", "closed"):
        monkeypatch.setattr(OpenFiles, name, asked)
    append(log)
    assert content(read(log))


def test_a_deleted_log_holds_no_descriptor():
    disk = Disk(files_max=4)
    log = disk.create("t")
    append(log)
    for segment in log.segments:
        disk.cache.drop(segment)
    assert (len(disk.cache.files), disk.filesystem.open_files_count) == (0, 0)


def test_the_error_says_why():
    files = OpenFiles(files_max=1)
    disk = Disk(files_max=1)
    disk.cache.files = files
    log, other = disk.create("t"), disk.create("other")
    append(log)
    append(other)
    _held = read(other)
    with pytest.raises(StorageError, match="all 1 files that may be open are held by answers under way") as caught:
        read(log)
    assert caught.value.error_number == errno.EMFILE
