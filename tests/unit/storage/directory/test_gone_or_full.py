"""A log that is removed while work on it is under way, and a disk that is full at any step, are no disk failures."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem.planned_faults import Operation
from lowtide.storage.log.log import AppendedBatch, Log
from lowtide.storage.log.validation.validator import ValidatedBatch
from lowtide.storage.log_start.journal_image import JOURNAL_NAME

from .managed_logs import A0, BATCH, CONFIG, ONE, A, World

OTHER = b"another topic id"
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


def append(log: Log, leader_epoch: int, batches: int = 1) -> None:
    """Batches of five records, committed at once."""
    assert isinstance(BATCH, ValidatedBatch)
    for _ in range(batches):
        assert isinstance(log.append_as_leader(BATCH, leader_epoch=leader_epoch, now_ms=1), AppendedBatch)
    log.advance_high_watermark(log.log_end_offset)


def grown() -> tuple[World, Log]:
    """A log of six leader epochs that starts at 12 and ends at 50. It is durable up to 40."""
    world = World()
    (log,) = world.create(A0)
    for epoch in range(4):
        append(log, epoch, 2)
    world.manager.flush(log)
    world.delete_to((A0, 12))
    world.run()
    world.tick(60_000)
    append(log, 5)
    log.roll(1)
    append(log, 6)
    world.answers.clear()
    return world, log


def truncate(world: World, log: Log) -> None:
    world.manager.truncate(log, 22, partial(world.note, "done"))


def truncate_below_start(world: World, log: Log) -> None:
    world.manager.truncate(log, 7, partial(world.note, "done"))


def restart_at(world: World, log: Log) -> None:
    world.manager.restart_at(log, 90, 6, lambda: True, partial(world.note, "done"))


def flush(world: World, log: Log) -> None:
    world.manager.listen_to_flushes(lambda _log: world.answers.append("done"))
    world.manager.flush(log)


def delete(world: World, log: Log) -> None:
    world.delete_to((A0, log.log_end_offset), name="done")


def fold(world: World, _log: Log) -> None:
    world.delete_to((A0, 17), name="done")
    world.manager._directories[ONE].parts.journal.fold(lambda _error: None)


ACTIONS = [truncate, truncate_below_start, restart_at, flush, delete, fold]
Action = Callable[[World, Log], None]


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("folder_first", [True, False])
def test_a_log_that_is_removed_at_any_completion_is_no_disk_failure(action: Action, folder_first: bool) -> None:
    """Its files are missing by then; code that finds that checks whether the log still exists.

    Another log may have its name soon.
    """
    for steps in range(30):
        world, log = grown()
        action(world, log)
        committer = world.committers[ONE]
        for _ in range(steps):
            if committer.waiting:
                committer.step()
        was_busy = bool(committer.waiting)
        world.manager.delete_logs([A0], partial(world.note, "gone"))
        if folder_first:
            while world.worker.waiting:
                world.worker.step()
        world.run()
        world.tick(1000)
        assert (world.failed, "gone" in world.answers) == ([], True), steps
        again = world.manager.create_log(A0, OTHER, CONFIG)
        append(again, 9)
        world.manager.flush(again)
        world.run()
        world.tick(1000)
        assert world.failed == [], steps
        assert again.leader_epochs.entries() == [(9, 0)]
        assert {key[0] for key in world.manager._directories[ONE].parts.journal.entries} <= {OTHER}
        if not was_busy:
            break
    else:
        pytest.fail("the action never ended")


def settle(world: World, log: Log, action: Action) -> None:
    """Acts as the caller: an action refused for lack of space is requested again a second later."""
    for _ in range(8):
        world.run()
        if any(answer in [("done", number) for number in NO_ROOM] for answer in world.answers):
            world.answers.clear()
            action(world, log)
        world.tick(1000)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("lasts", [1, pytest.param(3, marks=pytest.mark.slow), 1000])
def test_no_room_at_any_step_is_no_disk_failure_and_all_is_done_when_there_is_room(action: Action, lasts: int) -> None:
    """`lasts`: how many operations in a row find no room."""
    expected = world_after(action)
    for first in range(1, 300):
        world, log = grown()
        count = 0

        def lacks_room(_operation: Operation, _path: str) -> bool:
            nonlocal count
            count += 1
            return first <= count < first + lasts

        world.filesystem.lacks_room = lacks_room
        action(world, log)
        settle(world, log, action)
        struck = count >= first
        world.filesystem.lacks_room = None
        settle(world, log, action)
        assert (world.failed, log.offline, log.truncating) == ([], False, 0), first
        assert "done" in world.answers, first
        assert not any(isinstance(answer, tuple) and answer[1] not in NO_ROOM for answer in world.answers), (
            world.answers
        )
        assert not [name for name in world.names(f"{ONE}/{A0}") if name.endswith((".tmp", ".swap", ".cleaned"))]
        before = log.log_start_offset, log.log_end_offset, log.leader_epochs.entries()
        assert before == expected
        world.manager.flush(log)
        world.run()
        assert log.recovery_point == log.log_end_offset, first
        world.restart(power=True)
        found = world.manager.logs[A0]
        assert (found.log_start_offset, found.log_end_offset, found.leader_epochs.entries()) == before, first
        append(found, 9)
        if not struck:
            break
    else:
        pytest.fail("the action never ended")


def world_after(action: Action) -> tuple[int, int, list[tuple[int, int]]]:
    world, log = grown()
    action(world, log)
    settle(world, log, action)
    return log.log_start_offset, log.log_end_offset, log.leader_epochs.entries()


def test_a_follower_that_is_emptied_on_a_full_disk_frees_its_space() -> None:
    """Without space for a new name it keeps an emptied file of its own, and a start on the full disk accepts that."""
    world, log = grown()
    log.roll(1)
    append(log, 5, 4)
    before = log.size_bytes
    world.filesystem.lacks_room = lambda operation, _path: operation == "create"
    restart_at(world, log)
    world.run()
    assert "done" not in world.answers, "the recovery points can't be written, and their old file must be removed"
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes < before) == (90, 90, True)
    assert isinstance(BATCH, ValidatedBatch)
    world.tick(1000)
    assert log.append_as_leader(BATCH, leader_epoch=6, now_ms=1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.restart()
    found = world.manager.logs[A0]
    assert (found.log_start_offset, found.log_end_offset) == (90, 90)
    append(found, 7)
    world.restart(power=True)
    assert world.manager.logs[A0].log_start_offset == 90


@pytest.mark.parametrize("power", [True, False])
def test_a_start_on_a_full_disk_finds_every_log(power: bool) -> None:
    """Whatever the start has to repair. A log that cannot be loaded without space is loaded when there is some."""
    keys = [TopicPartition("a", number) for number in range(4)]
    for allowed in range(100):
        world, log = grown()
        for other in world.create(*keys[1:]):
            append(other, 0, 3)
            other.roll(1)
            append(other, 0)
            world.manager.flush(other)
        world.run()
        restart_at(world, log)
        world.committers[ONE].step()
        if power:
            world.filesystem.power_cut()
        else:
            world.filesystem.crash_process()
        count = 0

        def lacks_room(_operation: Operation, path: str) -> bool:
            nonlocal count
            count += 1
            # The journal has its size: writing it once more needs no room.
            return count > allowed and not path.endswith(JOURNAL_NAME)

        world.filesystem.lacks_room = lacks_room
        world.start()
        found = {key: (log.log_start_offset, log.log_end_offset) for key, log in world.manager.logs.items()}
        world.filesystem.lacks_room = None
        for key in keys:
            loaded = world.manager.create_log(key, A, CONFIG)
            assert (loaded.log_start_offset, loaded.log_end_offset) == found.get(
                key, (loaded.log_start_offset, loaded.log_end_offset)
            )
        world.tick(1000)
        for key in keys:
            append(world.manager.logs[key], 9)
        world.run()
        assert world.failed == []
        assert world.manager.logs[A0].log_start_offset == 90
        if count <= allowed:
            break
    else:
        pytest.fail("it never came to its end")
