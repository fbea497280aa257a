"""Starts and stops of a log manager, of every kind."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

import pytest

from lowtide.runtime.filesystem.memory import MemoryFileSystem, SimulatedCrashError
from lowtide.storage.checkpoint import (
    CLEAN_SHUTDOWN_MARKER,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_BEGIN_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    decode_clean_shutdown,
    decode_offsets,
)
from lowtide.storage.directory.directory_opening import KnownTopic
from lowtide.storage.directory.log_manager import LogManager
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import LogConfig
from lowtide.storage.log_start.journal_loading import journal_path

from .managed_logs import (
    A0,
    A1,
    B0,
    CLUSTER,
    CONFIG,
    ONE,
    TWO,
    A,
    B,
    World,
    append,
    damage_journal,
)

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


@pytest.mark.parametrize("places", [[ONE, f"{ONE}/disk-1"], [f"{ONE}/a/b", f"/.{ONE}/"]])
def test_a_directory_within_another_one_is_refused(places: list[str]) -> None:
    """It would be the folder of partition 1 of a topic `disk`, and go with the topic."""
    world = World()
    world.manager.close()
    world.paths = places
    with pytest.raises(StorageError, match="which is one too"):
        world.start()


def test_a_directory_whose_name_begins_like_another_one_is_accepted() -> None:
    world = World(ONE, f"{ONE}-2")
    assert world.create(A0)


def test_a_partition_in_two_directories_is_refused() -> None:
    world = World(ONE, TWO)
    world.create(A0, A1)
    world.manager.close()
    world.filesystem.make_directories(f"{TWO}/a-0")
    for path in (ONE, TWO):
        world.filesystem.write_bytes(f"{path}/a-0/00000000000000000000.log", b"records")
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
