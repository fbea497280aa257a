"""One compaction of one log, as the event loop runs it: a worker does it, and its results are put in place.

Guards: a result is used only while the log is as it was when the compaction was ordered (`segment_swap.py`). Otherwise
all later results are dropped, and the worker is stopped. `cleaned_to` rises when all of it is on the disk. If the log
changed meanwhile, damage that the worker reports is ignored. The log is released when no file of an interrupted
compaction is left, because these may hold records that are erased next.

Source: Kafka's LogCleanerManager.abortCleaning, doneCleaning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from lowtide.runtime.clock import Clock
from lowtide.runtime.committer import Committer
from lowtide.runtime.heavy_work import HeavyWorker, RunningWork, WorkFailedError
from lowtide.storage.compaction.cleanable import Cleanable
from lowtide.storage.compaction.cleaning import (
    CleaningDone,
    CleaningOrder,
    GroupCleaned,
    SegmentPlace,
    clean_log,
    decode_outcome,
    encode_order,
)
from lowtide.storage.compaction.compaction import LastRecord
from lowtide.storage.errors import StorageError, is_passing
from lowtide.storage.log.log import Log
from lowtide.storage.log.segment_swap import CleanedGroup
from lowtide.storage.log.segments.index import TIME_ENTRY_BYTES
from lowtide.storage.log.segments.segment_files import RemovedSegment


class CleaningLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of a compaction."""

    map_bytes: int
    decompressed_bytes_max: int
    bytes_per_second: float


class CleaningPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The functions and ports of a log's directory that a compaction uses."""

    clock: Clock
    committer: Committer
    worker: HeavyWorker
    is_here: Callable[[Log], bool]
    """Whether the log is still the directory's, and the directory is served."""
    remove_later: Callable[[Log, list[RemovedSegment]], None]
    retry_later: Callable[[Callable[[], None]], None]
    """Repeats a step in about a second: it lacked room."""
    remove_cleaned: Callable[[Log, Callable[[], None]], None]
    """Removes all `.cleaned` files of a log, then calls back."""
    on_failure: Callable[[OSError | StorageError], None]
    """Takes the directory offline."""


class CleaningReport(msgspec.Struct):
    """The outcome of a compaction."""

    done: CleaningDone | None = None
    """None if it didn't finish."""
    failure: str | None = None
    """The reason; None also if the log has changed or is gone."""
    is_damaged: bool = False
    """Whether the log's bytes are damaged."""
    segments_before: int = 0
    segments_after: int = 0
    bytes_removed: int = 0
    """Counts what was put in place, even if the compaction didn't finish."""
    duration_ms: int = 0


OnCleaned = Callable[[CleaningReport], None]


