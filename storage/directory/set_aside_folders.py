"""Erases records in other folders of a partition on this broker, which a moved or deleted log has left.

A `-delete` folder is removed at once, whatever `file.delete.delay.ms` says. A `-stray` folder, a `-future` folder of no
move, and a folder with the partition's name in another directory stay. If one of them may have a record below the
offset, the request fails and names it. A folder of another topic with the same name is ignored. A folder without a
topic id counts as the partition's.

Guards: a request succeeds only when no folder of the partition in any directory has a record below its offset, and this
is on the disks (D15). Only the disk knows these folders, so each directory is listed once for all waiting requests.
Only `-delete` folders are removed (M2).
"""

from __future__ import annotations

import contextlib
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.storage.directory.directory_erasures import MOVED, EraseChangedError, EraseFailedError
from lowtide.storage.errors import is_passing
from lowtide.storage.folder_names import is_deleted_folder, partition_of_folder
from lowtide.storage.log.segments.segment_names import LOG_SUFFIX, OFFSET_DIGITS
from lowtide.storage.log_directory import topic_id_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lowtide.protocol.types import Offset, TopicId, TopicPartition
    from lowtide.runtime.filesystem import FileSystem
    from lowtide.runtime.worker import Worker
    from lowtide.storage.directory.directory_erasures import OnErased
    from lowtide.storage.directory.directory_logs import DirectoryLogs
    from lowtide.storage.directory.log_moves import LogMoves
    from lowtide.storage.log.log import Log

REQUESTS_AT_ONCE: Final = 1_000
"""Requests served by one listing; the others come next."""


class FolderSearch(NamedTuple):
    """A partition to look for in all directories."""

    key: TopicPartition
    topic_id: TopicId
    offset: Offset
    served: frozenset[str]
    """Its folders that are erased in other ways: the log's own, and that of a copy."""


class _FolderRequest(msgspec.Struct, eq=False):
    log: Log
    offset: Offset
    on_done: OnErased


