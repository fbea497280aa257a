"""Opens a log: makes a log that may be served from the files that a stop, a crash or a power cut left in its folder.

After a clean stop a walk over the last segment's headers finds the log end. After any other stop everything from the
recovery point on is checked: the log ends before the first byte that isn't part of a whole, sound batch, and the rest
is dropped, because it was never promised. Indexes, leader epochs and producer state are rebuilt if needed.

A crash can interrupt each step, and a repetition has the same outcome: files are removed from the end of the log
towards its start, before the cut that makes them superfluous.

Guards: a log start is never lowered; segments wholly below it are removed, and a log that ends below it restarts,
empty, at it.

Sources: Kafka's LogLoader, LogSegment.recover, LogManager.loadLog.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from uuid import UUID

from lowtide.protocol.types import Offset
from lowtide.runtime.filesystem import File, FileSystem
from lowtide.storage.checkpoint import CheckpointError
from lowtide.storage.errors import DamagedSegmentError, storage_error
from lowtide.storage.log.durability import LogDurability
from lowtide.storage.log.log import Log
from lowtide.storage.log.log_erasures import (
    ERASURES_FILE,
    KnownErasure,
    LogErasures,
    decode_erasures,
    merged,
    stored_erasure,
)
from lowtide.storage.log.log_files import LogParts, LogPlace
from lowtide.storage.log.offsets import LeaderEpochs, LogOffsets
from lowtide.storage.log.opening.known_log import KnownLog, LogRepairs
from lowtide.storage.log.opening.log_folder import LogFolder
from lowtide.storage.log.producers.snapshots import ProducerSnapshots
from lowtide.storage.log.producers.transaction_index import TransactionIndex
from lowtide.storage.log.segments.new_segment import create_segment_file
from lowtide.storage.log.segments.segment import Segment


def create_log(place: LogPlace, *, now_ms: int, log_start_offset: Offset = 0) -> Log:
    """Creates the folder of a new log, with one empty segment at `log_start_offset`.

    The folder has no segment yet. Nothing is synced: the first flush barrier does that. Errors: OSError.
    """
    log = put_off_log(
        place,
        lambda: place.filesystem.make_directories(place.directory),
        now_ms=now_ms,
        log_start_offset=log_start_offset,
    )
    log.segments.active.open_for_writing()
    return log


def put_off_log(place: LogPlace, make_folder: Callable[[], None], *, now_ms: int, log_start_offset: Offset = 0) -> Log:
    """Returns a new, empty log that touches no file yet.

    Its first write, or `LogFiles.make`, calls `make_folder` and creates the file of its segment.
    """
    filesystem, directory, config = place.filesystem, place.directory, place.config
    preallocate_bytes = config.segment_bytes if config.preallocate else 0
    create_file = partial(_create_first_file, filesystem, make_folder, preallocate_bytes)
    segment = Segment.put_off(
        filesystem, directory, log_start_offset, now_ms=now_ms, create_file=create_file, files=place.cache.files
    )
    parts = LogParts(
        filesystem=filesystem,
        directory=directory,
        segments=[segment],
        leader_epochs=LeaderEpochs(),
        producer_state=place.producer_state,
        snapshots=ProducerSnapshots(filesystem, directory),
        transaction_index=TransactionIndex(filesystem, directory),
        cache=place.cache,
        erasures=LogErasures(),
    )
    offsets = LogOffsets(
        log_start_offset=log_start_offset,
        log_end_offset=log_start_offset,
        high_watermark=log_start_offset,
        recovery_point=log_start_offset,
        leader_epochs=parts.leader_epochs,
        transactions=parts.producer_state.transactions,
    )
    return Log(place, parts, offsets)


def _create_first_file(
    filesystem: FileSystem, make_folder: Callable[[], None], preallocate_bytes: int, path: str
) -> File:
    make_folder()
    return create_segment_file(filesystem, preallocate_bytes, path)


def load_log(place: LogPlace, known: KnownLog, *, now_ms: int, report: LogRepairs | None = None) -> Log:
    """Opens the log in `place.directory`, which exists, and fills in `report`.

    A gap between unsynced segments ends the log, unless it is below `known.cleaned_to`: our own compaction leaves none.
    The recovery point is never above the given one, whatever was checked: checking reads the page cache, which proves
    nothing. After an unclean stop `flush_wanted` is set: until that barrier is done, a power cut may undo repairs, and
    a truncation before the crash. Errors: StorageError if the disk fails.
    """
    loader = LogFolder(place, now_ms, report if report is not None else LogRepairs())
    loader.cleaned_to = known.cleaned_to
    try:
        loader.remove_leftovers()
        segments = loader.open_segments(known.log_start_offset)
        loader.settle_hole(known)
        log_start_offset = max(known.log_start_offset, segments[0].first_offset if segments else 0)
        log_end_offset = loader.find_log_end(known.recovery_point, log_start_offset, clean=known.clean)
        if known.clean:
            _check_end(loader, known.recovery_point, log_end_offset)
        parts = LogParts(
            filesystem=place.filesystem,
            directory=place.directory,
            segments=loader.segments,
            leader_epochs=loader.epochs,
            producer_state=place.producer_state,
            snapshots=loader.snapshots(log_end_offset),
            transaction_index=loader.transaction_index(),
            cache=place.cache,
            erasures=_known_erasures(loader, known.recovery_point, log_end_offset, clean=known.clean),
        )
        offsets = LogOffsets(
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            high_watermark=known.high_watermark,
            recovery_point=known.recovery_point,
            leader_epochs=parts.leader_epochs,
            transactions=parts.producer_state.transactions,
        )
        log = Log(place, parts, offsets)
        log.files.reload_producers(log.producer_state, log, now_ms=now_ms)
        loader.rebuild_aborted(log, parts.transaction_index)
        if not known.clean:
            log.flush_wanted = True
            # The crash may have come in a roll, before its snapshot; then earlier segments would take their producers
            # along when they go. On a full disk the log does without.
            with contextlib.suppress(OSError):
                LogDurability(log).take_snapshot()
    except OSError as error:
        raise storage_error(place.directory, error) from error
    return log


def _check_end(folder: LogFolder, recovery_point: Offset, log_end_offset: Offset) -> None:
    """Checks that a log ends where a clean stop has left it. Errors: DamagedSegmentError.

    No CRC contains the offset of the last batch, nor shows that batches are missing. Recovery point and newest snapshot
    both say where the end was; if only one of them differs, it is the damaged one.
    """
    newest = max(folder.snapshot_offsets(), default=log_end_offset)
    if log_end_offset not in (newest, recovery_point) and recovery_point:
        reason = f"it ended at offset {newest} when the broker stopped, and now ends at {log_end_offset}"
        raise DamagedSegmentError(folder.segments[-1].path, reason)


def _known_erasures(folder: LogFolder, recovery_point: Offset, log_end_offset: Offset, *, clean: bool) -> LogErasures:
    """Returns the erasures of a log, from their file and, where it may lack some, from the batches.

    Errors: StorageError.
    """
    stored: list[KnownErasure] = []
    searches: list[UUID] = []
    searched = [] if clean else folder.unindexed
    if ERASURES_FILE in folder.names:
        path = folder.path(ERASURES_FILE)
        try:
            stored, searches = decode_erasures(path, folder.filesystem.read_bytes(path))
        except CheckpointError:
            searched, recovery_point = folder.segments, 0
    found = [each for segment in searched if segment in folder.segments for each in _erasures_in(segment)]
    known = merged(stored, found, log_end_offset if clean and searched is not folder.segments else recovery_point)
    is_on_disk = clean and known == stored
    has_some = bool(known or searches)
    return LogErasures(
        [each for each in known if each.offset < log_end_offset], searches, dirty=has_some and not is_on_disk
    )


def _erasures_in(segment: Segment) -> Iterator[KnownErasure]:
    for position, header in segment.batches(0):
        if header.is_control and header.producer_id < 0 and header.record_count:
            record = stored_erasure(segment.path, segment.read_batch(position, header.size_bytes))
            if record is not None:
                yield KnownErasure.of(record, header.base_offset, header.partition_leader_epoch)
