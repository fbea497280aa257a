"""Copies of the metadata in the log directories (`metadata_copy`).

A change is appended before the broker acts on it, so it survives the death of the process; a sync starts at once, one
at a time per directory. Each start rewrites the file, and so does a worker when the appended changes outgrow it.

Guards: the copy in a directory is of one revision, whatever a crash leaves. Without disk space it stays as it was, and
is rewritten when there is some. A failed disk takes its directory offline, like any other write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final

from lowtide.metadata.metadata_copy import Change, CopyError, MetadataCopy, decode_copy, encode_change, encode_copy
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem import File, FileSystem
from lowtide.runtime.worker import Worker
from lowtide.storage.directory.log_manager import LogManager
from lowtide.storage.errors import is_passing

COPY_FILE: Final = "lowtide-metadata-copy"

APPENDED_BYTES_MIN: Final = 1 << 20
APPENDED_PER_BYTE: Final = 4
"""The file is rewritten when the appended bytes exceed both this minimum and this multiple of its initial size."""


def read_copies(filesystem: FileSystem, directories: Iterable[str], log: Any) -> dict[str, MetadataCopy]:
    """Returns the copies by directory; nothing for an unreadable directory, whose failure is found later."""
    found = {}
    for directory in directories:
        path = f"{directory}/{COPY_FILE}"
        try:
            if filesystem.exists(path):
                found[directory] = decode_copy(filesystem.read_bytes(path))
        except CopyError as error:
            log.warning("metadata copy in log directory is invalid", path=path, reason=str(error))
        except OSError:
            continue
    return found


class MetadataCopies:
    """The `CopyKeeper` of one broker. Used from one event loop, except for the worker's writes."""

    def __init__(self, filesystem: FileSystem, worker: Worker, log_manager: LogManager, copy: MetadataCopy) -> None:
        self._log_manager = log_manager
        self._copies = {
            path: DirectoryCopy(
                f"{path}/{COPY_FILE}",
                filesystem,
                worker,
                partial(log_manager.directories.commit, path),
                partial(self._fail, path),
            )
            for path in log_manager.directories.paths
        }
        self._copy = copy
        self._is_closed = False

    def begin(self) -> None:
        """Writes the copy to all working directories, durably. For the start only: it syncs."""
        for each in self._online():
            each.begin(self._copy)

    def on_loaded(self, copy: MetadataCopy) -> None:
        self._copy = copy
        for each in self._online():
            each.rewrite(copy)

    def on_change(self, change: Change) -> None:
        line = encode_change(change)
        for each in self._online():
            each.append(line, self._copy)

    def stop(self) -> None:
        self._is_closed = True
        for each in self._copies.values():
            each.close()

    def _online(self) -> Collection[DirectoryCopy]:
        offline: Mapping[str, str] = self._log_manager.directories.offline
        return [] if self._is_closed else [each for path, each in self._copies.items() if path not in offline]

    def _fail(self, path: str, error: OSError) -> None:
        if not self._is_closed:
            self._log_manager.directories.fail(path, error)


class DirectoryCopy:
    """The copy in one log directory."""

    def __init__(
        self,
        path: str,
        filesystem: FileSystem,
        worker: Worker,
        commit: Callable[[Barrier, Callable[[OSError | None], None]], None],
        on_failed: Callable[[OSError], None],
    ) -> None:
        self._path = path
        self._filesystem = filesystem
        self._worker = worker
        self._commit = commit
        self._on_failed = on_failed
        self._file: File | None = None
        """Replaced without closing it, because a sync may be in progress."""
        self._position = 0
        self._limit = 0
        self._is_rewriting = False
        self._is_outdated = False
        self._newest = MetadataCopy((), 0)
        self._waiting: list[bytes] = []
        """Changes to append after the file is rewritten."""
        self._is_syncing = False
        self._is_dirty = False
        self._is_closed = False

    def begin(self, copy: MetadataCopy) -> None:
        """Writes the copy, durably. For the start only: it syncs."""
        try:
            self._take(self._write(b"".join(encode_copy(copy))))
        except OSError as error:
            self._on_error(error)

    def append(self, line: bytes, copy: MetadataCopy) -> None:
        """Appends a change, which `copy` already contains."""
        if self._is_rewriting:
            self._waiting.append(line)
        elif self._file is None:
            self.rewrite(copy)
        if self._file is None:
            return
        try:
            self._file.pwritev([line], self._position)
        except OSError as error:
            self._on_error(error)
            return
        self._position += len(line)
        self._is_dirty = True
        self._sync()
        if self._position > self._limit and not self._is_rewriting:
            self.rewrite(copy)

    def rewrite(self, copy: MetadataCopy) -> None:
        self._newest = copy
        if self._is_rewriting:
            self._is_outdated = True
            return
        self._is_rewriting = True
        self._waiting.clear()
        pieces = MetadataCopy(copy.rows.values(), copy.revision, history_id=copy.history_id, cluster_id=copy.cluster_id)
        self._worker.submit(lambda: self._write(b"".join(encode_copy(pieces))), self._on_written)

    def close(self) -> None:
        self._is_closed = True
        self._file = None

    def _write(self, content: bytes) -> tuple[File, int]:
        self._filesystem.replace_file(self._path, content)
        return self._filesystem.open(self._path, write=True), len(content)

    def _take(self, written: tuple[File, int]) -> None:
        self._file, self._position = written
        self._limit = self._position + max(APPENDED_BYTES_MIN, APPENDED_PER_BYTE * self._position)

    def _on_written(self, outcome: tuple[File, int] | BaseException) -> None:
        self._is_rewriting = False
        if isinstance(outcome, OSError):
            self._on_error(outcome)
            return
        if isinstance(outcome, BaseException):
            raise outcome
        self._take(outcome)
        if self._is_closed:
            self._file = None
            return
        if self._is_outdated:
            self._is_outdated = False
            self.rewrite(self._newest)
            return
        waiting, self._waiting = self._waiting, []
        for line in waiting:
            self.append(line, self._newest)

    def _sync(self) -> None:
        if self._file is not None and self._is_dirty and not self._is_syncing:
            self._is_syncing, self._is_dirty = True, False
            self._commit(Barrier(files=(self._file,)), self._on_synced)

    def _on_synced(self, error: OSError | None) -> None:
        self._is_syncing = False
        if error is not None:
            self._on_error(error)
        else:
            self._sync()

    def _on_error(self, error: OSError) -> None:
        """Handles an error. If the disk is full, the next change rewrites the file."""
        self._file = None
        if not is_passing(error):
            self._on_failed(error)
