"""The parts that work on the logs of one directory, built when its journal is open: each from parts that exist.

journal, flusher, removal ── checkpoints ── holes ── erasures ── log starts, cleanings, truncations ── upkeep ──
deletions
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.storage.checkpoint import HIGH_WATERMARK_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from lowtide.storage.directory.directory_cleanings import DirectoryCleanings
from lowtide.storage.directory.directory_deletions import DeletionHooks, DirectoryDeletions
from lowtide.storage.directory.directory_erasures import DirectoryErasures, ErasureHooks
from lowtide.storage.directory.directory_holes import DirectoryHoles
from lowtide.storage.directory.directory_upkeep import DirectoryUpkeep, UpkeepParts
from lowtide.storage.directory.file_removal import FileRemoval
from lowtide.storage.directory.log_flusher import FlushListener, LogFlusher
from lowtide.storage.directory.log_starts import DirectoryLogStarts
from lowtide.storage.directory.log_truncation import LogTruncations
from lowtide.storage.directory.offset_checkpoint import OffsetCheckpoint
from lowtide.storage.log_start.journal import LogStartJournal

if TYPE_CHECKING:
    from lowtide.storage.directory.directory_partitions import CheckpointedOffsets, DirectoryPartitions
    from lowtide.storage.directory.directory_state import DirectoryState
    from lowtide.storage.directory.log_settings import DirectoryPorts, LogListeners, LogManagerSettings
    from lowtide.storage.log.log import Log
    from lowtide.storage.log.segments.segment_files import RemovedSegment


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
    upkeep: DirectoryUpkeep
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

    def on_flushed(log: Log) -> None:
        for listener in () if log.is_future else listeners.flushed:
            listener(log)

    flush_listener = FlushListener(on_flushed=on_flushed, on_failure=state.fail)
    flusher = LogFlusher(filesystem, ports.committer, ports.clock, flush_listener, ports.cache.files)
    removal = FileRemoval(filesystem, ports.worker, state.fail, frees=settings.frees_deleted)
    recovery_points = checkpoint(RECOVERY_POINT_CHECKPOINT, partitions.recovery_points)
    high_watermarks = checkpoint(HIGH_WATERMARK_CHECKPOINT, partitions.high_watermarks)
    holes = DirectoryHoles(state.path, ports, logs, state.fail, listeners.freed, frees=settings.frees_deleted)

    def on_removed(log: Log, removed: list[RemovedSegment]) -> None:
        for listener in () if log.is_future else listeners.prefix_deleted:
            listener(log, log.log_start_offset, removed)

    erasure_hooks = ErasureHooks(
        is_served=state.is_active, on_removed=on_removed, not_erased=listeners.not_erased, on_failure=state.fail
    )
    erasures = DirectoryErasures(ports, logs, removal, holes, erasure_hooks)
    log_starts = DirectoryLogStarts(
        journal, logs, ports.clock, removal, listeners.prefix_deleted, (holes, erasures.wanted)
    )
    cleanings = DirectoryCleanings(state.path, ports, logs, removal, state.fail, state.is_active)
    truncations = LogTruncations(ports, logs, removal, recovery_points, journal, state.fail)
    upkeep_parts = UpkeepParts(
        logs=logs,
        flusher=flusher,
        removal=removal,
        holes=holes,
        erasures=erasures,
        high_watermarks=high_watermarks,
        recovery_points=recovery_points,
        journal=journal,
        is_served=state.is_active,
        retries=(journal.retry, truncations.retry, cleanings.retry),
        on_removed=on_removed,
    )
    upkeep = DirectoryUpkeep(settings, upkeep_parts)
    hooks = DeletionHooks(
        journal=journal,
        checkpoints=(recovery_points, high_watermarks, cleanings),
        on_forgotten=upkeep.on_forgotten,
        on_failure=state.fail,
    )
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
        upkeep=upkeep,
        deletions=DirectoryDeletions(state.path, ports, removal, hooks),
    )
