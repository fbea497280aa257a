"""The logs of one log directory, from its opening to its stop.

Guards: a log start is visible only when the journal has it durably; the marker of a clean stop is the last thing that a
stop writes. A failed write or sync takes the whole directory offline, at once and for good.

Built in stages: whether the directory works (`directory_state`) and what is in it (`directory_partitions`); with the
journal, the parts that work on its logs (`directory_parts`); over these, loading and creating logs (`log_loading`).

Source: Kafka's LogManager.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from lowtide.runtime.committer import Barrier
from lowtide.storage.checkpoint import CLEAN_SHUTDOWN_MARKER, encode_clean_shutdown
from lowtide.storage.directory.directory_deletions import offline_error
from lowtide.storage.directory.directory_partitions import DirectoryPartitions
from lowtide.storage.directory.directory_parts import DirectoryParts, build_parts
from lowtide.storage.directory.directory_state import DirectoryState
from lowtide.storage.directory.directory_upkeep import DirectoryUpkeep
from lowtide.storage.directory.log_loading import LogLoading
from lowtide.storage.errors import storage_error
from lowtide.storage.log.log_holes import LogHoles
from lowtide.storage.log.opening.known_log import LoadTotals
from lowtide.storage.log_directory import REGISTRATION_COUNTER, DirectoryListing, list_directory
from lowtide.storage.log_start.journal import JournalHooks, LogStartJournal
from lowtide.storage.log_start.journal_format import OnDurable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lowtide.protocol.types import Offset, TopicId, TopicPartition
    from lowtide.storage.directory.log_settings import DirectoryPorts, LogListeners, LogManagerSettings
    from lowtide.storage.errors import StorageError
    from lowtide.storage.log.log import Log, LogConfig, RemovedSegment
    from lowtide.storage.log.opening.known_log import LogRepairs
    from lowtide.storage.log.segments.segment_files import Readers
    from lowtide.storage.log_directory import BrokerIdentity

NOTHING_CHECKED = LoadTotals(0, 0, 0)


class DirectoryLogs:
    """The logs of one directory. Calls: `open`, `prepare`, `load`; finally `stop`, and `finish` or `release`."""

    def __init__(
        self,
        path: str,
        ports: DirectoryPorts,
        settings: LogManagerSettings,
        listeners: LogListeners,
        on_failed: Callable[[DirectoryLogs, str], None],
    ) -> None:
        """`on_failed` is called once, with the reason, when the directory has gone offline."""
        self.path = path
        self.state = DirectoryState(path, ports.filesystem, self._on_state_failed)
        self.partitions = DirectoryPartitions()
        self.logs: Mapping[TopicPartition, Log] = self.partitions.logs
        self.strays: tuple[str, ...] = ()
        self._ports = ports
        self._settings = settings
        self._listeners = listeners
        self._on_failed = on_failed
        self._listing = DirectoryListing(partitions={}, deleted=(), strays=())
        self._leftovers: dict[TopicPartition, bool] = {}
        self._hidden: dict[TopicPartition, TopicId] = {}
        self._parts: DirectoryParts | None = None
        self._loading: LogLoading | None = None
        self._upkeep: DirectoryUpkeep | None = None

    # Opening

    def open(self, identity: BrokerIdentity) -> None:
        self.state.open(identity, self._ports.random)

    def prepare(self) -> None:
        """Lists the folders and reads the journal. It touches no log, so a clean stop still counts as clean.

        Start code: it may sync. Errors: StorageError with file and remedy.
        """
        filesystem, path = self._ports.filesystem, self.path
        try:
            self._listing = list_directory(filesystem, path)
            self.strays = tuple(f"{path}/{name}" for name in self._listing.strays)
            is_ours = filesystem.exists(f"{path}/{REGISTRATION_COUNTER}")
            journal = LogStartJournal.open(
                filesystem,
                path,
                self._ports.committer,
                folders=self._listing.partitions,
                expected=is_ours,
                hooks=JournalHooks(topic_name=self.partitions.topic_name, on_failure=self.state.fail),
            )
        except OSError as error:
            raise storage_error(path, error) from error
        parts = self._parts = build_parts(
            self.state, self.partitions, journal, self._ports, self._settings, self._listeners
        )
        self._loading = LogLoading(self.state, self.partitions, parts, self._ports, self._settings, is_ours=is_ours)

    @property
    def folders(self) -> Mapping[TopicPartition, TopicId]:
        """The partitions that `prepare` found, with their topic ids, zeros if unknown."""
        return self._listing.partitions

    def leave_out(self, topic_partition: TopicPartition, *, is_deleted: bool) -> None:
        """Marks a folder of an earlier topic: `load` removes it if that topic was deleted, or else sets it aside."""
        del self._listing.partitions[topic_partition]
        self._leftovers[topic_partition] = is_deleted

    def hide(self, topic_partition: TopicPartition) -> None:
        """Leaves a folder untouched; it isn't served before the next start."""
        self._hidden[topic_partition] = self._listing.partitions.pop(topic_partition)

    def load(
        self, configs: Mapping[str, LogConfig], starts: Mapping[TopicPartition, Offset] = MappingProxyType({})
    ) -> None:
        """Loads every log with its topic's configuration, or the default; recovers those that were not stopped cleanly.

        A partition in `starts` begins at or above that offset, whatever the journal says. Start code: it syncs, and may
        take long. Errors: StorageError for the directory as a whole; errors of single partitions are in
        `partitions.damaged`.
        """
        listing, parts = self._listing, self.parts
        try:
            self.state.directory.begin_use()
            leftovers = parts.deletions.rename_now(self._leftovers)
            self.loading.load_all(listing, configs, starts)
            futures = {key: future.topic_id for key, future in listing.futures.items()}
            parts.deletions.finish_interrupted(
                [*listing.deleted, *leftovers], futures | self._hidden | listing.partitions
            )
        except OSError as error:
            raise storage_error(self.path, error) from error
        self._upkeep = DirectoryUpkeep(
            self._settings, self._listeners, parts, self.logs, self.state.is_active, self._ports.clock.monotonic_ms()
        )
        self.state.begin_serving()

    # What it is

    @property
    def parts(self) -> DirectoryParts:
        """The parts that work on the logs, once the journal is open."""
        assert self._parts is not None, self.path
        return self._parts

    @property
    def loading(self) -> LogLoading:
        """The part that loads and creates logs, once the journal is open."""
        assert self._loading is not None, self.path
        return self._loading

    @property
    def checked(self) -> LoadTotals:
        """The totals of loading its logs."""
        return NOTHING_CHECKED if self._loading is None else self._loading.checked

    @property
    def reports(self) -> Mapping[TopicPartition, LogRepairs]:
        """The repairs that loading made, by partition."""
        return {} if self._loading is None else self._loading.reports

    @property
    def is_online(self) -> bool:
        return self.state.is_online

    def folder(self, topic_partition: TopicPartition) -> str:
        return f"{self.path}/{topic_partition}"

    def fail(self, error: OSError | StorageError) -> None:
        """Takes the directory offline: its logs refuse appends from now on. A second failure changes nothing."""
        self.state.fail(error)

    def _on_state_failed(self, reason: str) -> None:
        for log in self.logs.values():
            log.offline = True
        if self._parts is not None:
            self._parts.erasures.stop()
        self._on_failed(self, reason)

    # Logs come and go

    def create(self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig, *, with_files: bool) -> Log:
        return self.loading.create(topic_partition, topic_id, config, with_files=with_files)

    def delete(
        self,
        partitions: Iterable[TopicPartition],
        on_done: OnDurable,
        *,
        set_aside: bool = False,
        at_once: bool = False,
    ) -> None:
        """Deletes partitions: takes them out of the lists, renames their folders, and forgets their log starts durably.

        `on_done` is then called; only then may their names be reused. The files are removed later, or `at_once`; with
        `set_aside` they stay, and so do the log starts.
        """
        keys = [key for key in partitions if key in self.partitions]
        if not self.is_online:
            # Out of sight, but left on the disk: the next start that can use the directory finds folders that the
            # metadata lack.
            for key in keys:
                self._take_out(key)
            offline = offline_error(self.path, self.state.offline_reason)
            self._ports.committer.submit(Barrier(), lambda error: on_done(error or offline))
            return
        forgotten: list[tuple[TopicId, int]] = []
        delay_ms, frees = 0, not set_aside
        readers: Readers = ()
        sizes = dict.fromkeys(keys, 0)
        names = {key: self.partitions.folder_name(key) for key in keys}
        for key in keys:
            log = self._take_out(key)
            if log is not None:
                sizes[key] = log.size_bytes
                frees, readers = frees and LogHoles(log).are_allowed, (*readers, *log.files.readers())
                log.files.forget_removed()
                forgotten.append((log.topic_id, key.partition))
                delay_ms = (
                    0 if at_once or log.config.lowtide_delete_erase else max(delay_ms, log.config.file_delete_delay_ms)
                )
        self.partitions.forget_names()
        self.parts.deletions.begin(
            sizes,
            [] if set_aside else forgotten,
            delay_ms=None if set_aside else delay_ms,
            on_done=on_done,
            readers=readers if frees else None,
            names=names,
        )

    def _take_out(self, key: TopicPartition) -> Log | None:
        log = self.partitions.take_out(key)
        if self._parts is not None:
            self._parts.cleanings.forget(key)
        if log is not None:
            self.parts.holes.forget(log)
            self.parts.erasures.forget(log)
            log.offline = True
            self.loading.drop(log)
        return log

    def sync_folder_names(self, on_done: OnDurable) -> None:
        self._ports.committer.submit(Barrier(directories=(self.path,)), on_done)

    def remove_segments(self, removed: list[RemovedSegment]) -> None:
        """Unlinks segments that left a log."""
        self.parts.removal.remove_segments(removed, self._ports.clock.monotonic_ms())

    # Due work

    def flush(self, log: Log) -> None:
        """Begins to flush a log, unless nothing is to be done or a flush is under way."""
        if self.state.is_active():
            self.parts.flusher.flush(log)

    def due_work(self, wall_ms: int) -> Iterator[None]:
        """Does what is due, one step at a time: flushes, checkpoints, removals, expiry of producers."""
        if self._upkeep is not None and self.state.is_active():
            yield from self._upkeep.due(self._ports.clock.monotonic_ms(), wall_ms)

    # Stopping

    def stop(self) -> None:
        """Begins nothing new; requests in progress are still answered. Called before the committer is closed."""
        self.state.stop()
        if self._parts is not None:
            self._parts.stop()

    def finish(self, broker_epoch: int) -> None:
        """Completes a clean stop: flushes all, then writes checkpoints, journal, and last the marker. Blocks on syncs.

        Errors: StorageError; the directory then has no marker, and the next start recovers.
        """
        assert self.state.is_stopped, self.path
        parts, here = self.parts, self.partitions
        try:
            self.loading.make_all_files()
            parts.flusher.close(self.logs.values())
            parts.recovery_points.write_now()
            parts.high_watermarks.write_now()
            parts.cleanings.write_now()
            parts.journal.finish()
            # What was not loaded stays as it was found.
            if self.state.directory.stopped_cleanly or not (here.unidentified or here.damaged):
                self._ports.filesystem.replace_file(
                    f"{self.path}/{CLEAN_SHUTDOWN_MARKER}", encode_clean_shutdown(broker_epoch)
                )
        except OSError as error:
            raise storage_error(self.path, error) from error

    def release(self) -> None:
        self.state.release()
