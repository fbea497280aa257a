"""Erasing includes what a partition's logs left in any directory: folders being deleted, set aside, or copied."""

from __future__ import annotations

import errno
from typing import Any

import msgspec
import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.types import LeaderEpoch, Offset, TopicPartition
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.checkpoint import PARTITION_METADATA, encode_partition_metadata
from lowtide.storage.directory.directory_erasures import EraseChangedError
from lowtide.storage.directory.set_aside_folders import SetAsideFolders
from lowtide.storage.log.log import Log
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce

from .managed_logs import A0, A1, CONFIG, ONE, TWO, A, B, World

SLOW = msgspec.structs.replace(CONFIG, file_delete_delay_ms=60_000)
HEX = "0123456789abcdef" * 2


def produce(log: Log, *values: bytes) -> None:
    for value in values:
        batch = validate_produce(memoryview(build_batch([(1, None, value, ())])), ValidationRules(), 1)
        assert isinstance(batch, ValidatedBatch)
        log.append_as_leader(batch, leader_epoch=LeaderEpoch(0), now_ms=1)
    log.advance_high_watermark(log.log_end_offset)


def files_with(world: World, value: bytes, path: str | None = None) -> list[str]:
    """Every file below the log directories, whatever it is called."""
    found = []
    for folder in world.paths if path is None else [path]:
        for name in world.names(folder):
            place = f"{folder}/{name}"
            if world.filesystem.is_directory(place):
                found += files_with(world, value, place)
            elif value in world.filesystem.read_bytes(place):
                found.append(place)
    return found


def move_away(world: World, key: TopicPartition = A0) -> None:
    world.manager.delete_logs([key], lambda _error: None)
    world.run()


def back(world: World, key: TopicPartition = A0) -> Log:
    """The replica is here again, with what it fetched from others, and what was deleted has been deleted."""
    log = world.manager.create_log(key, A, SLOW)
    produce(log, b"-gone-", b"-kept-")
    world.delete_to((key, 1))
    world.run()
    return log


def erase(world: World, log: Log, offset: int = 1) -> list[Any]:
    answers: list[Any] = []
    world.manager.erase(log, EraseGoal(Offset(offset)), answers.append)
    for _ in range(20):
        world.clock.now_ms += 50
        for _step in world.manager.directories.free_deleted():
            pass
        world.run()
    return answers


def until_asked(world: World) -> None:
    """Waits until an erasure has asked for the folders that were set aside."""
    while not len(world.manager._beside):
        for _step in world.manager.directories.free_deleted():
            pass
        world.run()


def asked_for(world: World) -> tuple[Log, list[Any]]:
    """Asks to erase a log that has folders set aside; returns the log, and the list that gets the answers."""
    log, answers = back(world), list[Any]()
    world.manager.erase(log, EraseGoal(Offset(1)), answers.append)
    until_asked(world)
    return log, answers


def fresh(*paths: str) -> World:
    """Nothing is emptied before it is removed, as of topics that are compacted."""
    return World(*paths, frees_deleted=False)


@pytest.mark.parametrize("paths", [(ONE,), (ONE, TWO)])
def test_a_replica_that_moved_away_and_back_leaves_nothing(paths: tuple[str, ...]) -> None:
    world = fresh(*paths)
    produce(world.manager.create_log(A0, A, SLOW), b"-gone-")
    move_away(world)
    log = back(world)
    assert len(files_with(world, b"-gone-")) == 2, "the folder that is deleted later, and the log's own"
    assert erase(world, log) == [None]
    assert files_with(world, b"-gone-") == []
    assert files_with(world, b"-kept-")
    world.restart(power=True)
    assert files_with(world, b"-gone-") == [], "the disks know"


def test_a_folder_that_a_deletion_has_still_to_rename_is_waited_for() -> None:
    world = fresh(ONE, TWO)
    old = world.manager.create_log(A0, A, SLOW)
    produce(old, b"-gone-")
    world.manager.delete_logs([A0], lambda _error: None)
    log = world.manager.create_log(A0, A, SLOW)
    assert log.parent_directory != old.parent_directory
    produce(log, b"-gone-", b"-kept-")
    world.delete_to((A0, 1))
    for committer in world.committers.values():
        while committer.waiting:
            committer.step()
    assert erase(world, log) == [None]
    assert files_with(world, b"-gone-") == []


def test_the_folder_of_another_topic_or_partition_stays() -> None:
    world = fresh()
    produce(world.manager.create_log(A0, B, SLOW), b"-other topic-")
    produce(world.manager.create_log(A1, A, SLOW), b"-other partition-")
    move_away(world)
    move_away(world, A1)
    assert erase(world, back(world)) == [None]
    assert files_with(world, b"-other topic-")
    assert files_with(world, b"-other partition-")


