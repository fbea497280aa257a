"""The logs of one log directory, and everything that they share there: journal, checkpoints, committer, removal of files.

Guards: a log's topic id is known before it is served; a log start is visible only when the journal has it durably; the marker of a clean
stop is the last thing that a stop writes. A failed write or sync takes the whole directory offline, at once and for good.

Source: Kafka's LogManager.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter

from lowtide.protocol.types import ZERO_TOPIC_ID, Offset, TopicId, TopicPartition
from lowtide.runtime.committer import Barrier
from lowtide.storage.checkpoint import (
    CLEAN_SHUTDOWN_MARKER,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    encode_clean_shutdown,
    encode_partition_metadata,
)
from lowtide.storage.directory.directory_cleanings import DirectoryCleanings
from lowtide.storage.directory.directory_deletions import DeletionHooks, DirectoryDeletions, offline_error
from lowtide.storage.directory.directory_upkeep import DirectoryUpkeep, UpkeepParts
from lowtide.storage.directory.file_removal import FileRemoval
from lowtide.storage.directory.log_flusher import FlushListener, LogFlusher
from lowtide.storage.directory.log_settings import DirectoryPorts, LogManagerSettings
from lowtide.storage.directory.log_starts import DirectoryLogStarts, DirectoryParts, LogStartIncrement
from lowtide.storage.directory.log_truncation import LogTruncations
from lowtide.storage.directory.offset_checkpoint import OffsetCheckpoint, read_checkpoint
from lowtide.storage.directory.sync_failure import mark_failed, write_anew
from lowtide.storage.errors import DamagedSegmentError, StorageError, is_passing, storage_error
from lowtide.storage.log.loader import create_log, load_log
from lowtide.storage.log.log import Log, LogConfig, RemovedSegment
from lowtide.storage.log.log_place import Checked, KnownLog, LoadReport, LogPlace
from lowtide.storage.log.producer_state import ProducerStateManager
from lowtide.storage.log_directory import REGISTRATION_COUNTER, DirectoryListing, Identity, LogDirectory, list_directory
from lowtide.storage.log_start.journal import JournalHooks, LogStartJournal, OnDurable
from lowtide.storage.log_start.journal_loading import read_offsets


class DirectoryLogs:
    """The logs of one directory. `open`, `prepare`, `load`; in the end `stop`, and `finish` or `release`."""

    def __init__(
        self, path: str, ports: DirectoryPorts, settings: LogManagerSettings, on_failed: Callable[[DirectoryLogs, str], None]
    ) -> None:
        """`on_failed` is called once, with the reason, when the directory has gone offline."""
        self.path = path
        self.logs: dict[TopicPartition, Log] = {}
        self.unidentified: set[TopicPartition] = set()
        """Partitions whose folder lacks the topic id, or whose log lacked room to be loaded: `create` loads them."""
        self.damaged: dict[TopicPartition, StorageError] = {}
        """Partitions that can't be loaded, each for a reason of its own."""
        self.strays: tuple[str, ...] = ()
        self.checked = Checked(0, 0, 0)
        self.reports: dict[TopicPartition, LoadReport] = {}
        """What loading had to mend."""
        self._ports = ports
        self._filesystem = ports.filesystem
        self._settings = settings
        self._on_failed = on_failed
        self.on_flushed: Callable[[Log], None] = lambda _log: None
        self._directory: LogDirectory | None = None
        self._journal: LogStartJournal | None = None
        self._topic_names: dict[TopicId, str] = {}
        self._old_recovery_points: dict[TopicPartition, Offset] = {}
        self._old_high_watermarks: dict[TopicPartition, Offset] = {}
        self._listing = DirectoryListing(partitions={}, deleted=(), strays=())
        self._leftovers: dict[TopicPartition, bool] = {}
        self._failed_to_open: str | None = None
        self._stopped = False
        self._served = False
        self._is_ours = True
        """Lowtide has used the directory before: what Kafka wrote may have gaps between segments, from compaction."""
        self._recovery_points = self._checkpoint(RECOVERY_POINT_CHECKPOINT, attrgetter("recovery_point"), lambda: self._old_recovery_points)
        self._high_watermarks = self._checkpoint(HIGH_WATERMARK_CHECKPOINT, attrgetter("high_watermark"), lambda: self._old_high_watermarks)
        listener = FlushListener(on_flushed=lambda log: self.on_flushed(log), on_failure=self.fail)  # noqa: PLW0108 - set later
        self._flusher = LogFlusher(ports.filesystem, ports.committer, ports.clock, listener)
        self._removal = FileRemoval(ports.filesystem, ports.worker, self.fail)
        self.log_starts = DirectoryLogStarts(DirectoryParts(logs=self.logs, clock=ports.clock, removal=self._removal))
        self.cleanings = DirectoryCleanings(path, ports, self.logs, self._removal, self.fail, self._is_served)
        upkeep = UpkeepParts(
            logs=self.logs,
            flusher=self._flusher,
            removal=self._removal,
            high_watermarks=self._high_watermarks,
            recovery_points=self._recovery_points,
            journal=lambda: self.journal,
            is_served=self._is_served,
            retries=(lambda: self.journal.retry(), lambda: self.truncations.retry(), self.cleanings.retry),  # noqa: PLW0108 - set later
            on_removed=lambda log, removed: self.log_starts.on_prefix_deleted(log, log.log_start_offset, removed),
        )
        self._upkeep = DirectoryUpkeep(settings, upkeep)
        hooks = DeletionHooks(
            journal=lambda: self.journal,
            checkpoints=(self._recovery_points, self._high_watermarks, self.cleanings),
            on_forgotten=self._upkeep.on_forgotten,
            on_failure=self.fail,
        )
        self._deletions = DirectoryDeletions(path, ports, self._removal, hooks)
        self.truncations = LogTruncations(ports, self.logs, self._removal, self._recovery_points, lambda: self.journal, self.fail)

    # Opening

    def open(self, identity: Identity) -> None:
        """Takes the directory. Errors: StorageError; see `LogDirectory.open`."""
        self._directory = LogDirectory.open(self._filesystem, self.path, identity, self._ports.random)

    def prepare(self) -> None:
        """Looks at what is there, and reads the journal; no log is touched, and a clean stop stays one. Start code: it may sync.

        Errors: StorageError with file and remedy.
        """
        try:
            self._listing = list_directory(self._filesystem, self.path)
            self.strays = tuple(f"{self.path}/{name}" for name in self._listing.strays)
            self._is_ours = self._filesystem.exists(f"{self.path}/{REGISTRATION_COUNTER}")
            self._journal = LogStartJournal.open(
                self._filesystem,
                self.path,
                self._ports.committer,
                folders=self._listing.partitions,
                expected=self._is_ours,
                hooks=JournalHooks(topic_name=self._topic_names.get, on_failure=self.fail),
            )
        except OSError as error:
            raise storage_error(self.path, error) from error
        self.log_starts.begin(self._journal)

    @property
    def folders(self) -> Mapping[TopicPartition, TopicId]:
        """The partitions that `prepare` found, with their topic ids, zeros where unknown."""
        return self._listing.partitions

    def leave_out(self, topic_partition: TopicPartition, *, is_deleted: bool) -> None:
        """A folder that was found is of an earlier topic: `load` removes it if that topic was deleted, or else sets it aside."""
        del self._listing.partitions[topic_partition]
        self._leftovers[topic_partition] = is_deleted

    def load(self, configs: Mapping[str, LogConfig]) -> None:
        """Loads every log, with its topic's configuration, or the default one; unclean ones are recovered. Start code: it syncs.

        It may take long. Errors: StorageError for what concerns the directory as a whole. What is wrong with one partition is in `damaged`.
        """
        try:
            self.directory.begin_use()
            self._load(self._listing, configs)
        except OSError as error:
            raise storage_error(self.path, error) from error

    def _load(self, listing: DirectoryListing, configs: Mapping[str, LogConfig]) -> None:
        leftovers = self._deletions.rename_now(self._leftovers)
        # Recovery points that can't be read cost a longer recovery, high watermarks nothing that a leader doesn't find out again.
        self._old_recovery_points = read_checkpoint(self._filesystem, f"{self.path}/{RECOVERY_POINT_CHECKPOINT}", listing.partitions)
        self._old_high_watermarks = read_checkpoint(self._filesystem, f"{self.path}/{HIGH_WATERMARK_CHECKPOINT}", listing.partitions)
        self.cleanings.read(listing.partitions)
        write_anew(self._filesystem, self.path, listing.partitions, self._old_recovery_points)
        for topic_partition, topic_id in listing.partitions.items():
            if topic_id == ZERO_TOPIC_ID:
                self.unidentified.add(topic_partition)
                continue
            try:
                start = self.journal.value(topic_id, topic_partition.partition)
                config = configs.get(topic_partition.topic, self._settings.default_config)
                self._load_log(topic_partition, topic_id, config, start or 0)
            except DamagedSegmentError as error:
                self.damaged[topic_partition] = error
            except StorageError as error:
                if not error.is_passing:
                    raise
                self.unidentified.add(topic_partition)  # `create` loads it when there is room.
        if not self._is_ours:
            self._keep_gaps()
        self._deletions.finish_interrupted([*listing.deleted, *leftovers], listing.partitions)
        now_ms = self._ports.clock.monotonic_ms()
        self._upkeep.begin(now_ms)
        self._served = True

    def _load_log(self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig, log_start_offset: Offset) -> Log:
        report = LoadReport()
        log = load_log(
            LogPlace(
                filesystem=self._filesystem,
                directory=self.folder(topic_partition),
                config=config,
                topic_partition=topic_partition,
                topic_id=topic_id,
                cache=self._ports.cache,
                producer_state=ProducerStateManager(expiration_ms=self._settings.producer_id_expiration_ms),
            ),
            KnownLog(
                recovery_point=self._old_recovery_points.get(topic_partition, 0),
                high_watermark=self._old_high_watermarks.get(topic_partition, 0),
                cleaned_to=self.cleanings.cleaned_to(topic_partition) if self._is_ours else Offset(2**63 - 1),
                log_start_offset=log_start_offset,
                clean=self.directory.stopped_cleanly,
            ),
            now_ms=self._ports.clock.wall_ms(),
            report=report,
        )
        self.checked = self.checked.plus(report)
        if report != LoadReport(segments_checked=report.segments_checked, removed_files=report.removed_files):
            self.reports[topic_partition] = report
        self._add(log)
        self.cleanings.on_loaded(log)
        if report.bytes_cut or report.segments_dropped or report.restarted_at_log_start:
            # Or the next power cut might bring back what was cut, between batches that were written since.
            if not self._sync_what_was_left(log):
                self.truncations.settle_later(log)
        elif log.flush_wanted and config.flush_messages == 1:
            self._sync_what_was_left(log)
        return log

    def _keep_gaps(self) -> None:
        """What is flushed may have gaps: from the next start on those of Kafka's logs are below the recovery points. It syncs."""
        wanted = [log for log in self.logs.values() if log.flush_wanted]
        for log in wanted:
            self._sync_what_was_left(log)
        try:
            if wanted:
                self._recovery_points.write_now()
        except OSError as error:
            # Without room there is no registration either, and the next start comes here again.
            if not is_passing(error):
                raise

    def _sync_what_was_left(self, log: Log) -> bool:
        """Where each append waits for the disk, nothing is shown that a power cut could take, as it could what a killed process left."""
        try:
            self._flusher.flush_now(log)
        except StorageError as error:
            if not error.is_passing:
                raise
            return False
        return True

    # What it is

    @property
    def directory(self) -> LogDirectory:
        assert self._directory is not None, self.path
        return self._directory

    @property
    def journal(self) -> LogStartJournal:
        assert self._journal is not None, self.path
        return self._journal

    @property
    def is_online(self) -> bool:
        """Whether its logs are served."""
        return self._directory is not None and self._directory.is_online

    @property
    def directory_id(self) -> TopicId | None:
        """The directory's id; None if it couldn't be opened."""
        return None if self._directory is None else self._directory.directory_id

    @property
    def offline_reason(self) -> str | None:
        """Why its logs aren't served; None while they are."""
        return self._failed_to_open if self._directory is None else self._directory.offline_reason

    @property
    def partition_count(self) -> int:
        """How many partitions have their folder here."""
        return len(self.logs) + len(self.unidentified) + len(self.damaged)

    def holds(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition's folder is here, whatever its state."""
        return topic_partition in self.logs or topic_partition in self.unidentified or topic_partition in self.damaged

    def folder(self, topic_partition: TopicPartition) -> str:
        """Where a partition's files are."""
        return f"{self.path}/{topic_partition}"

    def fail(self, error: OSError | StorageError) -> None:
        """Takes the directory offline: its logs refuse appends from now on. A second failure changes nothing."""
        reason = error.reason if isinstance(error, StorageError) else error.strerror or str(error)
        if self._directory is None:
            self._failed_to_open = reason
            self._on_failed(self, reason)
            return
        if self.directory.is_online and self._served:
            mark_failed(self._filesystem, self.path)
        if self.directory.fail(reason) and not self._stopped:
            for log in self.logs.values():
                log.offline = True
            self._on_failed(self, reason)

    # Logs come and go

    def create(self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig) -> Log:
        """Makes a log, or loads one whose topic id its folder didn't tell. Nothing is synced here.

        Errors: StorageError; a full disk is one too, and leaves the directory online and without the partition.
        """
        assert topic_partition not in self._deletions.leaving, topic_partition
        assert topic_partition not in self.logs, topic_partition
        folder = self.folder(topic_partition)
        start = self.journal.value(topic_id, topic_partition.partition) or 0
        was_there = topic_partition in self.unidentified
        try:
            self.directory.check_is_there()
            if was_there:
                log = self._load_log(topic_partition, topic_id, config, max(start, self._adoptable(topic_partition)))
                self.unidentified.discard(topic_partition)
            else:
                log = self._create_log(topic_partition, topic_id, config, start)
            self._filesystem.write_bytes(f"{folder}/{PARTITION_METADATA}", encode_partition_metadata(topic_id))
        except StorageError:
            self._undo_create(topic_partition, was_there=was_there)
            raise
        except OSError as error:
            self._undo_create(topic_partition, was_there=was_there)
            if not is_passing(error):
                self.fail(error)
            raise storage_error(folder, error) from error
        self._flusher.add(log, is_new=True)
        if log.log_start_offset > start:
            # Kafka's checkpoint said so. Its next version will be ours, so from now on the journal must.
            self.log_starts.request_log_starts([LogStartIncrement(log, log.log_start_offset)], lambda _error: None)
        return log

    def _create_log(self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig, log_start_offset: Offset) -> Log:
        log = create_log(
            LogPlace(
                filesystem=self._filesystem,
                directory=self.folder(topic_partition),
                config=config,
                topic_partition=topic_partition,
                topic_id=topic_id,
                cache=self._ports.cache,
                producer_state=ProducerStateManager(expiration_ms=self._settings.producer_id_expiration_ms),
            ),
            now_ms=self._ports.clock.wall_ms(),
            log_start_offset=log_start_offset,
        )
        self._add(log)
        return log

    def _undo_create(self, topic_partition: TopicPartition, *, was_there: bool) -> None:
        """Half a new log goes; one that was there before stays, to be loaded another time."""
        log = self.logs.pop(topic_partition, None)
        if log is not None:
            self._drop(log)
        if was_there:
            self.unidentified.add(topic_partition)
        else:
            with contextlib.suppress(OSError):
                self._filesystem.remove_tree(self.folder(topic_partition))

    def _adoptable(self, topic_partition: TopicPartition) -> Offset:
        """What Kafka's checkpoint says of a partition whose topic id wasn't known when the journal was opened."""
        if not self._filesystem.exists(f"{self.path}/{LOG_START_CHECKPOINT}"):
            return 0
        crc, offsets = read_offsets(self._filesystem, self.path, LOG_START_CHECKPOINT)
        return offsets.get(topic_partition, 0) if crc != self.journal.exported_crc else 0

    def delete(self, partitions: Iterable[TopicPartition], on_done: OnDurable, *, set_aside: bool = False) -> None:
        """Lets partitions go: out of sight at once, their folders renamed, their log starts forgotten durably, then `on_done`.

        Only then may their names be used again. The files go later; with `set_aside` they stay, and so do the log starts.
        """
        keys = [key for key in partitions if self.holds(key)]
        if not self.is_online:
            # Out of sight, and left on the disk: the next start that can use the directory finds folders that the metadata lack.
            for key in keys:
                self._out_of_sight(key)
            offline = offline_error(self.path, self.offline_reason)
            self._ports.committer.submit(Barrier(), lambda error: on_done(error or offline))
            return
        forgotten: list[tuple[TopicId, int]] = []
        delay_ms = 0
        for key in keys:
            log = self._out_of_sight(key)
            if log is not None:
                log.forget_removed_segments()
                forgotten.append((log.topic_id, key.partition))
                delay_ms = max(delay_ms, log.config.file_delete_delay_ms)
        self._topic_names.clear()
        self._topic_names.update({log.topic_id: key.topic for key, log in self.logs.items()})
        self._deletions.begin(keys, [] if set_aside else forgotten, delay_ms=None if set_aside else delay_ms, on_done=on_done)

    def _out_of_sight(self, key: TopicPartition) -> Log | None:
        log = self.logs.pop(key, None)
        self.unidentified.discard(key)
        self.damaged.pop(key, None)
        self._old_recovery_points.pop(key, None)
        self._old_high_watermarks.pop(key, None)
        self.cleanings.forget(key)
        if log is not None:
            log.offline = True
            self._drop(log)
        return log

    def _add(self, log: Log) -> None:
        self.logs[log.topic_partition] = log
        self._topic_names[log.topic_id] = log.topic_partition.topic
        self._flusher.add(log, is_new=False)

    def _drop(self, log: Log) -> None:
        self._flusher.drop(log)
        for segment in log.segments:
            self._ports.cache.drop(segment)

    def remove_segments(self, removed: list[RemovedSegment]) -> None:
        """Unlinks segments that gave way to others."""
        self._removal.remove_segments(removed, self._ports.clock.monotonic_ms())

    # Due work

    def flush(self, log: Log) -> None:
        """Begins to make a log durable, if there's something to do and nothing under way."""
        if self._is_served():
            self._flusher.flush(log)

    def due_work(self, wall_ms: int) -> Iterator[None]:
        """Does what is due, a step at a time: flushes, checkpoints, removals, forgetting silent producers."""
        if self._is_served():
            yield from self._upkeep.due(self._ports.clock.monotonic_ms(), wall_ms)

    def _is_served(self) -> bool:
        return self.is_online and not self._stopped

    def _checkpoint(
        self, name: str, offset_of: Callable[[Log], Offset], old: Callable[[], Mapping[TopicPartition, Offset]]
    ) -> OffsetCheckpoint:
        def offsets() -> dict[TopicPartition, Offset]:
            return self._kept(old()) | {key: offset_of(log) for key, log in self.logs.items()}

        values = lambda: list(map(offset_of, self.logs.values()))  # noqa: E731
        return OffsetCheckpoint(self._filesystem, self._ports.committer, f"{self.path}/{name}", offsets, values, self.fail)

    def _kept(self, old: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, Offset]:
        """What was known of partitions that aren't loaded."""
        return {key: old[key] for key in (*self.unidentified, *self.damaged) if key in old}

    # Stopping

    def stop(self) -> None:
        """Begins nothing new; what is under way is still answered. Call it before the committer is closed."""
        self._stopped = True
        self._flusher.stop()
        self._deletions.stop()
        self._removal.stop()
        self._recovery_points.stop()
        self._high_watermarks.stop()
        self.cleanings.stop()
        self.log_starts.stop()
        if self._journal is not None:
            self._journal.stop()

    def finish(self, broker_epoch: int) -> None:
        """The rest of a clean stop: all durable, checkpoints, journal, and last the marker. Stop code: it syncs.

        Errors: StorageError; the directory then has no marker, and the next start recovers.
        """
        assert self._stopped, self.path
        try:
            self._flusher.close(self.logs.values())
            self._recovery_points.write_now()
            self._high_watermarks.write_now()
            self.cleanings.write_now()
            self.journal.finish()
            # What was not loaded is as it was found.
            if self.directory.stopped_cleanly or not (self.unidentified or self.damaged):
                self._filesystem.replace_file(f"{self.path}/{CLEAN_SHUTDOWN_MARKER}", encode_clean_shutdown(broker_epoch))
        except OSError as error:
            raise storage_error(self.path, error) from error

    def release(self) -> None:
        """Gives up the lock; the directory may be used by another broker."""
        if self._directory is not None:
            self._directory.release()