class SetAsideFolders:
    """Erases folders beside the logs of a broker. Used from the event loop only."""

    def __init__(
        self,
        filesystem: FileSystem,
        worker: Worker,
        directories: Mapping[str, DirectoryLogs],
        logs: Mapping[TopicPartition, Log],
        moves: LogMoves,
    ) -> None:
        self._filesystem = filesystem
        self._worker = worker
        self._directories = directories
        self._logs = logs
        self._moves = moves
        self._requests: dict[_FolderRequest, None] = {}
        self._is_looking = self._is_stopped = False

    def __len__(self) -> int:
        return len(self._requests)

    def erase(self, log: Log, offset: Offset, on_done: OnErased) -> Callable[[], object]:
        """Erases the records below `offset` in other folders of the log's partition, then calls `on_done`.

        Returns a function that cancels the request.
        """
        request = _FolderRequest(log, offset, on_done)
        self._requests[request] = None
        return lambda: self._requests.pop(request, None)

    def on_truncated(self, log: Log) -> None:
        """Refuses the requests of a log that is cut or restarts, because it may receive deleted records again."""
        for request in [each for each in self._requests if each.log is log]:
            self._answer(request, EraseChangedError("the replica was truncated meanwhile; ask again"))

    def stop(self) -> None:
        """Refuses all requests. What a worker still does has no effect: committers close next."""
        self._is_stopped = True
        for request in list(self._requests):
            self._answer(request, EraseFailedError("the broker stops"))

    def round(self) -> Iterator[None]:
        """Begins to serve requests. Called some twenty times a second, and always iterated to the end."""
        if not self._requests or self._is_looking:
            return
        sought: dict[_FolderRequest, FolderSearch] = {}
        for request in list(islice(self._requests, REQUESTS_AT_ONCE)):
            key = request.log.topic_partition
            if (refusal := self._refusal(request)) is not None:
                self._answer(request, refusal)
            elif not any(key in directory.parts.deletions.leaving for directory in self._directories.values()):
                sought[request] = FolderSearch(key, request.log.topic_id, request.offset, self._served(request.log))
        if sought:
            self._look(sought)
        yield

    def _refusal(self, request: _FolderRequest) -> EraseFailedError | None:
        current = self._logs.get(request.log.topic_partition)
        if current is not request.log:
            return EraseFailedError("the replica is no longer here") if current is None else EraseChangedError(MOVED)
        offline = next((path for path, each in self._directories.items() if not each.is_online), None)
        return (
            None
            if offline is None
            else EraseFailedError(f"the log directory {offline} is offline, and may have records of the partition")
        )

    def _served(self, log: Log) -> frozenset[str]:
        move = self._moves.move_of(log)
        return frozenset(
            {log.directory} | ({move.future.directory} if move is not None and move.future is not None else set())
        )

    def _look(self, sought: Mapping[_FolderRequest, FolderSearch]) -> None:
        self._is_looking = True
        waiting_for = len(self._directories)
        kept: dict[TopicPartition, str] = {}
        failed = False

        def on_done(path: str, outcome: object) -> None:
            nonlocal waiting_for, failed
            waiting_for -= 1
            if isinstance(outcome, OSError):
                failed = True
                if not is_passing(outcome):
                    self._directories[path].fail(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            elif isinstance(outcome, dict):
                kept.update(outcome)
            if not waiting_for:
                self._is_looking = False
                if not failed:  # Else the next round looks again.
                    self._on_looked(sought, kept)

        for path, directory in self._directories.items():
            self._worker.submit(
                partial(_erase_beside, self._filesystem, path, list(sought.values())),
                partial(self._on_erased, directory, path, on_done),
            )

    def _on_erased(
        self, directory: DirectoryLogs, path: str, on_done: Callable[[str, object], None], outcome: object
    ) -> None:
        """Syncs the directory, even if nothing was removed now."""
        if self._is_stopped:
            return
        if isinstance(outcome, BaseException) or not directory.is_online:
            on_done(path, outcome)
        else:
            directory.sync_folder_names(lambda error: on_done(path, outcome if error is None else error))

    def _on_looked(self, sought: Mapping[_FolderRequest, FolderSearch], kept: Mapping[TopicPartition, str]) -> None:
        for request, each in sought.items():
            if (refusal := self._refusal(request)) is not None:
                self._answer(request, refusal)
            elif self._served(request.log) != each.served:
                continue  # A move has begun or ended meanwhile: look again.
            elif each.key in kept:
                self._answer(
                    request,
                    EraseFailedError(f"the folder {kept[each.key]} was set aside, and has deleted records: remove it"),
                )
            else:
                self._answer(request, None)

    def _answer(self, request: _FolderRequest, error: EraseFailedError | None) -> None:
        if self._requests.pop(request, request) is None:
            request.on_done(error)


def _erase_beside(filesystem: FileSystem, path: str, sought: Sequence[FolderSearch]) -> dict[TopicPartition, str]:
    """Removes `-delete` folders; returns the other folders that have a record below the offset. Errors: OSError."""
    kept: dict[TopicPartition, str] = {}
    by_key: dict[TopicPartition, list[FolderSearch]] = {}
    for each in sought:
        by_key.setdefault(each.key, []).append(each)
    for name in filesystem.listdir(path):
        owner = partition_of_folder(name)
        if owner is None:
            continue
        (topic, number), is_cut = owner
        those = by_key.get(owner[0], [])
        if is_cut:
            those = [each for each in sought if each.key.partition == number and each.key.topic.startswith(topic)]
        for each in those:
            _erase_folder(filesystem, f"{path}/{name}", each, kept)
    return kept


def _erase_folder(filesystem: FileSystem, folder: str, sought: FolderSearch, kept: dict[TopicPartition, str]) -> None:
    if folder in sought.served:
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if topic_id_in(filesystem, folder) not in (sought.topic_id, ZERO_TOPIC_ID):
            return
        if is_deleted_folder(folder):
            filesystem.remove_tree(folder)
        elif _has_records_below(filesystem, folder, sought.offset):
            kept[sought.key] = folder


def _has_records_below(filesystem: FileSystem, folder: str, offset: Offset) -> bool:
    digits = (
        name[:OFFSET_DIGITS] for name in filesystem.listdir(folder) if name[OFFSET_DIGITS:].startswith(LOG_SUFFIX)
    )
    return any(each.isdigit() and int(each) < offset for each in digits)
