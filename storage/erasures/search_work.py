"""Searches segments for records, in a worker that has only files and its order.

Segments are read from their first batch on, so deleted records that are still in a file are found too. If filters are
wanted, only those parts of a closed segment are read that may have one of the keys by its filter, and a filter is built
for each one that has no valid filter. The new filter's file has the suffix `.tmp`; the log's owner (`log_search.py`)
gives it its name, because it knows whether the segment is still the same.

Guards: files that are read are never written. A wrong checksum ends the search. Selectors stay in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Final

import msgspec

from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, BatchHeader, read_batch_header
from lowtide.protocol.types import FilePosition, Offset
from lowtide.runtime.filesystem import File, FileSystem
from lowtide.runtime.heavy_work import WorkStep
from lowtide.storage.checkpoint import TEMPORARY_SUFFIX
from lowtide.storage.compaction.cleaning import split_batches
from lowtide.storage.erasures.found_keys import FoundKeys
from lowtide.storage.erasures.key_filter import (
    SECRET_BYTES,
    KeyFilterBuilder,
    SegmentEnd,
    key_filter_path,
    open_key_filter,
)
from lowtide.storage.erasures.record_search import (
    FoundRecords,
    KeySelector,
    RecordMatcher,
    RecordSelector,
    has_records,
)
from lowtide.storage.errors import DamagedSegmentError, StorageError, storage_error
from lowtide.storage.log.validation.validation_rules import MAXIMUM_DECOMPRESSED_BYTES

FOUND_MAX: Final = 100_000
"""The most records that a search of a log may find."""

PROGRESS_BYTES: Final = 16 << 20
"""A search reports its progress after so many bytes."""

TAIL_BYTES: Final = 16 << 20
"""So much of the active segment may lie behind what its filter covers; if that is more, an eighth of what it covers."""


class SearchedSegment(msgspec.Struct, frozen=True):
    """A segment to be searched, or to be searched again."""

    base_offset: Offset
    end_offset: Offset
    """Exclusive."""
    path: str
    """Of its `.log`."""
    floor: FilePosition
    """Where its first batch begins."""
    size: int
    is_closed: bool


class SearchOrder(msgspec.Struct, frozen=True):
    """What a worker needs to search a log."""

    directory: str
    segments: list[SearchedSegment]
    end_offset: Offset
    """Records from here on aren't searched."""
    selector: RecordSelector
    found_max: int
    uses_filters: bool
    """Whether filters of keys are used, and built where they are missing."""
    secret: bytes
    """Random bytes of this order."""
    with_keys: bool = False
    """Whether the keys of the found records are wanted."""


class SegmentDone(msgspec.Struct, frozen=True, tag=True):
    """The records of one segment that match; the columns are arrays of the machine's integers."""

    base_offset: Offset
    first_offset: Offset | None
    """Of the first batch; None if there is none."""
    offsets: bytes
    timestamps: bytes
    leader_epochs: bytes
    has_filter: bool
    """Whether a new filter waits for its name."""
    was_read: bool
    """False if its filter has none of the keys."""
    keys: list[bytes | None] = []
    numbers: bytes = b""
    producer_ids: bytes = b""
    """Those of `FoundKeys`, if they are wanted."""


class SearchProgress(msgspec.Struct, frozen=True, tag=True):
    """More bytes were searched since the last message."""

    searched_bytes: int


class SearchStopped(msgspec.Struct, frozen=True, tag=True):
    """The search can't continue."""

    reason: str
    is_too_many: bool = False
    has_too_many_keys: bool = False
    error_number: int = 0
    """Of the system; 0 if the bytes are damaged, or too many records match."""


Report = SegmentDone | SearchProgress | SearchStopped

decode_report: Final = msgspec.msgpack.Decoder(Report).decode
encode_search: Final = msgspec.msgpack.Encoder().encode
_encode_report: Final = msgspec.msgpack.Encoder().encode
_decode_search: Final = msgspec.msgpack.Decoder(SearchOrder).decode


