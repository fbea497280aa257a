"""Flushes of many logs at once: all of them, a few at a time."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.random import Random
from lowtide.storage.directory import log_flusher
from lowtide.storage.directory.log_flusher import FLUSHES_UNDER_WAY_MAX, LogFlusher
from lowtide.storage.directory.log_settings import DirectoryPorts
from lowtide.storage.errors import StorageError
from lowtide.storage.log.durability import LogDurability
from lowtide.storage.log.log import Log, LogConfig, SegmentCache
from lowtide.storage.log.log_files import LogPlace
from lowtide.storage.log.opening.known_log import KnownLog
from lowtide.storage.log.opening.loader import load_log

LOGS = 3 * FLUSHES_UNDER_WAY_MAX + 5


class Clock:
    def monotonic_ms(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 0


class Committer:
    def __init__(self) -> None:
        self.waiting: deque[Callable[[OSError | None], None]] = deque()
        self.closed = False

    def submit(self, barrier: Barrier, on_done: Callable[[OSError | None], None]) -> None:
        assert not self.closed
        self.waiting.append(on_done)

    def close(self) -> None:
        self.closed = True


class FakeLog:
    """A log that was recovered after an unclean stop, and counts its barriers."""

    directory = "/one/a-0"
    config = LogConfig(flush_messages=10)
    log_end_offset = 3
    recovery_point = 3

    def __init__(self, error: StorageError | None = None) -> None:
        self.flush_wanted = True
        self.upkeep_queue: dict[FakeLog, None] = {}
        self.flush_is_due = False
        self.barriers = 0
        self.flushed = 0
        self.error = error

    def flush_barrier(self) -> Barrier:
        self.barriers += 1
        self.flush_wanted = False
        if self.error is not None:
            raise self.error
        return Barrier()

    def on_flushed(self, offset: int) -> None:
        assert offset == self.log_end_offset
        self.flushed += 1


@pytest.fixture(autouse=True)
def logs_flush_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        log_flusher, "LogDurability", lambda log: log if isinstance(log, FakeLog) else LogDurability(log)
    )


def flusher_of(
    filesystem: MemoryFileSystem, committer: Committer, cache: SegmentCache, failures: list[object]
) -> LogFlusher:
    ports = DirectoryPorts(
        filesystem=filesystem,
        clock=Clock(),
        committer=committer,
        worker=None,
        random=Random(1),
        cache=cache,
    )
    return LogFlusher(ports, lambda _log: None, failures.append)


class World:
    def __init__(self, logs: int = LOGS) -> None:
        self.committer = Committer()
        self.failures: list[object] = []
        self.flusher = flusher_of(MemoryFileSystem(Random(1)), self.committer, SegmentCache(), self.failures)
        self.logs = [FakeLog() for _ in range(logs)]
        for log in self.logs:
            self.flusher.add(log, is_new=False)

    def tick(self) -> None:
        for log in self.logs:
            self.flusher.flush_due(log, 0)

    @property
    def begun(self) -> int:
        return sum(log.barriers for log in self.logs)

    @property
    def flushed(self) -> int:
        return sum(log.flushed for log in self.logs)

    def step(self, error: OSError | None = None) -> None:
        self.committer.waiting.popleft()(error)


def test_after_an_unclean_stop_logs_are_flushed_a_few_at_a_time() -> None:
    """Each may hold ten files: ten thousand logs at once would exceed the system's limit, which looks like a disk
    failure.
    """
    world = World()
    world.tick()
    assert world.begun == len(world.committer.waiting) == FLUSHES_UNDER_WAY_MAX
    world.tick()
    assert world.begun == FLUSHES_UNDER_WAY_MAX
    while world.committer.waiting:
        world.step()
        assert len(world.committer.waiting) <= FLUSHES_UNDER_WAY_MAX
    assert [log.flushed for log in world.logs] == [1] * LOGS


def test_a_log_that_was_removed_while_it_waited_is_not_flushed() -> None:
    world = World()
    world.tick()
    world.flusher.drop(world.logs[-1])
    while world.committer.waiting:
        world.step()
    assert (world.logs[-1].barriers, world.flushed) == (0, LOGS - 1)


def test_after_a_failure_nothing_more_is_begun() -> None:
    world = World()
    world.tick()
    world.step(OSError(errno.EIO, "broken"))
    assert len(world.failures) == 1
    assert world.begun == FLUSHES_UNDER_WAY_MAX


def test_a_log_that_cannot_be_prepared_ends_it_too() -> None:
    world = World()
    world.logs[FLUSHES_UNDER_WAY_MAX].error = StorageError("/one/a-0", "broken")
    world.tick()
    while world.committer.waiting:
        world.step()
    assert len(world.failures) == 1
    assert world.flushed == FLUSHES_UNDER_WAY_MAX


def test_a_full_disk_puts_off_one_log_and_not_the_others() -> None:
    world = World()
    full = world.logs[FLUSHES_UNDER_WAY_MAX]
    full.error = StorageError("/one/a-0", "full", error_number=errno.ENOSPC)
    world.tick()
    while world.committer.waiting:
        world.step()
    assert (full.flush_wanted, world.flushed, world.failures) == (True, LOGS - 1, [])


def test_nothing_is_begun_when_the_broker_stops() -> None:
    """A flush under way still completes, by a committer that accepts no more."""
    world = World()
    for log in world.logs:
        log.flush_is_due = True
    world.tick()
    world.flusher.stop()
    world.committer.close()
    while world.committer.waiting:
        world.step()
    assert world.flushed == world.begun == FLUSHES_UNDER_WAY_MAX


class RecoveredLogs:
    """Logs of one record each after an unclean stop, few of which may have open files, in two directories."""

    def __init__(self, count: int, files_max: int) -> None:
        self.filesystem = MemoryFileSystem(Random(1))
        self.cache = SegmentCache(files_max=files_max)
        self.committer = Committer()
        self.failures: list[object] = []
        self.logs = [self._recovered(number) for number in range(count)]
        self.flushers = [self._flusher(), self._flusher()]
        for number, log in enumerate(self.logs):
            self.flushers[number % 2].add(log, is_new=False)

    def _flusher(self) -> LogFlusher:
        return flusher_of(self.filesystem, self.committer, self.cache, self.failures)

    def _recovered(self, number: int) -> Log:
        directory = f"/one/t-{number}"
        self.filesystem.make_directories(directory)
        self.filesystem.write_bytes(f"{directory}/{0:020d}.log", bytes(build_batch([(0, None, b"value", ())])))
        place = LogPlace(
            filesystem=self.filesystem,
            directory=directory,
            config=LogConfig(),
            topic_partition=TopicPartition("t", number),
            topic_id=bytes(16),
            cache=self.cache,
        )
        return load_log(place, KnownLog(recovery_point=0, log_start_offset=0, clean=False), now_ms=0)

    def flush_all(self) -> None:
        for number, log in enumerate(self.logs):
            self.flushers[number % 2].flush(log)

    def read(self, log: Log) -> int:
        part = log.read(0, 1000, end_offset=1).slice
        return 0 if part is None else part.size


def test_logs_are_read_while_many_are_flushed() -> None:
    """Logs that were just read have open files, which a flush holds: a slow disk must not hold all that may be open."""
    world = RecoveredLogs(count=40, files_max=8)
    for log in world.logs[:8]:
        assert world.read(log) > 0
    assert len(world.cache.files) == 8
    world.flush_all()
    assert world.committer.waiting
    assert [world.read(log) > 0 for log in world.logs] == [True] * 40
    while world.committer.waiting:
        world.committer.waiting.popleft()(None)
        assert [world.read(log) > 0 for log in world.logs] == [True] * 40
    assert [log.recovery_point for log in world.logs] == [1] * 40
    assert world.failures == []
