"""Loads the logs of one directory at the start, and creates new ones.

Guards: a log's topic id is known before it is served; the folder of a new log has it before the first record; a cut
made by recovery is durable before anything is appended after it.

Source: Kafka's LogManager.loadLog and getOrCreateLog.
"""

from __future__ import annotations

import contextlib
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

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
from lowtide.storage.log.opening.loader import create_log, load_log, put_off_log
from lowtide.storage.log.producers.producer_state import ProducerStateManager
from lowtide.storage.log_start.journal_loading import read_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lowtide.storage.directory.directory_partitions import DirectoryPartitions
    from lowtide.storage.directory.directory_parts import DirectoryParts
    from lowtide.storage.directory.directory_state import DirectoryState
    from lowtide.storage.directory.log_settings import DirectoryPorts, LogManagerSettings
    from lowtide.storage.log.log import Log, LogConfig
    from lowtide.storage.log_directory import DirectoryListing

_ALL_CLEANED = Offset(2**63 - 1)

LOGS_PER_ROUND: Final = 10
"""New logs whose files are created in one round, some twenty times a second.

That takes one or two milliseconds, and ten on an ext4 that reuses inodes (docs/lab/performance-results.md).
"""


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
        self._without_files: dict[Log, None] = {}
        """New logs that may have no files yet, the oldest first."""

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

    def create(self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig, *, with_files: bool) -> Log:
        """Creates a log, or loads one whose folder lacked its topic id. Nothing is synced here.

        Without `with_files` a new log has no files yet: its first write creates them, or `make_files`. Errors:
        StorageError; without room the directory stays online, and the partition is created or loaded another time.
        """
        here, parts = self._partitions, self._parts
        assert topic_partition not in parts.deletions.leaving, topic_partition
        assert topic_partition not in here.logs, topic_partition
        start = parts.journal.value(topic_id, topic_partition.partition) or 0
        place = self._place(topic_partition, topic_id, config)
        try:
            self._state.directory.check_is_there()
            if topic_partition in here.unidentified:
                return self._identify(place, start)
        except OSError as error:
            if not is_passing(error):
                self._state.fail(error)
            raise storage_error(place.directory, error) from error
        make_folder = partial(self._make_folder, place.directory, topic_id)
        log = put_off_log(place, make_folder, now_ms=self._ports.clock.wall_ms(), log_start_offset=start)
        if with_files:
            self._make_at_once(log)
        else:
            self._without_files[log] = None
        here.add(log)
        parts.flusher.add(log, is_new=True)
        return log

    def _make_at_once(self, log: Log) -> None:
        """Creates the files of a new log. Errors: StorageError; then none is left."""
        try:
            log.files.make()
        except StorageError as error:
            with contextlib.suppress(OSError):
                self._filesystem.remove_tree(log.directory)
            if not error.is_passing:
                self._state.fail(error)
            raise

    def _make_folder(self, folder: str, topic_id: TopicId) -> None:
        """Creates the folder of a log, with its topic id, or completes one. Errors: OSError."""
        self._state.directory.check_is_there()
        self._filesystem.make_directories(folder)
        self._filesystem.write_bytes(f"{folder}/{PARTITION_METADATA}", encode_partition_metadata(topic_id))

    def make_files(self) -> Iterator[None]:
        """Creates the files of some new logs, one log in each step; without room, another time."""
        for log in list(islice(self._without_files, LOGS_PER_ROUND)):
            if log not in self._without_files or not self._state.is_active():
                continue
            try:
                log.files.make()
            except StorageError as error:
                log.disk_full = error.is_disk_full
                if not error.is_passing:
                    self._state.fail(error)
                return
            self._without_files.pop(log, None)
            yield

    def make_all_files(self) -> None:
        """Creates the files of all new logs, as far as there is room. Errors: StorageError."""
        for log in self._without_files:
            try:
                log.files.make()
            except StorageError as error:
                if not error.is_passing:
                    raise
                break  # A partition without a log is created again by the next start.

    def _identify(self, place: LogPlace, start: Offset) -> Log:
        """Loads a log whose folder lacked its topic id, and writes that. Errors: OSError, StorageError."""
        here, key = self._partitions, place.topic_partition
        try:
            log = self._load_log(key, place.topic_id, place.config, max(start, self._adoptable(key)))
            self._filesystem.write_bytes(
                f"{place.directory}/{PARTITION_METADATA}", encode_partition_metadata(place.topic_id)
            )
        except (OSError, StorageError):
            half_loaded = here.logs.pop(key, None)
            if half_loaded is not None:
                self.drop(half_loaded)
            raise
        here.unidentified.discard(key)
        self._parts.flusher.add(log, is_new=True)
        if log.log_start_offset > start:
            # Kafka's checkpoint said so. Its next version will be ours, so from now on the journal must.
            increment = LogStartIncrement(log, log.log_start_offset)
            self._parts.log_starts.request_log_starts([increment], lambda _error: None)
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
        self._without_files.pop(log, None)
        self._parts.flusher.drop(log)
        for segment in log.segments:
            self._ports.cache.drop(segment)
