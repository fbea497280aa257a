"""Loads the logs of one directory at the start, and creates new ones.

Guards: a log's topic id is known before it is served; a new log that could not be created completely leaves no folder;
a cut made by recovery is durable before anything is appended after it.

Source: Kafka's LogManager.loadLog and getOrCreateLog.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from lowtide.protocol.types import ZERO_TOPIC_ID, Offset, TopicId, TopicPartition
from lowtide.storage.checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    encode_partition_metadata,
)
from lowtide.storage.directory.log_starts import LogStartIncrement
from lowtide.storage.directory.offset_checkpoint import read_checkpoint
from lowtide.storage.directory.sync_failure import rewrite_unsynced
from lowtide.storage.errors import DamagedSegmentError, StorageError, is_passing, storage_error
from lowtide.storage.log.log_files import LogPlace
from lowtide.storage.log.opening.known_log import KnownLog, LoadTotals, LogRepairs
from lowtide.storage.log.opening.loader import create_log, load_log
from lowtide.storage.log.producers.producer_state import ProducerStateManager
from lowtide.storage.log_start.journal_loading import read_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.storage.directory.directory_partitions import DirectoryPartitions
    from lowtide.storage.directory.directory_parts import DirectoryParts
    from lowtide.storage.directory.directory_state import DirectoryState
    from lowtide.storage.directory.log_settings import DirectoryPorts, LogManagerSettings
    from lowtide.storage.log.log import Log, LogConfig
    from lowtide.storage.log_directory import DirectoryListing

_ALL_CLEANED = Offset(2**63 - 1)


class LogLoading:
    """Loads and creates the logs of one directory."""

    def __init__(
        self,
        state: DirectoryState,
        partitions: DirectoryPartitions,
        parts: DirectoryParts,
        ports: DirectoryPorts,
        settings: LogManagerSettings,
        *,
        is_ours: bool,
    ) -> None:
        """`is_ours`: Lowtide has used the directory before.

        Kafka's logs may have gaps between segments, from compaction.
        """
        self.checked = LoadTotals(0, 0, 0)
        self.reports: dict[TopicPartition, LogRepairs] = {}
        """What loading repaired."""
        self._state = state
        self._partitions = partitions
        self._parts = parts
        self._ports = ports
        self._filesystem = ports.filesystem
        self._settings = settings
        self._is_ours = is_ours

    # At the start

    def load_all(
        self, listing: DirectoryListing, configs: Mapping[str, LogConfig], starts: Mapping[TopicPartition, Offset]
    ) -> None:
        """Loads every log of the listing; those in `starts` start there or later. Start code: it syncs.

        Errors: OSError, StorageError for the directory as a whole.
        """
        here, path = self._partitions, self._state.path
        # Without recovery points recovery takes longer; high watermarks are found out again by a leader.
        names = {str(key): key for key in listing.partitions} | {
            future.name: key for key, future in listing.futures.items()
        }
        known = {*listing.partitions, *listing.futures}
        recovery_points = read_checkpoint(self._filesystem, f"{path}/{RECOVERY_POINT_CHECKPOINT}", known)
        here.recovery_points.begin(recovery_points)
        here.high_watermarks.begin(read_checkpoint(self._filesystem, f"{path}/{HIGH_WATERMARK_CHECKPOINT}", known))
        self._parts.cleanings.read(known)
        self._parts.holes.read()
        rewrite_unsynced(self._filesystem, path, names, recovery_points)
        for topic_partition, topic_id in listing.partitions.items():
            if topic_id == ZERO_TOPIC_ID:
                here.unidentified.add(topic_partition)
                continue
            try:
                start = self._parts.journal.value(topic_id, topic_partition.partition) or 0
                config = configs.get(topic_partition.topic, self._settings.default_config)
                log = self._load_log(topic_partition, topic_id, config, max(start, starts.get(topic_partition, start)))
                if log.log_start_offset > start and topic_partition in starts:
                    self._parts.log_starts.request_log_starts(
                        [LogStartIncrement(log, log.log_start_offset)], lambda _error: None
                    )
            except DamagedSegmentError as error:
                here.damaged[topic_partition] = error
            except StorageError as error:
                if not error.is_passing:
                    raise
                here.unidentified.add(topic_partition)  # `create` loads it when there is room.
        for topic_partition, (name, topic_id) in listing.futures.items():
            self._load_future(
                topic_partition, topic_id, name, configs.get(topic_partition.topic, self._settings.default_config)
            )
        if not self._is_ours:
            self._keep_gaps()

    def _load_future(self, topic_partition: TopicPartition, topic_id: TopicId, name: str, config: LogConfig) -> None:
        """Loads the copy of a log that is being moved here.

        A copy that can't be loaded is removed, and made again on request.
        """
        self._partitions.futures[topic_partition] = name
        try:
            start = self._parts.journal.value(topic_id, topic_partition.partition) or 0
            self._add_future(self._load_log(topic_partition, topic_id, config, start))
        except StorageError as error:
            if not (error.is_passing or isinstance(error, DamagedSegmentError)):
                raise
            self._partitions.take_out(topic_partition)
            self._filesystem.remove_tree(f"{self._state.path}/{name}")

    def _load_log(
        self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig, log_start_offset: Offset
    ) -> Log:
        report, known, parts = LogRepairs(), self._partitions, self._parts
        log = load_log(
            self._place(topic_partition, topic_id, config),
            KnownLog(
                recovery_point=known.recovery_points.old.get(topic_partition, 0),
                high_watermark=known.high_watermarks.old.get(topic_partition, 0),
                cleaned_to=parts.cleanings.cleaned_to(topic_partition) if self._is_ours else _ALL_CLEANED,
                log_start_offset=log_start_offset,
                hole=None
                if self._state.directory.stopped_cleanly
                else parts.holes.noted.get((topic_id, topic_partition.partition)),
                clean=self._state.directory.stopped_cleanly,
            ),
            now_ms=self._ports.clock.wall_ms(),
            report=report,
        )
        log.is_future = topic_partition in known.futures
        self.checked = self.checked.plus(report)
        if report != LogRepairs(segments_checked=report.segments_checked, removed_files=report.removed_files):
            self.reports[topic_partition] = report
        self._add(log)
        parts.cleanings.on_loaded(log)
        parts.holes.on_loaded(log)
        parts.erasures.want(log)
        if report.bytes_cut or report.segments_dropped or report.restarted_at_log_start:
            # Or the next power cut might bring back what was cut, between batches that were written since.
            if not self._sync_what_was_left(log):
                parts.truncations.make_durable_later(log)
        elif log.flush_wanted and config.flush_messages == 1:
            self._sync_what_was_left(log)
        return log

    def _keep_gaps(self) -> None:
        """Flushes Kafka's logs, so that their gaps are below the recovery points from the next start on. It syncs."""
        wanted = [log for log in self._partitions.logs.values() if log.flush_wanted]
        for log in wanted:
            self._sync_what_was_left(log)
        try:
            if wanted:
                self._parts.recovery_points.write_now()
        except OSError as error:
            # Without room there is no registration either, and the next start comes here again.
            if not is_passing(error):
                raise

    def _sync_what_was_left(self, log: Log) -> bool:
        """Makes a log durable whose appends wait for the disk: a power cut must not take served records."""
        try:
            self._parts.flusher.flush_now(log)
        except StorageError as error:
            if not error.is_passing:
                raise
            return False
        return True

    # Later

    def create(self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig) -> Log:
        """Creates a log, or loads one whose folder lacked its topic id. Nothing is synced here.

        Errors: StorageError, also for a full disk, which leaves the directory online and without the partition.
        """
        here, parts = self._partitions, self._parts
        assert topic_partition not in parts.deletions.leaving, topic_partition
        assert topic_partition not in here.logs, topic_partition
        folder = f"{self._state.path}/{topic_partition}"
        start = parts.journal.value(topic_id, topic_partition.partition) or 0
        was_there = topic_partition in here.unidentified
        try:
            self._state.directory.check_is_there()
            if was_there:
                log = self._load_log(topic_partition, topic_id, config, max(start, self._adoptable(topic_partition)))
                here.unidentified.discard(topic_partition)
            else:
                place = self._place(topic_partition, topic_id, config)
                log = create_log(place, now_ms=self._ports.clock.wall_ms(), log_start_offset=start)
                self._add(log)
            self._filesystem.write_bytes(f"{folder}/{PARTITION_METADATA}", encode_partition_metadata(topic_id))
        except StorageError:
            self._undo_create(topic_partition, was_there=was_there)
            raise
        except OSError as error:
            self._undo_create(topic_partition, was_there=was_there)
            if not is_passing(error):
                self._state.fail(error)
            raise storage_error(folder, error) from error
        parts.flusher.add(log, is_new=True)
        if log.log_start_offset > start:
            # Kafka's checkpoint said so. Its next version will be ours, so from now on the journal must.
            parts.log_starts.request_log_starts([LogStartIncrement(log, log.log_start_offset)], lambda _error: None)
        return log

    def create_future(self, source: Log, name: str) -> Log:
        """Creates the empty copy of a log that moves here, in a folder of this name. Nothing is synced here.

        Errors: StorageError; nothing is left then.
        """
        key, folder = source.topic_partition, f"{self._state.path}/{name}"
        assert key not in self._partitions, key
        self._partitions.futures[key] = name
        try:
            self._state.directory.check_is_there()
            place = self._place(key, source.topic_id, source.config)
            log = create_log(place, now_ms=self._ports.clock.wall_ms(), log_start_offset=source.log_start_offset)
            self._filesystem.write_bytes(f"{folder}/{PARTITION_METADATA}", encode_partition_metadata(source.topic_id))
        except OSError as error:
            self._partitions.futures.pop(key, None)
            with contextlib.suppress(OSError):
                self._filesystem.remove_tree(folder)
            if not is_passing(error):
                self._state.fail(error)
            raise storage_error(folder, error) from error
        log.is_future = True
        self._partitions.add(log)
        self._add_future(log)
        return log

    def _add_future(self, log: Log) -> None:
        """Adds a copy of a moving log.

        Its next flush always includes its topic id, which must be durable before the new name.
        """
        log.flush_wanted = True
        self._parts.flusher.add(log, is_new=True)

    def _place(self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig) -> LogPlace:
        return LogPlace(
            filesystem=self._filesystem,
            directory=f"{self._state.path}/{self._partitions.folder_name(topic_partition)}",
            config=config,
            topic_partition=topic_partition,
            topic_id=topic_id,
            cache=self._ports.cache,
            producer_state=ProducerStateManager(expiration_ms=self._settings.producer_id_expiration_ms),
        )

    def _undo_create(self, topic_partition: TopicPartition, *, was_there: bool) -> None:
        """Removes a half-created log; a log that was there before stays, to be loaded another time."""
        log = self._partitions.logs.pop(topic_partition, None)
        if log is not None:
            self.drop(log)
        if was_there:
            self._partitions.unidentified.add(topic_partition)
        else:
            with contextlib.suppress(OSError):
                self._filesystem.remove_tree(f"{self._state.path}/{topic_partition}")

    def _adoptable(self, topic_partition: TopicPartition) -> Offset:
        """Returns where Kafka's checkpoint starts a partition whose id was unknown when the journal was opened."""
        if not self._filesystem.exists(f"{self._state.path}/{LOG_START_CHECKPOINT}"):
            return 0
        crc, offsets = read_offsets(self._filesystem, self._state.path, LOG_START_CHECKPOINT)
        return offsets.get(topic_partition, 0) if crc != self._parts.journal.exported_crc else 0

    def _add(self, log: Log) -> None:
        self._partitions.add(log)
        self._parts.flusher.add(log, is_new=False)

    def drop(self, log: Log) -> None:
        """Forgets a log that has left: it isn't flushed, and its files are closed."""
        self._parts.flusher.drop(log)
        for segment in log.segments:
            self._ports.cache.drop(segment)
