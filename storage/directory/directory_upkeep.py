"""Does the work of one log directory that falls due without a request: flushes, checkpoints, removals, expiry.

Guards: it blocks the loop for a few hundred logs at a time, and checks each time only logs that may be due. Checkpoints
and expiry of producers have intervals of seconds and minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from lowtide.protocol.types import TopicPartition
from lowtide.storage.checkpoint import ROWS_PER_STEP
from lowtide.storage.directory.directory_parts import DirectoryParts
from lowtide.storage.directory.log_settings import LogListeners, LogManagerSettings
from lowtide.storage.log.log import Log


class DirectoryUpkeep:
    """Does the due work of the logs of one directory. Used from the event loop only."""

    def __init__(
        self,
        settings: LogManagerSettings,
        listeners: LogListeners,
        parts: DirectoryParts,
        logs: Mapping[TopicPartition, Log],
        is_served: Callable[[], bool],
        now_ms: int,
    ) -> None:
        """Starts the intervals at `now_ms`. `is_served`: the directory is online and isn't being stopped."""
        self._settings = settings
        self._listeners = listeners
        self._parts = parts
        self._logs = logs
        self._is_served = is_served
        self._next_ms = {
            "recovery points": now_ms + settings.recovery_point_interval_ms,
            "high watermarks": now_ms + settings.high_watermark_interval_ms,
            "producers": now_ms + settings.producer_expiration_check_ms,
        }

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
                        self._listeners.on_removed(log, removed)
                        parts.holes.schedule(log)
            yield
        if not self._is_served():
            return
        parts.removal.tick(now_ms)
        parts.journal.retry()
        parts.truncations.retry()
        parts.cleanings.retry()
        if self._is_due("high watermarks", now_ms, self._settings.high_watermark_interval_ms):
            yield from parts.high_watermarks.write()
        if self._is_due("recovery points", now_ms, self._settings.recovery_point_interval_ms):
            yield from parts.recovery_points.write()
            if self._is_served():
                parts.deletions.refresh_exports()
        if self._is_due("producers", now_ms, self._settings.producer_expiration_check_ms):
            for some in _in_steps(list(self._logs.values())):
                for log in some:
                    log.producer_state.remove_expired(wall_ms)
                yield

    def _is_here(self, log: Log) -> bool:
        return self._logs.get(log.topic_partition) is log and self._is_served()

    def _is_due(self, what: str, now_ms: int, interval_ms: int) -> bool:
        if now_ms < self._next_ms[what]:
            return False
        self._next_ms[what] = now_ms + interval_ms
        return True


def _in_steps(logs: list[Log]) -> Iterator[list[Log]]:
    for start in range(0, len(logs), ROWS_PER_STEP):
        yield logs[start : start + ROWS_PER_STEP]
