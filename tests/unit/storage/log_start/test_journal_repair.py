"""What the repair of a damaged journal keeps, what it reports as lost, and what it never changes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from lowtide.protocol.types import TopicPartition
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem.memory import MemoryFileSystem, SimulatedCrashError
from lowtide.storage.checkpoint import (
    LOG_BEGIN_CHECKPOINT,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    encode_offsets,
    encode_partition_metadata,
)
from lowtide.storage.errors import StorageError
from lowtide.storage.log_directory import LOCK_FILE, REGISTRATION_COUNTER, list_directory
from lowtide.storage.log_start.journal import JournalHooks, LogStartJournal
from lowtide.storage.log_start.journal_image import JOURNAL_NAME
from lowtide.storage.log_start.journal_loading import journal_path
from lowtide.storage.log_start.journal_repair import repair

DIRECTORY = "/logs"
A = b"topic-a-16-bytes"
COUNTER = f"{DIRECTORY}/{REGISTRATION_COUNTER}"
FIRST, SECOND = TopicPartition("a", 0), TopicPartition("a", 1)


class AtOnce:
    """A committer that does everything before it returns; sufficient for tests without crashes."""

    def __init__(self, filesystem: MemoryFileSystem) -> None:
        self.filesystem = filesystem

    def submit(self, barrier: Barrier, on_done: Callable[[OSError | None], None]) -> None:
        for file in barrier.files:
            file.sync()
        for source, target in barrier.renames:
            self.filesystem.rename(source, target)
        on_done(None)

    def close(self) -> None:
        """Nothing waits."""


def opened(filesystem: MemoryFileSystem) -> LogStartJournal:
    folders = list_directory(filesystem, DIRECTORY).partitions
    hooks = JournalHooks(topic_name={A: "a"}.get)
    return LogStartJournal.open(
        filesystem, DIRECTORY, AtOnce(filesystem), folders=folders, expected=filesystem.exists(COUNTER), hooks=hooks
    )


def directory_with_journal(*, folded: bool = True) -> MemoryFileSystem:
    """Two partitions; 10 and 20 in the last fold, then three frames: 11, 21, 12."""
    filesystem = MemoryFileSystem(Random(3))
    for partition in (FIRST, SECOND):
        filesystem.make_directories(f"{DIRECTORY}/{partition}")
        filesystem.write_bytes(f"{DIRECTORY}/{partition}/{PARTITION_METADATA}", encode_partition_metadata(A))
    filesystem.sync_directory("/")
    filesystem.sync_directory(DIRECTORY)
    for partition in (FIRST, SECOND):
        filesystem.open(f"{DIRECTORY}/{partition}/{PARTITION_METADATA}").sync()
        filesystem.sync_directory(f"{DIRECTORY}/{partition}")
    journal = opened(filesystem)
    filesystem.replace_file(COUNTER, b"4\n")
    journal.request_log_starts([(A, 0, 10), (A, 1, 20)], lambda _error: None)
    if folded:
        journal.fold(lambda _error: None)
    for entry in ((A, 0, 11), (A, 1, 21), (A, 0, 12)):
        journal.request_log_starts([entry], lambda _error: None)
    filesystem.crash_process()
    return filesystem


def change(filesystem: MemoryFileSystem, position: int) -> None:
    file = filesystem.open(journal_path(DIRECTORY), write=True)
    file.pwritev([bytes([file.pread(1, position)[0] ^ 1])], position)


def test_a_sound_directory_is_left_as_it_is() -> None:
    filesystem = directory_with_journal()
    before = {
        name: filesystem.read_bytes(f"{DIRECTORY}/{name}")
        for name in filesystem.listdir(DIRECTORY)
        if "." in name or "-" not in name
    }
    report = repair(filesystem, DIRECTORY)
    assert report.damage == {}
    assert report.kept == {FIRST: 12, SECOND: 21}
    assert (report.frames, report.lost_sequences, report.set_aside) == (0, (), ())
    assert before == {name: filesystem.read_bytes(f"{DIRECTORY}/{name}") for name in before}
    assert filesystem.exists(COUNTER)


# A snapshot frame of two entries ends at 512 + 24 + 56; frames of one entry have 52 bytes.
SNAPSHOT_END = 592


@pytest.mark.parametrize(
    ("position", "kept", "lost"),
    [
        (3, {FIRST: 12, SECOND: 21}, ()),
        (530, {FIRST: 12, SECOND: 21}, ()),
        (SNAPSHOT_END + 9, {FIRST: 12, SECOND: 21}, ((3, 3),)),
        (SNAPSHOT_END + 52 + 9, {FIRST: 12, SECOND: 20}, ((4, 4),)),
        (SNAPSHOT_END + 104 + 9, {FIRST: 11, SECOND: 21}, ()),
    ],
    ids=["header", "snapshot", "first frame", "second frame", "last frame"],
)
def test_every_frame_that_can_be_read_counts_and_gaps_are_reported(
    position: int, kept: dict[TopicPartition, int], lost: tuple[tuple[int, int], ...]
) -> None:
    filesystem = directory_with_journal()
    change(filesystem, position)
    with pytest.raises(StorageError, match="damaged"):
        opened(filesystem)
    filesystem.crash_process()
    report = repair(filesystem, DIRECTORY)
    assert list(report.damage) == [JOURNAL_NAME]
    assert report.kept == kept
    assert report.lost_sequences == lost
    filesystem.power_cut()
    assert opened(filesystem).entries == {(A, partition.partition): offset for partition, offset in kept.items()}


def test_the_damaged_file_is_kept_and_the_directory_counts_as_stale() -> None:
    """Its replicas may have lost deletes, so they must fetch the log starts from their leaders before they may lead."""
    filesystem = directory_with_journal()
    change(filesystem, SNAPSHOT_END + 9)
    damaged = filesystem.read_bytes(journal_path(DIRECTORY))
    report = repair(filesystem, DIRECTORY)
    assert report.set_aside == (f"{JOURNAL_NAME}.damaged-1",)
    assert filesystem.read_bytes(f"{DIRECTORY}/{JOURNAL_NAME}.damaged-1") == damaged
    assert not filesystem.exists(COUNTER)
    change(filesystem, 3)
    assert repair(filesystem, DIRECTORY).set_aside == (f"{JOURNAL_NAME}.damaged-2",)


def test_a_dry_run_changes_nothing_and_reports_the_same() -> None:
    filesystem = directory_with_journal()
    change(filesystem, SNAPSHOT_END + 9)
    filesystem.lock(f"{DIRECTORY}/{LOCK_FILE}").release()
    before = filesystem.operation_count
    planned = repair(filesystem, DIRECTORY, dry_run=True)
    assert filesystem.operation_count == before
    done = repair(filesystem, DIRECTORY)
    assert (planned.kept, planned.damage, planned.lost_sequences) == (done.kept, done.damage, done.lost_sequences)


def test_a_missing_journal_is_rebuilt_from_the_last_export() -> None:
    filesystem = directory_with_journal()
    filesystem.unlink(journal_path(DIRECTORY))
    assert repair(filesystem, DIRECTORY).kept == {FIRST: 10, SECOND: 20}
    assert opened(filesystem).entries == {(A, 0): 10, (A, 1): 20}


def test_without_journal_and_export_partitions_begin_at_their_first_segment() -> None:
    filesystem = directory_with_journal(folded=False)
    filesystem.replace_file(journal_path(DIRECTORY), b"gone")
    report = repair(filesystem, DIRECTORY)
    assert (report.kept, report.frames) == ({}, 0)
    assert opened(filesystem).entries == {}


def test_kafka_s_later_value_counts_where_it_is_larger() -> None:
    filesystem = directory_with_journal()
    filesystem.replace_file(f"{DIRECTORY}/{LOG_START_CHECKPOINT}", encode_offsets({FIRST: 99, SECOND: 1}))
    change(filesystem, SNAPSHOT_END + 104 + 9)
    assert repair(filesystem, DIRECTORY).kept == {FIRST: 99, SECOND: 21}


@pytest.mark.parametrize("name", [LOG_BEGIN_CHECKPOINT, LOG_START_CHECKPOINT])
def test_an_export_that_cannot_be_read_is_set_aside(name: str) -> None:
    filesystem = directory_with_journal()
    filesystem.replace_file(f"{DIRECTORY}/{name}", b"")
    before = filesystem.read_bytes(journal_path(DIRECTORY))
    report = repair(filesystem, DIRECTORY)
    assert report.damage == {name: "the file is empty"}
    assert filesystem.read_bytes(journal_path(DIRECTORY)) == before
    assert report.set_aside == (f"{name}.damaged-1",)
    assert report.kept == {FIRST: 12, SECOND: 21}, "the journal is valid, and only it counts"
    assert opened(filesystem).entries == {(A, 0): 12, (A, 1): 21}


@pytest.mark.parametrize("seed", range(10))
def test_a_power_cut_after_a_repair_does_not_bring_a_damaged_export_back(seed: int) -> None:
    filesystem = directory_with_journal()
    filesystem.replace_file(f"{DIRECTORY}/{LOG_START_CHECKPOINT}", b"")
    repair(filesystem, DIRECTORY)
    filesystem.power_cut(Random(seed))
    assert opened(filesystem).entries == {(A, 0): 12, (A, 1): 21}


def test_the_journal_and_an_export_may_be_damaged_together() -> None:
    filesystem = directory_with_journal()
    change(filesystem, SNAPSHOT_END + 9)
    filesystem.replace_file(f"{DIRECTORY}/{LOG_START_CHECKPOINT}", b"")
    report = repair(filesystem, DIRECTORY)
    assert set(report.damage) == {JOURNAL_NAME, LOG_START_CHECKPOINT}
    assert report.kept == {FIRST: 12, SECOND: 21}
    assert opened(filesystem).entries == {(A, 0): 12, (A, 1): 21}


def test_without_a_journal_each_export_counts() -> None:
    """Kafka's is the later one where it differs, and the larger value wins."""
    filesystem = directory_with_journal()
    filesystem.unlink(journal_path(DIRECTORY))
    filesystem.replace_file(f"{DIRECTORY}/{LOG_START_CHECKPOINT}", encode_offsets({FIRST: 99, SECOND: 1}))
    assert repair(filesystem, DIRECTORY).kept == {FIRST: 99, SECOND: 20}


