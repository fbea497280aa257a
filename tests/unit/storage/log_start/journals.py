"""A journal on a simulated disk, whose committer tests advance step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from lowtide.protocol.types import TopicPartition
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem import FileSystem
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.log_start.journal import JournalHooks, LogStartJournal

DIRECTORY = "/logs"
TOPICS = {b"topic-a-16-bytes": "a", b"topic-b-16-bytes": "b"}
A, B = TOPICS
FOLDERS = {TopicPartition(name, partition): topic_id for topic_id, name in TOPICS.items() for partition in range(3)}


class SteppedCommitter:
    """A committer that the test steps: one barrier a step, so that a crash can come inside each."""

    def __init__(self, filesystem: FileSystem) -> None:
        self.filesystem = filesystem
        self.waiting: deque[tuple[Barrier, Callable[[OSError | None], None]]] = deque()
        self.failure: OSError | None = None
        self.synced_files = 0

    def submit(self, barrier: Barrier, on_done: Callable[[OSError | None], None]) -> None:
        self.waiting.append((barrier, on_done))

    def close(self) -> None:
        self.run()

    def carry_out(self) -> tuple[Callable[[OSError | None], None], OSError | None]:
        """Does the work of the first barrier and returns its callback with the result."""
        barrier, on_done = self.waiting.popleft()
        try:
            if self.failure is None:
                self._sync(barrier)
        except OSError as error:
            self.failure = error
        return on_done, self.failure

    def _sync(self, barrier: Barrier) -> None:
        for file in barrier.files:
            file.sync()
            self.synced_files += 1
        for source, target in barrier.renames:
            self.filesystem.rename(source, target)
        for directory in barrier.directories:
            self.filesystem.sync_directory(directory)

    def step(self) -> None:
        on_done, error = self.carry_out()
        on_done(error)

    def run(self) -> None:
        while self.waiting:
            self.step()


class Fixture:
    """A journal on a simulated disk, with the results that it reported."""

    def __init__(
        self, filesystem: MemoryFileSystem | None = None, *, expected: bool = False, folders: Any = None
    ) -> None:
        self.filesystem = filesystem or MemoryFileSystem(Random(7))
        self.filesystem.make_directories(DIRECTORY)
        self.filesystem.sync_directory("/")
        self.committer = SteppedCommitter(self.filesystem)
        self.answers: list[Any] = []
        self.failures: list[OSError] = []
        self.journal = LogStartJournal.open(
            self.filesystem,
            DIRECTORY,
            self.committer,
            folders=FOLDERS if folders is None else folders,
            expected=expected,
            hooks=JournalHooks(topic_name=TOPICS.get, on_failure=self.failures.append),
        )

    def accept(self, *entries: tuple[bytes, int, int], name: Any = None) -> None:
        self.journal.request_log_starts(list(entries), partial(self.note, entries if name is None else name))

    def note(self, name: Any, error: OSError | None) -> None:
        self.answers.append(name if error is None else (name, error.errno))

    def stop(self) -> None:
        """A clean stop, as the log manager does it: no new entries, those under way complete, the rest written."""
        self.journal.stop()
        self.committer.run()
        self.journal.finish()

    def reopened(self) -> Fixture:
        return Fixture(self.filesystem)


def reopened_values(filesystem: MemoryFileSystem) -> dict[tuple[bytes, int], int]:
    filesystem.crash_process()
    return dict(Fixture(filesystem).journal.entries)


LARGE = 1000
"""Entries in one frame, 28,024 bytes: 37 of them fill a journal, 28 fill three quarters of it."""


def fill(fixture: Fixture, frames: int) -> None:
    for offset in range(frames):
        fixture.accept(*((A, partition, offset) for partition in range(LARGE)), name=offset)
        fixture.committer.run()
