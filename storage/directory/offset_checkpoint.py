"""An offset checkpoint that is rewritten regularly: recovery points, high watermarks.

Guards: one version is written at a time, and a caller that waits gets a version that was begun after its call.

A full disk keeps the old version, which may be outdated but never wrong. Where a caller waits, entries must disappear,
because the name of a deleted partition may be reused. Then the file is removed: no entries are safe, old ones aren't.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping
from typing import TypeAlias

from lowtide.protocol.types import Offset, TopicPartition
from lowtide.runtime.committer import Barrier, Committer
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.checkpoint import (
    TEMPORARY_SUFFIX,
    CheckpointError,
    decode_offsets,
    encode_offsets,
    offset_checkpoint_pieces,
    parent_directory,
    staged_checkpoint,
)
from lowtide.storage.errors import is_passing, stopping_error

OnWritten: TypeAlias = Callable[[OSError | None], None]


class OffsetCheckpoint:
    """One checkpoint file, written through a committer. Used from the event loop only."""

    def __init__(
        self,
        filesystem: FileSystem,
        committer: Committer,
        path: str,
        offsets: Callable[[], Mapping[TopicPartition, Offset]],
        values: Callable[[], list[Offset]],
        on_failure: Callable[[OSError], None],
    ) -> None:
        """`offsets` returns the content of the file; `on_failure` is called when the disk fails.

        `values` returns the offsets of loaded partitions, oldest first. A new version is written only if they have
        changed, or if a caller waits for the removal of an entry. Comparing them takes a tenth of the time of a write.
        """
        self._filesystem = filesystem
        self._committer = committer
        self._path = path
        self._offsets = offsets
        self._values = values
        self._written_values: list[Offset] | None = None
        self._on_failure = on_failure
        self._written: bytes | None = None
        self._under_way = False
        self._stopping = False
        self._waiting: list[OnWritten] = []

    def write(self) -> Iterator[None]:
        """Begins a new version if something has changed and none is in progress.

        It is made in steps, from the state at the first one.
        """
        if self._under_way or self._stopping:
            return
        values = self._values()
        if values == self._written_values:
            return
        self._under_way = True
        pieces = []
        for piece in offset_checkpoint_pieces(self._offsets()):
            pieces.append(piece)
            yield
        self._under_way = False
        if self._waiting:  # They want what is true by now.
            self._begin_for_waiting()
        elif not self._stopping:
            self._written_values = values
            self._begin(b"".join(pieces), [])

    def write_and_call(self, on_written: OnWritten) -> None:
        """Writes the present state, or removes the file, durably; then calls `on_written`, once."""
        if self._stopping:
            on_written(stopping_error(self._path))
            return
        self._waiting.append(on_written)
        if not self._under_way:
            self._begin_for_waiting()

    def stop(self) -> None:
        """Begins nothing more, because the committer is about to close.

        Waiting callers get an error unless their version is in progress.
        """
        self._stopping = True
        waiting, self._waiting = self._waiting, []
        _tell(waiting, stopping_error(self._path))

    def write_now(self) -> None:
        """Writes the present state at once at a stop, when the committer is idle. Blocks on a sync. Errors: OSError."""
        self._filesystem.replace_file(self._path, encode_offsets(self._offsets()))

    def _begin_for_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._written_values = None
        self._begin(encode_offsets(self._offsets()), waiting)

    def _begin(self, content: bytes, waiting: list[OnWritten]) -> None:
        barrier: Barrier | None = None
        if content != self._written:
            try:
                barrier = staged_checkpoint(self._filesystem, self._path, content)
            except OSError as error:
                self._give_up(waiting, error)
                return
        elif waiting:
            barrier = Barrier(directories=(parent_directory(self._path),))
        if barrier is not None:
            self._submit(barrier, content, waiting)

    def _submit(self, barrier: Barrier, content: bytes | None, waiting: list[OnWritten]) -> None:
        def on_done(error: OSError | None) -> None:
            self._under_way = False
            if error is not None and is_passing(error):
                self._give_up(waiting, error)
            else:
                if error is None:
                    self._written = content
                else:
                    self._written_values = None
                    self._on_failure(error)
                for on_written in waiting:
                    on_written(error)
            if self._waiting and not self._under_way:
                self._begin_for_waiting()

        self._under_way = True
        self._committer.submit(barrier, on_done)

    def _give_up(self, waiting: list[OnWritten], error: OSError) -> None:
        self._written_values = None
        with contextlib.suppress(OSError):
            self._filesystem.unlink(self._path + TEMPORARY_SUFFIX)
        failed = error if not is_passing(error) else self._removed() if waiting else None
        if failed is not None:
            self._on_failure(failed)
            self._committer.submit(Barrier(), lambda _error: _tell(waiting, failed))
        elif waiting:
            self._submit(Barrier(directories=(parent_directory(self._path),)), None, waiting)

    def _removed(self) -> OSError | None:
        try:
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.unlink(self._path)
        except OSError as error:
            return error
        return None


def _tell(waiting: list[OnWritten], error: OSError) -> None:
    for on_written in waiting:
        on_written(error)


def read_checkpoint(filesystem: FileSystem, path: str, here: Container[TopicPartition]) -> dict[TopicPartition, Offset]:
    """Returns a checkpoint's entries of the partitions that are here; none if it can't be read.

    Entries of other partitions are left by an interrupted deletion. Their names may be reused, and an old entry must
    not exempt a new log from recovery. So the file is rewritten without them, or removed if the disk is full. Start
    code: it may sync. Errors: OSError.
    """
    if not filesystem.exists(path):
        return {}
    try:
        offsets = decode_offsets(filesystem.read_bytes(path), path)
    except CheckpointError:
        return {}
    known = {key: offset for key, offset in offsets.items() if key in here}
    if len(known) < len(offsets):
        try:
            filesystem.replace_file(path, encode_offsets(known))
        except OSError as error:
            if not is_passing(error):
                raise
            filesystem.unlink(path)
            filesystem.sync_directory(parent_directory(path))
    return known
