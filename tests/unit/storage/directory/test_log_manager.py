"""All logs of a broker: starts and stops of every kind, deletes durable before they are visible, reused names."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem.memory import MemoryFileSystem, SimulatedCrashError
from lowtide.storage.checkpoint import (
    CLEAN_SHUTDOWN_MARKER,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_BEGIN_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    decode_clean_shutdown,
    decode_offsets,
    encode_offsets,
    encode_partition_metadata,
)
from lowtide.storage.directory.directory_opening import KnownTopic
from lowtide.storage.directory.log_manager import LogManager, LogManagerSettings
from lowtide.storage.directory.log_starts import LogStartIncrement
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import AppendedBatch, Log, LogConfig
from lowtide.storage.log.truncation import LogTruncation
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce
from lowtide.storage.log_start.journal_format import JOURNAL_NAME
from lowtide.storage.log_start.journal_loading import journal_path
from tests.examples import examples

CLUSTER, ONE, TWO = "our-cluster", "/one", "/two"
A, B = b"topic-a-16-bytes", b"topic-b-16-bytes"
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
CONFIG = LogConfig(segment_bytes=400, file_delete_delay_ms=1000)
BATCH = validate_produce(memoryview(build_batch([(1, None, b"x" * 20, ()) for _ in range(5)])), ValidationRules(), 1)


class Clock:
    now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.now_ms


class SteppedCommitter:
    """A committer that works when the test calls for it."""

    def __init__(self, filesystem: MemoryFileSystem) -> None:
        self.filesystem = filesystem
        self.waiting: deque[tuple[Barrier, Callable[[OSError | None], None]]] = deque()
        self.failure: OSError | None = None
        self.syncs = 0
        self.closed = False

    def submit(self, barrier: Barrier, on_done: Callable[[OSError | None], None]) -> None:
        assert not self.closed
        self.waiting.append((barrier, on_done))

    def close(self) -> None:
        self.closed = True
        while self.waiting:
            self.step()

    def step(self) -> None:
        barrier, on_done = self.waiting.popleft()
        outcome = self.failure
        if outcome is None:
            try:
                self._carry_out(barrier)
            except OSError as error:
                outcome = error
        on_done(outcome)

    def _carry_out(self, barrier: Barrier) -> None:
        self._sync([file.sync for file in barrier.files])
        for source, target in barrier.renames:
            self.filesystem.rename(source, target)
        self._sync([partial(self.filesystem.sync_directory, directory) for directory in barrier.directories])

    def _sync(self, syncs: list[Callable[[], None]]) -> None:
        """Only a failed sync ends a committer."""
        for sync in syncs:
            try:
                sync()
            except OSError as error:
                if error.errno != errno.ENOENT:
                    self.failure = error
                raise
            self.syncs += 1


class SteppedWorker:
    """A worker that works when the test calls for it."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()

    def submit(self, work: Callable[[], Any], on_done: Callable[[Any], None]) -> None:
        self.waiting.append((work, on_done))

    def close(self) -> None:
        while self.waiting:
            self.step()

    def step(self) -> None:
        work, on_done = self.waiting.popleft()
        try:
            outcome = work()
        except OSError as error:
            outcome = error
        on_done(outcome)


class World:
    """A disk, and the log manager of one broker process on it."""

    def __init__(self, *paths: str, seed: int = 0, start: bool = True, frees_deleted: bool = True) -> None:
        self.frees_deleted = frees_deleted
        self.filesystem = MemoryFileSystem(Random(seed))
        self.paths = list(paths or (ONE,))
        self.clock = Clock()
        self.random = Random(seed)
        self.answers: list[Any] = []
        self.failed: list[tuple[str, list[TopicPartition]]] = []
        if start:
            self.start()

    def start(self, *, node_id: int = 1, cluster_id: str = CLUSTER, **options: Any) -> None:
        self.worker = SteppedWorker()
        self.committers = {path: SteppedCommitter(self.filesystem) for path in self.paths}
        self.manager = LogManager(
            self.filesystem,
            self.clock,
            self.paths,
            self.committers,
            self.worker,
            self.random,
            LogManagerSettings(default_config=CONFIG, frees_deleted=self.frees_deleted),
            lambda path, _reason, logs: self.failed.append((path, [log.topic_partition for log in logs])),
        )
        self.manager.open(cluster_id, node_id, **options)

    def restart(self, *, power: bool = False) -> None:
        if power:
            self.filesystem.power_cut()
        else:
            self.filesystem.crash_process()
        self.start()

    def run(self) -> None:
        """Completes everything that is under way."""
        while self.worker.waiting or any(committer.waiting for committer in self.committers.values()):
            for committer in self.committers.values():
                while committer.waiting:
                    committer.step()
            while self.worker.waiting:
                self.worker.step()

    def note(self, name: Any, error: OSError | None) -> None:
        self.answers.append(name if error is None else (name, error.errno))

    def create(self, *keys: TopicPartition) -> list[Log]:
        return [self.manager.create_log(key, A if key.topic == "a" else B, CONFIG) for key in keys]

    def delete_to(self, *items: tuple[TopicPartition, int], name: Any = "trimmed") -> None:
        increments = [LogStartIncrement(self.manager.logs[key], offset) for key, offset in items]
        self.manager.log_starts.request_log_starts(increments, partial(self.note, name))

    def work(self, wall_ms: int) -> None:
        for _step in self.manager.directories.due_work(wall_ms):
            pass

    def tick(self, later_ms: int = 0) -> None:
        self.clock.now_ms += later_ms
        self.work(self.clock.wall_ms())
        self.run()

    def names(self, folder: str) -> list[str]:
        return self.filesystem.listdir(folder)


