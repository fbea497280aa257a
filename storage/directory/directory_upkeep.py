"""Does the work of one log directory that falls due without a request: flushes, checkpoints, removals, expiry.

Guards: it blocks the loop for a few hundred logs at a time, and checks each time only logs that may be due. Checkpoints
and expiry of producers have intervals of seconds and minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from lowtide.protocol.types import TopicPartition
from lowtide.storage.checkpoint import ROWS_PER_STEP
from lowtide.storage.directory.directory_erasures import DirectoryErasures
from lowtide.storage.directory.directory_holes import DirectoryHoles
from lowtide.storage.directory.file_removal import FileRemoval
from lowtide.storage.directory.log_flusher import LogFlusher
from lowtide.storage.directory.log_settings import LogManagerSettings
from lowtide.storage.directory.offset_checkpoint import OffsetCheckpoint
from lowtide.storage.log.log import Log
from lowtide.storage.log.segments.segment_files import RemovedSegment
from lowtide.storage.log_start.journal import LogStartJournal


class UpkeepParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the directory that the upkeep works with."""

    logs: Mapping[TopicPartition, Log]
    flusher: LogFlusher
    removal: FileRemoval
    holes: DirectoryHoles
    erasures: DirectoryErasures
    high_watermarks: OffsetCheckpoint
    recovery_points: OffsetCheckpoint
    journal: LogStartJournal
    is_served: Callable[[], bool]
    """Whether the directory is online and isn't being stopped."""
    retries: tuple[Callable[[], None], ...]
    """Repeat steps that lacked room or a descriptor."""
    on_removed: Callable[[Log, list[RemovedSegment]], None]
    """Called with segments that left a log because they lay below its start."""


class DirectoryUpkeep:
    """Does the due work of the logs of one directory. Used from the event loop only."""

    def __init__(self, settings: LogManagerSettings, parts: UpkeepParts) -> None:
        self._settings = settings
        self._parts = parts
        self._next_ms = dict.fromkeys(("recovery points", "high watermarks", "producers"), 0)
        self._export_is_stale = False

    def begin(self, now_ms: int) -> None:
        """Starts the intervals: the directory is served from now on."""
        self._next_ms = {
            "recovery points": now_ms + self._settings.recovery_point_interval_ms,
            "high watermarks": now_ms + self._settings.high_watermark_interval_ms,
            "producers": now_ms + self._settings.producer_expiration_check_ms,
        }

    def on_forgotten(self) -> None:
        """Schedules new exports for Kafka, because partitions were deleted."""
        self._export_is_stale = True

    def due(self, now_ms: int, wall_ms: int) -> Iterator[None]:
        """Does what is due, one step at a time; anything may change between two steps."""
        parts = self._parts
        for some in _in_steps(parts.flusher.logs_to_check()):
            for log in some:
                if self._is_here(log):
                    parts.flusher.flush_due(log, now_ms)
                    parts.erasures.want(log)
                    if removed := log.files.remove_below(log.log_start_offset, log.config):
                        parts.removal.remove_segments(removed, now_ms + log.config.file_delete_delay_ms)
                        parts.on_removed(log, removed)
                        parts.holes.risen[log] = None
            yield
        if not parts.is_served():
            return
        parts.removal.tick(now_ms)
        for retry in parts.retries:
            retry()
        if self._is_due("high watermarks", now_ms, self._settings.high_watermark_interval_ms):
            yield from parts.high_watermarks.write()
        if self._is_due("recovery points", now_ms, self._settings.recovery_point_interval_ms):
            yield from parts.recovery_points.write()
            if self._export_is_stale and parts.is_served():
                self._export_is_stale = False
                parts.journal.fold(self._on_folded)
        if self._is_due("producers", now_ms, self._settings.producer_expiration_check_ms):
            for some in _in_steps(list(parts.logs.values())):
                for log in some:
                    log.producer_state.remove_expired(wall_ms)
                yield

    def _is_here(self, log: Log) -> bool:
        return self._parts.logs.get(log.topic_partition) is log and self._parts.is_served()

    def _is_due(self, what: str, now_ms: int, interval_ms: int) -> bool:
        if now_ms < self._next_ms[what]:
            return False
        self._next_ms[what] = now_ms + interval_ms
        return True

    def _on_folded(self, error: OSError | None) -> None:
        self._export_is_stale |= error is not None


def _in_steps(logs: list[Log]) -> Iterator[list[Log]]:
    for start in range(0, len(logs), ROWS_PER_STEP):
        yield logs[start : start + ROWS_PER_STEP]
