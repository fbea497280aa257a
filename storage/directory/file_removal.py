"""Files on their way out: renamed at once, removed after `file.delete.delay.ms`, both by a worker.

Renaming three thousand files takes 72 ms, so none of it is done in the event loop. What a crash interrupts is finished at the next start,
which removes `.deleted` files and `-delete` folders.

A file's removal takes milliseconds where the disk is busy, and others wait for the same worker: large batches that are checked, folders
that are renamed. So what is due is removed a few files at a time, and of many segments the logs first, which have all the room.

Source: Kafka's LocalLog.deleteSegmentFiles and LogManager.deleteLogs.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Final

import msgspec

from lowtide.protocol.types import TopicId, TopicPartition
from lowtide.runtime.filesystem import FileSystem
from lowtide.runtime.worker import Worker
from lowtide.storage.errors import is_passing
from lowtide.storage.log.segment_files import RemovedSegment

SEGMENTS_AT_ONCE: Final = 8
"""Removed in one piece of work."""

PIECES_AT_ONCE: Final = 2
"""That the worker has at a time from one log directory: as many as it has threads, for each file waits for the disk alone."""


RETRY_MS: Final = 1000
"""When a piece is repeated for which a descriptor, memory or room was lacking."""


class Leaving(msgspec.Struct, kw_only=True):
    """A deletion of partitions that is under way: `on_done` is called when their names are free."""

    keys: list[TopicPartition]
    forgotten: list[tuple[TopicId, int]]
    renames: list[tuple[str, str]]
    delay_ms: int | None
    """None: the folders are set aside under their new names, and stay."""
    on_done: Callable[[OSError | None], None]
    error: OSError | None = None


class FileRemoval:
    """What is to be removed from one log directory. Used from the event loop only."""

    def __init__(self, filesystem: FileSystem, worker: Worker, on_failure: Callable[[OSError], None]) -> None:
        self._filesystem = filesystem
        self._worker = worker
        self._on_failure = on_failure
        self._due: list[tuple[int, int, list[Callable[[], None]]]] = []
        self._order = count()
        self._pieces: deque[Callable[[], None]] = deque()
        """What is due and waits for its turn."""
        self._running = 0
        self._now_ms = 0
        self._stopped = False

    def __len__(self) -> int:
        return len(self._due) + len(self._pieces) + self._running

    def remove_segments(self, removed: list[RemovedSegment], due_ms: int) -> None:
        """Renames the segments' files now and unlinks them at `due_ms`, by whatever clock `tick` goes."""
        if removed:

            def marked(outcome: object) -> None:
                if isinstance(outcome, OSError) and is_passing(outcome):
                    self._at(max(due_ms, self._now_ms + RETRY_MS), [partial(_mark_and_unlink, self._filesystem, removed)])
                else:
                    self._after(lambda: self._at(due_ms, _removals_of(self._filesystem, removed)), outcome)

            self._worker.submit(partial(_mark_deleted, self._filesystem, removed), marked)

    def remove_folders(self, paths: Iterable[str], due_ms: int) -> None:
        """Removes whole folders at `due_ms`."""
        for path in paths:
            self._at(due_ms, [partial(_remove_tree, self._filesystem, path)])

    def rename_folders(
        self, renames: list[tuple[str, str]], on_renamed: Callable[[OSError | None], None], *, are_kept: bool = False
    ) -> None:
        """Renames folders, from and to. `on_renamed` is called later, in the loop. A folder that is gone is no fault.

        Where there is no room for another name a folder is removed; unless it `are_kept`: it then stays as it is, and that is an error.
        """

        def done(outcome: object) -> None:
            if isinstance(outcome, BaseException) and not isinstance(outcome, OSError):
                raise outcome
            on_renamed(outcome if isinstance(outcome, OSError) else None)

        self._worker.submit(partial(_rename, self._filesystem, renames, are_kept=are_kept), done)

    def tick(self, now_ms: int) -> None:
        """Removes what is due."""
        self._now_ms = now_ms
        while self._due and self._due[0][0] <= now_ms:
            _due_ms, _order, pieces = heapq.heappop(self._due)
            self._pieces.extend(pieces)
        self._submit()

    def stop(self) -> None:
        """Removes nothing more, but for what the worker has; the next start does it."""
        self._stopped = True

    def _at(self, due_ms: int, pieces: list[Callable[[], None]]) -> None:
        heapq.heappush(self._due, (due_ms, next(self._order), pieces))

    def _submit(self) -> None:
        while self._pieces and self._running < PIECES_AT_ONCE and not self._stopped:
            self._running += 1
            piece = self._pieces.popleft()
            self._worker.submit(piece, partial(self._on_removed, piece))

    def _on_removed(self, piece: Callable[[], None], outcome: object) -> None:
        self._running -= 1
        if isinstance(outcome, OSError) and is_passing(outcome):
            # To read a folder takes a descriptor. A piece that was done in part is done again.
            self._at(self._now_ms + RETRY_MS, [piece])
        else:
            self._after(self._submit, outcome)

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


def _mark_and_unlink(filesystem: FileSystem, removed: list[RemovedSegment]) -> None:
    _mark_deleted(filesystem, removed)
    _unlink(filesystem, removed)


def _removals_of(filesystem: FileSystem, removed: list[RemovedSegment]) -> list[Callable[[], None]]:
    """The removal of segments in pieces, their logs first."""
    parts = [removed[start : start + SEGMENTS_AT_ONCE] for start in range(0, len(removed), SEGMENTS_AT_ONCE)]
    logs_first = [_unlink_logs, _unlink] if len(parts) > 1 else [_unlink]
    return [partial(unlink, filesystem, part) for unlink in logs_first for part in parts]


def _unlink_logs(filesystem: FileSystem, removed: list[RemovedSegment]) -> None:
    for segment in removed:
        segment.unlink_log(filesystem)


def _unlink(filesystem: FileSystem, removed: list[RemovedSegment]) -> None:
    for segment in removed:
        segment.unlink(filesystem)


def _remove_tree(filesystem: FileSystem, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        filesystem.remove_tree(path)


def _rename(filesystem: FileSystem, renames: list[tuple[str, str]], *, are_kept: bool) -> None:
    for source, target in renames:
        with contextlib.suppress(FileNotFoundError):
            try:
                filesystem.rename(source, target)
            except OSError as error:
                if are_kept or not is_passing(error):
                    raise
                filesystem.remove_tree(source)
