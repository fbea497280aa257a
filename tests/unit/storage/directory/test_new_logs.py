"""The files of a new log: created with its first write, or soon after in the background."""

from __future__ import annotations

import errno
from typing import Any

import msgspec
import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition
from lowtide.storage.checkpoint import PARTITION_METADATA, decode_partition_metadata
from lowtide.storage.directory.log_loading import LOGS_PER_ROUND
from lowtide.storage.errors import StorageError

from .managed_logs import A0, A1, B0, BATCH, CONFIG, ONE, TWO, A, B, World, append


def has_files(world: World, key: TopicPartition, path: str = ONE) -> bool:
    """Returns whether the folder is there, with its topic id and a segment; fails if it is there in part."""
    folder = f"{path}/{key}"
    if not world.filesystem.exists(folder):
        return False
    content = world.filesystem.read_bytes(f"{folder}/{PARTITION_METADATA}")
    assert decode_partition_metadata(content, folder) == world.manager.logs[key].topic_id
    assert any(name.endswith(".log") for name in world.filesystem.listdir(folder))
    return True


def one_round(world: World) -> None:
    for _step in world.manager.directories.free_deleted():
        pass


def test_creating_logs_creates_and_syncs_no_file() -> None:
    """A thousand partitions are cheap because the metadata store, and not the disk, decides which exist."""
    world = World()
    before = world.filesystem.operation_count
    world.create(*(TopicPartition("a", partition) for partition in range(100)))
    assert all(not committer.waiting for committer in world.committers.values())
    assert world.filesystem.operation_count - before <= 100
    assert not any(name.startswith("a-") for name in world.names(ONE))
    assert not world.worker.waiting


def test_the_first_append_creates_the_files_of_its_log_only() -> None:
    world = World()
    first, _ = world.create(A0, A1)
    assert first.read(0, 100, end_offset=0).slice is None
    append(first, 2)
    assert (has_files(world, A0), has_files(world, A1)) == (True, False)
    world.restart()
    assert world.manager.logs[A0].log_end_offset == 10


def test_rounds_create_the_files_of_logs_that_nobody_writes_some_at_a_time() -> None:
    world = World()
    keys = [TopicPartition("a", partition) for partition in range(LOGS_PER_ROUND + 3)]
    world.create(*keys)
    one_round(world)
    assert [has_files(world, key) for key in keys] == [True] * LOGS_PER_ROUND + [False] * 3
    one_round(world)
    assert all(has_files(world, key) for key in keys)
    before = world.filesystem.operation_count
    one_round(world)
    assert world.filesystem.operation_count == before, "it is done once"


def test_a_clean_stop_creates_the_files_that_are_missing() -> None:
    world = World(ONE, TWO)
    world.create(A0, A1)
    world.manager.close()
    world.start()
    assert has_files(world, A0, world.manager.logs[A0].parent_directory)
    assert has_files(world, A1, world.manager.logs[A1].parent_directory)


def test_a_log_that_was_killed_without_files_is_created_again_where_its_journal_is() -> None:
    world = World(ONE, TWO)
    append(world.create(A0)[0], 3)
    world.create(A1, B0)
    world.delete_to((A0, 6))
    world.run()
    world.filesystem.crash_process()
    world.start()
    assert list(world.manager.logs) == [A0]
    assert world.manager.expect([(A0, A), (A1, A), (B0, B)]) == []
    first, _, _ = world.create(A0, A1, B0)
    assert (first.log_start_offset, first.log_end_offset) == (6, 15)


def test_without_room_a_new_log_refuses_appends_until_there_is_room() -> None:
    world = World()
    world.filesystem.capacity_bytes = 0
    first, second = world.create(A0, A1)
    assert first.append_as_leader(BATCH, leader_epoch=0, now_ms=0) == ErrorCode.KAFKA_STORAGE_ERROR
    one_round(world)
    assert second.disk_full or first.disk_full, "the directory reports no room"
    assert world.manager.directories.any_is_online
    world.filesystem.capacity_bytes = None
    append(first, 1)
    one_round(world)
    assert has_files(world, A0)
    assert has_files(world, A1)
    world.restart()
    assert world.manager.logs[A0].log_end_offset == 5


def test_a_stop_without_room_leaves_a_new_log_to_the_next_start() -> None:
    world = World()
    append(world.create(A0)[0], 1)
    world.create(A1)
    world.filesystem.fail_next("make_directory", errno.ENOSPC)
    world.manager.close()
    world.start()
    assert list(world.manager.logs) == [A0]
    assert world.manager.expect([(A0, A), (A1, A)]) == []


@pytest.mark.parametrize("operation", ["make_directory", "create", "write"])
@pytest.mark.parametrize("how", ["append", "round"])
def test_a_failing_disk_under_a_new_log_takes_the_directory_offline(operation: Any, how: str) -> None:
    world = World()
    (log,) = world.create(B0)
    world.filesystem.fail_next(operation, errno.EIO)
    if how == "append":
        with pytest.raises(StorageError) as raised:
            append(log, 1)
        world.manager.fail_directory_of(log, raised.value)
    else:
        one_round(world)
    assert world.failed == [(ONE, [B0])]
    assert log.offline
    with pytest.raises(StorageError, match="offline"):
        world.create(A1)


def test_a_directory_that_was_removed_is_not_brought_back_by_a_first_append() -> None:
    world = World(ONE, TWO)
    first, second = world.create(A0, A1)
    world.filesystem.remove_tree(second.parent_directory)
    with pytest.raises(StorageError, match="gone"):
        append(second, 1)
    assert not world.filesystem.exists(second.parent_directory)
    append(first, 1)


def test_deleting_a_log_without_files_frees_its_name_and_leaves_no_folder() -> None:
    world = World()
    (log,) = world.create(A0)
    world.manager.delete_logs([A0], lambda error: world.answers.append(error))
    one_round(world)
    world.run()
    assert world.answers == [None]
    assert log.append_as_leader(BATCH, leader_epoch=0, now_ms=0) == ErrorCode.KAFKA_STORAGE_ERROR
    assert not any(name.startswith("a-") for name in world.names(ONE))
    again = world.manager.create_log(A0, B, CONFIG)
    append(again, 1)
    assert has_files(world, A0)


def test_a_log_without_files_starts_over_at_another_offset() -> None:
    """A follower whose leader has deleted everything up to there."""
    world = World()
    (log,) = world.create(A0)
    world.manager.restart_at(log, 40, 1, lambda: True, lambda error: world.answers.append(error))
    world.run()
    assert world.answers == [None]
    assert (log.log_start_offset, log.log_end_offset) == (40, 40)
    append(log, 1)
    world.restart()
    assert (world.manager.logs[A0].log_start_offset, world.manager.logs[A0].log_end_offset) == (40, 45)


def test_a_preallocated_log_gets_its_room_with_its_first_append() -> None:
    world = World()
    log = world.manager.create_log(A0, A, msgspec.structs.replace(CONFIG, preallocate=True))
    append(log, 1)
    path = f"{ONE}/{A0}/00000000000000000000.log"
    assert world.filesystem.file_size(path) == CONFIG.segment_bytes
    world.manager.close()
    assert world.filesystem.file_size(path) < CONFIG.segment_bytes
