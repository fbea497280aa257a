"""Rewrites the segment at the log start without its deleted records, in bounded steps of a worker.

The batch that straddles the log start is written without the records below it, as compaction writes it. Everything
after it is copied byte for byte. The files have the suffix `.cleaned` and are on the disk when the last step is done.
The log's owner (`segment_swap.py`) decides whether they replace the segment, because it knows what has happened
meanwhile.

Guards: the file that is read is never written; a batch with a wrong checksum is an error and isn't rewritten.

If a record with the largest timestamp is removed, the headers of all other batches are read, because retention depends
on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import Final

import msgspec

from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, BatchHeader, check_crc, read_batch_header
from lowtide.protocol.types import FilePosition, Offset
from lowtide.runtime.filesystem import Buffer, File, FileSystem
from lowtide.storage.compaction.compaction import without_deleted
from lowtide.storage.errors import DamagedSegmentError
from lowtide.storage.log.cleaned_segment import CLEANED_SUFFIX, CLEANED_SUFFIXES, write_indexes
from lowtide.storage.log.producers.open_transactions import CompletedTransaction
from lowtide.storage.log.segments.index import OffsetIndex, TimeIndex
from lowtide.storage.log.segments.segment_file import SegmentFile
from lowtide.storage.log.segments.segment_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    offset_name,
)
from lowtide.storage.log.validation.validation_rules import MAXIMUM_DECOMPRESSED_BYTES

COPY_BYTES: Final = 4 << 20
"""Bytes copied in one step: others wait for the same worker."""

HEADERS_PER_STEP: Final = 2_000
"""Headers read in one step, which keeps the interpreter from the event loop for a few milliseconds."""


class ErasureOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to erase the deleted records of one closed segment."""

    directory: str
    base_offset: Offset
    size: int
    log_start_offset: Offset
    position: FilePosition
    """Of the first batch that ends at or above the log start; the segment's size if there is none."""
    aborted: list[CompletedTransaction]
    """Aborted transactions whose markers are in the segment."""


class ErasureProgress(Enum):
    """How far a worker is."""

    NOTHING = "the segment has no deleted record"
    MORE = "another step follows"
    WRITTEN = "the new segment is on the disk"


