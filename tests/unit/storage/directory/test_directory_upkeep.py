"""Work that is due without a request: only the logs that need it are visited, and never all at once."""

from __future__ import annotations

import errno
from functools import partial

import pytest

from lowtide.protocol.types import TopicPartition
from lowtide.storage.checkpoint import HIGH_WATERMARK_CHECKPOINT, ROWS_PER_STEP, decode_offsets
from lowtide.storage.directory import offset_checkpoint
from lowtide.storage.directory.log_flusher import LogFlusher
from lowtide.storage.directory.log_manager import KnownTopic
from lowtide.storage.log.log import Log, LogConfig

from .managed_logs import A0, B0, ONE, A, World, append


def test_logs_without_due_work_are_not_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand idle logs cost nothing; a log whose work is done is not visited again."""
    looked_at: list[Log] = []
    flush_due = LogFlusher.flush_due

    def spied(flusher: LogFlusher, log: Log, now_ms: int) -> None:
        looked_at.append(log)
        flush_due(flusher, log, now_ms)

    monkeypatch.setattr(LogFlusher, "flush_due", spied)
    world = World()
    logs = world.create(*(TopicPartition("a", number) for number in range(20)))
    for log in logs:
        append(log)
    world.tick(1)
    assert not looked_at
    append(logs[3], 2)  # This closes its segment.
    logs[5].configure(LogConfig(flush_ms=60_000))
    logs[7].configure(LogConfig(flush_messages=100))
    for expected in ([3, 5, 7], [5, 7]):
        looked_at.clear()
        world.tick(1)
        assert sorted(log.topic_partition.partition for log in looked_at) == expected
    assert logs[3].recovery_point == 15
    logs[5].configure(LogConfig())
    world.manager.delete_logs([logs[7].topic_partition], partial(world.note, "deleted"))
    world.tick(1)
    looked_at.clear()
    world.tick(1)
    assert not looked_at
    world.manager.close()
    world.filesystem.crash_process()
    world.start(topics={"a": KnownTopic(A, LogConfig(flush_ms=60_000))})
    world.tick(1)
    assert len(looked_at) == 19


def test_due_work_of_many_logs_is_done_in_steps() -> None:
    """Changes between two steps are not missed."""
    world = World()
    logs = world.create(*(TopicPartition("a", number) for number in range(3 * ROWS_PER_STEP + 1)))
    for log in logs:
        log.configure(LogConfig(flush_ms=1))
        append(log)
    world.clock.now_ms += 10_000
    work = world.manager.directories.due_work(world.clock.wall_ms())
    flushed = []
    for step, _ in enumerate(work):
        if step == 0:
            world.manager.delete_logs([logs[-1].topic_partition], partial(world.note, "deleted"))
        world.run()
        flushed.append(sum(log.recovery_point > 0 for log in logs))
    assert len(flushed) > 2 * 3
    assert flushed[0] == ROWS_PER_STEP
    assert (flushed[-1], logs[-1].recovery_point) == (3 * ROWS_PER_STEP, 0)
    world.run()
    assert (
        len(decode_offsets(world.filesystem.read_bytes(f"{ONE}/{HIGH_WATERMARK_CHECKPOINT}"), "")) == 3 * ROWS_PER_STEP
    )


def test_a_request_during_a_checkpoint_waits_for_a_newer_one() -> None:
    """A name may be used again only when no checkpoint on disk has it: the checkpoint under way may still have it."""
    world = World()
    for log in world.create(A0, B0):
        append(log)
    world.clock.now_ms += 5000
    work = world.manager.directories.due_work(world.clock.wall_ms())
    next(work)
    world.manager.delete_logs([A0], partial(world.note, "deleted"))
    world.run()
    assert world.answers == []
    for _step in work:
        pass
    world.run()
    assert world.answers == ["deleted"]
    assert decode_offsets(world.filesystem.read_bytes(f"{ONE}/{HIGH_WATERMARK_CHECKPOINT}"), "") == {B0: 5}


def test_a_checkpoint_under_way_at_a_stop_is_not_begun() -> None:
    world = World()
    append(world.create(A0)[0])
    world.clock.now_ms += 5000
    work = world.manager.directories.due_work(world.clock.wall_ms())
    next(work)
    world.manager.delete_logs([A0], partial(world.note, "deleted"))
    world.run()
    world.manager.close()
    assert world.answers == [("deleted", errno.ESHUTDOWN)]
    for _step in work:
        pass


def test_a_checkpoint_of_offsets_that_have_not_changed_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most offsets rarely change, and building a checkpoint of ten thousand partitions takes milliseconds."""
    made = 0
    pieces = offset_checkpoint.offset_checkpoint_pieces

    def counted(offsets: dict[TopicPartition, int]) -> object:
        nonlocal made
        made += 1
        return pieces(offsets)

    monkeypatch.setattr(offset_checkpoint, "offset_checkpoint_pieces", counted)
    world = World()
    first, _second = world.create(A0, B0)
    world.tick(5000)
    before = made
    world.tick(5000)
    assert made == before
    append(first)
    world.tick(5000)
    assert made == before + 1
    world.manager.delete_logs([B0], partial(world.note, "deleted"))
    world.run()
    world.create(B0)
    world.tick(5000)
    assert made == before + 2, "the same number of logs with the same offsets, but different logs"


def test_a_checkpoint_that_could_not_be_written_is_written_again() -> None:
    world = World()
    append(world.create(A0)[0])
    world.filesystem.fail_next("write", errno.ENOSPC, path_contains=HIGH_WATERMARK_CHECKPOINT)
    world.tick(5000)
    assert not world.filesystem.exists(f"{ONE}/{HIGH_WATERMARK_CHECKPOINT}")
    world.tick(5000)
    assert decode_offsets(world.filesystem.read_bytes(f"{ONE}/{HIGH_WATERMARK_CHECKPOINT}"), "") == {A0: 5}


class CountedKey(TopicPartition):
    """Counts how often any key is looked up."""

    lookups = 0

    def __hash__(self) -> int:
        CountedKey.lookups += 1
        return super().__hash__()


def test_creating_a_log_takes_no_longer_where_there_are_many() -> None:
    """Creating a log does not visit the others: ten thousand creations would visit up to ten thousand logs each."""
    world = World()
    lookups = []
    for number in range(200):
        before = CountedKey.lookups
        world.create(CountedKey("a", number))
        lookups.append(CountedKey.lookups - before)
    assert lookups[-1] == lookups[5]
