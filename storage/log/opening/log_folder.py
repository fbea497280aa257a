"""The folder of a log while it is opened: the steps of `loader`, after which its segments may be served.

A crash can interrupt each step, and a repetition has the same outcome: files are removed from the end of the log
towards its start. Source: Kafka's LogLoader, LogSegment.recover.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_right
from typing import Final

from lowtide.protocol.types import Offset
from lowtide.storage.checkpoint import LEADER_EPOCH_CHECKPOINT, TEMPORARY_SUFFIX, CheckpointError, decode_epochs
from lowtide.storage.errors import is_passing
from lowtide.storage.log.cleaned_segment import CLEANED_SUFFIX, SWAP_SUFFIX
from lowtide.storage.log.log import Log
from lowtide.storage.log.log_files import LogPlace
from lowtide.storage.log.offsets import LeaderEpochs
from lowtide.storage.log.opening.known_log import KnownLog, LogRepairs
from lowtide.storage.log.opening.log_recovery import are_confirmed, begins_behind, check_segment
from lowtide.storage.log.producers.snapshots import ProducerSnapshots, unconfirmed_aborted
from lowtide.storage.log.producers.transaction_index import TransactionIndex
from lowtide.storage.log.segments.index_repair import rebuild_indexes
from lowtide.storage.log.segments.new_segment import create_segment
from lowtide.storage.log.segments.open_files import OpenFiles
from lowtide.storage.log.segments.segment import Segment
from lowtide.storage.log.segments.segment_file import fill_hole, read_hole
from lowtide.storage.log.segments.segment_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    KEY_FILTER_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_name,
)

_LOG_NAME: Final = re.compile(r"\d{20}\.log\Z")
_NAMED_BY_OFFSET: Final = re.compile(r"(\d{20})(\.(?:log|index|timeindex|txnindex|snapshot|keyfilter))\Z")
_SWAPPED: Final = re.compile(r"(\d{20})(\.(?:log|index|timeindex|txnindex))\.swap\Z")


class LogFolder:
    """One folder being opened. Its methods are the steps, in order; each may be repeated after a crash."""

    def __init__(self, place: LogPlace, now_ms: int, report: LogRepairs) -> None:
        self.filesystem = place.filesystem
        self.directory = place.directory
        self.config = place.config
        self.now_ms = now_ms
        self.report = report
        self.names: set[str] = set(self.filesystem.listdir(self.directory))
        self.cleaned_to: Offset = 0
        self.files: OpenFiles | None = place.cache.files
        self.segments: list[Segment] = []
        self.epochs = LeaderEpochs()
        self.epochs_read = 0
        self.epochs_known = False
        self.unindexed: list[Segment] = []
        """Segments whose aborted transactions are unknown; the index files of these segments are written last."""
        self.doubted: list[Segment] = []
        """Segments whose index of aborted transactions may not be on the disk."""

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        if name in self.names:
            self.names.discard(name)
            with contextlib.suppress(FileNotFoundError):
                self.filesystem.unlink(self.path(name))

    def remove_segment(self, segment: Segment) -> None:
        """Removes a segment's files, the `.log` first: without it the others are orphans."""
        segment.forget_file()
        for suffix in SEGMENT_SUFFIXES:
            self.remove(offset_name(segment.base_offset) + suffix)

    def remove_leftovers(self) -> None:
        """Removes files that a crash left incomplete, and finishes a swap of compacted segments.

        Source: Kafka's LogLoader.load.
        """
        unfinished = [int(name[:20]) for name in self.names if name.endswith(CLEANED_SUFFIX) and name[:20].isdigit()]
        for name in sorted(self.names):
            if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, TEMPORARY_SUFFIX)):
                self.report.removed_files.append(name)
                self.remove(name)
        self._finish_swap(min(unfinished, default=None))
        logs = {name[:20] for name in self.names if _LOG_NAME.match(name)}
        for name in sorted(self.names):
            suffixes = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, KEY_FILTER_SUFFIX)
            if name.endswith(suffixes) and name[:20] not in logs:
                self.report.removed_files.append(name)
                self.remove(name)

    def _finish_swap(self, first_unfinished: Offset | None) -> None:
        """Puts compacted segments in place: `.swap` files are complete, unless some are still `.cleaned`."""
        swapped = sorted(name for name in self.names if _SWAPPED.match(name))
        for name in [name for name in self.names if name.endswith(SWAP_SUFFIX) and not _SWAPPED.match(name)]:
            self.remove(name)
        if first_unfinished is not None:
            for name in [name for name in swapped if int(name[:20]) >= first_unfinished]:
                self.remove(name)
                swapped.remove(name)
        ends = []
        for name in swapped:
            if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
                segment = self._segment(int(name[:20]), self.filesystem.file_size(self.path(name)))
                segment.path = self.path(name)
                # Its indexes aren't used: under this name it has none, and new ones would be left behind.
                ends.append(max((header.next_offset for _, header in segment.batches(0)), default=segment.base_offset))
                segment.forget_file()
        if ends:
            first, end = int(swapped[0][:20]), max(ends)
            for name in sorted(self.names, reverse=True):
                named = _NAMED_BY_OFFSET.match(name)
                if named and named[2] != SNAPSHOT_SUFFIX and first <= int(named[1]) < end:
                    self.remove(name)
        for name in swapped:
            target = name.removesuffix(SWAP_SUFFIX)
            self.filesystem.rename(self.path(name), self.path(target))
            self.names.discard(name)
            self.names.add(target)

    def _segment(self, base_offset: Offset, size: int) -> Segment:
        segment = Segment(self.filesystem, self.directory, base_offset, size=size, created_ms=self.now_ms)
        segment.files = self.files
        return segment

    def open_segments(self, log_start_offset: Offset) -> list[Segment]:
        """Returns the segments of the folder; removes those wholly below the log start."""
        bases = sorted(int(name[:20]) for name in self.names if _LOG_NAME.match(name))
        passed = max(bisect_right(bases, log_start_offset) - 1, 0)
        for base_offset in bases[:passed]:
            self.remove_segment(self._segment(base_offset, 0))
            self.report.segments_dropped += 1
        for base_offset in bases[passed:]:
            self.segments.append(
                self._segment(base_offset, self.filesystem.file_size(self.path(offset_name(base_offset) + LOG_SUFFIX)))
            )
        return self.segments

    def settle_hole(self, known: KnownLog) -> None:
        """Finds the hole at the beginning of the first segment, and writes its header if a power cut has lost it."""
        segment = self.segments[0] if self.segments else None
        if segment is None or not segment.size:
            return
        hole, noted = read_hole(segment), known.hole
        is_news = noted is not None and (hole is None or hole.next_offset < noted.next_offset)
        if (
            noted is not None
            and is_news
            and noted.next_offset <= known.log_start_offset
            and begins_behind(segment, noted)
        ):
            self.filesystem.open(segment.path, write=True).pwritev([noted.encode()], 0)
            hole = noted
        if hole is not None and hole.size <= segment.size:
            segment.leave_out(hole)
            segment.punched = hole.size if known.clean else 0

    def find_log_end(self, recovery_point: Offset, log_start_offset: Offset, *, clean: bool) -> Offset:
        """Checks what must be checked, opens the last segment for writing and returns the log end.

        The epochs then fit it.
        """
        self._read_epochs()
        read = self.epochs.entries()
        if clean:
            self._rebuild_missing_indexes()
        else:
            self._check_from(recovery_point)
        log_end_offset = -1
        if self.segments:
            self.segments[-1].open_for_writing()
            log_end_offset = next_offset(self.segments[-1])
        if log_end_offset < log_start_offset:
            self._start_empty(log_start_offset)
            log_end_offset = log_start_offset
        if not self.epochs_known:
            self._rebuild_epochs()
        elif log_end_offset == log_start_offset and not self.epochs:
            # No batch says in which leader epoch the deleted ones ended; the file still does.
            self.epochs = LeaderEpochs(read)
        self.epochs.truncate_from_end(log_end_offset, is_empty=log_end_offset == log_start_offset)
        self.epochs.truncate_from_start(log_start_offset)
        if clean and not are_confirmed(self.epochs, self.segments, log_start_offset, log_end_offset):
            self._rebuild_epochs(may_lack_last=bool(read) and read[-1][1] == log_end_offset)
            self.epochs.truncate_from_start(log_start_offset)
        return log_end_offset

    def _read_epochs(self) -> None:
        if LEADER_EPOCH_CHECKPOINT not in self.names:
            return
        path = self.path(LEADER_EPOCH_CHECKPOINT)
        content = self.filesystem.read_bytes(path)
        try:
            entries = decode_epochs(content, path)
        except CheckpointError:
            return
        self.epochs, self.epochs_read = LeaderEpochs(entries), len(entries)
        # An empty file is what a power cut leaves of an unsynced one: it says nothing about the batches.
        self.epochs_known = len(self.epochs) > 0

    def _rebuild_epochs(self, *, may_lack_last: bool = False) -> None:
        """Finds the epochs in the batches. `may_lack_last`: perhaps none was written in the last epoch of the file."""
        rebuilt, falls = LeaderEpochs(), False
        for segment in self.segments:
            for _, header in segment.batches(0):
                epoch = header.partition_leader_epoch
                falls |= epoch < rebuilt.latest
                if epoch > rebuilt.latest:
                    rebuilt.assign(epoch, header.base_offset)
        if self.epochs_known and (falls or not 0 <= self.epochs_read - len(rebuilt) <= may_lack_last):
            return  # No CRC contains the epoch of a batch: one of these is damaged, not the file.
        self.epochs = rebuilt
        self.report.epochs_rebuilt = len(self.epochs) > 0

    def _has_indexes(self, segment: Segment) -> bool:
        name = offset_name(segment.base_offset)
        return name + INDEX_SUFFIX in self.names and name + TIME_INDEX_SUFFIX in self.names

    def _rebuild_missing_indexes(self) -> None:
        for segment in self.segments:
            if segment.size and not self._has_indexes(segment):
                rebuild_indexes(segment, self.config.index_interval_bytes)
                if offset_name(segment.base_offset) + TRANSACTION_INDEX_SUFFIX not in self.names and self._has_markers(
                    segment
                ):
                    self.unindexed.append(segment)
                segment.forget()
                self.report.indexes_rebuilt += 1

    @staticmethod
    def _has_markers(segment: Segment) -> bool:
        return any(header.is_control for _, header in segment.batches(0))

    def _check_from(self, recovery_point: Offset) -> None:
        """Checks the segments from the recovery point on, and those without indexes; drops unsound bytes."""
        bases = [segment.base_offset for segment in self.segments]
        first = max(bisect_right(bases, recovery_point) - 1, 0)
        number = 0
        while number < len(self.segments):
            segment = self.segments[number]
            if number < first and (self._has_indexes(segment) or not segment.size):
                # The flush after a roll syncs what the roll has written. If the recovery point is where the new segment
                # begins, it may be older: the flush of all that is in the segment before.
                if number == first - 1 and recovery_point == bases[first] and self._has_markers(segment):
                    self.doubted.append(segment)
                number += 1
                continue
            is_last = number + 1 == len(self.segments)
            checked = check_segment(segment, self.epochs, self.config.index_interval_bytes)
            self.report.segments_checked += 1
            gap = not is_last and not self._may_follow(
                checked.next_offset, self.segments[number + 1].base_offset, was_flushed=number < first
            )
            if checked.valid_bytes < segment.size or gap:
                self._drop_after(number)
                self._cut(segment, checked.valid_bytes, checked.reason or "a later segment doesn't continue here")
            if checked.has_markers:
                self.unindexed.append(segment)
            else:
                self.remove(offset_name(segment.base_offset) + TRANSACTION_INDEX_SUFFIX)
                self._write_indexes(segment)
            number += 1

    def _write_indexes(self, segment: Segment) -> None:
        if segment is not self.segments[-1]:
            try:
                segment.write_indexes()
            except OSError as error:
                if not is_passing(error):
                    raise  # Without room they are built again by the first reader, as by the next start.
            segment.forget()

    def transaction_index(self) -> TransactionIndex:
        """Returns the index of aborted transactions, from the files that can be trusted."""
        unindexed = {segment.base_offset for segment in (*self.unindexed, *self.doubted)}
        known = [segment for segment in self.segments if segment.base_offset not in unindexed]
        with_file = [
            segment.base_offset
            for segment in known
            if offset_name(segment.base_offset) + TRANSACTION_INDEX_SUFFIX in self.names
        ]
        return TransactionIndex(self.filesystem, self.directory, with_file)

    def rebuild_aborted(self, log: Log, index: TransactionIndex) -> None:
        """Rebuilds the transaction index where no file has it, then the index files that were left for later."""
        wanted = {segment.base_offset for segment in (*self.unindexed, *self.doubted)} & {
            segment.base_offset for segment in self.segments
        }
        wanted.update(unconfirmed_aborted(index, log.segments))
        if wanted:
            log.files.rebuild_aborted(sorted(wanted), log.log_end_offset)
        for segment in self.unindexed:
            if segment in self.segments:
                self._write_indexes(segment)

    def _may_follow(self, end_offset: Offset, next_base: Offset, *, was_flushed: bool) -> bool:
        """Returns whether a segment that begins at `next_base` may follow a log that ends at `end_offset`.

        A gap comes from a power cut that lost the end of the segment before, or from compaction by Kafka.
        """
        if next_base < end_offset:
            return False
        return next_base == end_offset or was_flushed or next_base <= self.cleaned_to

    def _drop_after(self, number: int) -> None:
        for segment in reversed(self.segments[number + 1 :]):
            self.remove_segment(segment)
            self.report.segments_dropped += 1
        del self.segments[number + 1 :]

    def _cut(self, segment: Segment, valid_bytes: int, reason: str) -> None:
        self.report.bytes_cut += segment.size - valid_bytes
        self.report.reason = self.report.reason or reason
        if valid_bytes < segment.size:
            file = self.filesystem.open(segment.path, write=True)
            file.truncate(valid_bytes)
            file.close()
            segment.forget_file()
            if valid_bytes < segment.floor:
                fill_hole(segment)
            segment.size = valid_bytes

    def _start_empty(self, log_start_offset: Offset) -> None:
        """Opens an empty log at `log_start_offset`: all its records are below. Keeps the last leader epoch."""
        if self.segments:
            self.report.restarted_at_log_start = True
        for segment in self.segments:
            if segment.is_pinned:
                segment.unpin()
        kept = self.segments[:1] if self.segments and self.segments[0].base_offset < log_start_offset else []
        self._drop_after(len(kept) - 1)
        for name in sorted(self.names):
            if name.endswith(SNAPSHOT_SUFFIX):
                self.remove(name)
        self.segments = [self._segment_at(log_start_offset, kept)]
        self.epochs_known = True

    def _segment_at(self, base_offset: Offset, kept: list[Segment]) -> Segment:
        """Creates an empty segment at that offset. Without room for one, it empties an older segment instead."""
        preallocate_bytes = self.config.segment_bytes if self.config.preallocate else 0
        try:
            new = create_segment(
                self.filesystem,
                self.directory,
                base_offset,
                now_ms=self.now_ms,
                preallocate_bytes=preallocate_bytes,
                files=self.files,
            )
        except OSError as error:
            if not kept or not is_passing(error):
                raise
            self._cut(kept[0], 0, "no record lies above the log start")
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
                self.remove(offset_name(kept[0].base_offset) + suffix)
            kept[0].reset_indexes()
            kept[0].open_for_writing()
            return kept[0]
        for segment in kept:
            self.remove_segment(segment)
        return new

    def snapshot_offsets(self) -> list[Offset]:
        """Returns the offsets in the names of the snapshots."""
        return [
            int(name[:20]) for name in self.names if name.endswith(SNAPSHOT_SUFFIX) and _NAMED_BY_OFFSET.match(name)
        ]

    def snapshots(self, log_end_offset: Offset) -> ProducerSnapshots:
        """Returns the producer snapshots that fit the log."""
        snapshots = ProducerSnapshots(self.filesystem, self.directory, self.snapshot_offsets())
        snapshots.drop_above(log_end_offset)
        snapshots.drop_except(segment.base_offset for segment in self.segments)
        return snapshots


def next_offset(segment: Segment) -> Offset:
    """Returns one above a segment's last offset; its base offset if it is empty. Errors: StorageError."""
    if not segment.size:
        return segment.base_offset
    last = segment.first_offset - 1
    place = segment.find(segment.indexes[0].last_offset)  # Not its position: the entry of a damaged index is mended.
    for _, header in segment.batches(segment.indexes[0].last_position if place is None else place.position):
        last = header.last_offset
    return last + 1