def append(log: Log, batches: int = 1) -> None:
    """Batches of five records, committed at once."""
    assert isinstance(BATCH, ValidatedBatch)
    for _ in range(batches):
        appended = log.append_as_leader(BATCH, leader_epoch=0, now_ms=1)
        assert isinstance(appended, AppendedBatch)
    log.advance_high_watermark(log.log_end_offset)


# Starting and stopping


def test_a_clean_stop_and_start_keeps_everything_and_checks_nothing() -> None:
    world = World()
    first, second = world.create(A0, B0)
    append(first, 12)
    append(second, 1)
    world.delete_to((A0, 23))
    world.run()
    world.manager.close(broker_epoch=9)
    assert decode_clean_shutdown(world.filesystem.read_bytes(f"{ONE}/{CLEAN_SHUTDOWN_MARKER}")) == 9
    world.restart(power=True)
    loaded = world.manager.logs
    assert {
        key: (log.log_start_offset, log.high_watermark, log.recovery_point, log.log_end_offset)
        for key, log in loaded.items()
    } == {A0: (23, 60, 60, 60), B0: (0, 5, 5, 5)}
    assert {key: log.topic_id for key, log in loaded.items()} == {A0: A, B0: B}
    assert world.manager.directories.load_reports == {}
    assert not world.filesystem.exists(f"{ONE}/{CLEAN_SHUTDOWN_MARKER}")


def test_a_clean_stop_writes_what_kafka_reads() -> None:
    world = World()
    (log,) = world.create(A0)
    append(log, 2)
    world.delete_to((A0, 7))
    world.run()
    world.manager.close()
    read = {
        name: decode_offsets(world.filesystem.read_bytes(f"{ONE}/{name}"), name)
        for name in world.names(ONE)
        if name.endswith("checkpoint")
    }
    assert read == {
        RECOVERY_POINT_CHECKPOINT: {A0: 10},
        HIGH_WATERMARK_CHECKPOINT: {A0: 10},
        LOG_START_CHECKPOINT: {A0: 7},
        LOG_BEGIN_CHECKPOINT: {A0: 7},
    }


@pytest.mark.parametrize("power", [True, False])
def test_after_an_unclean_end_an_acknowledged_delete_stays(power: bool) -> None:
    world = World()
    (log,) = world.create(A0)
    append(log, 12)
    world.delete_to((A0, 33))
    world.run()
    assert world.answers == ["trimmed"]
    world.restart(power=power)
    found = world.manager.logs.get(A0)
    if found is None:
        # The power cut removed the folder's entry, because only the journal was synced: the log begins where the
        # journal says.
        (found,) = world.create(A0)
    assert found.log_start_offset >= 33
    assert found.log_end_offset >= 33


def test_where_appends_wait_for_the_disk_what_a_killed_process_left_is_synced_before_it_is_shown() -> None:
    """A reader could see it, then a power cut remove it, and its offset be assigned again."""
    world = World()
    (log,) = world.create(A0)
    append(log)
    world.manager.flush(log)
    world.run()
    append(log)
    world.filesystem.crash_process()
    world.start(topics={"a": KnownTopic(A, LogConfig(segment_bytes=400, flush_messages=1))})
    assert world.manager.logs[A0].log_end_offset == 10
    world.restart(power=True)
    assert world.manager.logs[A0].log_end_offset == 10


def test_a_stop_cut_off_at_any_step_loses_nothing_that_was_acknowledged() -> None:
    step, stopped = 0, False
    while not stopped:
        step += 1
        world = World(seed=step)
        (log,) = world.create(A0)
        append(log, 8)
        world.manager._directories[ONE].flush(log)
        world.delete_to((A0, 12), name="first")
        world.run()
        world.delete_to((A0, 17), name="second")
        world.filesystem.crash_at = world.filesystem.operation_count + step
        try:
            world.manager.close()
            stopped = True
        except SimulatedCrashError:
            pass
        world.restart(power=step % 2 == 0)
        found = world.manager.logs[A0]
        assert found.log_start_offset in ({17} if "second" in world.answers else {12, 17}), step
        assert found.log_end_offset == 40
        assert world.manager.directories.load_reports == {} or not stopped
    assert step > 20


def test_a_start_cut_off_ten_times_ends_in_the_same_state() -> None:
    """Recovery is idempotent."""
    world = World(seed=3)
    logs = world.create(A0, B0)
    for log in logs:
        append(log, 9)
        world.manager._directories[ONE].flush(log)
    world.run()
    world.delete_to((A0, 21), (B0, 2))
    world.run()
    append(logs[0])
    for step in range(1, 11):
        world.filesystem.power_cut()
        world.filesystem.crash_at = world.filesystem.operation_count + step
        try:
            world.start()
        except SimulatedCrashError:
            continue
    world.restart(power=True)
    state = {key: (log.log_start_offset, log.log_end_offset) for key, log in world.manager.logs.items()}
    assert state[B0] == (2, 45)
    assert state[A0] in {(21, 45), (21, 50)}


