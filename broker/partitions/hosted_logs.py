"""Creates and removes the logs of the partitions that this broker hosts. `assigned_partitions` says which ones.

Guards: a partition never gets the log of an earlier topic of its name, nor a new log while an old one is being removed.
A log is removed only if the metadata say so; otherwise its folder is set aside (`strays`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from lowtide.metadata.image import MetadataImage
from lowtide.protocol.types import NO_LEADER_EPOCH, BrokerId, LeaderEpoch, TopicId, TopicPartition
from lowtide.storage.directory.log_manager import LogManager
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import Log, LogConfig

_PARTITIONS_NAMED: Final = 5
"""The partitions that a log line names."""


class OfflinePartitions:
    """Partitions that this broker cannot serve: their directory is offline, or their log was not created or loaded."""

    def __init__(self) -> None:
        self.keys: frozenset[TopicPartition] = frozenset()
        """A new object after each change, so that users see the change by identity."""

    def add(self, keys: Iterable[TopicPartition]) -> None:
        self.keys = self.keys.union(keys)

    def discard(self, keys: Iterable[TopicPartition]) -> None:
        self.keys = self.keys.difference(keys)


class HostedLogs:
    """The logs of the partitions that are here. Part of `AssignedPartitions`."""

    def __init__(
        self,
        log_manager: LogManager,
        offline: OfflinePartitions,
        log: Any,
        *,
        on_free: Callable[[Iterable[str]], None],
        has_to_go: Callable[[TopicPartition, TopicId, LeaderEpoch], bool],
    ) -> None:
        """`on_free` gets the topics whose names became free.

        `has_to_go` returns whether the metadata say that a log with this topic id and latest leader epoch is removed.
        """
        self._offline = offline
        self._log_manager = log_manager
        self._log = log
        self._on_free = on_free
        self._has_to_go = has_to_go
        self._leaving: set[TopicPartition] = set()
        self._stuck: set[TopicPartition] = set()
        """Logs that could not be set aside: their names stay taken until the next start."""
        self._without_room: set[str] = set()
        self._failed: dict[TopicPartition, StorageError] = {}
        """Logs that could not be created, until they are reported."""

    @property
    def leaving(self) -> bool:
        """Whether logs are being removed or set aside."""
        return bool(self._leaving)

    def expect(self, image: MetadataImage, broker_id: BrokerId) -> None:
        """Notes this broker's partitions before any log is opened.

        If a directory has failed, their logs are not created again: they may be there.
        """
        here = [
            (TopicPartition(topic.name, index), topic.topic_id)
            for topic in image.topics.values()
            for index, state in enumerate(topic.partitions)
            if broker_id in state.replicas
        ]
        offline = self._log_manager.expect(here)
        if offline:
            lost = list(self._log_manager.lost_directories)
            self._log.error(
                "partitions are offline with their log directories", partitions=len(offline), missing_directories=lost
            )

    def has(self, key: TopicPartition) -> bool:
        """Returns whether a partition has a log here, of any topic id."""
        return key in self._log_manager.logs

    def open(self, key: TopicPartition, topic_id: TopicId, config: LogConfig, *, is_alone: bool) -> Log | None:
        """Returns the log of a partition, which may be new; None if it can't be created or its name is taken.

        Only the log of an only replica (`is_alone`) gets its files later. A start without them creates it again. One of
        several replicas would count as lost then (`RegistrationDirectories.missing_replicas`).
        """
        log = self._log_manager.logs.get(key)
        if log is not None and log.topic_id != topic_id:
            self.remove({key: log.topic_id})
            return None
        if log is None:
            if key in self._leaving:
                return None
            if key in self._stuck:
                self._offline.add((key,))
                return None
            try:
                log = self._log_manager.create_log(key, topic_id, config, with_files=not is_alone)
            except StorageError as error:
                if key not in self._offline.keys:
                    self._failed.setdefault(key, error)
                if error.is_passing:
                    self._without_room.add(key.topic)
                return None
            if key in self._offline.keys:
                self._offline.discard((key,))
        if log.offline and key not in self._offline.keys:
            self._offline.add((key,))  # Its directory failed before the partition was hosted.
        return log

    def tell_failed(self) -> None:
        """Marks the logs that could not be created as offline, and logs one line for each directory."""
        failed, self._failed = self._failed, {}
        if not failed:
            return
        self._offline.add(failed)
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
        """Returns the log directory of an error, or the missing directories that it names."""
        return next(
            (
                path
                for path in self._log_manager.directories.paths
                if error.path == path or error.path.startswith(f"{path}/")
            ),
            error.path,
        )

    def take_without_room(self) -> set[str]:
        """Returns and clears the topics with partitions that have no log here because a disk was full."""
        names, self._without_room = self._without_room, set()
        return names

    def remove(self, logs: Mapping[TopicPartition, TopicId]) -> None:
        """Removes logs that the metadata say are deleted or moved away, and sets the others aside.

        Their names are free when `on_free` is called.
        """
        gone: list[TopicPartition] = []
        kept: list[TopicPartition] = []
        for key, topic_id in logs.items():
            log = self._log_manager.logs.get(key)
            latest = NO_LEADER_EPOCH if log is None else log.leader_epochs.latest
            (gone if self._has_to_go(key, topic_id, latest) else kept).append(key)
        if gone:
            self._remove(gone, set_aside=False)
        if kept:
            self._log.warning(
                "logs that the metadata lack are set aside: their folders get names that end in -stray, and stay",
                partitions=len(kept),
                some_partitions=[str(key) for key in kept[:_PARTITIONS_NAMED]],
            )
            self._remove(kept, set_aside=True)

    def _remove(self, keys: list[TopicPartition], *, set_aside: bool) -> None:
        self._leaving.update(keys)

        def left(error: OSError | StorageError | None) -> None:
            if error is not None:
                action = "logs could not be set aside" if set_aside else "logs could not be deleted"
                self._log.error(action, partitions=len(keys), error=str(error))
                if set_aside:
                    self._stuck.update(keys)
            self._leaving.difference_update(keys)
            self._on_free(dict.fromkeys(key.topic for key in keys))

        self._log_manager.delete_logs(keys, left, set_aside=set_aside)
