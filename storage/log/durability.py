"""Flushes and closes a log: prepares the barriers to sync, and writes the files of a clean stop.

Nothing here waits for the disk.
"""

from __future__ import annotations

from lowtide.protocol.types import Offset
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem import File
from lowtide.storage.errors import storage_error
from lowtide.storage.log.log import Log
from lowtide.storage.log.log_holes import LogHoles


class LogDurability:
    """Flushes and closes a log."""

    __slots__ = ("_log",)

    def __init__(self, log: Log) -> None:
        self._log = log

    def take_snapshot(self) -> None:
        """Writes a snapshot of the producer state at the log end, unless there is one or the log has no records.

        Errors: OSError.
        """
        log, snapshots = self._log, self._log.files.snapshots
        if log.log_end_offset > log.segments.bases[0] and log.log_end_offset not in snapshots.offsets:
            log.files.sync.note_written([snapshots.take(log.log_end_offset, log.producer_state)])

    def flush_barrier(self) -> Barrier | None:
        """Returns a barrier that makes everything in the log durable; None if it is already.

        Once it is done, the caller calls `on_flushed` with the log end offset of this moment. Errors: StorageError.
        """
        log = self._log
        if log.recovery_point == log.log_end_offset and log.files.sync.is_clean and not log.flush_wanted:
            return None
        log.files.make()
        # A segment that ends at the recovery point may have been cut since it was flushed, of a failed write or of
        # preallocated bytes. If a power cut brought these back, the next start would end the log there.
        first = max(log.segments.number_of(log.recovery_point - 1), 0)
        files = [log.segments[number].to_sync() for number in range(first, len(log.segments))]
        barrier = log.files.sync.flush_barrier(files, log.log_end_offset)
        log.flush_wanted = False
        return barrier

    def on_flushed(self, offset: Offset) -> bool:
        """Raises the recovery point after the barrier made at the log end `offset`. Returns whether it rose.

        Records that were truncated meanwhile don't count as flushed, even if the log has grown again.
        """
        return self._log.raise_recovery_point(self._log.files.sync.on_flushed(offset))

    def on_flush_failed(self, offset: Offset, barrier: Barrier) -> None:
        """Schedules another flush after a barrier, made at the log end `offset`, that lacked room."""
        log = self._log
        log.files.sync.on_flushed(offset, succeeded=False)
        log.files.sync.on_failed(barrier)
        log.flush_wanted = True
        log.upkeep_queue[log] = None

    def close(self) -> Barrier | None:
        """Writes indexes and producer state for a clean stop. Returns the barrier that the stop depends on.

        Afterwards only `on_flushed` and `files_to_close` are called. Errors: StorageError.
        """
        log, sync = self._log, self._log.files.sync
        active = log.segments.active
        try:
            if active.changed and active.size:
                sync.note_written([*active.write_indexes(), *log.files.aborted.write(active.base_offset)])
                if log.config.preallocate:
                    active.file.truncate(active.size)
            self.take_snapshot()
            sync.note_written(LogHoles(log).files_for_clean_stop())
        except OSError as error:
            raise storage_error(active.path, error) from error
        return self.flush_barrier()

    def files_to_close(self) -> list[File]:
        """Returns the open files, to be closed when they are no longer read."""
        return [segment.file for segment in self._log.segments if segment.is_open]
