"""Compacts the logs of one directory, and stores how far each log is compacted.

The file `cleaner-offset-checkpoint` has Kafka's format. It is written after a compaction, and after a truncation below
its offsets. A stale entry only repeats a compaction or keeps old records until the next one; no record is lost.

Source: Kafka's LogCleanerManager.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial

from lowtide.protocol.types import Offset, TopicPartition
from lowtide.runtime.heavy_work import HeavyWorker
from lowtide.storage.compaction.cleanable import Cleanable
from lowtide.storage.compaction.log_cleaning import CleaningLimits, CleaningPlace, LogCleaning, OnCleaned
from lowtide.storage.directory.file_removal import FileRemoval
from lowtide.storage.directory.log_settings import DirectoryPorts
from lowtide.storage.directory.offset_checkpoint import OffsetCheckpoint, OnWritten, read_checkpoint
from lowtide.storage.errors import StorageError, is_passing
from lowtide.storage.log.cleaned_segment import remove_cleaned
from lowtide.storage.log.log import Log, RemovedSegment

CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"


class DirectoryCleanings:
    """Compacts the logs of one directory. Used from the event loop only."""

    def __init__(
        self,
        path: str,
        ports: DirectoryPorts,
        logs: Mapping[TopicPartition, Log],
        removal: FileRemoval,
        on_failure: Callable[[OSError | StorageError], None],
        is_served: Callable[[], bool],
    ) -> None:
        """`logs` is a live view of the directory's logs; `on_failure` takes the directory offline."""
        self._path = f"{path}/{CLEANER_CHECKPOINT}"
        self._ports = ports
        self._logs = logs
        self._removal = removal
        self._on_failure = on_failure
        self._is_served = is_served
        self._read: dict[TopicPartition, Offset] = {}
        """The file's entries of partitions that aren't loaded."""
        self._has_file = False
        self._stalled: list[Callable[[], None]] = []
        self._checkpoint = OffsetCheckpoint(
            ports.filesystem, ports.committer, self._path, self._offsets, self._values, on_failure
        )

    def _offsets(self) -> dict[TopicPartition, Offset]:
        return self._read | {
            key: log.swaps.cleaned_to for key, log in self._logs.items() if log.swaps.cleaned_to is not None
        }

    def _values(self) -> list[Offset]:
        return list(self._offsets().values())

    def read(self, here: Container[TopicPartition]) -> None:
        """Reads the file at start; it may sync. Errors: OSError."""
        self._has_file = self._ports.filesystem.exists(self._path)
        self._read = read_checkpoint(self._ports.filesystem, self._path, here)

    def cleaned_to(self, key: TopicPartition) -> Offset:
        """Returns the exclusive end up to which a log that isn't loaded yet was compacted; 0 if unknown."""
        return self._read.get(key, Offset(0))

    def on_loaded(self, log: Log) -> None:
        """Passes the file's entry to a new or loaded log."""
        log.swaps.note_cleaned_to(self._read.pop(log.topic_partition, None))

    def forget(self, key: TopicPartition) -> None:
        self._read.pop(key, None)

    def begin(
        self,
        log: Log,
        cleanable: Cleanable,
        limits: CleaningLimits,
        worker: HeavyWorker,
        now_ms: int,
        on_cleaned: OnCleaned,
    ) -> LogCleaning:
        """Begins to compact a log; calls `on_cleaned` at the end.

        `now_ms` is wall-clock time. Errors: StorageError; then the compaction isn't begun.
        """
        place = CleaningPlace(
            clock=self._ports.clock,
            committer=self._ports.committer,
            worker=worker,
            is_here=self._is_here,
            remove_later=self._remove_later,
            retry_later=self._retry_later,
            remove_cleaned=self._remove_cleaned,
            on_failure=self._on_failure,
        )
        cleaning = LogCleaning(log, place, on_cleaned)
        cleaning.begin(cleanable, limits, now_ms)
        return cleaning

    def _retry_later(self, step: Callable[[], None]) -> None:
        self._stalled.append(step)

    def retry(self) -> None:
        """Repeats the steps that failed for lack of room. Called about once a second."""
        stalled, self._stalled = self._stalled, []
        for step in stalled:
            step()

    def _is_here(self, log: Log) -> bool:
        return self._is_served() and self._logs.get(log.topic_partition) is log and not log.offline

    def _remove_later(self, log: Log, removed: list[RemovedSegment]) -> None:
        self._removal.remove_segments(removed, self._ports.clock.monotonic_ms() + log.config.file_delete_delay_ms)

    def _remove_cleaned(self, log: Log, then: Callable[[], None]) -> None:
        def removed(outcome: object) -> None:
            if isinstance(outcome, OSError) and is_passing(outcome):
                self._retry_later(partial(self._remove_cleaned, log, then))
                return
            if isinstance(outcome, OSError):
                self._on_failure(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            then()

        if self._is_here(log):
            self._ports.worker.submit(partial(remove_cleaned, self._ports.filesystem, log.directory), removed)
        else:
            then()

    def write(self) -> Iterator[None]:
        """Writes the file if it is outdated, one step at a time."""
        if self._is_served() and (self._has_file or self._offsets()):
            self._has_file = True
            yield from self._checkpoint.write()

    def write_and_call(self, on_written: OnWritten) -> None:
        """Rewrites the file, leaving out partitions that are gone, then calls `on_written`."""
        if self._has_file:
            self._checkpoint.write_and_call(on_written)
        else:
            on_written(None)

    def stop(self) -> None:
        self._checkpoint.stop()

    def write_now(self) -> None:
        """Writes the file at a stop, when the committer is idle; it syncs. Errors: OSError."""
        if self._has_file or self._offsets():
            self._checkpoint.write_now()
