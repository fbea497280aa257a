"""Files on their way out: renamed at once, removed after `file.delete.delay.ms`, both by a worker.

Renaming three thousand files takes 72 ms, so none of it is done in the event loop. What a crash interrupts is finished at the next start,
which removes `.deleted` files and `-delete` folders.

Source: Kafka's LocalLog.deleteSegmentFiles and LogManager.deleteLogs.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count

from lowtide.protocol.types import TopicId, TopicPartition
from lowtide.runtime.filesystem import FileSystem
from lowtide.runtime.worker import Worker
from lowtide.storage.segment_files import RemovedSegment


@dataclass(slots=True, kw_only=True)
class Leaving:
    """A deletion of partitions that is under way: `on_done` is told when their names are free."""

    keys: list[TopicPartition]
    forgotten: list[tuple[TopicId, int]]
    renames: list[tuple[str, str]]
    delay_ms: int
    on_done: Callable[[OSError | None], None]
    error: OSError | None = None


class FileRemoval:
    """What is to be removed from one log directory. Used from the event loop only."""

    def __init__(self, filesystem: FileSystem, worker: Worker, on_failure: Callable[[OSError], None]) -> None:
        self._filesystem = filesystem
        self._worker = worker
        self._on_failure = on_failure
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._due)

    def remove_segments(self, removed: list[RemovedSegment], due_ms: int) -> None:
        """Renames the segments' files now and unlinks them at `due_ms`, by whatever clock `tick` goes."""
        if removed:
            self._worker.submit(
                partial(_mark_deleted, self._filesystem, removed),
                partial(self._after, lambda: self._at(due_ms, partial(_unlink, self._filesystem, removed))),
            )

    def remove_folders(self, paths: Iterable[str], due_ms: int) -> None:
        """Removes whole folders at `due_ms`."""
        for path in paths:
            self._at(due_ms, partial(_remove_tree, self._filesystem, path))

    def rename_folders(self, renames: list[tuple[str, str]], on_renamed: Callable[[OSError | None], None]) -> None:
        """Renames folders, from and to. A folder that is gone is no fault. `on_renamed` is called later, in the loop."""

        def done(outcome: object) -> None:
            if isinstance(outcome, BaseException) and not isinstance(outcome, OSError):
                raise outcome
            on_renamed(outcome if isinstance(outcome, OSError) else None)

        self._worker.submit(partial(_rename, self._filesystem, renames), done)

    def tick(self, now_ms: int) -> None:
        """Removes what is due."""
        while self._due and self._due[0][0] <= now_ms:
            _due_ms, _order, work = heapq.heappop(self._due)
            self._worker.submit(work, partial(self._after, lambda: None))

    def _at(self, due_ms: int, work: Callable[[], None]) -> None:
        heapq.heappush(self._due, (due_ms, next(self._order), work))

    def _after(self, then: Callable[[], None], outcome: object) -> None:
        if isinstance(outcome, OSError):
            self._on_failure(outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            then()


def _mark_deleted(filesystem: FileSystem, removed: list[RemovedSegment]) -> None:
    for segment in removed:
        segment.mark_deleted(filesystem)


def _unlink(filesystem: FileSystem, removed: list[RemovedSegment]) -> None:
    for segment in removed:
        segment.unlink(filesystem)


def _remove_tree(filesystem: FileSystem, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        filesystem.remove_tree(path)


def _rename(filesystem: FileSystem, renames: list[tuple[str, str]]) -> None:
    for source, target in renames:
        with contextlib.suppress(FileNotFoundError):
            filesystem.rename(source, target)
