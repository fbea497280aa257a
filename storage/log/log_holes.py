"""The hole at the beginning of a log's first segment: the deleted bytes that become one, and the files to sync first.

Guards: a hole covers only whole batches that lie below the visible log start.
"""

from __future__ import annotations

from contextlib import suppress

from lowtide.protocol.types import NO_LEADER_EPOCH, Offset
from lowtide.runtime.filesystem import CannotPunchError
from lowtide.storage.log.log import Log
from lowtide.storage.log.segments.hole import Hole, PendingHole
from lowtide.storage.log.segments.segment_file import read_hole


class LogHoles:
    """Makes the holes of a log."""

    __slots__ = ("_log",)

    def __init__(self, log: Log) -> None:
        self._log = log

    @property
    def are_allowed(self) -> bool:
        """Whether bytes below the log start are freed before their files are removed (`LogFiles.frees_at_once`)."""
        return self._log.files.frees_at_once(self._log.config)

    @property
    def pending(self) -> PendingHole | None:
        """The hole in progress."""
        return self._log.segments[0].hole

    @property
    def unfreed_bytes(self) -> int:
        """The approximate number of deleted bytes in the first segment: see `SegmentList.unfreed_bytes`."""
        return self._log.segments.unfreed_bytes(self._log.log_start_offset, self._log.log_end_offset)

    def begin(self, least_bytes: int = 1) -> PendingHole | None:
        """Leaves out the deleted part of the first segment, which holds the log start.

        Returns None if less than `least_bytes` is newly deleted. Errors: StorageError.
        """
        log = self._log
        segment, log_start_offset = log.segments[0], log.log_start_offset
        if not self.are_allowed or log.segments.number_of(log_start_offset) != 0:
            return None
        if segment.hole is not None or log_start_offset <= segment.base_offset or not segment.size:
            return None
        place = None if log_start_offset == log.log_end_offset else segment.find(log_start_offset)
        if place is not None:
            position, end_offset = place.position, place.base_offset
        else:
            position, end_offset = segment.size, log.log_end_offset
        next_offset = min(end_offset, log_start_offset)
        if (
            position - segment.punched < least_bytes
            or next_offset <= segment.base_offset
            or (place is None and next_offset < end_offset)
        ):
            return None
        epochs = log.leader_epochs.entries()
        epoch = epochs[0][0] if epochs else NO_LEADER_EPOCH
        hole = Hole(segment.base_offset, next_offset, position, epoch, end_offset - next_offset)
        segment.leave_out(hole)
        segment.forget_file()
        segment.hole = PendingHole(segment.path, hole, segment.punched, segment.held())
        return segment.hole

    def take_snapshot(self) -> list[str]:
        """Writes the state of the producers, whose batches may be removed.

        Returns the files that must be as durable as these batches. Errors: OSError.
        """
        log = self._log
        path = log.files.snapshots.take_between(log.log_end_offset, log.producer_state, log.high_watermark)
        return [] if path is None or log.recovery_point <= log.segments.bases[0] else [path]

    def take_snapshot_for_erasure(self) -> list[str]:
        """Writes the state of the producers for an erasure.

        Returns the files that must be durable before any batch is removed. Errors: OSError.
        """
        log = self._log
        if not log.producer_state.producers:
            return []
        log.files.snapshots.take_between(log.log_end_offset, log.producer_state, log.high_watermark)
        return [log.files.snapshots.path(log.log_end_offset)]

    def on_erased(self, offset: Offset) -> None:
        """Records that the first segment has no record below `offset`."""
        segment = self._log.segments[0]
        segment.gone_offset = max(segment.gone_offset, offset)

    def on_made(self, pending: PendingHole) -> None:
        """Records that a hole is made, unless it was abandoned meanwhile."""
        segment = self._log.segments[0]
        if segment.hole is pending:
            segment.hole = None
            segment.punched = pending.hole.size
            self.on_erased(pending.hole.next_offset)

    def give_up(self, pending: PendingHole) -> None:
        """Abandons a hole that could not be noted; it is begun again."""
        if self._log.segments[0].hole is pending:
            self._log.segments[0].abandon_hole()

    def files_for_clean_stop(self) -> list[str]:
        """Makes the hole of the first segment final. Returns the files that the next start relies on.

        Errors: OSError, StorageError.
        """
        segment, filesystem = self._log.segments[0], self._log.files.filesystem
        if not segment.floor:
            return []
        if segment.hole is not None:
            segment.hole.make(filesystem)
        elif (
            segment.punched < segment.floor and (hole := read_hole(segment)) is not None and hole.size > segment.punched
        ):
            # A power cut may have brought back what was there, and the next start, a clean one, takes the hole for
            # made.
            with suppress(CannotPunchError):
                PendingHole(segment.path, hole, 0, ()).make(filesystem)
        return [segment.path] if segment.is_pinned else [segment.path, *segment.write_indexes()]
