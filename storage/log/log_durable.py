"""Making a log durable: what a flush has to sync, and what is written for a clean stop."""

from __future__ import annotations

from typing import Any

from lowtide.protocol.types import Offset
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem import File
from lowtide.storage.errors import storage_error
from lowtide.storage.log.log_parts import LogParts
from lowtide.storage.log.log_reading import ReadableLog
from lowtide.storage.log.log_values import LogConfig
from lowtide.storage.log.offsets import LogOffsets


class DurableLog(ReadableLog):
    """A log that is flushed and closed. Nothing here waits for the disk: a barrier is handed out.

    `flush_wanted` says that a segment was rolled since the last flush barrier, or that the log was repaired after an unclean stop.
    `attention` has the logs, this one or others, for which due work may come up by itself; it is shared with the code that carries that
    out.
    """

    __slots__ = ("attention", "flush_wanted")

    def __init__(self, config: LogConfig, parts: LogParts, offsets: LogOffsets) -> None:
        super().__init__(config, parts, offsets)
        self.flush_wanted = False
        self.attention: dict[Any, None] = {}

    def snapshot_producers(self) -> None:
        """Writes a snapshot of the producer state at the log end, if there is none and any record lies below it.

        Errors: OSError.
        """
        if self.log_end_offset > self._segments.bases[0] and self.log_end_offset not in self._snapshots.offsets:
            self._sync.note_written([self._snapshots.take(self.log_end_offset, self.producer_state)])

    def flush_barrier(self) -> Barrier | None:
        """What makes everything in the log durable; None when it is already.

        Once it is done, the caller calls `on_flushed` with the log end offset at the time of this call. Errors:
        StorageError.
        """
        if self.recovery_point == self.log_end_offset and self._sync.is_clean and not self.flush_wanted:
            return None
        # A segment that ends at the recovery point may have been cut since it was flushed: of a write for which there
        # was no room, of what was preallocated. If a power cut brought that back, the next start would end the log
        # there.
        first = max(self._segments.number_of(self.recovery_point - 1), 0)
        files = [self._segments[number].to_sync() for number in range(first, len(self._segments))]
        barrier = self._sync.flush_barrier(files, self.log_end_offset)
        self.flush_wanted = False
        return barrier

    def on_flushed(self, offset: Offset) -> bool:
        """The barrier that was made when the log end was `offset` is done. Returns whether the recovery point rose.

        What was truncated meanwhile, even if it grew again, doesn't count as flushed.
        """
        return self.raise_recovery_point(self._sync.on_flushed(offset))

    def on_flush_failed(self, offset: Offset, barrier: Barrier) -> None:
        """The barrier that was made when the log end was `offset` was not carried out, or not whole, for want of room.

        It is due again.
        """
        self._sync.on_flushed(offset)
        self.on_barrier_failed(barrier)
        self.flush_wanted = True
        self.attention[self] = None

    def close(self) -> Barrier | None:
        """Writes indexes and producer state for a clean stop; returns what must be durable before the stop counts as clean.

        The log isn't used any more, except for `on_flushed` and `files_to_close`. Errors: StorageError.
        """
        active = self._segments.active
        try:
            if active.changed and active.size:
                self._sync.note_written([*active.write_indexes(), *self._aborted.write(active.base_offset)])
                if self.config.preallocate:
                    active.file.truncate(active.size)
            self.snapshot_producers()
            self._sync.note_written(self._holed_files())
        except OSError as error:
            raise storage_error(active.path, error) from error
        return self.flush_barrier()

    def files_to_close(self) -> list[File]:
        """The files that are open, to be closed when they are not read any more."""
        return [segment.file for segment in self._segments if segment.is_open]