def test_a_stop_answers_waiting_callers() -> None:
    world = World()
    (log,) = world.create(A0)
    append(log)
    world.delete_to((A0, 1), name="under way")
    world.delete_to((A0, 3), name="waiting")
    world.manager.close()
    assert world.answers == ["under way", "waiting"]
    world.restart()
    assert world.manager.logs[A0].log_start_offset == 3


@pytest.mark.parametrize("steps", range(8))
def test_a_stop_answers_a_deletion_however_far_it_is(steps: int) -> None:
    """The journal and the checkpoints must not submit anything to a closed committer."""
    world = World()
    (log, _) = world.create(A0, B0)
    append(log)
    world.delete_to((A0, 1))
    world.run()
    world.manager.delete_logs([A0], partial(world.note, "deleted"))
    for _ in range(steps):
        if world.worker.waiting:
            world.worker.step()
        elif world.committers[ONE].waiting:
            world.committers[ONE].step()
    world.manager.close()
    world.worker.close()
    assert len(world.answers) == 2
    world.restart()
    world.run()
    if world.answers[1] == "deleted":
        assert A0 not in world.manager.logs


def test_a_segment_deleted_while_it_was_written_is_removed_once_it_is_closed() -> None:
    """Delete exactly to the log end, then roll: the disk space is freed without a later delete."""
    world = World()
    (log,) = world.create(A0)
    append(log)
    world.delete_to((A0, log.log_end_offset))
    world.run()
    assert log.roll(1)
    append(log)
    assert len(log.segments) == 2
    first = log.segments[0].path
    world.tick()
    assert log.segments[0].path != first
    world.tick(CONFIG.file_delete_delay_ms + 1)
    assert not world.filesystem.exists(first)


def test_release_ends_without_a_marker_and_frees_the_lock() -> None:
    world = World()
    append(world.create(A0)[0])
    world.manager.release()
    assert not world.filesystem.exists(f"{ONE}/{CLEAN_SHUTDOWN_MARKER}")
    world.start()
    assert world.manager.logs[A0].log_end_offset == 5


def test_a_stop_that_fails_leaves_no_marker() -> None:
    world = World()
    append(world.create(A0)[0])
    world.filesystem.fail_next("sync", errno.EIO)
    with pytest.raises(StorageError, match="Input/output error"):
        world.manager.close()
    assert not world.filesystem.exists(f"{ONE}/{CLEAN_SHUTDOWN_MARKER}")
    world.restart()
    assert world.manager.logs[A0].log_end_offset == 5


def test_two_brokers_cannot_share_a_directory() -> None:
    world = World()
    other = World(start=False)
    other.filesystem = world.filesystem
    with pytest.raises(StorageError, match="in use by another broker"):
        other.start()
    world.create(A0)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda world: world.start(cluster_id="theirs"), "belongs to cluster 'our-cluster'"),
        (lambda world: world.start(node_id=2), "belongs to node 1"),
    ],
)
def test_a_directory_of_another_broker_is_refused(change: Callable[[World], None], sentence: str) -> None:
    world = World()
    world.manager.close()
    with pytest.raises(StorageError, match=sentence):
        change(world)
    world.start()


def test_the_cluster_is_known_before_the_directories_are_opened() -> None:
    world = World(ONE, TWO)
    new = LogManager(MemoryFileSystem(), world.clock, [ONE], world.committers, world.worker, world.random)
    assert new.directories.known_cluster_id() is None
    assert world.manager.directories.known_cluster_id() == CLUSTER
    world.manager.close()
    world.filesystem.write_bytes(f"{ONE}/{META_PROPERTIES}", b"version=1\n")
    assert world.manager.directories.known_cluster_id() == CLUSTER, "the other directory has it"
    world.filesystem.write_bytes(f"{TWO}/{META_PROPERTIES}", b"version=1\n")
    with pytest.raises(StorageError, match=f"{ONE}/{META_PROPERTIES}"):
        world.manager.directories.known_cluster_id()


def test_a_directory_given_twice_or_copied_is_refused() -> None:
    world = World(ONE, TWO)
    world.manager.close()
    for again in (ONE + "/", "/." + ONE):
        world.paths = [ONE, again]
        with pytest.raises(StorageError, match="given twice"):
            world.start()
    world.filesystem.write_bytes(f"{TWO}/{META_PROPERTIES}", world.filesystem.read_bytes(f"{ONE}/{META_PROPERTIES}"))
    world.paths = [ONE, TWO]
    with pytest.raises(StorageError, match=f"same directory.id as {ONE}"):
        world.start()


def test_a_partition_in_two_directories_is_refused() -> None:
    world = World(ONE, TWO)
    world.create(A0, A1)
    world.manager.close()
    world.filesystem.make_directories(f"{TWO}/a-0")
    with pytest.raises(StorageError, match=f"{TWO}/a-0: the partition is in {ONE} too"):
        world.start()


def test_folders_that_are_no_partitions_are_left_alone_and_named() -> None:
    world = World()
    world.manager.close()
    world.filesystem.make_directories(f"{ONE}/lost+found")
    world.start()
    assert world.manager.directories.strays == (f"{ONE}/lost+found",)


