"""Logs that move between directories: wherever it is interrupted, nothing is lost and no delete is undone."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.records import read_batch_header
from lowtide.protocol.types import LeaderEpoch, Offset
from lowtide.storage.compaction import erasing
from lowtide.storage.directory.log_move import common_end
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import AppendedBatch, Log
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce
from lowtide.storage.log_directory import MOVING_TO

from .managed_logs import A0, A1, CONFIG, ONE, TWO, A, B, World

THREE = "/three"


def batch(value: str, producer: tuple[int, int] | None = None) -> ValidatedBatch:
    """A batch of two records; `producer` is a producer id and its sequence."""
    options: dict[str, Any] = (
        {} if producer is None else {"producer_id": producer[0], "producer_epoch": 0, "base_sequence": producer[1]}
    )
    content = build_batch([(1, b"key", value.encode() * 5, ()) for _ in range(2)], **options)
    validated = validate_produce(memoryview(content), ValidationRules(), 1)
    assert isinstance(validated, ValidatedBatch)
    return validated


def append(log: Log, value: str, producer: tuple[int, int] | None = None, epoch: int = 0) -> AppendedBatch:
    appended = log.append_as_leader(batch(value, producer), leader_epoch=LeaderEpoch(epoch), now_ms=1)
    assert isinstance(appended, AppendedBatch), appended
    log.advance_high_watermark(log.log_end_offset)
    return appended


def content(log: Log) -> dict[int, bytes]:
    """The batches of a log, by the offset at which they begin, without the leader's fields."""
    found = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(Offset(offset), 1, end_offset=log.log_end_offset).slice
        assert read is not None, (offset, log.describe())
        data = read.file.pread(read.size, read.position)
        header = read_batch_header(memoryview(data), 0)
        assert not isinstance(header, Exception)
        found[int.from_bytes(data[:8], "big")] = data[16:]
        offset = header.last_offset + 1
    return found


def end_round(world: World) -> None:
    for _step in world.manager.directories.free_deleted():
        pass


def settle(world: World) -> None:
    """All moves come to their end."""
    for number in range(60):
        world.clock.now_ms += 50
        end_round(world)
        world.run()
        if number % 10 == 0:
            world.tick(500)
    world.tick(2000)


def folders(world: World) -> list[str]:
    return sorted(
        f"{path}/{name}"
        for path in world.paths
        for name in world.names(path)
        if world.filesystem.is_directory(f"{path}/{name}")
    )


def other(log: Log) -> str:
    return TWO if log.parent_directory == ONE else ONE


def test_a_log_moves_with_all_that_it_has() -> None:
    world = World(ONE, TWO)
    (log,) = world.create(A0)
    for number in range(20):
        append(log, f"value {number}", (7, 2 * number))
    world.delete_to((A0, 13))
    world.run()
    before, path = content(log), other(log)
    told: list[tuple[Log, Log]] = []
    world.manager.moves.listen(lambda *logs: told.append(logs))
    world.manager.moves.alter(log, path)
    move = world.manager.moves.move_of(log)
    assert move is not None
    assert move.lag == 27
    append(log, "meanwhile", (7, 40))
    settle(world)
    moved = world.manager.logs[A0]
    assert told == [(log, moved)]
    assert moved.parent_directory == path
    assert (moved.log_start_offset, moved.log_end_offset, moved.high_watermark) == (13, 42, 42)
    assert {offset: each for offset, each in content(moved).items() if offset < 40} == before
    assert folders(world) == [f"{path}/a-0"]
    assert append(moved, "value 19", (7, 38)).duplicate, "its producers came along"
    append(moved, "after", (7, 42))
    for power in (False, True):
        world.manager.flush(moved)
        world.run()
        world.restart(power=power)
        moved = world.manager.logs[A0]
        assert (moved.log_start_offset, moved.log_end_offset, moved.parent_directory) == (13, 44, path)


def test_a_producer_whose_records_are_deleted_moves_too() -> None:
    world = World(ONE, TWO)
    (log,) = world.create(A0)
    append(log, "a", (7, 0))
    world.delete_to((A0, 2))
    world.run()
    world.manager.moves.alter(log, other(log))
    settle(world)
    assert world.manager.logs[A0] is not log
    for _ in range(2):
        assert append(world.manager.logs[A0], "a", (7, 0)).duplicate
        world.restart()


