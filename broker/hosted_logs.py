"""The logs of the partitions that this broker hosts: made where there are none, removed when their partitions have gone.

Guards: a partition doesn't get the log of an earlier topic of its name, nor a new one while an old one is on its way out. It decides
nothing about partitions: `replica_manager` says which ones are to be here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from lowtide.protocol.types import TopicId, TopicPartition
from lowtide.storage.errors import StorageError
from lowtide.storage.log import Log, LogConfig
from lowtide.storage.log_manager import LogManager

_PARTITIONS_NAMED: Final = 5
"""In a line about any number of them."""


class HostedLogs:
    """See the module. Part of the replica manager."""

    def __init__(self, log_manager: LogManager, log: Any, *, on_free: Callable[[Iterable[str]], None]) -> None:
        """`on_free` is told topics whose names were taken by logs that are gone now."""
        self.offline: frozenset[TopicPartition] = frozenset()
        """Partitions of this broker that it can't serve: their log directory is offline, or their log could not be made or loaded."""
        self._log_manager = log_manager
        self._log = log
        self._on_free = on_free
        self._leaving: set[TopicPartition] = set()
        self._without_room: set[str] = set()
        self._failed: dict[TopicPartition, StorageError] = {}
        """Logs that could not be made, and of which nobody was told yet."""

    @property
    def leaving(self) -> bool:
        """Whether logs are on their way out."""
        return bool(self._leaving)

    def expect(self, here: list[tuple[TopicPartition, TopicId]]) -> None:
        """Before any log is asked for: these were here before, and aren't made anew where they may be in a directory that failed."""
        offline = self._log_manager.expect(here)
        if offline:
            lost = list(self._log_manager.lost_directories)
            self._log.error("partitions are offline with their log directories", partitions=len(offline), missing_directories=lost)

    def open(self, key: TopicPartition, topic_id: TopicId, config: LogConfig) -> Log | None:
        """The log of a partition, which is made where there is none; None when its directory can't be written, or its name isn't free."""
        log = self._log_manager.logs.get(key)
        if log is not None and log.topic_id != topic_id:
            self._log.warning("log of an earlier topic of the same name is removed", partition=str(key))
            self.remove([key])
            return None
        if log is None:
            if key in self._leaving:
                return None
            try:
                log = self._log_manager.create_log(key, topic_id, config)
            except StorageError as error:
                if key not in self.offline:
                    self._failed.setdefault(key, error)
                if error.is_passing:
                    self._without_room.add(key.topic)
                return None
            if key in self.offline:
                self.offline -= {key}
        if log.offline and key not in self.offline:
            self.offline |= {key}  # Its directory has failed before its partition was here to be told so.
        return log

    def tell_failed(self) -> None:
        """Those that could not be made are offline from now on: one line for each directory. To be called after many were asked for."""
        failed, self._failed = self._failed, {}
        if not failed:
            return
        self.offline = self.offline.union(failed)  # Another object each time, by which others know that it is different.
        by_directory: dict[str, list[TopicPartition]] = {}
        for key, error in failed.items():
            by_directory.setdefault(self._directory_of(error), []).append(key)
        for directory, keys in by_directory.items():
            self._log.error(
                "logs could not be created",
                directory=directory,
                partitions=len(keys),
                some_partitions=[str(key) for key in keys[:_PARTITIONS_NAMED]],
                error=str(failed[keys[0]]),
            )

    def _directory_of(self, error: StorageError) -> str:
        """The log directory that an error is about, or what it names instead: several that are missing."""
        return next((path for path in self._log_manager.paths if error.path == path or error.path.startswith(f"{path}/")), error.path)

    def add_offline(self, partitions: Iterable[TopicPartition]) -> None:
        """The log directory of these has failed."""
        self.offline |= set(partitions)

    def take_without_room(self) -> set[str]:
        """Topics with partitions that could not be made since a disk was full. Once."""
        names, self._without_room = self._without_room, set()
        return names

    def forget_offline(self, gone: Iterable[TopicPartition]) -> None:
        """These aren't this broker's any more."""
        self.offline -= set(gone)

    def remove(self, keys: list[TopicPartition]) -> None:
        """Delete logs; topics can have the names again when `on_free` is told."""
        self._leaving.update(keys)

        def removed(error: OSError | StorageError | None) -> None:
            if error is not None:
                self._log.error("logs could not be deleted", partitions=len(keys), error=str(error))
            self._leaving.difference_update(keys)
            self._on_free(dict.fromkeys(key.topic for key in keys))

        self._log_manager.delete_logs(keys, removed)
