"""Deletes partitions of one log directory: renames folders, clears checkpoints and journal, then frees the names.

Guards: a name is reused only when nothing durable refers to the old log under it. A deletion that a stop interrupts is
reported as failed. The next start finds the renamed folders and finishes it.

Source: Kafka's LogManager.asyncDelete.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from lowtide.protocol.types import TopicId, TopicPartition
from lowtide.storage.directory.directory_state import DirectoryState
from lowtide.storage.directory.file_removal import FileRemoval, PartitionRemoval
from lowtide.storage.directory.log_settings import DirectoryPorts
from lowtide.storage.directory.offset_checkpoint import OnWritten
from lowtide.storage.errors import is_passing, stopping_error
from lowtide.storage.folder_names import deleted_folder_name, stray_folder_name
from lowtide.storage.log.segments.segment_files import Readers
from lowtide.storage.log_directory import deleted_partition
from lowtide.storage.log_start.journal import LogStartJournal
from lowtide.storage.log_start.journal_format import OnDurable


class NamedCheckpoint(Protocol):
    """A file that names partitions."""

    def write_and_call(self, on_written: OnWritten) -> None:
        """Rewrites the file without partitions that are gone, then calls `on_written`."""


class DirectoryDeletions:
    """Deletes partitions of one directory. Used from the event loop only."""

    def __init__(
        self,
        state: DirectoryState,
        ports: DirectoryPorts,
        removal: FileRemoval,
        journal: LogStartJournal,
        checkpoints: Sequence[NamedCheckpoint],
    ) -> None:
        """`checkpoints` are the files that refer to partitions by name."""
        self._export_is_stale = False
        """Whether the exports of log starts have entries of deleted partitions."""
        self.leaving: set[TopicPartition] = set()
        """Partitions whose names can't be reused yet."""
        self._path = state.path
        self._state = state
        self._ports = ports
        self._removal = removal
        self._journal = journal
        self._checkpoints = checkpoints
        self._stopped = False

    def begin(
        self,
        sizes: Mapping[TopicPartition, int],
        forgotten: list[tuple[TopicId, int]],
        *,
        delay_ms: int | None,
        on_done: OnDurable,
        readers: Readers | None = None,
        names: Mapping[TopicPartition, str] | None = None,
    ) -> None:
        """Removes the folders of partitions that have already been taken out of the directory's lists.

        `sizes` has the bytes of each partition, 0 if unknown. `forgotten` are the log starts to delete too. `names` has
        the folders that aren't named after their partition. `readers` are open files through which records may still be
        read. If they are given, the room is freed as soon as the names are free and the readers are gone, otherwise
        after the delay. Without a delay the folders are set aside: they are renamed and kept. If there was no room for
        another name, `on_done` gets an error, and the names stay in use.
        """
        keys = list(sizes)
        name = stray_folder_name if delay_ms is None else deleted_folder_name
        called = names or {}
        renames = [
            (f"{self._path}/{called.get(key) or key}", f"{self._path}/{name(key, self._ports.random)}") for key in keys
        ]
        self.leaving.update(keys)
        leaving = PartitionRemoval(
            keys=keys,
            forgotten=forgotten,
            renames=renames,
            sizes=list(sizes.values()),
            delay_ms=delay_ms,
            on_done=on_done,
            readers=readers,
        )
        self._removal.rename_folders(renames, partial(self._on_renamed, leaving), are_kept=delay_ms is None)

    def rename_now(self, keys: Mapping[TopicPartition, bool]) -> list[str]:
        """Renames folders of other topics that were found among the partitions. Start code: it syncs.

        True stands for a deleted topic; other folders are set aside. Returns the names of the folders to be removed.
        Errors: OSError.
        """
        names = []
        for key, is_deleted in keys.items():
            name = (deleted_folder_name if is_deleted else stray_folder_name)(key, self._ports.random)
            try:
                self._ports.filesystem.rename(f"{self._path}/{key}", f"{self._path}/{name}")
            except OSError as error:
                if not (is_deleted and is_passing(error)):
                    raise
                self._ports.filesystem.remove_tree(f"{self._path}/{key}")  # There is no room for another name.
                continue
            names += [name] if is_deleted else []
        if keys:
            self._ports.filesystem.sync_directory(self._path)
        return names

    def finish_interrupted(self, folders: Iterable[str], partitions: Mapping[TopicPartition, TopicId]) -> None:
        """Removes partitions whose deletion a stop interrupted, and their log starts."""
        names = list(folders)
        alive = {(topic_id, topic_partition.partition) for topic_partition, topic_id in partitions.items()}
        gone = [deleted_partition(self._ports.filesystem, self._path, name) for name in names]
        journal = self._journal
        forgotten = [key for key in gone if key is not None and key not in alive and journal.value(*key) is not None]
        if forgotten:
            self._export_is_stale = True
            journal.forget(forgotten, lambda _error: None)
        self._removal.remove_folders({f"{self._path}/{name}": 0 for name in names}, 0)

    def refresh_exports(self) -> None:
        """Rewrites the exports of log starts for Kafka if they have entries of deleted partitions."""
        if self._export_is_stale:
            self._export_is_stale = False
            self._journal.fold(self._on_folded)

    def _on_folded(self, error: OSError | None) -> None:
        self._export_is_stale |= error is not None

    def stop(self) -> None:
        """Begins no further step; deletions in progress fail."""
        self._stopped = True

    def _on_renamed(self, leaving: PartitionRemoval, error: OSError | None) -> None:
        """Makes the free names durable, and clears the checkpoints, which refer to partitions by name."""
        if error is not None and not is_passing(error):
            self._state.fail(error)
        if error is not None or self._stopped:
            self._left(leaving, error or stopping_error(self._path))
            return
        waiting_for = len(self._checkpoints)

        def written(failed: OSError | None) -> None:
            nonlocal waiting_for
            waiting_for -= 1
            leaving.error = leaving.error or failed
            if waiting_for == 0:
                if self._stopped:
                    leaving.error = leaving.error or stopping_error(self._path)
                if leaving.error is not None:
                    self._left(leaving, leaving.error)
                else:
                    self._export_is_stale = True
                    self._journal.forget(leaving.forgotten, partial(self._left, leaving))

        for checkpoint in self._checkpoints:
            checkpoint.write_and_call(written)

    def _left(self, leaving: PartitionRemoval, error: OSError | None) -> None:
        self.leaving.difference_update(leaving.keys)
        if leaving.delay_ms is not None:
            due_ms = self._ports.clock.monotonic_ms() + leaving.delay_ms
            folders = [target for _source, target in leaving.renames]
            self._removal.remove_folders(dict(zip(folders, leaving.sizes, strict=True)), due_ms)
            if error is None and leaving.readers is not None:
                self._removal.free_folders(folders, leaving.readers)
        leaving.on_done(error)


def offline_error(path: str, reason: str | None) -> OSError:
    """Returns the error for callers that wait for a directory that went offline."""
    return OSError(errno.EIO, f"the log directory is offline: {reason}", path)