@pytest.mark.parametrize(
    ("name", "base_offset", "topic_id", "refused"),
    [
        (f"{A0}.{HEX}-stray", 0, A, True),
        (f"{A0}.{HEX}-stray", 0, None, True),
        (f"{A0}.{HEX}-future", 0, A, True),
        (f"{A0}.{HEX}-stray", 1, A, False),
        (f"{A0}.{HEX}-stray", 0, B, False),
        (f"{A1}.{HEX}-stray", 0, A, False),
    ],
)
def test_a_folder_that_stays_is_named_if_it_may_have_deleted_records(
    name: str, base_offset: int, topic_id: bytes | None, refused: bool
) -> None:
    world = fresh()
    log = back(world)
    folder = f"{ONE}/{name}"
    world.filesystem.make_directories(folder)
    world.filesystem.write_bytes(f"{folder}/{base_offset:020d}.log", b"-gone-")
    if topic_id is not None:
        world.filesystem.write_bytes(f"{folder}/{PARTITION_METADATA}", encode_partition_metadata(topic_id))
    (answer,) = erase(world, log)
    assert (str(answer) == f"the folder {folder} was set aside, and has deleted records: remove it") == refused
    assert (answer is None) != refused
    assert world.filesystem.exists(f"{folder}/{base_offset:020d}.log")


def test_a_name_that_was_cut_is_found_by_the_id_of_its_topic() -> None:
    world = fresh()
    key = TopicPartition("a" * 249, 0)
    produce(world.manager.create_log(key, A, SLOW), b"-gone-")
    move_away(world, key)
    assert erase(world, back(world, key)) == [None]
    assert files_with(world, b"-gone-") == []


def test_a_directory_that_cannot_be_looked_at_is_an_error() -> None:
    world = fresh(ONE, TWO)
    log = back(world)
    other = next(path for path in world.paths if path != log.parent_directory)
    world.manager.directories.fail(other, OSError(errno.EIO, "gone"))
    (answer,) = erase(world, log)
    assert str(answer) == f"the log directory {other} is offline, and may have records of the partition"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_what_lacks_a_descriptor_is_repeated_and_a_disk_that_fails_is_an_error(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = fresh(ONE, TWO)
    log = back(world)
    other = next(path for path in world.paths if path != log.parent_directory)
    listdir, failures = MemoryFileSystem.listdir, [number]

    def failing(filesystem: MemoryFileSystem, path: str) -> list[str]:
        if path == other and failures:
            raise OSError(failures.pop(), "no")
        return listdir(filesystem, path)

    monkeypatch.setattr(MemoryFileSystem, "listdir", failing)
    (answer,) = erase(world, log)
    assert (answer is None) == (number == errno.EMFILE)
    assert len(world.manager.directories.offline) == (number == errno.EIO)


def test_a_request_can_be_taken_back_and_a_stop_refuses_it() -> None:
    world = fresh()
    log = back(world)
    answers: list[Any] = []
    beside: SetAsideFolders = world.manager._beside
    for _ in range(2):
        take_back = world.manager.erase(log, EraseGoal(Offset(1)), answers.append)
        until_asked(world)
        if not answers:
            take_back()
            assert (len(beside), answers) == (0, [])
            answers.append("taken back")
    world.manager.close()
    assert [str(each) for each in answers] == ["taken back", "the broker stops"]


def test_a_look_that_ends_after_the_stop_has_no_effect() -> None:
    """The stop ends with the worker's results, when the committers are closed."""
    world = fresh()
    _, answers = asked_for(world)
    for _step in world.manager.directories.free_deleted():
        pass
    assert world.worker.waiting
    world.manager.close()
    while world.worker.waiting:
        world.worker.step()
    assert [str(each) for each in answers] == ["the broker stops"]


def test_a_log_that_is_truncated_meanwhile_is_to_be_erased_again() -> None:
    """What it fetches then may have deleted records."""
    world = fresh()
    log, answers = asked_for(world)
    world.manager.truncate(log, Offset(1), lambda _error: None)
    assert [(type(each), str(each)) for each in answers] == [
        (EraseChangedError, "the replica was truncated meanwhile; ask again")
    ]
    world.run()


def test_the_folder_of_a_topic_that_always_erases_goes_at_once() -> None:
    world = fresh()
    produce(world.manager.create_log(A0, A, msgspec.structs.replace(SLOW, lowtide_delete_erase=True)), b"-gone-")
    move_away(world)
    world.tick()
    assert files_with(world, b"-gone-") == []
