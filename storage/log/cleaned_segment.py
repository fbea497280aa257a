"""The segment that compaction writes: its files have the suffix `.cleaned` until they are swapped in.

Guards: all of it is on the disk when `finish` returns; `abandon` leaves nothing behind. Source: Kafka's
UnifiedLog.createNewCleanedSegment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import msgspec

from lowtide.protocol.records import BatchHeader
from lowtide.protocol.types import NO_TIMESTAMP, Offset
from lowtide.runtime.filesystem import Buffer, File, FileSystem
from lowtide.storage.log.producers.open_transactions import CompletedTransaction
from lowtide.storage.log.producers.transaction_index import encode_aborted
from lowtide.storage.log.segments.index import OffsetIndex, TimeIndex
from lowtide.storage.log.segments.segment_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_name,
)

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

CLEANED_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
"""The suffixes of its files; the transaction index only exists with entries."""

_WRITE_BYTES: Final = 1 << 20
"""The size of a write."""


def remove_cleaned(filesystem: FileSystem, directory: str) -> None:
    """Removes all files of that kind from a log's folder, while nothing writes one. For a worker.

    Errors: OSError; a missing folder is none.
    """
    with contextlib.suppress(FileNotFoundError):
        for name in filesystem.listdir(directory):
            if name.endswith(CLEANED_SUFFIX):
                filesystem.unlink(f"{directory}/{name}")


def write_indexes(
    filesystem: FileSystem, stem: str, indexes: dict[str, bytes], aborted: Sequence[CompletedTransaction]
) -> None:
    """Writes and syncs the indexes of a new segment, by suffix, and that of aborted transactions. Errors: OSError."""
    transactions = {TRANSACTION_INDEX_SUFFIX: encode_aborted(aborted)} if aborted else {}
    for suffix, content in (indexes | transactions).items():
        path = stem + suffix + CLEANED_SUFFIX
        filesystem.write_bytes(path, content)
        file = filesystem.open(path, write=True)
        file.sync()
        file.close()


class CleanedSize(msgspec.Struct):
    """Bytes and records of batches."""

    size_bytes: int = 0
    records: int = 0

    def note(self, size_bytes: int, records: int) -> None:
        self.size_bytes += size_bytes
        self.records += records

    def add(self, other: CleanedSize) -> None:
        self.note(other.size_bytes, other.records)


class CleanedSegment:
    """A segment that a compaction writes: `append` any number of times, then `finish` or `abandon`. Errors: OSError."""

    def __init__(self, filesystem: FileSystem, directory: str, base_offset: Offset, interval_bytes: int) -> None:
        """Overwrites a leftover of the same name. The indexes get an entry about every `interval_bytes`."""
        self._filesystem = filesystem
        self._stem = f"{directory}/{offset_name(base_offset)}"
        self._interval_bytes = interval_bytes
        self._offsets = OffsetIndex(base_offset)
        self._times = TimeIndex(base_offset)
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset
        self._bytes_since_entry = 0
        self._parts: list[Buffer] = []
        self._parts_bytes = 0
        self._written = 0
        self.total = CleanedSize()
        self._file: File = filesystem.open(self._path(LOG_SUFFIX), write=True, create=True)
        self._file.truncate(0)

    @property
    def size(self) -> int:
        return self._written + self._parts_bytes

    def _path(self, suffix: str) -> str:
        return self._stem + suffix + CLEANED_SUFFIX

    def append(self, header: BatchHeader, batch: Buffer) -> None:
        """Appends a batch. Batches come in order."""
        last_offset = header.last_offset
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp, self._max_timestamp_offset = header.max_timestamp, last_offset
        if self._bytes_since_entry > self._interval_bytes:
            self._offsets.append(last_offset, self.size)
            self._times.maybe_append(self._max_timestamp, self._max_timestamp_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += len(batch)
        self.total.note(len(batch), header.record_count)
        self._parts.append(batch)
        self._parts_bytes += len(batch)
        if self._parts_bytes >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        if self._parts:
            self._file.pwritev(self._parts, self._written)
            self._written += self._parts_bytes
            self._parts, self._parts_bytes = [], 0

    def finish(self, aborted: list[CompletedTransaction]) -> None:
        """Writes the rest and the indexes, and syncs all. `aborted` are the transactions whose markers stay in it."""
        self._write()
        self._file.sync()
        self._times.maybe_append(self._max_timestamp, self._max_timestamp_offset)
        indexes = {INDEX_SUFFIX: self._offsets.encode(), TIME_INDEX_SUFFIX: self._times.encode()}
        write_indexes(self._filesystem, self._stem, indexes, aborted)
        self._file.close()

    def abandon(self) -> None:
        self._file.close()
        for suffix in CLEANED_SUFFIXES:
            with contextlib.suppress(OSError):
                self._filesystem.unlink(self._path(suffix))