def test_registrations_are_listed_by_directory() -> None:
    world = World(ONE, TWO)
    assert world.manager.directories.notes.registrations() == {ONE: None, TWO: None}
    world.manager.directories.notes.write_registration(3, world.manager.directories.paths)
    world.restart(power=True)
    assert world.manager.directories.notes.registrations() == {ONE: 3, TWO: 3}


# Damage


def damage_journal(world: World, path: str) -> None:
    world.filesystem.open(journal_path(path), write=True).pwritev([b"\xff"], 3)


def test_a_damaged_journal_stops_the_start_of_a_broker_with_one_directory() -> None:
    world = World()
    world.manager.close()
    damage_journal(world, ONE)
    with pytest.raises(StorageError, match=f"{journal_path(ONE)}.*`lowtide repair-log-start --log-dir {ONE}`"):
        world.start()


def test_a_journal_that_is_gone_is_damage_once_the_directory_was_registered() -> None:
    world = World()
    world.manager.directories.notes.write_registration(1, world.manager.directories.paths)
    world.filesystem.crash_process()
    world.filesystem.unlink(journal_path(ONE))
    with pytest.raises(StorageError, match="is missing though this directory had one"):
        world.start()


def test_with_another_directory_left_the_damaged_one_goes_offline_and_its_partitions_are_not_re_created() -> None:
    """An empty log in their place would assign offsets a second time."""
    world = World(ONE, TWO)
    world.create(A0, A1)
    world.manager.close()
    damage_journal(world, ONE)
    world.start()
    assert [path for path, _ in world.failed] == [ONE]
    assert list(world.manager.logs) == [A1]
    assert list(world.manager.directories.offline) == [ONE]
    with pytest.raises(StorageError, match=f"{ONE}: the log directory of a-0 is offline"):
        world.create(A0)
    world.create(B0)
    world.manager.close()
    assert world.filesystem.exists(f"{ONE}/{CLEAN_SHUTDOWN_MARKER}"), "it was refused before anything in it was touched"
    assert world.filesystem.exists(f"{TWO}/{CLEAN_SHUTDOWN_MARKER}")


@pytest.mark.parametrize("name", [RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT])
def test_recovery_points_that_cannot_be_read_only_cost_a_longer_recovery(name: str) -> None:
    world = World()
    append(world.create(A0)[0], 9)
    world.manager.close()
    world.filesystem.replace_file(f"{ONE}/{name}", b"0\n9\n")
    world.start()
    assert world.manager.logs[A0].log_end_offset == 45


@pytest.mark.parametrize("name", [LOG_BEGIN_CHECKPOINT, LOG_START_CHECKPOINT])
def test_log_starts_that_cannot_be_read_are_never_zero(name: str) -> None:
    world = World()
    world.manager.close()
    world.filesystem.replace_file(f"{ONE}/{name}", b"")
    with pytest.raises(StorageError, match=f"{ONE}/{name}: the file is empty; .*repair-log-start"):
        world.start()


# Logs come and go


def test_creating_a_log_syncs_nothing() -> None:
    """A thousand partitions are cheap because the metadata store, and not the disk, decides which exist."""
    world = World()
    before = world.filesystem.operation_count
    world.create(*(TopicPartition("a", partition) for partition in range(100)))
    assert all(not committer.waiting for committer in world.committers.values())
    assert world.filesystem.operation_count - before <= 100 * 8
    assert not world.worker.waiting


def test_logs_spread_over_directories() -> None:
    world = World(ONE, TWO)
    world.create(A0, A1, B0)
    assert (
        len([name for name in world.names(ONE) if "-" in name and world.filesystem.is_directory(f"{ONE}/{name}")]) == 2
    )
    assert world.manager.create_log(A0, A, CONFIG) is world.manager.logs[A0], "creating it again is no error"


@pytest.mark.parametrize("content", [None, b"", b"version: 0\ntopic_id: torn"])
def test_a_folder_that_lost_its_topic_id_gets_it_from_the_metadata_and_keeps_its_records(content: bytes | None) -> None:
    """The file of a new log isn't synced at once, so a power cut may remove it while records are there."""
    world = World()
    append(world.create(A0)[0], 3)
    world.delete_to((A0, 6))
    world.run()
    world.filesystem.crash_process()
    if content is None:
        world.filesystem.unlink(f"{ONE}/a-0/{PARTITION_METADATA}")
    else:
        world.filesystem.write_bytes(f"{ONE}/a-0/{PARTITION_METADATA}", content)
    world.start()
    assert world.manager.logs == {}
    (log,) = world.create(A0)
    assert (log.log_start_offset, log.log_end_offset) == (6, 15)
    world.restart()
    assert world.manager.logs[A0].topic_id == A


def test_a_log_whose_folder_is_gone_begins_where_the_journal_says() -> None:
    """Its offsets were assigned once; offsets below an acknowledged delete are not assigned again."""
    world = World(ONE, TWO)
    world.create(B0)
    append(world.create(A0)[0], 3)
    world.create(A1, TopicPartition("a", 2))
    world.delete_to((A0, 9))
    world.manager.delete_logs([B0, A1], lambda _error: None)
    world.run()
    world.filesystem.crash_process()
    world.filesystem.remove_tree(f"{TWO}/a-0")
    world.start()
    (log,) = world.create(A0)
    assert (log.directory, log.log_start_offset, log.log_end_offset) == (f"{TWO}/a-0", 9, 9)


