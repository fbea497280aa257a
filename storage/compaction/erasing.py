"""Rewrites a closed segment without its erased records, in bounded steps of a worker.

Erased are the records below the log start and those that erasures name. A batch with erased records is written again
without them, as compaction writes it. Everything else is copied byte for byte. The files have the suffix `.cleaned` and
are on the disk when the last step is done. The log's owner (`segment_swap.py`) decides whether they replace the
segment, because it knows what has happened meanwhile.

A batch that loses all its records leaves a gap, with two exceptions in which it stays as an empty batch: the last batch
of the segment, because a start takes a gap at a segment's end for a loss, and the last batches of a producer, because
the producer may send them again.

Guards: the file that is read is never written; a batch with a wrong checksum is an error and isn't rewritten.

If a batch with the largest timestamp is changed, the headers of all batches are read, because retention depends on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.records import BatchHeader, read_batch_header
from lowtide.protocol.types import FilePosition, Offset, ProducerId
from lowtide.runtime.filesystem import Buffer, File, FileSystem
from lowtide.storage.errors import DamagedSegmentError
from lowtide.storage.log.cleaned_segment import CLEANED_SUFFIX, CLEANED_SUFFIXES, write_indexes
from lowtide.storage.log.erased_reads import without_erased
from lowtide.storage.log.producers.open_transactions import CompletedTransaction
from lowtide.storage.log.segments.index import OffsetIndex, TimeIndex, read_indexes
from lowtide.storage.log.segments.segment_file import BatchPlace, SegmentFile
from lowtide.storage.log.segments.segment_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    offset_name,
)

COPY_BYTES: Final = 4 << 20
"""Bytes copied in one step: others wait for the same worker."""

REWRITTEN_BYTES: Final = 1 << 20
"""Bytes of batches rewritten in one step, a batch counting as at least a thousandth of it."""

HEADERS_PER_STEP: Final = 2_000
"""Headers read in one step, which keeps the interpreter from the event loop for a few milliseconds."""


class ErasureOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to erase records of one closed segment."""

    directory: str
    base_offset: Offset
    size: int
    log_start_offset: Offset
    position: FilePosition
    """Of the first batch that ends at or above the log start; the segment's size if there is none."""
    erased: OffsetRanges
    """The offsets of the records to erase; those below the log start needn't be among them."""
    frames: Mapping[ProducerId, Offset]
    """The batches of these producers that begin at or above the offset stay, at least empty."""
    aborted: list[CompletedTransaction]
    """Aborted transactions whose markers are in the segment."""


class ErasureProgress(Enum):
    """How far a worker is."""

    NOTHING = "the segment has no erased record"
    MORE = "another step follows"
    WRITTEN = "the new segment is on the disk"


class _ChangedBatch(NamedTuple):
    """A batch of the old file that changes, and what is left of it: nothing, if it leaves a gap."""

    position: FilePosition
    header: BatchHeader
    left: Buffer