class SegmentErasure:
    """Builds the new segment.

    The caller calls `step` until it is done, or `abandon`. Errors of all methods: OSError, StorageError.
    """

    def __init__(self, filesystem: FileSystem, order: ErasureOrder) -> None:
        self.order = order
        self.size = 0
        """The size of the new segment's `.log` file."""
        self.aborted = [each for each in order.aborted if each.last_offset >= order.log_start_offset]
        """The entries of the transaction index, which is missing if there are none."""
        self._filesystem = filesystem
        self._stem = f"{order.directory}/{offset_name(order.base_offset)}"
        self._source: File | None = None
        self._target: File | None = None
        self._next = order.position
        """Where the bytes to copy begin in the old file."""
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        """The old segment's time index, unless it can't be used."""
        self._headers: Iterator[tuple[FilePosition, BatchHeader]] | None = None
        """Headers of the new segment that are still to be read."""

    def step(self) -> ErasureProgress:
        if self._source is None:
            return self._begin()
        if self._next < self.order.size:
            size = min(COPY_BYTES, self.order.size - self._next)
            self._write(self._read(size))
            self._next += size
            return ErasureProgress.MORE
        if self._headers is not None and self._measure():
            return ErasureProgress.MORE
        self._finish()
        return ErasureProgress.WRITTEN

    def _begin(self) -> ErasureProgress:
        order = self.order
        self._source = self._filesystem.open(self._stem + LOG_SUFFIX)
        left: Buffer = b""
        last_offset = order.log_start_offset
        if self._next < order.size:
            header, left = self._first_batch()
            if header.size_bytes == len(left) and not self._next:
                return ErasureProgress.NOTHING
            self._next += header.size_bytes
            last_offset = max(header.last_offset, last_offset)
        self._read_indexes()
        self._target = self._filesystem.open(self._path(LOG_SUFFIX), write=True, create=True)
        self._target.truncate(0)
        self._write(left)
        if self._times is not None and self._times.last_entry[1] <= last_offset:
            self._times = TimeIndex(order.base_offset)
            segment = SegmentFile(
                self._filesystem, self._path(LOG_SUFFIX), order.base_offset, order.size - self._next + self.size
            )
            self._headers = segment.batches(0)
        return ErasureProgress.MORE

    def _first_batch(self) -> tuple[BatchHeader, Buffer]:
        """Returns the header of the first batch, and the batch without its deleted records."""
        try:
            header = read_batch_header(self._read(RECORD_BATCH_OVERHEAD))
            batch = self._read(header.size_bytes)
            if header.size_bytes < RECORD_BATCH_OVERHEAD or not check_crc(batch, 0, header):
                raise DamagedSegmentError(self._stem + LOG_SUFFIX, f"no sound record batch begins at byte {self._next}")
            left = without_deleted(
                header, batch, self.order.log_start_offset, decompressed_bytes_max=MAXIMUM_DECOMPRESSED_BYTES
            )
        except ProtocolError as error:
            raise DamagedSegmentError(self._stem + LOG_SUFFIX, f"the batch at byte {self._next}: {error}") from error
        return header, left

    def _measure(self) -> bool:
        """Reads headers for the largest timestamp. Returns whether there are more. Errors: StorageError."""
        assert self._headers is not None
        assert self._times is not None
        headers = [header for _, header in islice(self._headers, HEADERS_PER_STEP)]
        for header in headers:
            if header.max_timestamp > self._times.last_entry[0]:
                self._times.clear()
                self._times.maybe_append(header.max_timestamp, header.last_offset)
        return len(headers) == HEADERS_PER_STEP

    def _read(self, size: int) -> bytes:
        assert self._source is not None
        content = self._source.pread(size, self._next)
        if len(content) < size:
            raise DamagedSegmentError(self._stem + LOG_SUFFIX, f"it ends before byte {self._next + size}")
        return content

    def _write(self, content: Buffer) -> None:
        assert self._target is not None
        self._target.pwritev([content], self.size)
        self.size += len(content)

    def _finish(self) -> None:
        assert self._target is not None
        self._target.sync()
        write_indexes(self._filesystem, self._stem, self._indexes(), self.aborted)
        self._target = None

    def _read_indexes(self) -> None:
        order = self.order
        with contextlib.suppress(FileNotFoundError):
            self._offsets = OffsetIndex.decode(
                self._filesystem.read_bytes(self._stem + INDEX_SUFFIX), order.base_offset, order.size
            )
            self._times = TimeIndex.decode(
                self._filesystem.read_bytes(self._stem + TIME_INDEX_SUFFIX), order.base_offset
            )

    def _indexes(self) -> dict[str, bytes]:
        """Returns the old indexes without removed entries; empty ones, to be rebuilt, if the old ones can't be used."""
        order, offsets, times = self.order, self._offsets, self._times
        if offsets is None or times is None:
            return {INDEX_SUFFIX: b"", TIME_INDEX_SUFFIX: b""}
        # The batches after the first one keep their distance to the end of the file.
        offsets.drop_before(order.position + 1)
        offsets.shift(self.size - order.size)
        times.drop_before(order.log_start_offset)
        return {INDEX_SUFFIX: offsets.encode(), TIME_INDEX_SUFFIX: times.encode()}

    def _path(self, suffix: str) -> str:
        return self._stem + suffix + CLEANED_SUFFIX

    def abandon(self) -> None:
        """Removes the files of the new segment; the `.log` goes last."""
        self._source = self._target = None
        for suffix in reversed(CLEANED_SUFFIXES):
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.unlink(self._path(suffix))