def test_no_space_for_a_new_log_is_an_answer_and_leaves_nothing_behind() -> None:
    world = World()
    world.filesystem.capacity_bytes = 0
    with pytest.raises(StorageError, match="No space left"):
        world.create(A0)
    assert world.manager.directories.any_is_online
    assert "a-0" not in world.names(ONE)
    world.filesystem.capacity_bytes = None
    world.create(A0)


@pytest.mark.parametrize("operation", ["make_directory", "create", "write"])
def test_a_failing_disk_under_a_new_log_takes_the_directory_offline(operation: Any) -> None:
    world = World()
    world.create(B0)
    world.filesystem.fail_next(operation, errno.EIO)
    with pytest.raises(StorageError):
        world.create(A0)
    assert world.failed == [(ONE, [B0])]
    assert not world.manager.directories.any_is_online
    with pytest.raises(StorageError, match="all log directories are offline"):
        world.create(A1)


def test_a_deleted_log_disappears_at_once_and_its_name_is_free_when_that_is_reported() -> None:
    world = World()
    first, second = world.create(A0, A1)
    append(first, 3)
    append(second, 1)
    world.delete_to((A0, 8), (A1, 2))
    world.run()
    world.manager.delete_logs([A0, B0], partial(world.note, "deleted"))
    assert list(world.manager.logs) == [A1]
    assert first.offline
    assert world.answers == ["trimmed"]
    world.run()
    assert world.answers == ["trimmed", "deleted"]
    again = world.manager.create_log(A0, B, CONFIG)
    assert (again.log_start_offset, again.log_end_offset) == (0, 0)
    world.restart(power=True)
    assert A0 not in world.manager.logs or world.manager.logs[A0].log_start_offset == 0
    assert world.manager._directories[ONE].parts.journal.entries == {(A, 1): 2}


def test_the_files_of_a_deleted_log_are_removed_after_the_delay() -> None:
    world = World()
    append(world.create(A0)[0])
    world.manager.delete_logs([A0], partial(world.note, "deleted"))
    world.run()
    world.tick(999)
    assert len([name for name in world.names(ONE) if name.endswith("-delete")]) == 1
    world.tick(1)
    assert not [name for name in world.names(ONE) if name.endswith("-delete")]


def test_deleting_a_missing_log_is_reported_and_does_nothing() -> None:
    world = World()
    world.manager.delete_logs([B0], partial(world.note, "deleted"))
    assert world.answers == []
    world.run()
    assert world.answers == ["deleted"]


def test_a_name_used_again_inherits_no_recovery_point() -> None:
    """The checkpoints go by name: with the old topic's recovery point, the new topic's records would not be checked."""
    world = World()
    (log,) = world.create(A0)
    append(log, 9)
    world.manager._directories[ONE].flush(log)
    world.run()
    world.tick(60_000)
    assert decode_offsets(world.filesystem.read_bytes(f"{ONE}/{RECOVERY_POINT_CHECKPOINT}"), "") == {A0: 45}
    assert decode_offsets(world.filesystem.read_bytes(f"{ONE}/{HIGH_WATERMARK_CHECKPOINT}"), "") == {A0: 45}
    world.manager.delete_logs([A0], partial(world.note, "deleted"))
    world.run()
    for seed in range(5):
        world.filesystem.power_cut(Random(seed))
        for name in (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT):
            assert decode_offsets(world.filesystem.read_bytes(f"{ONE}/{name}"), "") == {}


def test_on_a_full_disk_a_topic_can_be_deleted_and_old_checkpoints_are_removed() -> None:
    world = World()
    append(world.create(A0)[0], 9)
    world.tick(60_000)
    world.filesystem.capacity_bytes = 0
    world.manager.delete_logs([A0], partial(world.note, "deleted"))
    world.run()
    assert world.answers == ["deleted"]
    assert world.manager.directories.any_is_online
    assert not world.filesystem.exists(f"{ONE}/{RECOVERY_POINT_CHECKPOINT}")
    assert not [name for name in world.names(ONE) if name.endswith(".tmp")]


def test_a_deletion_cut_off_at_any_step_is_finished_or_not_begun() -> None:
    """The start finds the log start together with the records, or neither; never an old log start for a new topic."""
    step, done = 0, False
    while not done:
        step += 1
        world = World(seed=step)
        (log,) = world.create(A0)
        append(log, 9)
        world.delete_to((A0, 21))
        world.manager._directories[ONE].flush(log)
        world.run()
        world.filesystem.crash_at = world.filesystem.operation_count + step
        try:
            world.manager.delete_logs([A0], partial(world.note, "deleted"))
            world.run()
            done = True
        except SimulatedCrashError:
            pass
        world.restart(power=step % 2 == 0)
        world.run()
        found = world.manager.logs.get(A0)
        entries = dict(world.manager._directories[ONE].parts.journal.entries)
        if found is not None:
            assert "deleted" not in world.answers
            assert found.topic_id == A
            assert found.log_end_offset == 45
            assert found.log_start_offset == 21, "while the records are there, so is their log start"
            assert entries == {(A, 0): 21}
        else:
            assert entries == {}
        world.tick()
        assert not [name for name in world.names(ONE) if name.endswith("-delete")]
    assert step > 8