class SegmentErasure:
    """Builds the new segment.

    The caller calls `step` until it is done, or `abandon`. Errors of all methods: OSError, StorageError.
    """

    def __init__(self, filesystem: FileSystem, order: ErasureOrder) -> None:
        self.order = order
        self.size = 0
        """The size of the new segment's `.log` file."""
        self.moved_bytes = 0
        """What was read from the old file and written to the new one."""
        self.aborted = [each for each in order.aborted if each.last_offset >= order.log_start_offset]
        """The entries of the transaction index, which is missing if there are none."""
        self._filesystem = filesystem
        self._stem = f"{order.directory}/{offset_name(order.base_offset)}"
        self._steps = self._rewrite()
        self._source: File | None = None
        self._target: File | None = None
        self._indexes: tuple[OffsetIndex, TimeIndex] | None = None
        """The old segment's indexes; None if they can't be used."""
        self._moves: list[tuple[FilePosition, int]] = []
        """From these byte places of the old file on, batches have moved by so many bytes."""
        self._gone: set[FilePosition] = set()
        """The byte places in the old file of batches that leave a gap."""
        self._is_time_unknown = False
        """Whether the batch with the largest timestamp has changed."""

    def step(self) -> ErasureProgress:
        return next(self._steps)

    def _rewrite(self) -> Generator[ErasureProgress]:
        order = self.order
        self._source = self._filesystem.open(self._stem + LOG_SUFFIX)
        self._indexes = read_indexes(self._filesystem, self._stem, order.base_offset, order.size)
        written_to = order.position
        if written_to:
            self._begin()
            if self._indexes is not None:
                self._is_time_unknown = self._indexes[1].last_entry[1] < order.log_start_offset
        for change in self._changes():
            if change is None:
                yield ErasureProgress.MORE
                continue
            if self._target is None:
                self._begin()
            yield from self._copy(written_to, change.position)
            written_to = change.position + change.header.size_bytes
            self._write(change.left)
            self._note(change, written_to)
        if self._target is None:
            yield ErasureProgress.NOTHING
            return
        yield from self._copy(written_to, order.size)
        if self._is_time_unknown:
            yield from self._measure()
        self._finish()
        yield ErasureProgress.WRITTEN

    def _begin(self) -> None:
        self._target = self._filesystem.open(self._path(LOG_SUFFIX), write=True, create=True)
        self._target.truncate(0)
        self._moves.append((self.order.position, -self.order.position))

    def _copy(self, position: FilePosition, end: FilePosition) -> Iterator[ErasureProgress]:
        while position < end:
            size = min(COPY_BYTES, end - position)
            self._write(self._read(position, size))
            position += size
            yield ErasureProgress.MORE

    def _changes(self) -> Iterator[_ChangedBatch | None]:
        """Yields the batches that change, in order; None where a step ends."""
        order, erased = self.order, self._erased()
        source = SegmentFile(self._filesystem, self._stem + LOG_SUFFIX, order.base_offset, order.size)
        position, worked = order.position, 0
        for first, last in erased:
            offset = first
            while offset <= last:
                place = self._find(source, offset, position)
                worked += max(REWRITTEN_BYTES // 1000, 0 if place is None else place.size)
                if worked >= REWRITTEN_BYTES:
                    worked = 0
                    yield None
                if place is None:
                    return
                if place.base_offset > last:
                    break
                position, offset = place.position + place.size, place.last_offset + 1
                change = self._change(place.position, place.size, erased)
                if change is not None:
                    yield change

    def _erased(self) -> OffsetRanges:
        order = self.order
        if order.log_start_offset <= order.base_offset:
            return order.erased
        return order.erased.union(OffsetRanges([(order.base_offset, order.log_start_offset - 1)]))

    def _find(self, source: SegmentFile, offset: Offset, position: FilePosition) -> BatchPlace | None:
        """Returns the first batch from byte `position` on that ends at or after `offset`, if any."""
        if self._indexes is not None:
            before, indexed, _ = self._indexes[0].around(offset)
            if indexed > position:
                # The entry of a damaged index may name a later batch, or none.
                with contextlib.suppress(DamagedSegmentError):
                    return source.scan(offset, indexed, before)
        return source.scan(offset, position, None)

    def _change(self, position: FilePosition, size: int, erased: OffsetRanges) -> _ChangedBatch | None:
        """Returns what becomes of the batch at `position`; None if it stays as it is."""
        order, batch = self.order, self._read(position, size)
        header, left = without_erased(self._stem + LOG_SUFFIX, position, batch, erased)
        if left is batch:
            return None
        is_first = header.base_offset < order.log_start_offset
        is_last = position + size == order.size
        frames_from = order.frames.get(header.producer_id)
        is_frame = frames_from is not None and header.base_offset >= frames_from
        if not (is_first or is_last or is_frame or read_batch_header(left).record_count):
            left = b""
        return _ChangedBatch(position, header, left)

    def _note(self, change: _ChangedBatch, end: FilePosition) -> None:
        """Notes how a changed batch moves what follows it, which begins at `end` in the old file."""
        if not change.left:
            self._gone.add(change.position)
        self._moves.append((end, self.size - end))
        if self._indexes is not None:
            newest = self._indexes[1].last_entry[1]
            self._is_time_unknown |= change.header.base_offset <= newest <= change.header.last_offset

    def _measure(self) -> Iterator[ErasureProgress]:
        """Reads the headers of the new file for its largest timestamp. Errors: StorageError."""
        assert self._indexes is not None
        times = TimeIndex(self.order.base_offset)
        headers = SegmentFile(self._filesystem, self._path(LOG_SUFFIX), self.order.base_offset, self.size).batches(0)
        while some := [header for _, header in islice(headers, HEADERS_PER_STEP)]:
            for header in some:
                if header.max_timestamp > times.last_entry[0]:
                    times.clear()
                    times.maybe_append(header.max_timestamp, header.last_offset)
            yield ErasureProgress.MORE
        self._indexes = self._indexes[0], times

    def _read(self, position: FilePosition, size: int) -> bytes:
        assert self._source is not None
        content = self._source.pread(size, position)
        self.moved_bytes += size
        if len(content) < size:
            raise DamagedSegmentError(self._stem + LOG_SUFFIX, f"it ends before byte {position + size}")
        return content

    def _write(self, content: Buffer) -> None:
        assert self._target is not None
        if content:
            self._target.pwritev([content], self.size)
            self.size += len(content)
            self.moved_bytes += len(content)

    def _finish(self) -> None:
        assert self._target is not None
        self._target.sync()
        write_indexes(self._filesystem, self._stem, self._encoded_indexes(), self.aborted)
        self._target = None

    def _encoded_indexes(self) -> dict[str, bytes]:
        """Returns the old indexes without removed entries; empty ones, to be rebuilt, if the old ones can't be used."""
        if self._indexes is None:
            return {INDEX_SUFFIX: b"", TIME_INDEX_SUFFIX: b""}
        offsets, times = self._indexes
        if self.order.position:
            offsets.drop_before(self.order.position + 1)
        offsets.move(self._moves, self._gone)
        times.drop_before(self.order.log_start_offset)
        return {INDEX_SUFFIX: offsets.encode(), TIME_INDEX_SUFFIX: times.encode()}

    def _path(self, suffix: str) -> str:
        return self._stem + suffix + CLEANED_SUFFIX

    def abandon(self) -> None:
        """Removes the files of the new segment; the `.log` goes last."""
        self._steps.close()
        self._source = self._target = None
        for suffix in reversed(CLEANED_SUFFIXES):
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.unlink(self._path(suffix))
