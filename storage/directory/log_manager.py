"""All logs of a broker, over all its log directories: opened, created, deleted, truncated, stopped.

Guards: a partition is in one directory only; a partition whose directory is offline isn't created again, empty, in
another one; a delete over several directories is reported when it is durable in all of them.

`directory_opening.py` opens the directories, `log_directories.py` answers questions about them, `directory_logs.py` is
the inside of one. Leaders are unknown here: callers decide whether an offset may be deleted.

Source: Kafka's LogManager.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.types import ZERO_TOPIC_ID, LeaderEpoch, Offset, TopicId, TopicPartition
from lowtide.runtime.clock import Clock
from lowtide.runtime.committer import Barrier, MeasuredCommitter
from lowtide.runtime.filesystem import FileSystem
from lowtide.runtime.heavy_work import HeavyWorker
from lowtide.runtime.random import Random
from lowtide.runtime.worker import Worker
from lowtide.storage.compaction.cleanable import Cleanable
from lowtide.storage.compaction.log_cleaning import CleaningLimits, LogCleaning, OnCleaned
from lowtide.storage.directory.allowance import Allowance
from lowtide.storage.directory.directory_erasures import EraseFailedError, OnErased
from lowtide.storage.directory.directory_logs import DirectoryLogs
from lowtide.storage.directory.directory_opening import (
    KnownTopic,
    OfflinePartition,
    OpeningResult,
    OpenRequest,
    RememberedTopics,
    check_places,
    open_directories,
)
from lowtide.storage.directory.directory_reports import DirectoryUsage
from lowtide.storage.directory.held_answers import HeldAnswers
from lowtide.storage.directory.log_directories import LogDirectorySet
from lowtide.storage.directory.log_moves import LogMoves
from lowtide.storage.directory.log_settings import DeletionListener, DirectoryPorts, LogListeners, LogManagerSettings
from lowtide.storage.directory.log_starts import DirectoryLogStarts, LogStarts, all_together
from lowtide.storage.directory.move_place import PreferredDirectories
from lowtide.storage.directory.set_aside_folders import SetAsideFolders
from lowtide.storage.errors import FailureKind, StorageError, failure_kind, is_passing
from lowtide.storage.log.log import Log, LogConfig, RemovedSegment
from lowtide.storage.log.segments.segment_files import CLOSED_SEGMENTS_MAX, SegmentCache
from lowtide.storage.log_directory import BrokerIdentity
from lowtide.storage.log_start.journal_format import OnDurable

__all__ = ["DirectoryUsage", "KnownTopic", "LogManager", "LogManagerSettings", "OnDirectoryFailed"]


OnDirectoryFailed = Callable[[str, str, list[Log]], None]
"""Called with the directory, the reason, and its logs, which are offline already."""


class LogManager:
    """The logs of all directories of a broker. Calls: `open` once; finally `close` (clean) or `release` (not)."""

    def __init__(  # noqa: PLR0913  parts, each by its name
        self,
        filesystem: FileSystem,
        clock: Clock,
        directories: Sequence[str],
        committers: Mapping[str, MeasuredCommitter],
        worker: Worker,
        random: Random,
        settings: LogManagerSettings | None = None,
        on_directory_failed: OnDirectoryFailed | None = None,
    ) -> None:
        """`committers` has one for each of `directories`; they are closed with the manager, the worker isn't."""
        assert directories
        self.logs: dict[TopicPartition, Log] = {}
        """All loaded logs, including those of directories that went offline (`log.offline`)."""
        self._on_directory_failed = on_directory_failed or (lambda _path, _reason, _logs: None)
        self._filesystem = filesystem
        self._paths = [path.rstrip("/") or "/" for path in directories]
        self._committers = committers
        self._given = dict(zip(self._paths, directories, strict=True))
        self._opened = OpeningResult()
        self.listeners = LogListeners()
        self.is_open = False
        """Whether all directories were opened and their logs loaded."""
        settings = settings or LogManagerSettings()
        cache = SegmentCache(
            open_max=min(CLOSED_SEGMENTS_MAX, settings.segment_files_max), files_max=settings.segment_files_max
        )
        self.files = cache.files
        """The open files of all segments."""
        self.erasing = Allowance()
        ports = {
            path: DirectoryPorts(
                filesystem=filesystem,
                clock=clock,
                committer=committers[given],
                worker=worker,
                random=random,
                cache=cache,
                erasing=self.erasing,
            )
            for given, path in zip(directories, self._paths, strict=True)
        }
        self._directories = {
            path: DirectoryLogs(path, ports[path], settings, self.listeners, self._on_failed) for path in self._paths
        }
        self.moves = LogMoves(self._directories, ports, self.logs)
        self._beside = SetAsideFolders(filesystem, worker, self._directories, self.logs, self.moves)
        self.preferred = PreferredDirectories()
        answers = HeldAnswers(clock, lambda log: self._directories[log.parent_directory].parts.holes.is_freeing(log))
        self.listeners.freed.append(answers.release)
        self.directories = LogDirectorySet(
            filesystem, self._directories, committers, self._given, answers, self.moves, self._beside
        )
        """The directories as such: their paths, their state, their due work."""
        self._log_starts: dict[str, DirectoryLogStarts] = {}
        self.log_starts = LogStarts(self._log_starts, committers[self._given[self._paths[0]]])

    # Opening

    def open(
        self,
        cluster_id: str,
        node_id: int,
        *,
        required: str | None = None,
        topics: Mapping[str, KnownTopic] | None = None,
        deleted_topics: Container[TopicId] = (),
        remembered_topics: Mapping[str, RememberedTopics] | None = None,
    ) -> None:
        """Opens all directories and loads all logs; recovers those that weren't stopped cleanly.

        A directory that fails goes offline, with its partitions, if another one is left and it isn't the `required`
        one. `topics` are those of the cluster's metadata, by name; folders of other topics are removed if they are in
        `deleted_topics`, or else set aside. `remembered_topics` are, by directory, those of its last use: see
        `OpenRequest`. Start code: it syncs, and may take long. Errors: StorageError in one sentence; see
        `open_directories`.
        """
        check_places(self._filesystem, self._paths)
        request = OpenRequest(
            identity=BrokerIdentity(cluster_id=cluster_id, node_id=node_id),
            required=None if required is None else required.rstrip("/") or "/",
            topics=topics or {},
            deleted_topics=deleted_topics,
            remembered_topics=remembered_topics or {},
        )
        try:
            self._opened = open_directories(self._filesystem, self._directories, request)
        except BaseException:
            self.release()
            raise
        for directory in self._directories.values():
            if directory.is_online:
                self.logs.update((key, log) for key, log in directory.logs.items() if not log.is_future)
                self._log_starts[directory.path] = directory.parts.log_starts
        self.is_open = True
        self.moves.resume(self._opened.moving)
        for directory in self._directories.values():
            if not directory.is_online:
                self._on_failed(directory, directory.state.offline_reason or "")

    def expect(self, partitions: Iterable[tuple[TopicPartition, TopicId]]) -> list[TopicPartition]:
        """Takes the partitions that should be here according to the metadata; returns those that are offline.

        A partition without a log was lost by a crash before it was durable, and may be created again, unless a missing
        directory may have it. Such directories are remembered until no partition is missing. Start code: it syncs.
        """
        offline, missed = self._opened.offline, False
        for key, topic_id in partitions:
            if key in self.logs or self._holder(key) is not None:
                continue
            if key not in offline and self._opened.lost and not self._knows_start(key, topic_id):
                offline[key] = OfflinePartition(", ".join(sorted(self._opened.lost.values())), topic_id)
            missed = missed or key in offline
        if not missed:
            self._opened.lost.clear()
        self.directories.note_known_directories(self._opened.lost)
        return sorted(offline)

    def _knows_start(self, key: TopicPartition, topic_id: TopicId) -> bool:
        """Returns whether a working directory has a log start for the partition, which proves that it was there."""
        online = [each for each in self._directories.values() if each.is_online and key not in each.partitions.futures]
        return any(each.parts.journal.value(topic_id, key.partition) is not None for each in online)

    @property
    def lost_directories(self) -> tuple[str, ...]:
        """Directories that this broker had and that are missing, as far as partitions may be in them."""
        return tuple(sorted(self._opened.lost.values()))

    @property
    def damaged(self) -> dict[TopicPartition, StorageError]:
        """Partitions that couldn't be loaded, though their directory could."""
        return {
            key: error
            for directory in self._directories.values()
            for key, error in directory.partitions.damaged.items()
        }

    def offline_partitions(self) -> list[TopicPartition]:
        """Partitions that can't be served because their log directory failed, or is missing and may have them."""
        return sorted({key for key, log in self.logs.items() if log.offline} | self._opened.offline.keys())

    # Logs come and go

    def create_log(
        self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig, *, with_files: bool = False
    ) -> Log:
        """Returns the partition's log, or creates it in the online directory with the fewest partitions, or the next.

        A folder without a topic id belongs to this topic: the folder of a deleted topic has lost the name durably
        before, or was set aside by the start. Errors: StorageError when all directories are offline, when the
        partition's directory is, without room, and for a damaged partition. Without `with_files`, a new log has no
        files before its first write.
        """
        if (log := self.logs.get(topic_partition)) is not None:
            assert log.topic_id == topic_id, f"{topic_partition} is another topic's log, which must be deleted first"
            return log
        offline = self._opened.offline.get(topic_partition)
        if offline is not None and offline.topic_id in (topic_id, ZERO_TOPIC_ID):
            raise StorageError(offline.directory, f"the log directory of {topic_partition} is offline")
        holder = self._holder(topic_partition)
        if holder is not None and topic_partition in holder.partitions.damaged:
            raise holder.partitions.damaged[topic_partition]
        failure: StorageError | None = None
        for directory in [holder] if holder is not None else self._homes_for(topic_partition, topic_id):
            try:
                log = self.logs[topic_partition] = directory.create(
                    topic_partition, topic_id, config, with_files=with_files
                )
            except StorageError as error:
                failure = failure or error
            else:
                self.preferred.forget(topic_partition)
                return log
        raise failure or StorageError(self._paths[0], "all log directories are offline")

    def _homes_for(self, topic_partition: TopicPartition, topic_id: TopicId) -> list[DirectoryLogs]:
        """Returns the directories for a new log, best first. If one has a log start for it, only that one.

        Cordoned directories come last: the controller gives the broker no partition while all are cordoned, but may
        have decided before it knew. Full ones come before them.

        Directories that an earlier log of the name, or its copy, has not left yet are left out.
        """
        online = [
            each
            for each in self._directories.values()
            if each.is_online
            and topic_partition not in each.partitions
            and topic_partition not in each.parts.deletions.leaving
        ]
        if len(online) <= 1:
            return online
        preferred = self.preferred.get(topic_partition)
        known = [
            directory
            for directory in online
            if directory.parts.journal.value(topic_id, topic_partition.partition) is not None
        ]
        cordoned, full = self.directories.cordoned, self.directories.without_room
        return known[:1] or sorted(
            online,
            key=lambda each: (each.path in cordoned, each.path in full, each.path != preferred, len(each.partitions)),
        )

    def delete_logs(self, partitions: Iterable[TopicPartition], on_done: OnDurable, *, set_aside: bool = False) -> None:
        """Deletes logs. They leave `logs` at once; `on_done` runs when their names may be reused.

        With `set_aside` the folders stay under the name of a stray one, and so do the log starts. Partitions that
        aren't here are ignored. After an error the logs have left `logs` too, until the next start finds them again.
        """
        groups: dict[tuple[str, bool], list[TopicPartition]] = {}
        keys = list(dict.fromkeys(partitions))
        self.moves.forget(keys)
        for key in keys:
            self.logs.pop(key, None)
            self._opened.offline.pop(key, None)
            for directory in self._directories.values():
                if key in directory.partitions:
                    is_kept = set_aside and key not in directory.partitions.futures
                    groups.setdefault((directory.path, is_kept), []).append(key)
        together = all_together(len(groups), on_done)
        for (path, is_kept), those in groups.items():
            self._directories[path].delete(those, together, set_aside=is_kept)
        if not groups:
            self._answer_later(on_done, None)

    # Log starts

    def listen_to_deletions(self, listener: DeletionListener) -> None:
        """Notes for the listener log starts that rise, and segments that leave their logs."""
        self.listeners.deleted.append(listener)

    def truncate(self, log: Log, offset: Offset, on_settled: OnDurable) -> None:
        """Cuts a log at `offset`. It takes no records before `on_settled(None)`: see `LogTruncations.truncate`."""
        self._directories[log.parent_directory].parts.truncations.truncate(log, offset, on_settled)
        self.moves.on_truncated(log)
        self._beside.on_truncated(log)

    def restart_at(
        self, log: Log, offset: Offset, leader_epoch: LeaderEpoch, is_wanted: Callable[[], bool], on_settled: OnDurable
    ) -> None:
        """Empties a log, which then starts and ends at `offset`; it takes no records before `on_settled(None)`.

        `is_wanted` is called once more when the journal has the offset. See `LogTruncations.restart_at`.
        """
        self._directories[log.parent_directory].parts.truncations.restart_at(
            log, offset, leader_epoch, is_wanted, on_settled
        )
        self.moves.on_truncated(log)
        self._beside.on_truncated(log)

    def remove_segments(self, log: Log, removed: Sequence[RemovedSegment]) -> None:
        self._directories[log.parent_directory].remove_segments(list(removed))

    def _answer_later(self, on_done: OnDurable, error: OSError | None) -> None:
        committer = self._committers[next(iter(self._committers))]
        committer.submit(Barrier(), lambda _error: on_done(error))

    def erase(self, log: Log, goal: EraseGoal, on_done: OnErased) -> Callable[[], object]:
        """Erases the records of a goal from all folders of a partition, then calls `on_done`.

        It begins with the log's folder and a copy that is made of it (`DirectoryErasures.request`), and continues with
        folders that were set aside (`SetAsideFolders.erase`). Returns a function that cancels the request.
        """
        take_back: list[Callable[[], object]] = []

        def on_own_done(error: EraseFailedError | None) -> None:
            if error is None:
                take_back.append(self._beside.erase(log, goal.files_end, on_done))
            else:
                on_done(error)

        erasures = self._directories[log.parent_directory].parts.erasures
        take_back.append(erasures.request(log, goal, self.moves.erase(log, goal, on_own_done)))
        return lambda: take_back[-1]()  # noqa: PLW0108 - the last one then

    # Due work and failure

    def begin_cleaning(
        self,
        log: Log,
        cleanable: Cleanable,
        limits: CleaningLimits,
        worker: HeavyWorker,
        now_ms: int,
        on_cleaned: OnCleaned,
    ) -> LogCleaning:
        cleanings = self._directories[log.parent_directory].parts.cleanings
        return cleanings.begin(log, cleanable, limits, worker, now_ms, on_cleaned)

    def flush(self, log: Log) -> None:
        """Begins to flush a log, unless nothing is to be done or a flush is under way."""
        self._directories[log.parent_directory].flush(log)

    def fail_directory_of(self, log: Log, error: OSError | StorageError) -> None:
        """Takes the whole directory of a log offline, because a write or a read has failed.

        A lack of room or of a resource doesn't count: the caller has answered with an error, and may try again. Missing
        files don't either if the log was deleted or moved away.
        """
        kind = failure_kind(error.error_number if isinstance(error, StorageError) else error.errno)
        has_left = kind is FailureKind.GONE and self.logs.get(log.topic_partition) is not log
        if not is_passing(error) and not has_left:
            self._directories[log.parent_directory].fail(error)

    def listen_to_flushes(self, listener: Callable[[Log], None]) -> None:
        """Calls `listener` whenever a log's recovery point may have risen; listeners are called in order."""
        self.listeners.flushed.append(listener)

    def _on_failed(self, directory: DirectoryLogs, reason: str) -> None:
        """Handles a directory that went offline; failures during the opening are reported afterwards."""
        if not self.is_open:
            return
        self.moves.on_directory_failed(directory.path)
        logs = {key: log for key, log in directory.logs.items() if self.logs.get(key) is log}
        here = {key: OfflinePartition(directory.path, log.topic_id) for key, log in logs.items()}
        here |= {
            key: OfflinePartition(directory.path, ZERO_TOPIC_ID)
            for key in (*directory.partitions.unidentified, *directory.partitions.damaged)
        }
        self._opened.offline |= here
        self._on_directory_failed(directory.path, reason, list(logs.values()))

    def _holder(self, topic_partition: TopicPartition) -> DirectoryLogs | None:
        for directory in self._directories.values():
            if directory.is_online and directory.partitions.serves(topic_partition):
                return directory
        return None

    # Stopping

    def close(self, broker_epoch: int = -1) -> None:
        self.directories.close(broker_epoch)

    def release(self) -> None:
        self.directories.release()
