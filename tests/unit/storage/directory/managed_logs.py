"""A log manager over files in memory, with a committer and a worker that tests advance step by step."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.directory.log_manager import LogManager, LogManagerSettings
from lowtide.storage.directory.log_starts import LogStartIncrement
from lowtide.storage.log.log import AppendedBatch, Log, LogConfig
from lowtide.storage.log.segments.unfreed import HOLE_BLOCKS
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce
from lowtide.storage.log_start.journal_loading import journal_path

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
        self.filesystem.block_bytes //= HOLE_BLOCKS  # Logs are small, and are to have holes.
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


def damage_journal(world: World, path: str) -> None:
    world.filesystem.open(journal_path(path), write=True).pwritev([b"\xff"], 3)
