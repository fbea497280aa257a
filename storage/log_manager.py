"""All logs of a broker, over all its log directories: opened, made, deleted, trimmed, checkpointed, stopped.

Guards: a partition is in one directory only; a partition whose directory is offline isn't made anew, empty, in another; a delete that spans
directories is told as done when it's durable in all of them.

What happens inside one directory is `directory_logs.py`. It doesn't know leaders: that an offset may be deleted is decided by its callers.

Source: Kafka's LogManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from lowtide.protocol.types import Offset, TopicId, TopicPartition
from lowtide.runtime.clock import Clock
from lowtide.runtime.committer import Barrier, Committer
from lowtide.runtime.filesystem import FileSystem
from lowtide.runtime.random import Random
from lowtide.runtime.worker import Worker
from lowtide.storage.checkpoint import META_PROPERTIES, decode_meta_properties, parent_directory
from lowtide.storage.directory_logs import DirectoryLogs
from lowtide.storage.errors import StorageError
from lowtide.storage.loader import LoadReport
from lowtide.storage.log import Log, LogConfig, Truncation
from lowtide.storage.log_directory import Identity, list_directory
from lowtide.storage.log_settings import DirectoryPorts, LogManagerSettings
from lowtide.storage.log_start import OnDurable
from lowtide.storage.segment_files import SegmentCache

__all__ = ["LogManager", "LogManagerSettings", "OnDirectoryFailed"]

OnDirectoryFailed = Callable[[str, str, list[Log]], None]
"""Told the directory, the reason, and its logs, which are offline already."""


class LogManager:
    """See the module. `open` once, then in the end `close` (clean) or `release` (not)."""

    def __init__(
        self,
        filesystem: FileSystem,
        clock: Clock,
        directories: Sequence[str],
        committers: Mapping[str, Committer],
        worker: Worker,
        random: Random,
        settings: LogManagerSettings | None = None,
    ) -> None:
        """`committers` has one for each of `directories`; they are closed with the manager, the worker isn't."""
        assert directories, "a broker has at least one log directory"
        self.logs: dict[TopicPartition, Log] = {}
        """All logs that are loaded, those of directories that went offline among them (`log.offline`)."""
        self.on_directory_failed: OnDirectoryFailed = _nobody_listens
        self.on_log_flushed: Callable[[Log], None] = lambda _log: None
        """Told whenever a log's recovery point may have risen."""
        self._filesystem = filesystem
        self._paths = [path.rstrip("/") or "/" for path in directories]
        self._committers = committers
        self._offline_partitions: dict[TopicPartition, str] = {}
        cache = SegmentCache()
        self._directories = {
            path: DirectoryLogs(
                path,
                DirectoryPorts(filesystem=filesystem, clock=clock, committer=committers[given], worker=worker, random=random, cache=cache),
                settings or LogManagerSettings(),
                self._on_failed,
            )
            for given, path in zip(directories, self._paths, strict=True)
        }
        for directory in self._directories.values():
            directory.on_flushed = self._on_log_flushed

    # Opening

    def known_cluster_id(self) -> str | None:
        """The cluster that the directories belong to, by what they say themselves; None if all are new. Takes no lock.

        Errors: StorageError for a `meta.properties` that can't be read.
        """
        for path in self._paths:
            place = f"{path}/{META_PROPERTIES}"
            if self._filesystem.exists(place):
                properties = decode_meta_properties(self._filesystem.read_bytes(place), place)
                if properties is not None:
                    return properties.cluster_id
        return None

    def open(self, cluster_id: str, node_id: int) -> None:
        """Takes all directories and loads all logs; recovers those that weren't stopped cleanly. Start code: it syncs, and may take long.

        A directory with a damaged journal or a failing disk goes offline, with its partitions, if another one is left.
        Errors: StorageError in one sentence: a directory that can't be used by this broker, or none that works.
        """
        repeated = {path for path in self._paths if self._paths.count(path) > 1}
        if repeated:
            raise StorageError(min(repeated), "the log directory is given twice")
        identity = Identity(cluster_id=cluster_id, node_id=node_id)
        try:
            for path in self._paths:
                self._directories[path].open(identity)
            self._check_directory_ids()
            self._load()
        except BaseException:
            self.release()
            raise

    def _check_directory_ids(self) -> None:
        by_id: dict[bytes, str] = {}
        for path, directory in self._directories.items():
            other = by_id.setdefault(directory.directory.directory_id, path)
            if other != path:
                reason = f"the log directory has the same directory.id as {other}; one of them is a copy"
                raise StorageError(path, reason)

    def _load(self) -> None:
        failure: StorageError | None = None
        for path, directory in self._directories.items():
            try:
                directory.load()
            except StorageError as error:
                failure = failure or error
                self._set_offline(path, directory, error)
                continue
            for topic_partition in (*directory.logs, *directory.unidentified, *directory.damaged):
                holder = self._holder(topic_partition, besides=directory)
                if holder is not None:
                    reason = f"the partition is in {holder.path} too; one of the folders must be moved away"
                    raise StorageError(directory.folder(topic_partition), reason)
            self.logs.update(directory.logs)
        if failure is not None and not self.has_online_directory:
            raise failure

    def _set_offline(self, path: str, directory: DirectoryLogs, error: StorageError) -> None:
        """A directory can't be loaded. Its partitions must be known, or they would be made anew elsewhere.

        Errors: StorageError, `error`, when they can't.
        """
        try:
            partitions = list_directory(self._filesystem, path).partitions
        except OSError:
            raise error from None
        self._offline_partitions |= dict.fromkeys(partitions, path)
        directory.fail(error)

    @property
    def strays(self) -> tuple[str, ...]:
        """Paths of folders in the log directories that aren't partitions of ours; they are left alone."""
        return tuple(stray for directory in self._directories.values() for stray in directory.strays)

    @property
    def damaged(self) -> dict[TopicPartition, StorageError]:
        """Partitions that couldn't be loaded, though their directory could."""
        return {key: error for directory in self._directories.values() for key, error in directory.damaged.items()}

    @property
    def load_reports(self) -> dict[TopicPartition, LoadReport]:
        """What loading had to mend, by partition; those with nothing to mend are left out."""
        return {key: report for directory in self._directories.values() for key, report in directory.reports.items()}

    @property
    def has_online_directory(self) -> bool:
        """Whether anything can still be written."""
        return any(directory.is_online for directory in self._directories.values())

    @property
    def offline_directories(self) -> dict[str, str]:
        """The directories that are offline, with the reason."""
        failed = {path: directory.directory.offline_reason for path, directory in self._directories.items() if not directory.is_online}
        return {path: reason or "" for path, reason in failed.items()}

    def registrations(self) -> dict[str, int | None]:
        """By online directory, the number of the registration that reached it last, None where that isn't known. Errors: OSError."""
        return {path: directory.directory.registration() for path, directory in self._directories.items() if directory.is_online}

    def write_registration(self, number: int) -> None:
        """Notes a registration in every online directory, durably. Start code: it syncs. Errors: OSError."""
        for directory in self._directories.values():
            if directory.is_online:
                directory.directory.write_registration(number)

    # Logs come and go

    def create_log(self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig) -> Log:
        """The partition's log, made if there is none, in the online directory with the fewest partitions.

        A folder that didn't tell its topic id is taken for this topic's: a deleted topic's folder has lost the name durably before.
        Errors: StorageError when the disk fails or is full, when the partition's directory is offline, and for a damaged partition.
        Does not promise: durability of the empty log; the metadata say what there is.
        """
        log = self.logs.get(topic_partition)
        if log is not None:
            assert log.topic_id == topic_id, f"{topic_partition} is the log of another topic, which has to be deleted first"
            return log
        directory = self._holder(topic_partition) or self._home_for(topic_partition, topic_id)
        if topic_partition in directory.damaged:
            raise directory.damaged[topic_partition]
        if not directory.is_online:
            raise StorageError(directory.path, f"the log directory of {topic_partition} is offline")
        log = self.logs[topic_partition] = directory.create(topic_partition, topic_id, config)
        return log

    def _home_for(self, topic_partition: TopicPartition, topic_id: TopicId) -> DirectoryLogs:
        """The directory for a new log; one that has a log start for it comes first, for it's where the log was."""
        if topic_partition in self._offline_partitions:
            raise StorageError(self._offline_partitions[topic_partition], f"the log directory of {topic_partition} is offline")
        online = [directory for directory in self._directories.values() if directory.is_online]
        if not online:
            raise StorageError(self._paths[0], "all log directories are offline")
        known = [directory for directory in online if directory.journal.value(topic_id, topic_partition.partition) is not None]
        return min(known or online, key=lambda directory: directory.partition_count)

    def delete_logs(self, partitions: Iterable[TopicPartition], on_done: OnDurable) -> None:
        """Deletes logs: they are out of sight at once; `on_done` runs when their names may be used again, their log starts forgotten.

        Partitions that aren't here are no fault. On an error the logs are out of sight all the same, and found again at the next start.
        """
        wanted = list(dict.fromkeys(partitions))
        groups: dict[str, list[TopicPartition]] = {}
        for key in wanted:
            self.logs.pop(key, None)
            directory = self._holder(key)
            if directory is not None:
                groups.setdefault(directory.path, []).append(key)
        together = _together(len(groups), on_done)
        for path, keys in groups.items():
            self._directories[path].delete(keys, together)
        if not groups:
            self._answer_later(on_done, None)

    # Log starts

    def accept_log_start(self, items: Sequence[tuple[Log, Offset]], on_durable: OnDurable) -> None:
        """Raises log start offsets, each at or below its high watermark, as the caller has checked.

        At once each log's `log_start_pending` rises; nothing is visible. When all are durable, the logs' starts rise (but for a log that
        was deleted, or truncated below meanwhile), segments wholly below go in the background, and `on_durable(None)` is called: never
        from within this call. One frame in the journal of each directory concerned, whatever the number of partitions.
        `on_durable` is given an error if a directory is, or goes, offline; the other directories' rises take effect.
        """
        groups: dict[str, list[tuple[Log, Offset]]] = {}
        for log, offset in items:
            groups.setdefault(parent_directory(log.directory), []).append((log, offset))
        together = _together(len(groups), on_durable)
        for path, group in groups.items():
            self._directories[path].accept_log_starts(group, together)
        if not groups:
            self._answer_later(on_durable, None)

    def journal_log_start(self, log: Log, offset: Offset, on_durable: OnDurable) -> None:
        """Writes a log start that may be lower than the one before, for a truncation below it; the log itself isn't touched.

        The truncation follows when this is durable: the journal, not the log, says where a log starts after a crash.
        """
        directory = self._directories[parent_directory(log.directory)]
        directory.journal.accept([(log.topic_id, log.topic_partition.partition, offset)], on_durable)

    def settle_truncation(self, log: Log, truncation: Truncation, on_settled: OnDurable) -> None:
        """Makes a truncation of the log durable, with the lowered recovery point; nothing may be appended before `on_settled(None)`.

        A power cut could otherwise mix what was cut with what is new, or pass over new segments that it has torn.
        """
        self._directories[parent_directory(log.directory)].settle_truncation(truncation, on_settled)

    def _answer_later(self, on_done: OnDurable, error: OSError | None) -> None:
        committer = self._committers[next(iter(self._committers))]
        committer.submit(Barrier(), lambda _error: on_done(error))

    # Due work and failure

    def tick(self, wall_ms: int) -> None:
        """Does what is due, on the order of once a second: flushes by time, checkpoints, removal of files, forgetting silent producers."""
        for directory in self._directories.values():
            directory.tick(wall_ms)

    def flush(self, log: Log) -> None:
        """Begins to sync the log, if there is something to sync and nothing under way."""
        self._directories[parent_directory(log.directory)].flush(log)

    def fail_directory_of(self, log: Log, error: OSError | StorageError) -> None:
        """A write to, or a read from, a log has failed: its whole directory goes offline."""
        self._directories[parent_directory(log.directory)].fail(error)

    def _on_log_flushed(self, log: Log) -> None:
        self.on_log_flushed(log)

    def _on_failed(self, directory: DirectoryLogs, reason: str) -> None:
        self.on_directory_failed(directory.path, reason, list(directory.logs.values()))

    def _holder(self, topic_partition: TopicPartition, *, besides: DirectoryLogs | None = None) -> DirectoryLogs | None:
        for directory in self._directories.values():
            if directory is not besides and directory.holds(topic_partition):
                return directory
        return None

    # Stopping

    def close(self, broker_epoch: int = -1) -> None:
        """A clean stop: all logs, checkpoints and journals durable, then each directory's marker, then its lock. Blocks for the disk.

        Whoever waits for a log start is answered. The logs are no longer used by anybody.
        Errors: the first StorageError, when all directories are done; one that failed, or had failed before, has no marker.
        """
        failure: StorageError | None = None
        self._drain()
        for directory in self._directories.values():
            if directory.is_online:
                try:
                    directory.finish(broker_epoch)
                except StorageError as error:
                    failure = failure or error
            directory.release()
        if failure is not None:
            raise failure

    def release(self) -> None:
        """Ends without a clean stop: answers what is under way and gives up the locks. The next start recovers."""
        self._drain()
        for directory in self._directories.values():
            directory.release()

    def _drain(self) -> None:
        for directory in self._directories.values():
            directory.stop()
        for committer in self._committers.values():
            committer.close()


def _nobody_listens(_path: str, _reason: str, _logs: list[Log]) -> None:
    """Stands for a listener until there is one."""


def _together(count: int, on_done: OnDurable) -> OnDurable:
    """One answer for `count` of them: when the last has come, with the first error."""
    if count == 1:
        return on_done
    missing = count
    first: OSError | None = None

    def one_done(error: OSError | None) -> None:
        nonlocal missing, first
        missing -= 1
        first = first or error
        if missing == 0:
            on_done(first)

    return one_done
