"""Cuts a log at an offset, or empties it to begin at another one.

Guards: a call that fails for lack of room or of a descriptor (`StorageError.is_passing`) has changed nothing, and the
caller repeats it. If there is no room for the barrier once the log is cut, the `Truncation` has none, and the caller
calls `barrier` until it returns one.

Source: Kafka's UnifiedLog.truncateTo, truncateFullyAndStartAt.
"""

from __future__ import annotations

from lowtide.protocol.types import NO_LEADER_EPOCH, LeaderEpoch, Offset
from lowtide.runtime.committer import Barrier
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import Log
from lowtide.storage.log.log_values import Truncation
from lowtide.storage.log.segments.segment_files import RemovedSegment


class LogTruncation:
    """Cuts a log."""

    __slots__ = ("_log",)

    def __init__(self, log: Log) -> None:
        self._log = log

    def truncate_to(self, offset: Offset, *, now_ms: int) -> Truncation:
        """Removes the records at or above `offset`, which becomes the log end, and the log start if that lies above.

        A batch that straddles `offset` is removed whole, and the log end falls to its start, though not below the log
        start. Slices of removed records, and of the segment that is cut, become invalid. At or above the log end only
        later leader epochs are dropped. Before the next append the barrier must be done and the lowered recovery point
        be on disk; otherwise a power cut could mix old batches with new ones.

        A log starts over if it loses an erasure whose records may be gone, or later records for which compaction has
        removed earlier ones: the leader may still have those. Errors: StorageError, also one that passes.
        """
        assert offset >= 0
        log, files, segments = self._log, self._log.files, self._log.segments
        if offset >= log.log_end_offset:
            log.leader_epochs.truncate_from_end(offset, is_empty=log.log_start_offset == offset)
            return Truncation(None, [])
        if log.erasures.has_begun_from(offset) or offset < log.swaps.read_to:
            return self.truncate_fully_and_start_at(min(log.log_start_offset, offset), now_ms=now_ms)
        number = segments.number_of(offset)
        if number < 0 or offset < segments[number].first_offset:  # There is nothing before a hole's end.
            return self.truncate_fully_and_start_at(offset, now_ms=now_ms)
        place = segments[number].find(offset)
        files.aborted.load(segments[number].base_offset)
        log_end_offset = offset
        if place is not None and place.base_offset < offset and offset >= log.log_start_offset:
            log_end_offset = max(place.base_offset, log.log_start_offset)
        files.prepare_cut(number, log_end_offset)
        removed = files.remove_from(number + 1)
        segment = segments.activate(number)
        segment.cut(place)
        files.aborted.cut(segment.base_offset, log_end_offset)
        log.cut(log_end_offset)
        files.sync.on_truncated(log_end_offset)
        log.erasures.cut(log_end_offset)
        files.snapshots.drop_above(log_end_offset)
        log.are_producers_stale = True
        return self._truncation(removed, now_ms)

    def truncate_fully_and_start_at(
        self,
        offset: Offset,
        *,
        log_start_offset: Offset | None = None,
        leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
        now_ms: int,
    ) -> Truncation:
        """Empties the log: the next record gets `offset`, which is also the log start, if not given (KAFKA-9491).

        `leader_epoch` is that of the leader that caused it: up to `offset` the log then counts as that leader's. A
        crash in between leaves a prefix of the old log, perhaps with an empty segment behind it, or no segment at all.
        Errors: StorageError, also one that passes.
        """
        log = self._log
        removed = log.files.start_over(offset, log.config, now_ms)
        log.restart(log_start_offset=offset if log_start_offset is None else log_start_offset, log_end_offset=offset)
        log.files.sync.on_truncated(0)
        log.leader_epochs.assign(leader_epoch, offset)
        log.erasures.start_over()
        log.producer_state.reset()
        log.producer_state.verifications.clear()
        log.are_producers_stale = False
        return self._truncation(removed, now_ms)

    def _truncation(self, removed: list[RemovedSegment], now_ms: int) -> Truncation:
        try:
            return Truncation(self.barrier(now_ms=now_ms), removed)
        except StorageError as error:
            if not error.is_passing:
                raise
            return Truncation(None, removed, lacks_barrier=True)

    def barrier(self, *, now_ms: int) -> Barrier:
        """Returns a barrier that makes a truncation durable.

        Errors: StorageError; after one that passes it is called again.
        """
        log = self._log
        if log.are_producers_stale:
            log.files.reload_producers(log.producer_state, log, now_ms=now_ms)
            log.are_producers_stale = False
        return log.files.sync.truncation_barrier(log.segments.active.to_sync())