@pytest.mark.parametrize("missing", [LOG_BEGIN_CHECKPOINT, LOG_START_CHECKPOINT])
def test_without_a_journal_one_export_is_sufficient(missing: str) -> None:
    filesystem = directory_with_journal()
    filesystem.unlink(journal_path(DIRECTORY))
    filesystem.unlink(f"{DIRECTORY}/{missing}")
    assert repair(filesystem, DIRECTORY).kept == {FIRST: 10, SECOND: 20}


def test_a_value_that_was_lowered_since_the_last_fold_stays_lower() -> None:
    """The exports have the larger one, and neither the repair nor the start after it takes that back."""
    filesystem = directory_with_journal()
    journal = opened(filesystem)
    journal.fold(lambda _error: None)
    for entry in ((A, 1, 30), (A, 0, 4)):
        journal.request_log_starts([entry], lambda _error: None)
    filesystem.crash_process()
    change(filesystem, SNAPSHOT_END + 9)
    assert repair(filesystem, DIRECTORY).kept == {FIRST: 4, SECOND: 21}
    assert opened(filesystem).entries == {(A, 0): 4, (A, 1): 21}


def test_a_crash_at_any_step_of_the_repair_lets_it_be_run_again() -> None:
    step = 0
    finished = False
    while not finished:
        step += 1
        filesystem = directory_with_journal()
        change(filesystem, SNAPSHOT_END + 9)
        filesystem.replace_file(f"{DIRECTORY}/{LOG_BEGIN_CHECKPOINT}", b"")
        filesystem.crash_at = filesystem.operation_count + step
        try:
            repair(filesystem, DIRECTORY)
            finished = True
        except SimulatedCrashError:
            pass
        filesystem.power_cut(Random(step))
        repair(filesystem, DIRECTORY)
        assert opened(filesystem).entries == {(A, 0): 12, (A, 1): 21}, step
        assert not filesystem.exists(COUNTER)
    assert step > 8


def test_a_directory_in_use_is_not_repaired() -> None:
    filesystem = directory_with_journal()
    filesystem.lock(f"{DIRECTORY}/{LOCK_FILE}")
    with pytest.raises(StorageError, match="a broker uses this log directory"):
        repair(filesystem, DIRECTORY)
    with pytest.raises(StorageError, match="there is no such log directory"):
        repair(filesystem, "/elsewhere")
