"""The hole at the beginning of a log's first segment: the deleted bytes that become one, and the files to sync first.

Guards: a hole covers only whole batches that lie below the visible log start.
"""

from __future__ import annotations

from contextlib import suppress

from lowtide.protocol.types import NO_LEADER_EPOCH, FilePosition, Offset
from lowtide.runtime.filesystem import CannotPunchError
from lowtide.storage.log.log import Log
from lowtide.storage.log.segments.hole import Hole, PendingHole
from lowtide.storage.log.segments.segment import Segment
from lowtide.storage.log.segments.segment_file import read_hole
from lowtide.storage.log.segments.unfreed import PlannedRoom, UnfreedReason, small_room


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
        position, end_offset = self._end(segment, log_start_offset)
        next_offset = min(end_offset, log_start_offset)
        if (
            position - segment.punched < least_bytes
            or next_offset <= segment.base_offset
            or (position == segment.size and next_offset < end_offset)
        ):
            return None
        epochs = log.leader_epochs.entries()
        epoch = epochs[0][0] if epochs else NO_LEADER_EPOCH
        hole = Hole(segment.base_offset, next_offset, position, epoch, end_offset - next_offset)
        segment.leave_out(hole)
        segment.forget_file()
        segment.hole = PendingHole(segment.path, hole, segment.punched, segment.held())
        return segment.hole

    def _end(self, segment: Segment, log_start_offset: Offset) -> tuple[FilePosition, Offset]:
        """Returns where the hole of a segment ends, and the offset of the first batch behind it.

        Errors: StorageError.
        """
        is_all = log_start_offset == self._log.log_end_offset
        place = None if is_all else segment.find(log_start_offset)
        return (segment.size, self._log.log_end_offset) if place is None else (place.position, place.base_offset)

    def planned(self, offset: Offset, no_hole: UnfreedReason | None, least_bytes: int) -> PlannedRoom:
        """Returns what a delete up to `offset` (exclusive) frees.

        `no_hole` is why the log gets no holes, if it gets none. Errors: StorageError.
        """
        log = self._log
        removed = log.segments[: max(0, log.segments.number_of(offset))]
        hole_bytes, kept_bytes = self._planned_hole(offset)
        if no_hole is not None or hole_bytes < least_bytes:
            hole_bytes, kept_bytes = 0, kept_bytes + hole_bytes
        waits = no_hole in {UnfreedReason.SWITCHED_OFF, UnfreedReason.COMPACTED}
        return PlannedRoom(
            file_count=len(removed),
            file_bytes=sum(segment.size for segment in removed) - (removed[0].punched if removed else 0),
            delay_ms=log.config.file_delete_delay_ms if waits else 0,
            hole_bytes=hole_bytes,
            kept_bytes=kept_bytes,
            waits_for=(no_hole or small_room(kept_bytes, least_bytes)) if kept_bytes else None,
        )

    def _planned_hole(self, offset: Offset) -> tuple[int, int]:
        """Returns the bytes that become a hole if the log start rises to `offset`, and the deleted bytes that stay.

        The second number is an estimate. Errors: StorageError.
        """
        log = self._log
        number = log.segments.number_of(offset)
        if number < 0 or offset <= log.log_start_offset or not (segment := log.segments[number]).size:
            return 0, 0
        if offset <= segment.base_offset:
            return 0, 0
        position, _ = self._end(segment, offset)
        hole_bytes = max(0, position - segment.punched)
        return hole_bytes, max(0, log.segments.unfreed_bytes(offset, log.log_end_offset, number) - hole_bytes)

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