def test_a_second_request_replaces_the_first_and_one_to_where_it_is_ends_it() -> None:
    world = World(ONE, TWO, THREE)
    (log,) = world.create(A0)
    append(log, "a")
    targets = [path for path in world.paths if path != log.parent_directory]
    moves = world.manager.moves
    moves.alter(log, targets[0])
    moves.alter(log, targets[1])
    move = moves.move_of(log)
    assert move is not None
    assert move.target.path == targets[1]
    moves.alter(log, log.parent_directory)
    assert not len(moves)
    settle(world)
    assert folders(world) == [log.directory]
    moves.alter(log, targets[0])
    moves.alter(log, log.parent_directory)
    moves.alter(log, targets[0])
    settle(world)
    assert world.manager.logs[A0].parent_directory == targets[0], "the folder of the first copy had to go first"


def test_a_topic_is_deleted_and_made_again_while_it_moves() -> None:
    world = World(ONE, TWO)
    (log,) = world.create(A0)
    append(log, "a")
    world.delete_to((A0, 2))
    world.run()
    world.manager.moves.alter(log, other(log))
    world.run()
    world.manager.delete_logs([A0], lambda error: world.note("deleted", error))
    settle(world)
    assert world.answers == ["trimmed", "deleted"]
    assert folders(world) == []
    fresh = world.manager.create_log(A0, B, CONFIG)
    assert (fresh.log_start_offset, fresh.log_end_offset) == (0, 0)
    assert all(directory.parts.journal.value(A, 0) is None for directory in world.manager._directories.values())


def test_it_continues_after_a_restart() -> None:
    world = World(ONE, TWO)
    (log,) = world.create(A0)
    for number in range(30):
        append(log, f"value {number}")
    world.manager.moves.limit(lambda: 1000.0)
    path, before = other(log), content(log)
    world.manager.moves.alter(log, path)
    world.clock.now_ms += 500
    end_round(world)
    world.run()
    world.restart()
    log = world.manager.logs[A0]
    move = world.manager.moves.move_of(log)
    assert move is not None
    assert 0 < move.lag < 60, "what is copied is not copied again"
    world.manager.moves.limit(lambda: float("inf"))
    settle(world)
    assert world.manager.logs[A0].parent_directory == path
    assert content(world.manager.logs[A0]) == before


def test_the_rate_is_bounded() -> None:
    world = World(ONE, TWO)
    (log,) = world.create(A0)
    for number in range(200):
        append(log, f"value {number}")
    world.manager.moves.limit(lambda: 2000.0)
    world.manager.moves.alter(log, other(log))
    move = world.manager.moves.move_of(log)
    assert move is not None
    assert move.future is not None
    copied = []
    for _ in range(40):
        world.clock.now_ms += 50
        end_round(world)
        world.run()
        copied.append(move.future.size_bytes)
    assert 2000 < copied[-1] <= 2000 * 2 + (64 << 10), copied


def test_truncations_reach_the_copy() -> None:
    world = World(ONE, TWO)
    (log,) = world.create(A0)
    for number in range(10):
        append(log, f"old {number}")
    world.manager.moves.limit(lambda: 0.0)
    world.manager.moves.alter(log, other(log))
    move = world.manager.moves.move_of(log)
    assert move is not None
    world.manager.moves.limit(lambda: 1e9)
    world.clock.now_ms += 50
    end_round(world)
    while world.worker.waiting:
        world.worker.step()
    assert move.future is not None
    assert move.future.log_end_offset == 20
    world.manager.truncate(log, Offset(8), lambda error: world.note("cut", error))
    world.run()
    append(log, "new", epoch=1)
    settle(world)
    moved = world.manager.logs[A0]
    assert moved is not log
    assert moved.log_end_offset == 10
    assert moved.leader_epochs.entries() == [(0, 0), (1, 8)]
    assert b"new" in content(moved)[8]


def test_a_log_that_starts_over_takes_its_copy_along() -> None:
    world = World(ONE, TWO)
    (log,) = world.create(A0)
    append(log, "a")
    world.manager.moves.alter(log, other(log))
    world.run()
    world.manager.restart_at(log, Offset(100), LeaderEpoch(3), lambda: True, lambda error: world.note("anew", error))
    world.run()
    append(log, "b", epoch=3)
    settle(world)
    moved = world.manager.logs[A0]
    assert moved is not log
    assert (moved.log_start_offset, moved.log_end_offset, moved.leader_epochs.entries()) == (100, 102, [(3, 100)])