def search_log(filesystem: FileSystem, order: bytes) -> Iterator[WorkStep]:
    """Carries out an encoded `SearchOrder` in steps, whose messages are encoded `Report`s."""
    search = _SegmentsSearch(filesystem, _decode_search(order))
    try:
        yield from search.steps()
    except DamagedSegmentError as error:
        yield _message(SearchStopped(str(error)))
    except (StorageError, OSError) as error:
        failed = error if isinstance(error, StorageError) else storage_error(search.order.directory, error)
        yield _message(SearchStopped(str(failed), error_number=failed.error_number))


def _message(report: Report, moved_bytes: int = 0) -> WorkStep:
    return WorkStep(moved_bytes, _encode_report(report))


class _SegmentsSearch:
    """One pass over segments of a log."""

    def __init__(self, filesystem: FileSystem, order: SearchOrder) -> None:
        self.order = order
        self._filesystem = filesystem
        self._matcher = RecordMatcher(order.selector, decompressed_bytes_max=MAXIMUM_DECOMPRESSED_BYTES)
        self._keys = order.selector.keys if isinstance(order.selector, KeySelector) and order.uses_filters else None
        self._found = FoundRecords()
        self._found_keys = FoundKeys()
        self._count = 0
        self._reported = 0
        self._builder: KeyFilterBuilder | None = None

    def steps(self) -> Iterator[WorkStep]:
        for segment in self.order.segments:
            self._found, self._found_keys, self._builder = FoundRecords(), FoundKeys(), None
            file = self._filesystem.open(segment.path)
            try:
                yield from self._segment(segment, file)
            finally:
                file.close()
            if self._count + len(self._found) > self.order.found_max:
                yield _message(SearchStopped(f"more than {self.order.found_max} records match", is_too_many=True))
                return
            if self._found_keys.are_too_many:
                yield _message(SearchStopped("the records have too many keys", has_too_many_keys=True))
                return
            self._count += len(self._found)

    def _segment(self, segment: SearchedSegment, file: File) -> Iterator[WorkStep]:
        first = _first_offset(segment, file)
        parts = self._parts(segment, file)
        self._reported += segment.size - segment.floor - sum(end - begin for begin, end in parts)
        last: SegmentEnd | None = None
        reached = segment.base_offset
        for begin, end in parts:
            position = begin
            while position < end:
                before = position
                for header, batch in split_batches(file, position, end, reached, segment.end_offset):
                    if header.base_offset >= self.order.end_offset:
                        position = end
                        break
                    self._search(segment, position, header, batch)
                    last = SegmentEnd(position + header.size_bytes, position, batch[:RECORD_BATCH_OVERHEAD])
                    position += header.size_bytes
                    reached = header.next_offset
                self._reported += position - before
                if self._count + len(self._found) > self.order.found_max or self._found_keys.are_too_many:
                    return
                if self._reported >= PROGRESS_BYTES:
                    yield _message(SearchProgress(self._reported), position - before)
                    self._reported = 0
                else:
                    yield WorkStep(position - before)
        has_filter = self._write_filter(segment, last)
        if self._reported:
            yield _message(SearchProgress(self._reported))
            self._reported = 0
        done = self._done(segment, first, was_read=bool(parts), has_filter=has_filter)
        try:
            yield _message(done)
            has_filter = False
        finally:
            if has_filter:  # Nobody gives it its name any more.
                self._remove_filter(segment)

    def _parts(self, segment: SearchedSegment, file: File) -> list[tuple[FilePosition, FilePosition]]:
        """Returns the parts of a segment that may have a record, from a batch to where another begins.

        Prepares the filter that is built while all of it is read.
        """
        whole = [(segment.floor, segment.size)]
        if segment.floor >= segment.size or not self._matcher.may_match(segment.base_offset, segment.end_offset - 1):
            return []
        if self._keys is None:
            return whole
        path = key_filter_path(self.order.directory, segment.base_offset)
        key_filter = open_key_filter(self._filesystem, path, file, segment.size)
        must_build = self._must_build(segment, 0 if key_filter is None else key_filter.covered_bytes)
        if key_filter is not None:
            try:
                if not must_build:
                    return key_filter.possible(self._keys, file, segment.floor)
            finally:
                key_filter.close()
        if must_build:
            secret = hashlib.blake2b(
                segment.base_offset.to_bytes(8, "big"), key=self.order.secret, digest_size=SECRET_BYTES
            )
            self._builder = KeyFilterBuilder(secret.digest(), segment.size)
        return whole

    def _must_build(self, segment: SearchedSegment, covered_bytes: int) -> bool:
        """Returns whether a filter is built that covers all that is searched of a segment."""
        if segment.floor:  # The bytes of a hole may come back after a power cut.
            return False
        tail_bytes = segment.size - covered_bytes
        if segment.is_closed:
            return tail_bytes > 0 and segment.end_offset <= self.order.end_offset
        return tail_bytes > max(TAIL_BYTES, covered_bytes // 8)

    def _search(self, segment: SearchedSegment, position: FilePosition, header: BatchHeader, batch: bytes) -> None:
        if not has_records(header) or not self._matcher.may_match(header.base_offset, header.last_offset):
            return
        try:
            records = self._matcher.records(header, batch)
            before = len(self._found)
            self._matcher.search(header, records, self._found)
            if self.order.with_keys and len(self._found) > before:
                self._found_keys.add_batch(header, records, self._found.offsets[before:])
        except ProtocolError as error:
            raise DamagedSegmentError(segment.path, f"the batch at offset {header.base_offset}: {error}") from error
        if self._builder is not None:
            self._builder.add(position, header, batch[:RECORD_BATCH_OVERHEAD], records)

    def _write_filter(self, segment: SearchedSegment, last: SegmentEnd | None) -> bool:
        """Writes a new filter and returns whether it was written."""
        if self._builder is None or last is None:
            return False
        encoded = self._builder.encode(last)
        self._builder = None
        if encoded is None:
            return False
        path = key_filter_path(self.order.directory, segment.base_offset) + TEMPORARY_SUFFIX
        try:
            self._filesystem.write_bytes(path, encoded)
        except OSError:  # Such as a full disk: the next search reads the segment again.
            self._remove_filter(segment)
            return False
        return True

    def _remove_filter(self, segment: SearchedSegment) -> None:
        with contextlib.suppress(OSError):
            self._filesystem.unlink(key_filter_path(self.order.directory, segment.base_offset) + TEMPORARY_SUFFIX)

    def _done(
        self, segment: SearchedSegment, first_offset: Offset | None, *, was_read: bool, has_filter: bool = False
    ) -> SegmentDone:
        found, keys = self._found, self._found_keys
        return SegmentDone(
            base_offset=segment.base_offset,
            first_offset=first_offset,
            offsets=found.offsets.tobytes(),
            timestamps=found.timestamps.tobytes(),
            leader_epochs=found.leader_epochs.tobytes(),
            has_filter=has_filter,
            was_read=was_read,
            keys=keys.keys,
            numbers=keys.numbers.tobytes(),
            producer_ids=keys.producer_ids.tobytes(),
        )


def _first_offset(segment: SearchedSegment, file: File) -> Offset | None:
    """Returns the offset of the first batch; None if there is none. Errors: DamagedSegmentError, OSError."""
    if segment.floor >= segment.size:
        return None
    try:
        return read_batch_header(file.pread(RECORD_BATCH_OVERHEAD, segment.floor)).base_offset
    except ProtocolError as error:
        raise DamagedSegmentError(segment.path, f"no record batch begins at byte {segment.floor}") from error