@pytest.mark.parametrize("full", [True, False])
def test_a_name_whose_deletion_was_interrupted_inherits_no_recovery_point_either(full: bool) -> None:
    world = World()
    append(world.create(A0, B0)[0], 9)
    world.manager.close()
    world.restart()
    world.manager.delete_logs([A0], partial(world.note, "deleted"))
    world.worker.step()
    assert A0 in decode_offsets(world.filesystem.read_bytes(f"{ONE}/{RECOVERY_POINT_CHECKPOINT}"), "")
    world.filesystem.crash_process()
    world.filesystem.capacity_bytes = 0 if full else None
    world.start()
    world.filesystem.power_cut()
    for name in (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT):
        path = f"{ONE}/{name}"
        assert not world.filesystem.exists(path) or A0 not in decode_offsets(world.filesystem.read_bytes(path), "")
        assert full != world.filesystem.exists(path)


def test_a_flush_that_meets_a_deleted_log_is_no_disk_failure() -> None:
    world = World()
    log, other = world.create(A0, B0)
    append(log)
    world.manager._directories[ONE].flush(log)
    world.manager.delete_logs([A0], partial(world.note, "deleted"))
    world.worker.step()
    world.run()
    world.manager._directories[ONE].flush(log)
    world.run()
    assert world.failed == []
    assert world.answers == ["deleted"]
    append(other)


def test_a_deletion_waits_for_a_checkpoint_that_is_under_way() -> None:
    """The checkpoint under way still has the partition; two versions at once would overwrite each other."""
    world = World()
    append(world.create(A0, B0)[0], 2)
    world.clock.now_ms += 60_000
    world.work(0)
    assert len(world.committers[ONE].waiting) == 2, "both checkpoints"
    world.manager.delete_logs([A0], partial(world.note, "deleted"))
    world.worker.step()
    world.run()
    assert world.answers == ["deleted"]
    assert world.failed == []
    for name in (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT):
        assert decode_offsets(world.filesystem.read_bytes(f"{ONE}/{name}"), "") == {B0: 0}


def test_a_disk_that_fails_during_a_deletion_is_reported() -> None:
    world = World()
    append(world.create(A0)[0])
    world.filesystem.fail_next("rename", errno.EIO)
    world.manager.delete_logs([A0], partial(world.note, "deleted"))
    world.run()
    assert world.answers == [("deleted", errno.EIO)]
    assert [path for path, _ in world.failed] == [ONE]


# Log starts


def test_a_delete_becomes_visible_when_it_is_durable_and_its_segments_are_removed_in_the_background() -> None:
    world = World()
    (log,) = world.create(A0)
    append(log, 20)
    segments = len(log.segments)
    assert segments > 5
    world.delete_to((A0, 73))
    assert (log.log_start_offset, log.log_start_pending, world.answers) == (0, 73, [])
    world.committers[ONE].step()
    assert (log.log_start_offset, log.log_start_pending, world.answers) == (73, 73, ["trimmed"])
    assert len(log.segments) < segments
    files = [name for name in world.names(log.directory) if name.endswith(".log")]
    assert len(files) == segments, "the event loop touched no file"
    world.run()
    assert len([name for name in world.names(log.directory) if name.endswith(".log")]) == len(log.segments)
    assert [name for name in world.names(log.directory) if name.endswith(".log.deleted")]
    world.tick(1000)
    assert not [name for name in world.names(log.directory) if name.endswith(".deleted")]


def test_a_request_over_many_partitions_and_two_directories_is_one_sync_in_each() -> None:
    world = World(ONE, TWO)
    logs = world.create(*(TopicPartition("a", partition) for partition in range(200)))
    for log in logs:
        append(log)
    world.delete_to(*((log.topic_partition, 3) for log in logs))
    world.committers[ONE].step()
    assert world.answers == []
    world.committers[TWO].step()
    assert world.answers == ["trimmed"]
    assert [committer.syncs for committer in world.committers.values()] == [1, 1]
    assert all(log.log_start_offset == 3 for log in logs)


def test_the_cost_of_a_delete_does_not_grow_with_the_segments() -> None:
    costs = set()
    for batches in (2, 40, 300):
        world = World()
        (log,) = world.create(A0)
        append(log, batches)
        before = world.filesystem.operation_count
        world.delete_to((A0, log.log_end_offset))
        world.committers[ONE].step()
        assert world.answers == ["trimmed"]
        costs.add(world.filesystem.operation_count - before)
    assert costs == {2}, "one write and one sync"


def test_a_failed_journal_takes_the_directory_offline_and_fails_waiting_deletes() -> None:
    world = World(ONE, TWO)
    here, there = world.create(A0, A1)
    append(here)
    append(there)
    world.filesystem.fail_next("sync", errno.EIO, path_contains=f"{ONE}/{JOURNAL_NAME}")
    world.delete_to((A0, 2), (A1, 3))
    world.run()
    assert world.answers == [("trimmed", errno.EIO)]
    assert world.failed == [(ONE, [A0])]
    assert (here.log_start_offset, there.log_start_offset) == (0, 3), "the other directory's log start rises"
    assert isinstance(BATCH, ValidatedBatch)
    assert here.append_as_leader(BATCH, leader_epoch=0, now_ms=1) == ErrorCode.KAFKA_STORAGE_ERROR
    world.delete_to((A0, 4), name="later")
    world.run()
    assert world.answers[-1] == ("later", errno.EIO)