def test_the_log_is_compacted_only_as_far_as_its_copy_is_on_the_disk() -> None:
    world = World(ONE, TWO)
    (log,) = world.create(A0)
    for number in range(10):
        append(log, f"value {number}")
    assert world.manager.moves.compactable_to(log) is None
    world.manager.moves.limit(lambda: 0.0)
    world.manager.moves.alter(log, other(log))
    assert world.manager.moves.compactable_to(log) == 0
    world.manager.moves.limit(lambda: 1e9)
    settle(world)
    assert world.manager.moves.compactable_to(world.manager.logs[A0]) is None


def test_erasing_waits_for_the_copy() -> None:
    world = World(ONE, TWO)
    (log,) = world.create(A0)
    for number in range(3):
        append(log, f"value {number}")
    world.manager.moves.alter(log, other(log))
    end_round(world)
    world.delete_to((A0, 3))
    for committer in world.committers.values():
        while committer.waiting:
            committer.step()
    assert log.log_start_offset == 3
    erased: list[Any] = []
    world.manager.erase(log, EraseGoal(Offset(3)), erased.append)
    settle(world)
    assert erased == [None] or erased[0] is not None, "it is done, or has to be asked for again"
    assert len(erased) == 1
    if erased[0] is not None:
        world.manager.erase(world.manager.logs[A0], EraseGoal(Offset(3)), erased.append)
        settle(world)
        assert erased[1] is None
    for path in world.paths:
        for folder in world.names(path):
            if world.filesystem.is_directory(f"{path}/{folder}"):
                for name in world.names(f"{path}/{folder}"):
                    assert b"value 0" not in world.filesystem.read_bytes(f"{path}/{folder}/{name}")


def files_with(world: World, text: bytes) -> list[str]:
    """Of all logs that are here, of their copies, and of what is about to be removed."""
    names = [f"{folder}/{name}" for folder in folders(world) for name in world.names(folder)]
    return [name for name in names if text in world.filesystem.read_bytes(name)]


@pytest.mark.parametrize("rounds", range(8))
def test_erasing_waits_for_a_copy_that_is_begun_meanwhile(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "COPY_BYTES", 100)
    world = World(ONE, TWO)
    (log,) = world.create(A0)
    values = [b"deleted", *(b"kept %d" % number for number in range(20))]
    mixed = validate_produce(memoryview(build_batch([(1, None, value, ()) for value in values])), ValidationRules(), 1)
    assert isinstance(mixed, ValidatedBatch)
    log.append_as_leader(mixed, leader_epoch=LeaderEpoch(0), now_ms=1)
    for number in range(10):
        append(log, f"value {number}")
    world.delete_to((A0, 1))
    world.run()
    answers: list[Any] = []
    world.manager.erase(log, EraseGoal(Offset(1)), lambda error: answers.append(error or files_with(world, b"deleted")))
    for number in range(200):
        if number == rounds:
            world.manager.moves.alter(log, other(log))
        world.clock.now_ms += 20
        end_round(world)
        for committer in world.committers.values():
            if committer.waiting:
                committer.step()
        if world.worker.waiting:
            world.worker.step()
    assert answers == [[]] or "ask again" in str(answers[0])
    settle(world)
    assert len(answers) == 1


def test_a_target_that_fails_leaves_the_log_where_it_is() -> None:
    world = World(ONE, TWO)
    (log,) = world.create(A0)
    append(log, "a")
    path = other(log)
    world.manager.moves.alter(log, path)
    world.manager._directories[path].fail(OSError(errno.EIO, "gone"))
    assert world.failed == [(path, [])]
    settle(world)
    assert world.manager.logs[A0] is log
    assert not log.offline
    with pytest.raises(StorageError, match="offline"):
        world.manager.moves.alter(log, path)
    assert {each: (counts.done, counts.failed) for each, counts in world.manager.moves.counts.items()} == {
        ONE: (0, 0),
        TWO: (0, 0),
    } | {path: (0, 2)}
    world.restart()
    settle(world)
    assert world.manager.logs[A0].parent_directory == path, "the next start continues"
    assert (world.manager.moves.counts[path].done, world.manager.moves.counts[path].failed) == (1, 0)


def test_a_source_that_fails_takes_the_partition_offline() -> None:
    world = World(ONE, TWO)
    (log,) = world.create(A0)
    append(log, "a")
    world.manager.moves.alter(log, other(log))
    world.run()
    world.manager._directories[log.parent_directory].fail(OSError(errno.EIO, "gone"))
    settle(world)
    assert world.failed == [(log.parent_directory, [A0])]
    assert world.manager.logs[A0] is log
    world.restart()
    settle(world)
    assert world.manager.logs[A0].parent_directory != log.parent_directory


