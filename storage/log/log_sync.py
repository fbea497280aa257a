"""Tracks the parts of one log that may not be on the disk, and builds the barriers that sync them.

Guards the recovery point: it rises only over bytes that a barrier covered after they were written. A truncation between
a barrier and its completion lowers the end that the barrier proves, because the same offsets may have been written
again.

Source: Kafka's UnifiedLog.flush; KAFKA-16541 for why the epoch file is synced before it is renamed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import msgspec

from lowtide.protocol.types import Offset
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem import FileSystem, FileToSync, Syncable
from lowtide.storage.checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    TEMPORARY_SUFFIX,
    encode_epochs,
    joined,
    parent_directory,
)
from lowtide.storage.errors import storage_error
from lowtide.storage.log.log_erasures import ERASURES_FILE, LogErasures
from lowtide.storage.log.offsets import LeaderEpochs


class _Flush(msgspec.Struct, gc=False):
    """A barrier under way, made when the log end was `offset`; once done, everything below `durable_to` is on disk."""

    offset: Offset
    durable_to: Offset
    erasures: int
    """The change of the erasures that it makes durable."""


class LogSync:
    """The unsynced state of one log, except for the `.log` files."""

    __slots__ = (
        "_directory",
        "_epochs",
        "_erasures",
        "_filesystem",
        "_flushes",
        "_names_changed",
        "_paths",
        "_stagings",
    )

    def __init__(self, filesystem: FileSystem, directory: str, epochs: LeaderEpochs, erasures: LogErasures) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._epochs = epochs
        self._erasures = erasures
        self._flushes: list[_Flush] = []
        self._names_changed = True
        self._paths: list[str] = []
        self._stagings = 0

    def relocate(self, directory: str) -> None:
        self._paths = [f"{directory}{path.removeprefix(self._directory)}" for path in self._paths]
        self._directory = directory
        self._names_changed = True

    @property
    def is_clean(self) -> bool:
        """Whether everything but `.log` files is synced."""
        return not (self._paths or self._epochs.dirty or self._erasures.dirty)

    def note_written(self, paths: Iterable[str]) -> None:
        """Adds files that were created or rewritten, or a new segment, to the next barrier."""
        self._paths += paths
        self._names_changed = True

    def on_truncated(self, end_offset: Offset) -> None:
        for flush in self._flushes:
            flush.durable_to = min(flush.durable_to, end_offset)

    def on_failed(self, barrier: Barrier) -> None:
        """Schedules the parts of a barrier again that wasn't carried out whole. It is no longer a flush in progress."""
        staged = {source for source, _target in barrier.renames}
        for path in staged:
            with contextlib.suppress(OSError):
                self._filesystem.unlink(path)
        self._paths = list(
            dict.fromkeys([*self._paths, *(file.path for file in barrier.files if file.path not in staged)])
        )
        targets = {target for _source, target in barrier.renames}
        self._epochs.dirty |= self._path(LEADER_EPOCH_CHECKPOINT) in targets
        self._erasures.dirty |= self._path(ERASURES_FILE) in targets
        self._names_changed = True

    def flush_barrier(self, log_files: Iterable[Syncable], log_end_offset: Offset) -> Barrier:
        """Returns a barrier for `log_files`, which hold everything below `log_end_offset`, and all unsynced files.

        Errors: StorageError, also for a full disk; everything then waits for the next barrier.
        """
        barrier = self._barrier(log_files)
        self._flushes.append(_Flush(log_end_offset, log_end_offset, self._erasures.changes))
        return barrier

    def truncation_barrier(self, log_file: Syncable) -> Barrier:
        """Returns a barrier that makes a truncation durable. Errors: StorageError."""
        self._names_changed = True
        return self._barrier([log_file])

    def on_flushed(self, offset: Offset, *, succeeded: bool = True) -> Offset:
        """Completes the flush made at the log end `offset`, or forgets one that failed.

        Returns the exclusive end of the bytes that are now on disk, -1 if unknown.
        """
        while self._flushes:
            flush = self._flushes.pop(0)
            if flush.offset == offset:
                if succeeded:
                    self._erasures.note_durable(flush.erasures)
                return flush.durable_to
        return -1

    def _barrier(self, log_files: Iterable[Syncable]) -> Barrier:
        files: list[Syncable] = [*log_files, *(FileToSync(self._filesystem, path) for path in self._paths)]
        staged = joined([*self._staged()])
        directories: tuple[str, ...] = ()
        if self._names_changed:
            directories = (self._directory, parent_directory(self._directory))
        elif staged.renames:
            directories = (self._directory,)
        self._names_changed = False
        self._paths = []
        return Barrier(files=(*files, *staged.files), renames=staged.renames, directories=directories)

    def _staged(self) -> Iterator[Barrier]:
        """Writes the changed leader epochs and erasures beside their files."""
        if self._epochs.dirty:
            yield self._stage(LEADER_EPOCH_CHECKPOINT, encode_epochs(self._epochs.entries()))
            self._epochs.dirty = False
        if self._erasures.dirty:
            yield self._stage(ERASURES_FILE, self._erasures.encode())
            self._erasures.dirty = False

    def _stage(self, name: str, content: bytes) -> Barrier:
        """Writes the new content of a file under a new name, because several may be in progress."""
        self._stagings += 1
        temporary = f"{self._path(name)}.{self._stagings}{TEMPORARY_SUFFIX}"
        try:
            self._filesystem.write_bytes(temporary, content)
        except OSError as error:
            # On a full disk every attempt would leave one.
            with contextlib.suppress(OSError):
                self._filesystem.unlink(temporary)
            raise storage_error(temporary, error) from error
        return Barrier(files=(FileToSync(self._filesystem, temporary),), renames=((temporary, self._path(name)),))

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