def test_a_delete_overtaken_by_a_truncation_deletes_nothing_written_since() -> None:
    world = World()
    (log,) = world.create(A0)
    append(log, 4)
    world.delete_to((A0, 20))
    LogTruncation(log).truncate_to(10, now_ms=1)
    append(log, 4)
    world.run()
    assert (log.log_start_offset, log.log_end_offset) == (0, 30)
    world.restart()
    (log,) = world.manager.logs.values()
    assert (log.log_start_offset, log.log_end_offset) == (0, 30), "the journal was corrected too"


def test_of_two_deletes_the_larger_counts_in_any_order() -> None:
    """D12. The journal's last entry wins, so the smaller value must not be written after the larger one."""
    for first, second in ((7, 3), (3, 7), (7, 7)):
        world = World()
        append(world.create(A0)[0], 2)
        world.delete_to((A0, first))
        world.delete_to((A0, second))
        world.run()
        world.delete_to((A0, 1))
        world.run()
        assert world.manager.logs[A0].log_start_offset == 7
        world.restart()
        assert world.manager.logs[A0].log_start_offset == 7
        assert len(world.answers) == 3


def test_a_delete_of_a_log_that_is_deleted_meanwhile_changes_nothing() -> None:
    world = World()
    (log,) = world.create(A0)
    append(log)
    world.delete_to((A0, 2))
    world.manager.delete_logs([A0], partial(world.note, "deleted"))
    world.run()
    assert log.log_start_offset == 0
    assert world.manager._directories[ONE].parts.journal.entries == {}


def test_an_empty_list_of_log_starts_is_answered() -> None:
    world = World()
    world.manager.log_starts.request_log_starts([], partial(world.note, "nothing"))
    assert world.answers == []
    world.run()
    assert world.answers == ["nothing"]


# Due work


def test_checkpoints_are_written_when_due_and_only_after_a_change() -> None:
    world = World()
    (log,) = world.create(A0)
    append(log)
    world.tick(4999)
    assert not world.filesystem.exists(f"{ONE}/{HIGH_WATERMARK_CHECKPOINT}")
    world.tick(1)
    assert decode_offsets(world.filesystem.read_bytes(f"{ONE}/{HIGH_WATERMARK_CHECKPOINT}"), "") == {A0: 5}
    before = world.filesystem.operation_count
    world.tick(5000)
    assert world.filesystem.operation_count == before
    append(log)
    world.tick(5000)
    assert decode_offsets(world.filesystem.read_bytes(f"{ONE}/{HIGH_WATERMARK_CHECKPOINT}"), "") == {A0: 10}


def test_logs_are_flushed_by_time_by_count_and_after_a_roll() -> None:
    world = World()
    by_time, by_count, rolled = world.create(A0, A1, B0)
    by_time.configure(LogConfig(flush_ms=500))
    by_count.configure(LogConfig(flush_messages=10))
    for log in (by_time, by_count):
        append(log)
    append(rolled, 3)
    world.tick(499)
    assert (by_time.recovery_point, by_count.recovery_point) == (0, 0)
    assert rolled.recovery_point == 15, "a segment was closed"
    assert not by_count.flush_is_due
    append(by_count)
    assert by_count.flush_is_due
    world.manager.flush(by_count)
    world.tick(1)
    assert (by_time.recovery_point, by_count.recovery_point) == (5, 10)
    world.filesystem.power_cut()
    world.start()
    assert world.manager.logs[A1].log_end_offset == 10


def test_a_failed_flush_takes_the_directory_offline_and_nothing_is_tried_again() -> None:
    world = World()
    (log,) = world.create(A0)
    log.configure(LogConfig(flush_messages=1))
    append(log)
    world.filesystem.fail_next("sync", errno.EIO)
    world.manager.flush(log)
    world.run()
    assert world.failed == [(ONE, [A0])]
    before = world.filesystem.operation_count
    world.tick(100_000)
    assert world.filesystem.operation_count == before
    assert log.recovery_point == 0


def test_the_export_for_kafka_forgets_deleted_topics() -> None:
    """Kafka reads it by name: with an old topic's log start it would remove a new topic's records."""
    world = World()
    append(world.create(A0)[0])
    world.delete_to((A0, 4))
    world.run()
    world.manager.close()
    world.restart()
    world.manager.delete_logs([A0], partial(world.note, "deleted"))
    world.run()
    world.tick(60_000)
    assert decode_offsets(world.filesystem.read_bytes(f"{ONE}/{LOG_START_CHECKPOINT}"), "") == {}


def test_a_directory_that_kafka_wrote_is_opened() -> None:
    world = World()
    append(world.create(A0)[0], 3)
    world.manager.close()
    world.filesystem.crash_process()
    world.filesystem.unlink(journal_path(ONE))
    world.filesystem.unlink(f"{ONE}/{LOG_BEGIN_CHECKPOINT}")
    world.filesystem.replace_file(f"{ONE}/{LOG_START_CHECKPOINT}", encode_offsets({A0: 7}))
    world.start()
    assert world.manager.logs[A0].log_start_offset == 7
    world.restart(power=True)
    assert world.manager.logs[A0].log_start_offset == 7


