"""The parts that work on the logs of one directory, built when its journal is open: each from parts that exist.

journal, flusher, removal ── checkpoints ── holes ── erasures ── log starts, cleanings, truncations ── deletions
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.storage.checkpoint import HIGH_WATERMARK_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from lowtide.storage.directory.directory_cleanings import DirectoryCleanings
from lowtide.storage.directory.directory_deletions import DirectoryDeletions
from lowtide.storage.directory.directory_erasures import DirectoryErasures
from lowtide.storage.directory.directory_holes import DirectoryHoles
from lowtide.storage.directory.file_removal import FileRemoval
from lowtide.storage.directory.log_flusher import LogFlusher
from lowtide.storage.directory.log_starts import DirectoryLogStarts
from lowtide.storage.directory.log_truncation import LogTruncations
from lowtide.storage.directory.offset_checkpoint import OffsetCheckpoint
from lowtide.storage.log_start.journal import LogStartJournal

if TYPE_CHECKING:
    from lowtide.storage.directory.directory_partitions import CheckpointedOffsets, DirectoryPartitions
    from lowtide.storage.directory.directory_state import DirectoryState
    from lowtide.storage.directory.log_settings import DirectoryPorts, LogListeners, LogManagerSettings


class DirectoryParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one directory."""

    journal: LogStartJournal
    flusher: LogFlusher
    removal: FileRemoval
    recovery_points: OffsetCheckpoint
    high_watermarks: OffsetCheckpoint
    holes: DirectoryHoles
    erasures: DirectoryErasures
    log_starts: DirectoryLogStarts
    cleanings: DirectoryCleanings
    truncations: LogTruncations
    deletions: DirectoryDeletions

    def stop(self) -> None:
        """Begins nothing new; what is under way is still answered."""
        self.flusher.stop()
        self.deletions.stop()
        self.removal.stop()
        self.holes.stop()
        self.erasures.stop()
        self.recovery_points.stop()
        self.high_watermarks.stop()
        self.cleanings.stop()
        self.truncations.stop()
        self.log_starts.stop()
        self.journal.stop()


def build_parts(
    state: DirectoryState,
    partitions: DirectoryPartitions,
    journal: LogStartJournal,
    ports: DirectoryPorts,
    settings: LogManagerSettings,
    listeners: LogListeners,
) -> DirectoryParts:
    """Builds the parts over a directory's state, partitions and journal."""
    logs, filesystem = partitions.logs, ports.filesystem

    def checkpoint(name: str, offsets: CheckpointedOffsets) -> OffsetCheckpoint:
        return OffsetCheckpoint(
            filesystem, ports.committer, f"{state.path}/{name}", offsets.by_partition, offsets.values, state.fail
        )

    flusher = LogFlusher(ports, listeners.on_flushed, state.fail)
    removal = FileRemoval(filesystem, ports.worker, state.fail, frees=settings.frees_deleted)
    recovery_points = checkpoint(RECOVERY_POINT_CHECKPOINT, partitions.recovery_points)
    high_watermarks = checkpoint(HIGH_WATERMARK_CHECKPOINT, partitions.high_watermarks)
    holes = DirectoryHoles(state.path, ports, logs, state.fail, listeners.freed, frees=settings.frees_deleted)
    erasures = DirectoryErasures(state, ports, logs, removal, holes, listeners)
    log_starts = DirectoryLogStarts(journal, logs, ports.clock, removal, listeners.deleted, (holes, erasures.wanted))
    cleanings = DirectoryCleanings(state.path, ports, logs, removal, state.fail, state.is_active)
    truncations = LogTruncations(ports, logs, removal, recovery_points, journal, state.fail)
    checkpoints = (recovery_points, high_watermarks, cleanings)
    return DirectoryParts(
        journal=journal,
        flusher=flusher,
        removal=removal,
        recovery_points=recovery_points,
        high_watermarks=high_watermarks,
        holes=holes,
        erasures=erasures,
        log_starts=log_starts,
        cleanings=cleanings,
        truncations=truncations,
        deletions=DirectoryDeletions(state, ports, removal, journal, checkpoints),
    )
