"""Removes files: a worker renames them at once, and unlinks them after `file.delete.delay.ms`.

Renaming three thousand files takes 72 ms, so the event loop does none of it. After a crash the next start removes
`.deleted` files and `-delete` folders.

Unlinking a file takes milliseconds on a busy disk, and others wait for the same worker. So due files are removed a few
at a time. If there are many segments, their logs, which take nearly all of the room, are removed first.

The room of deleted records is freed earlier: a file is emptied as soon as it is renamed and no reader holds it open.

Source: Kafka's LocalLog.deleteSegmentFiles and LogManager.deleteLogs.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Final, TypeAlias

import msgspec

from lowtide.protocol.types import Offset, TopicId, TopicPartition
from lowtide.runtime.filesystem import FileSystem
from lowtide.runtime.worker import Worker
from lowtide.storage.errors import is_passing
from lowtide.storage.log.segments.segment_files import Readers, RemovedSegment, free_file
from lowtide.storage.log.segments.segment_names import LOG_SUFFIX
from lowtide.storage.log.segments.unfreed import UnfreedReason

SEGMENTS_AT_ONCE: Final = 8
"""Segments removed in one piece of work."""

PIECES_AT_ONCE: Final = 2
"""Pieces that the worker has at a time from one directory: as many as it has threads, for each waits for the disk
alone.
"""


RETRY_MS: Final = 1000
"""When a piece is repeated that lacked a descriptor, memory or room."""


class PartitionRemoval(msgspec.Struct, kw_only=True):
    """A deletion of partitions in progress. `on_done` is called when their names are free."""

    keys: list[TopicPartition]
    forgotten: list[tuple[TopicId, int]]
    renames: list[tuple[str, str]]
    sizes: list[int]
    """The bytes of the folders; 0 if unknown."""
    delay_ms: int | None
    """None: the folders are set aside under new names, and stay."""
    on_done: Callable[[OSError | None], None]
    readers: Readers | None = None
    """Open files through which records may still be read; None: the room waits for the end of the delay."""
    error: OSError | None = None


_Step: TypeAlias = Callable[[RemovedSegment, FileSystem], object]
_MARK_AND_UNLINK: Final[tuple[_Step, ...]] = (RemovedSegment.mark_deleted, RemovedSegment.unlink)


class _Piece(msgspec.Struct, frozen=True):
    """A piece of work, and the segments or folders whose room it frees."""

    work: Callable[[], None]
    frees: Sequence[RemovedSegment | str]


class _HeldFiles(msgspec.Struct, frozen=True):
    """Files to be emptied when no reader is left."""

    is_read: Callable[[], bool]
    pieces: list[_Piece]


class FileRemoval:
    """Removes files of one log directory. Used from the event loop only."""

    def __init__(
        self, filesystem: FileSystem, worker: Worker, on_failure: Callable[[OSError], None], *, frees: bool = True
    ) -> None:
        """Unless `frees`, the room of deleted records is freed only when their files are unlinked."""
        self._frees = frees
        self._filesystem = filesystem
        self._worker = worker
        self._on_failure = on_failure
        self._due: list[tuple[int, int, list[_Piece]]] = []
        self._order = count()
        self._pieces: deque[_Piece] = deque()
        """What is due and waits for the worker."""
        self._held: list[_HeldFiles] = []
        self._unfreed: dict[RemovedSegment | str, int] = {}
        """Bytes of segments and folders that still take room, as far as known."""
        self._named: dict[str, dict[RemovedSegment, bool]] = {}
        """By log folder, the segments whose files are still named, and whether they are being unlinked early."""
        self._running = 0
        self._now_ms = 0
        self._stopped = False

    def __len__(self) -> int:
        return len(self._due) + len(self._pieces) + len(self._held) + self._running

    def unfreed(self) -> dict[UnfreedReason, int]:
        """Returns the deleted bytes that still take room, by what they wait for."""
        read = {freed for held in self._held if held.is_read() for piece in held.pieces for freed in piece.frees}
        found: dict[UnfreedReason, int] = {}
        for freed, size_bytes in self._unfreed.items():
            if not self._frees:
                waits_for = UnfreedReason.SWITCHED_OFF
            elif isinstance(freed, RemovedSegment) and freed.readers is None:
                waits_for = UnfreedReason.COMPACTED
            else:
                waits_for = UnfreedReason.READER if freed in read else UnfreedReason.ROUND
            found[waits_for] = found.get(waits_for, 0) + size_bytes
        return found

    def remove_segments(self, removed: list[RemovedSegment], due_ms: int) -> None:
        """Renames the segments' files now and unlinks them at `due_ms`, on the clock of `tick`."""
        if removed:
            self._unfreed.update((segment, segment.size) for segment in removed)
            for segment in removed:
                self._named.setdefault(segment.directory, {})[segment] = False

            def marked(outcome: object) -> None:
                if isinstance(outcome, OSError) and is_passing(outcome):
                    self._at(max(due_ms, self._now_ms + RETRY_MS), [self._piece(removed, *_MARK_AND_UNLINK)])
                else:
                    self._after(partial(self._on_marked, removed, due_ms), outcome)

            self._worker.submit(partial(_work_on, self._filesystem, removed, [RemovedSegment.mark_deleted]), marked)

    def _on_marked(self, removed: list[RemovedSegment], due_ms: int) -> None:
        self._at(due_ms, self._removals_of(removed))
        freed = [segment for segment in removed if segment.readers is not None and self._frees]
        for segment in freed:
            if segment.is_read():
                self._held.append(_HeldFiles(segment.is_read, [self._piece([segment], RemovedSegment.free)]))
        unread = [segment for segment in freed if not segment.is_read()]
        self._pieces.extend(self._piece(part, RemovedSegment.free) for part in _in_parts(unread))
        self._submit()

    def remove_now(self, directory: str, end_offset: Offset) -> bool:
        """Unlinks at once the files of a log's removed segments that begin below `end_offset`; readers keep them open.

        Returns whether any is still there. An empty file counts, because a power cut may restore its bytes.
        """
        named = self._named.get(directory, {})
        left = [each for each in named if each.base_offset < end_offset and not each.is_gone]
        hurried = [each for each in left if not named[each]]
        named.update(dict.fromkeys(hurried, True))
        self._pieces.extend(self._piece(part, *_MARK_AND_UNLINK) for part in _in_parts(hurried))
        self._submit()
        return bool(left)

    def remove_folders(self, paths: Mapping[str, int], due_ms: int) -> None:
        """Removes whole folders at `due_ms`; `paths` has their bytes, 0 if unknown."""
        self._unfreed.update(paths)
        for path in paths:
            self._at(due_ms, [_Piece(partial(_remove_tree, self._filesystem, path), [path])])

    def free_folders(self, paths: Iterable[str], readers: Readers) -> None:
        """Frees the room of the records in these folders as soon as none of `readers` is left. The folders stay."""
        if not self._frees:
            return
        pieces = [_Piece(partial(_free_folder, self._filesystem, path), [path]) for path in paths]
        self._held.append(_HeldFiles(lambda: any(file() is not None for file in readers), pieces))
        self._free_unread()

    def rename_folders(
        self, renames: list[tuple[str, str]], on_renamed: Callable[[OSError | None], None], *, are_kept: bool = False
    ) -> None:
        """Renames folders from one name to another, then calls `on_renamed` in the loop. A missing folder is no error.

        Without room for another name the folder is removed. With `are_kept` it stays, and `on_renamed` gets an error.
        """

        def done(outcome: object) -> None:
            if isinstance(outcome, BaseException) and not isinstance(outcome, OSError):
                raise outcome
            on_renamed(outcome if isinstance(outcome, OSError) else None)

        self._worker.submit(partial(_rename, self._filesystem, renames, are_kept=are_kept), done)

    def tick(self, now_ms: int) -> None:
        """Removes the files that are due."""
        self._now_ms = now_ms
        while self._due and self._due[0][0] <= now_ms:
            _due_ms, _order, pieces = heapq.heappop(self._due)
            self._pieces.extend(pieces)
        self._free_unread()

    def _free_unread(self) -> None:
        held, self._held = self._held, []
        for each in held:
            if each.is_read():
                self._held.append(each)
            else:
                self._pieces.extend(each.pieces)
        self._submit()

    def stop(self) -> None:
        """Removes nothing more, except the worker's current files; the next start removes the others."""
        self._stopped = True

    def _at(self, due_ms: int, pieces: list[_Piece]) -> None:
        heapq.heappush(self._due, (due_ms, next(self._order), pieces))

    def _submit(self) -> None:
        while self._pieces and self._running < PIECES_AT_ONCE and not self._stopped:
            self._running += 1
            piece = self._pieces.popleft()
            self._worker.submit(piece.work, partial(self._on_removed, piece))

    def _on_removed(self, piece: _Piece, outcome: object) -> None:
        self._running -= 1
        if isinstance(outcome, OSError) and is_passing(outcome):
            # Reading a folder takes a descriptor. A piece that was done in part is done again.
            self._at(self._now_ms + RETRY_MS, [piece])
        else:
            for freed in piece.frees:
                self._unfreed.pop(freed, None)
                if isinstance(freed, RemovedSegment) and freed.is_gone:
                    self._forget(freed)
            self._after(self._submit, outcome)

    def _piece(self, removed: list[RemovedSegment], *steps: _Step) -> _Piece:
        return _Piece(partial(_work_on, self._filesystem, removed, steps), removed)

    def _removals_of(self, removed: list[RemovedSegment]) -> list[_Piece]:
        parts = _in_parts(removed)
        logs_first = [RemovedSegment.unlink_log, RemovedSegment.unlink] if len(parts) > 1 else [RemovedSegment.unlink]
        return [self._piece(part, unlink) for unlink in logs_first for part in parts]

    def _forget(self, segment: RemovedSegment) -> None:
        named = self._named.get(segment.directory, {})
        named.pop(segment, None)
        if not named:
            self._named.pop(segment.directory, None)

    def _after(self, then: Callable[[], None], outcome: object) -> None:
        if isinstance(outcome, OSError):
            self._on_failure(outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            then()


def _work_on(filesystem: FileSystem, removed: list[RemovedSegment], steps: Sequence[_Step]) -> None:
    for step in steps:
        for segment in removed:
            step(segment, filesystem)


def _in_parts(removed: list[RemovedSegment]) -> list[list[RemovedSegment]]:
    return [removed[start : start + SEGMENTS_AT_ONCE] for start in range(0, len(removed), SEGMENTS_AT_ONCE)]


def _free_folder(filesystem: FileSystem, path: str) -> None:
    """Empties the files of records; those that identify the folder stay."""
    with contextlib.suppress(FileNotFoundError):
        for name in filesystem.listdir(path):
            if LOG_SUFFIX in name:
                free_file(filesystem, f"{path}/{name}")


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