def test_a_directory_that_is_preferred_gets_the_partition() -> None:
    world = World(ONE, TWO)
    world.manager.preferred.note(A0, TWO)
    world.manager.preferred.note(A1, TWO)
    assert [log.parent_directory for log in world.create(A0, A1)] == [TWO, TWO]


def test_both_folders_are_there_at_a_start_and_one_directory_is_not() -> None:
    """A kill right after the copy got the partition's name; then the disk that it is on doesn't come back."""
    world = World(ONE, TWO)
    (log,) = world.create(A0)
    append(log, "a")
    assert world.manager.expect([(A0, A)]) == []
    source, path = log.parent_directory, other(log)
    world.manager.moves.alter(log, path)
    for _ in range(100):
        end_round(world)
        if world.filesystem.exists(f"{path}/a-0"):
            break
        if world.worker.waiting:
            world.worker.step()
        for committer in world.committers.values():
            if committer.waiting:
                committer.step()
    assert world.filesystem.exists(f"{source}/a-0/{MOVING_TO}")
    append(world.manager.logs[A0], "b")
    world.filesystem.crash_process()
    world.filesystem.rename(path, f"{path}-away")
    world.start()
    assert A0 not in world.manager.logs, "the older folder is not taken for the partition"
    assert world.manager.expect([(A0, A)]) == [A0]
    with pytest.raises(StorageError, match="offline"):
        world.create(A0)
    world.filesystem.crash_process()
    world.filesystem.remove_tree(path) if world.filesystem.exists(path) else None
    world.filesystem.rename(f"{path}-away", path)
    world.start()
    settle(world)
    assert world.manager.logs[A0].log_end_offset == 4
    assert folders(world) == [f"{path}/a-0"]


def test_the_end_that_a_copy_shares_with_its_source() -> None:
    world = World(ONE, TWO)
    one, two = world.create(A0, A1)
    for number in range(3):
        append(one, f"value {number}")
        append(two, f"value {number}")
    append(two, "of another leader", epoch=1)
    append(one, "of a later leader", epoch=2)
    append(one, "of a later leader", epoch=2)
    assert common_end(one, two) == 6
    assert common_end(one, one) == 10


def moved_until(world: World, log: Log, meanwhile: Callable[[int], None] = lambda _number: None) -> Log:
    """Has a log moved, and returns what takes its place at the moment at which it does: nothing later is carried out.

    `meanwhile` is called before each step, with its number.
    """
    taken: list[Log] = []
    world.manager.moves.listen(lambda _old, new: taken.append(new))
    world.manager.moves.alter(log, other(log))
    for number in range(400):
        meanwhile(number)
        ready: list[Any] = [each for each in (*world.committers.values(), world.worker) if each.waiting]  # type: ignore[attr-defined]
        if ready and number % 3:
            world.random.choice(ready).step()
        else:
            world.clock.now_ms += 50
            end_round(world)
        if taken:
            return taken[0]
    raise AssertionError(f"{log.describe()} doesn't move")


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_empty_log_moves_and_the_power_goes_at_once(is_killed: bool) -> None:
    """Its new name may survive what the folder has: it must say its topic, or the next start refuses two folders."""
    for seed in range(20):
        world = World(ONE, TWO, seed=seed)
        (log,) = world.create(A0)
        world.manager.flush(log)
        world.run()
        if is_killed:
            world.manager.moves.limit(lambda: 0.0)
            world.manager.moves.alter(log, other(log))
            world.restart()
            log = world.manager.logs[A0]
        moved_until(world, log)
        world.restart(power=True)
        settle(world)
        assert len(folders(world)) <= 1, folders(world)


def test_what_was_flushed_is_there_if_the_power_goes_as_soon_as_a_log_has_moved() -> None:
    """With flush.messages=1 its producers were answered: the copy must have the records on the disk before it takes
    over.
    """
    for last in range(0, 60, 3):
        world = World(ONE, TWO, seed=last)
        (log,) = world.create(A0)
        append(log, "a")

        def meanwhile(number: int, world: World = world, log: Log = log, last: int = last) -> None:
            if number <= last and number % 5 == 0:
                append(log, f"value {number}")
                world.manager.flush(log)

        moved, flushed = moved_until(world, log, meanwhile), log.recovery_point
        assert moved.recovery_point >= flushed, (last, log.describe(), moved.describe())
        world.restart(power=True)
        assert world.manager.logs[A0].log_end_offset >= flushed, last
