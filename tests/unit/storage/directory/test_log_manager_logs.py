"""Logs that a log manager creates and deletes, and names that are used again."""

from __future__ import annotations

import errno
from functools import partial
from random import Random

import pytest

from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem.memory import SimulatedCrashError
from lowtide.storage.checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    decode_offsets,
)

from .managed_logs import (
    A0,
    A1,
    B0,
    CONFIG,
    ONE,
    TWO,
    A,
    B,
    World,
    append,
)


def test_logs_spread_over_directories() -> None:
    world = World(ONE, TWO)
    logs = world.create(A0, A1, B0)
    assert sorted(log.parent_directory for log in logs) == [ONE, ONE, TWO]
    assert world.manager.create_log(A0, A, CONFIG) is logs[0], "creating it again is no error"


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
