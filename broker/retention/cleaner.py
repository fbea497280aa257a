"""Compacts the logs of compacted topics, on each replica, in worker processes.

`log.cleaner.threads` is the number of processes; they share `log.cleaner.dedupe.buffer.size` and
`log.cleaner.io.max.bytes.per.second`. Of the logs that are due (`storage/compaction/cleanable.py`) the dirtiest is
compacted first; the next one follows at once, or after `log.cleaner.backoff.ms` if none is due.

Guards: one compaction of a log at a time. A corrupt log is logged once and ignored until the broker restarts; the
others continue. A full disk, or a dead process, is logged once and retried; a failed disk takes its directory offline.

Source: Kafka's LogCleaner, LogCleanerManager.grabFilthiestCompactedLog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from lowtide.broker.config.dynamic_config import BrokerConfigs
from lowtide.broker.context import BrokerContext
from lowtide.broker.retention.deletion_ledger import DeletionLedger
from lowtide.broker.turns import run_in_slices
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.heavy_work import NO_RATE_LIMIT, HeavyWorker
from lowtide.storage.compaction.cleanable import Cleanable, LogEnds, find_cleanable
from lowtide.storage.compaction.log_cleaning import CleaningLimits, CleaningReport, LogCleaning
from lowtide.storage.compaction.offset_map import ENTRY_BYTES
from lowtide.storage.errors import DamagedSegmentError, StorageError
from lowtide.storage.log.log import Log
from lowtide.storage.log.retention.retention_plan import Reason
from lowtide.storage.log.retention.segment_ages import SegmentAges
from lowtide.storage.log.validation.validation_rules import MAXIMUM_DECOMPRESSED_BYTES

LOGS_PER_STEP: Final = 16
"""The number of logs between two checks of the clock."""

MakeHeavyWorker = Callable[[int], HeavyWorker]
"""Takes the number of processes."""


class Cleaner:
    """Compacts the logs of a broker. Call `start` once, then `stop`."""

    def __init__(
        self,
        broker: BrokerContext,
        times: SegmentAges,
        loop: asyncio.AbstractEventLoop,
        ledger: DeletionLedger,
        make_worker: MakeHeavyWorker,
    ) -> None:
        self.uncleanable: dict[TopicPartition, Log] = {}
        """Corrupt logs."""
        self._log_manager = broker.replicas.log_manager
        self._configs = broker.configs
        self._times = times
        self._clock = broker.clock
        self._loop = loop
        self._ledger = ledger
        self._log = broker.log
        self._make_worker = make_worker
        self._worker: HeavyWorker | None = None
        self._threads = 0
        self._running: dict[TopicPartition, LogCleaning] = {}
        self._resting: dict[TopicPartition, str] = {}
        """Why an intact log could not be compacted; it waits for the next backoff."""
        self._told: dict[TopicPartition, str] = {}
        self._looking = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts the timer, if `log.cleaner.enable` is set and `log.cleaner.threads` is not 0."""
        values = self._configs.current.values
        self._threads = int(_number(self._configs, "log.cleaner.threads"))
        if values["log.cleaner.enable"] is True and self._threads > 0:
            self._worker = self._make_worker(self._threads)
            self._wait()

    def stop(self) -> None:
        """Stops: compactions in progress are dropped, and the processes have ended when this returns."""
        worker, self._worker = self._worker, None
        if self._timer is not None:
            self._timer.cancel()
        if worker is not None:
            worker.close()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_number(self._configs, "log.cleaner.backoff.ms") / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._resting.clear()
        self._wait()
        self._look()

    # ------------------------------------------------------------------ looking
    def _look(self) -> None:
        if not self._looking and self._worker is not None and len(self._running) < self._threads:
            self._looking = True
            due: list[tuple[float, Log]] = []
            run_in_slices(self._loop, self._clock, self._steps(due), lambda: self._begin(due))

    def _steps(self, due: list[tuple[float, Log]]) -> Iterator[None]:
        for key in [key for key, log in self.uncleanable.items() if self._log_manager.logs.get(key) is not log]:
            del self.uncleanable[key]
        self._told = {key: reason for key, reason in self._told.items() if key in self._log_manager.logs}
        yield from self._log_manager.directories.write_cleaner_checkpoints()
        for number, log in enumerate(list(self._log_manager.logs.values())):
            if number % LOGS_PER_STEP == 0:
                yield
            if self._worker is None:
                return
            found = self._cleanable(log)
            if found is not None and found.is_due:
                due.append((found.dirty_ratio, log))

    def _cleanable(self, log: Log) -> Cleanable | None:
        """Returns the part of a log that can be compacted now, or None."""
        key = log.topic_partition
        if (
            "compact" not in log.config.cleanup_policy
            or log.offline
            or log.truncating
            or log.swaps.is_taken
            or len(log.segments) == 1
        ):
            return None
        if (
            key in self._running
            or key in self._resting
            or key in self.uncleanable
            or self._log_manager.logs.get(key) is not log
        ):
            return None
        limit = self._log_manager.moves.compactable_to(log)
        durable = log.recovery_point if limit is None else max(min(log.recovery_point, limit), log.log_start_offset)
        ends = LogEnds(log.log_start_offset, log.last_stable_offset, durable, log.log_end_offset)
        try:
            return find_cleanable(
                log.segments, ends, log.swaps.cleaned_to, log.config, self._times, self._clock.wall_ms()
            )
        except StorageError as error:
            self._on_unreadable(log, error)
            return None

    def _begin(self, due: list[tuple[float, Log]]) -> None:
        """Compacts the dirtiest logs, as many as there are free processes."""
        self._looking = False
        due.sort(key=lambda each: (-each[0], each[1].topic_partition))
        for _ratio, log in due:
            if self._worker is None or len(self._running) >= self._threads:
                return
            found = self._cleanable(log)
            if found is not None and found.is_due:
                self._clean(log, found, self._worker)

    # ------------------------------------------------------------------ one log
    def _clean(self, log: Log, cleanable: Cleanable, worker: HeavyWorker) -> None:
        key = log.topic_partition
        rate = _number(self._configs, "log.cleaner.io.max.bytes.per.second")
        limits = CleaningLimits(
            map_bytes=max(int(_number(self._configs, "log.cleaner.dedupe.buffer.size")) // self._threads, ENTRY_BYTES),
            decompressed_bytes_max=MAXIMUM_DECOMPRESSED_BYTES,
            bytes_per_second=rate / self._threads if rate > 0 else NO_RATE_LIMIT,
        )
        try:
            cleaning = self._log_manager.begin_cleaning(
                log, cleanable, limits, worker, self._clock.wall_ms(), lambda report: self._on_cleaned(log, report)
            )
        except StorageError as error:
            self._on_unreadable(log, error)
        else:
            self._running[key] = cleaning

    def _on_unreadable(self, log: Log, error: StorageError) -> None:
        if isinstance(error, DamagedSegmentError):
            self._give_up(log, str(error))
        elif not error.is_passing:
            self._log_manager.fail_directory_of(log, error)

    def _give_up(self, log: Log, reason: str) -> None:
        self.uncleanable[log.topic_partition] = log
        self._log.error("log cannot be compacted and is ignored", partition=str(log.topic_partition), reason=reason)

    def _on_cleaned(self, log: Log, report: CleaningReport) -> None:
        key = log.topic_partition
        self._running.pop(key, None)
        if self._worker is None:
            return
        is_here = self._log_manager.logs.get(key) is log
        records = report.done.records_before - report.done.records_after if report.done is not None else 0
        if is_here and report.segments_before:
            self._ledger.count_compaction(
                key, report.segments_before - report.segments_after, report.bytes_removed, records
            )
        if report.done is not None:
            self._told.pop(key, None)
            self._tell(key, report)
        elif is_here and report.is_damaged:
            self._give_up(log, report.failure or "")
        elif is_here:
            # The log changed during the compaction, or the disk is full: retry after the backoff.
            self._resting[key] = report.failure or ""
            if report.failure is not None and self._told.get(key) != report.failure:
                self._told[key] = report.failure
                self._log.warning("log is not compacted now", partition=str(key), reason=report.failure)
        self._look()

    def _tell(self, key: TopicPartition, report: CleaningReport) -> None:
        done = report.done
        assert done is not None
        self._log.info(
            "log is compacted",
            reason=Reason.COMPACTION.value,
            partition=str(key),
            end_offset=done.end_offset,
            bytes_before=done.bytes_before,
            bytes_after=done.bytes_after,
            records_before=done.records_before,
            records_after=done.records_after,
            keys=done.keys,
            segments_before=report.segments_before,
            segments_after=report.segments_after,
            duration_ms=report.duration_ms,
        )


def _number(configs: BrokerConfigs, name: str) -> float:
    value = configs.current.values[name]
    assert isinstance(value, int | float), name
    return value