def order_cleaning(log: Log, cleanable: Cleanable, limits: CleaningLimits, now_ms: int) -> CleaningOrder:
    """Returns the order to compact `log` now. `now_ms` is wall-clock time. Errors: StorageError."""
    config, end_offset = log.config, cleanable.first_uncleanable_offset
    indexed, aborted = log.swaps.aborted(end_offset)
    versions = log.swaps.versions_below(end_offset)
    ends = [*(each.segment.base_offset for each in versions[1:]), end_offset]
    places = [SegmentPlace(each.segment.base_offset, end, each.size) for each, end in zip(versions, ends, strict=True)]
    interval = max(config.index_interval_bytes, 1)
    return CleaningOrder(
        directory=log.directory,
        segments=places,
        first_dirty_offset=cleanable.first_dirty_offset,
        first_uncleanable_offset=end_offset,
        # The bytes of batches for as many index entries as `segment.index.bytes` has room for.
        segment_bytes=min(config.segment_bytes, config.segment_index_bytes // TIME_ENTRY_BYTES * interval),
        index_interval_bytes=config.index_interval_bytes,
        map_bytes=limits.map_bytes,
        decompressed_bytes_max=limits.decompressed_bytes_max,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        last_records={
            producer_id: LastRecord(entry.batches[-1].last_offset if entry.batches else -1, entry.producer_epoch)
            for producer_id, entry in log.producer_state.producers.items()
        },
        indexed=indexed,
        aborted=aborted,
    )


class LogCleaning:
    """One compaction of a log. `begin` is called once; `on_cleaned` is called once."""

    def __init__(self, log: Log, place: CleaningPlace, on_cleaned: OnCleaned) -> None:
        self.log = log
        self._place = place
        self._on_cleaned = on_cleaned
        self._report = CleaningReport()
        self._began_ms = place.clock.monotonic_ms()
        self._unread = log.swaps.versions_below(0)
        self._groups: deque[GroupCleaned] = deque()
        self._swapping: CleanedGroup | None = None
        self._ended = False
        self._dropped = False
        self._done: CleaningDone | None = None
        self._running: RunningWork | None = None

    def begin(self, cleanable: Cleanable, limits: CleaningLimits, now_ms: int) -> None:
        """Orders the compaction from the worker. Errors: StorageError; then it isn't begun."""
        order = order_cleaning(self.log, cleanable, limits, now_ms)
        self._unread = self.log.swaps.versions_below(cleanable.first_uncleanable_offset)
        self.log.swaps.take_for_cleaning(cleanable.first_uncleanable_offset)
        self._running = self._place.worker.begin(clean_log, encode_order(order), self, limits.bytes_per_second)

    def cancel(self) -> None:
        self._drop()

    def on_message(self, message: bytes) -> None:
        outcome = decode_outcome(message)
        if isinstance(outcome, GroupCleaned):
            self._groups.append(outcome)
            self._swap_next()
        elif isinstance(outcome, CleaningDone):
            self._done = outcome
        elif not self._dropped and self._is_unchanged():
            self._report.failure, self._report.is_damaged = outcome.reason, outcome.is_damaged

    def on_end(self, error: WorkFailedError | None) -> None:
        self._ended = True
        if error is not None and self._report.failure is None:
            self._report.failure = str(error)
        self._maybe_finish()

    def _is_unchanged(self) -> bool:
        return self._place.is_here(self.log) and (not self._unread or self.log.swaps.are_unchanged(self._unread))

    def _drop(self) -> None:
        if not self._dropped:
            self._dropped = True
            if self._running is not None:
                self._running.cancel()

    def _swap_next(self) -> None:
        if self._swapping or not self._groups:
            return
        group = self._groups.popleft()
        if self._dropped or not self._place.is_here(self.log):
            # Its files are removed at the end, if the log is still here.
            self._drop()
            self._swap_next()
            return
        cleaned = CleanedGroup(self._unread, len(group.bases), group.size, group.has_aborted)
        assert [each.segment.base_offset for each in self._unread[: len(group.bases)]] == group.bases, group
        try:
            barrier = self.log.swaps.begin(cleaned)
        except (OSError, StorageError) as error:
            self._on_failed(error)
            return
        if barrier is None:
            self._drop()
            self._swap_next()
            return
        self._swapping = cleaned
        self._place.committer.submit(barrier, lambda error: self._on_named(cleaned, error))

    def _on_named(self, group: CleanedGroup, error: OSError | None) -> None:
        """Continues once the `.swap` files are durable. The files of a deleted or moved log are missing."""
        self._swapping = None
        finished = None
        if self._place.is_here(self.log):
            if error is not None:
                self._on_failed(error)
                return
            try:
                finished = self.log.swaps.finish(self._place.clock.wall_ms())
            except (OSError, StorageError) as failed:
                self._on_failed(failed)
                return
        if finished is None:
            self._drop()
            self._swap_next()
            self._maybe_finish()
            return
        self._swapping = group
        self._name(group, finished)

    def _name(self, group: CleanedGroup, removed: list[RemovedSegment]) -> None:
        """Durably renames the new files, which the log already reads; retries later if there is no room for names."""
        if not self._place.is_here(self.log):
            self._on_replaced(group, removed, None)
            return
        try:
            barrier = self.log.swaps.name_files()
        except OSError as error:
            if is_passing(error):
                self._place.retry_later(lambda: self._name(group, removed))
            else:
                self._on_failed(error)
            return
        self._place.committer.submit(barrier, lambda failed: self._on_replaced(group, removed, failed))

    def _on_replaced(self, group: CleanedGroup, removed: list[RemovedSegment], error: OSError | None) -> None:
        self._swapping = None
        if not self._place.is_here(self.log):
            self._drop()
            self._swap_next()
            self._maybe_finish()
            return
        if error is not None:
            self._on_failed(error)
            return
        self._unread = self._unread[len(removed) :]
        self._place.remove_later(self.log, removed)
        self._report.segments_before += len(removed)
        self._report.segments_after += 1
        self._report.bytes_removed += sum(segment.size for segment in removed) - group.size
        self._swap_next()
        self._maybe_finish()

    def _on_failed(self, error: OSError | StorageError) -> None:
        self._swapping = None
        self._report.failure = self._report.failure or str(error)
        if not is_passing(error):
            self._place.on_failure(error)
        self._drop()
        self._groups.clear()
        self._maybe_finish()

    def _maybe_finish(self) -> None:
        if not self._ended or self._swapping or self._groups:
            return
        report, self._ended = self._report, False
        if self._done is not None and not self._dropped and report.failure is None:
            report.done = self._done
            self.log.swaps.on_cleaned(self._done.end_offset)
            self._finish()
        elif self._place.is_here(self.log):
            self._place.remove_cleaned(self.log, self._finish)
        else:
            self._finish()

    def _finish(self) -> None:
        report = self._report
        self.log.swaps.release()
        report.duration_ms = self._place.clock.monotonic_ms() - self._began_ms
        self._on_cleaned(report)