def test_what_kafka_wrote_about_a_folder_without_topic_id_is_adopted_when_the_id_is_known() -> None:
    world = World()
    append(world.create(A0)[0], 3)
    world.manager.close()
    world.filesystem.crash_process()
    world.filesystem.unlink(f"{ONE}/a-0/{PARTITION_METADATA}")
    world.filesystem.write_bytes(f"{ONE}/{LOG_START_CHECKPOINT}", encode_offsets({A0: 7}))
    world.start()
    assert world.create(A0)[0].log_start_offset == 7
    append(world.create(B0)[0])
    world.delete_to((B0, 1))
    world.run()
    world.manager.close()
    assert decode_offsets(world.filesystem.read_bytes(f"{ONE}/{LOG_START_CHECKPOINT}"), "") == {A0: 7, B0: 1}
    world.restart()
    assert world.manager.logs[A0].log_start_offset == 7


def test_left_overs_of_a_deletion_are_finished_at_the_next_start() -> None:
    world = World()
    append(world.create(A0)[0])
    world.delete_to((A0, 4))
    world.run()
    world.filesystem.crash_process()
    gone = "a-0.0123456789abcdef0123456789abcdef-delete"
    world.filesystem.rename(f"{ONE}/a-0", f"{ONE}/{gone}")
    world.filesystem.write_bytes(f"{ONE}/{gone}/{PARTITION_METADATA}", encode_partition_metadata(A))
    world.start()
    world.run()
    world.tick()
    assert gone not in world.names(ONE)
    assert world.manager._directories[ONE].parts.journal.entries == {}


# Any order of anything


class ManagerMachine(RuleBasedStateMachine):
    """Deletes, deleted and recreated topics, crashes and stops; acknowledged log starts never fall."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.world = World(seed=seed)
        self.generation = 0
        self.topic_id = self.fresh_id()
        self.acknowledged = 0
        self.log_end = 0
        self.busy = False
        self.manager_log()

    def fresh_id(self) -> bytes:
        self.generation += 1
        return b"topic-%010d" % self.generation

    def manager_log(self) -> Log:
        return self.world.manager.create_log(A0, self.topic_id, CONFIG)

    @rule(batches=st.integers(1, 5))
    def write(self, batches: int) -> None:
        if not self.busy:
            append(self.manager_log(), batches)

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        if not self.busy:
            log = self.manager_log()
            offset = int(share * log.log_end_offset)
            done = partial(self.trimmed, self.topic_id, offset)
            self.world.manager.log_starts.request_log_starts([LogStartIncrement(log, offset)], done)

    def trimmed(self, topic_id: bytes, offset: int, error: OSError | None) -> None:
        assert error is None
        if topic_id == self.topic_id:
            self.acknowledged = max(self.acknowledged, offset)

    @rule()
    def flush(self) -> None:
        if not self.busy:
            self.world.manager._directories[ONE].flush(self.manager_log())

    @rule()
    def replace_topic(self) -> None:
        if not self.busy:
            self.busy = True
            self.world.manager.delete_logs([A0], self.replaced)

    def replaced(self, error: OSError | None) -> None:
        assert error is None
        self.busy = False
        self.topic_id = self.fresh_id()
        self.acknowledged = 0
        log = self.manager_log()
        assert (log.log_start_offset, log.log_end_offset) == (0, 0), (
            "a new topic begins at 0, not where the old one began"
        )

    @rule(committer=st.booleans())
    def one_step(self, committer: bool) -> None:
        waiting = self.world.committers[ONE] if committer else self.world.worker
        if waiting.waiting:
            waiting.step()

    @rule(later_ms=st.sampled_from([0, 1000, 5000, 60_000]))
    def time_goes_on(self, later_ms: int) -> None:
        self.world.clock.now_ms += later_ms
        self.world.work(0)

    @rule()
    def everything(self) -> None:
        self.world.run()
        assert not self.busy

    @rule()
    def stop_cleanly(self) -> None:
        if not self.busy:
            end = self.manager_log().log_end_offset
            self.world.manager.close()
            self.reopen(power=True)
            assert self.manager_log().log_end_offset == end

    @rule(power=st.booleans())
    def crash(self, power: bool) -> None:
        self.reopen(power=power)

    @rule(steps=st.integers(1, 15), power=st.booleans())
    def crash_within(self, steps: int, power: bool) -> None:
        self.world.filesystem.crash_at = self.world.filesystem.operation_count + steps
        try:
            self.world.run()
        except SimulatedCrashError:
            self.reopen(power=power)
        self.world.filesystem.clear_faults()

    def reopen(self, *, power: bool) -> None:
        self.world.restart(power=power)
        found = self.world.manager.logs.get(A0)
        if self.busy and (found is None or A0 not in self.world.manager.logs):
            # The deletion got as far as renaming, or the folder was never durable: according to the metadata the topic
            # is gone.
            self.world.run()
            self.busy = False
            self.topic_id = self.fresh_id()
            self.acknowledged = 0
        elif self.busy:
            # According to the metadata the topic is deleted; the broker starts the deletion again.
            self.world.manager.delete_logs([A0], self.replaced)
        elif found is not None:
            assert found.topic_id == self.topic_id, "never another topic's folder"
        if not self.busy:
            self.manager_log()

    @invariant()
    def an_acknowledged_delete_stays(self) -> None:
        if hasattr(self, "world") and not self.busy:
            log = self.manager_log()
            assert log.log_start_offset >= self.acknowledged
            log.check_order()


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(max_examples=examples(80), stateful_step_count=30, deadline=None)
