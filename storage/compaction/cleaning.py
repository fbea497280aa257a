"""Reads and writes the segments of one log during its compaction, in a worker that has only files and its order.

The first walk reads the dirty part into the map of keys. The second reads all segments up to where the map reaches, and
writes the remaining batches of each group into files with the suffix `.cleaned`, which are on the disk before the group
is reported. The worker renames nothing and removes only its own files. The log's owner (`segment_swap.py`) decides
whether a result is used, because it knows what has happened meanwhile.

Guards: files that are read are never written; after a wrong checksum nothing more is written; files of unreported
groups are removed, unless the worker is killed. When a group is reported, no `.cleaned` file of an earlier attempt is
left, because a start would take it for an unfinished swap.

Source: Kafka's Cleaner.doClean, buildOffsetMap, cleanSegments.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from lowtide.protocol.control_records import read_control_record
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import (
    CURRENT_MAGIC,
    LOG_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    SMALLEST_BATCH_LENGTH,
    BatchHeader,
    check_crc,
    read_batch_header,
)
from lowtide.protocol.types import Offset, ProducerId
from lowtide.runtime.filesystem import File, FileSystem
from lowtide.runtime.heavy_work import WorkStep
from lowtide.storage.compaction.cleanable import GROUP_SEGMENTS_MAX, RELATIVE_OFFSET_MAX, group_segments
from lowtide.storage.compaction.cleaned_transactions import CleanedTransactions
from lowtide.storage.compaction.compaction import CompactionRules, LastRecord, compact_batch, note_batch, place_of
from lowtide.storage.compaction.offset_map import OffsetMap
from lowtide.storage.errors import DamagedSegmentError, StorageError, storage_error
from lowtide.storage.log.cleaned_segment import CleanedSegment, CleanedSize, remove_cleaned
from lowtide.storage.log.producers.open_transactions import CompletedTransaction
from lowtide.storage.log.producers.transaction_index import decode_aborted
from lowtide.storage.log.segments.hole import HOLE_HEADER_BYTES, decode_hole
from lowtide.storage.log.segments.segment_file import CONTROL_BYTES_MAX
from lowtide.storage.log.segments.segment_names import LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX, offset_name

_CHUNK_BYTES: Final = 1 << 20
"""The size of a read; a larger batch is read whole."""


class SegmentPlace(msgspec.Struct, frozen=True, array_like=True):
    """A closed segment of the log."""

    base_offset: Offset
    end_offset: Offset
    """The end offset, exclusive. The next segment begins there."""
    size: int


class CleaningOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to compact a log."""

    directory: str
    segments: list[SegmentPlace]
    """All segments below the first uncleanable offset, oldest first."""
    first_dirty_offset: Offset
    first_uncleanable_offset: Offset
    """Exclusive; a segment begins there."""
    segment_bytes: int
    index_interval_bytes: int
    map_bytes: int
    """The memory for the map of keys."""
    decompressed_bytes_max: int
    now_ms: int
    """Wall-clock time."""
    delete_retention_ms: int
    last_records: dict[ProducerId, LastRecord]
    indexed: list[Offset]
    """The base offsets of all segments of the log that have a transaction index file."""
    aborted: list[CompletedTransaction]
    """The aborted transactions of the others, such as the active one."""


class GroupCleaned(msgspec.Struct, frozen=True, tag=True):
    """The result of compacting some segments, beside them in files with the suffix `.cleaned`."""

    bases: list[Offset]
    """The base offsets of the segments; the first is that of the new one."""
    size: int
    """The size of the new segment."""
    has_aborted: bool
    """Whether it has a transaction index."""


class CleaningDone(msgspec.Struct, frozen=True, tag=True):
    """All groups are reported."""

    end_offset: Offset
    """The log is compacted up to here (exclusive)."""
    keys: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int


class CleaningFailed(msgspec.Struct, frozen=True, tag=True):
    """The compaction failed. Groups reported before stay valid."""

    reason: str
    is_damaged: bool
    """The log's bytes are damaged, so another attempt fails too."""
    error_number: int = 0


Outcome = GroupCleaned | CleaningDone | CleaningFailed

decode_outcome: Final = msgspec.msgpack.Decoder(Outcome).decode
encode_order: Final = msgspec.msgpack.Encoder().encode
_encode_outcome: Final = msgspec.msgpack.Encoder().encode
_decode_order: Final = msgspec.msgpack.Decoder(CleaningOrder).decode


def clean_log(filesystem: FileSystem, order: bytes) -> Iterator[WorkStep]:
    """Carries out an encoded `CleaningOrder` in steps, whose messages are encoded `Outcome`s.

    When closed it removes its files.
    """
    cleaning = _Cleaning(filesystem, _decode_order(order))
    try:
        yield from cleaning.steps()
    except DamagedSegmentError as error:
        yield WorkStep(0, _encode_outcome(CleaningFailed(str(error), is_damaged=True)))
    except (StorageError, OSError) as error:
        failed = error if isinstance(error, StorageError) else storage_error(cleaning.order.directory, error)
        yield WorkStep(
            0, _encode_outcome(CleaningFailed(str(failed), is_damaged=False, error_number=failed.error_number))
        )


class _Cleaning:
    """One compaction of one log."""

    def __init__(self, filesystem: FileSystem, order: CleaningOrder) -> None:
        self.order = order
        self._filesystem = filesystem
        self._offsets = OffsetMap(order.map_bytes)
        self._rules = CompactionRules(
            order.now_ms, order.delete_retention_ms, order.last_records, order.decompressed_bytes_max
        )
        self._before = CleanedSize()
        self._after = CleanedSize()
        self._gone: BatchHeader | None = None
        """The last batch read, if nothing is left of it."""

    def steps(self) -> Iterator[WorkStep]:
        remove_cleaned(self._filesystem, self.order.directory)  # An attempt that was killed may have left some.
        aborted = self._aborted_transactions()
        yield from self._read_dirty_part(aborted)
        order, end_offset = self.order, self._offsets.latest_offset + 1
        transactions = CleanedTransactions(aborted)
        last = order.first_uncleanable_offset
        places = [*order.segments, SegmentPlace(last, last, 0)]
        groups = deque(group_segments(places, end_offset, order.segment_bytes))
        while groups:
            yield from self._clean_next(groups, transactions)
        before, after = self._before, self._after
        done = CleaningDone(
            end_offset, len(self._offsets), before.size_bytes, after.size_bytes, before.records, after.records
        )
        yield WorkStep(0, _encode_outcome(done))

    def _aborted_transactions(self) -> list[CompletedTransaction]:
        found = {(each.producer_id, each.first_offset): each for each in self.order.aborted}
        for base_offset in self.order.indexed:
            path = self._path(base_offset, TRANSACTION_INDEX_SUFFIX)
            entries = decode_aborted(self._filesystem.read_bytes(path), base_offset)
            if entries is None:
                raise DamagedSegmentError(path, "it is no index of aborted transactions")
            found.update(((each.producer_id, each.first_offset), each) for each in entries)
        return list(found.values())

    def _read_dirty_part(self, aborted: list[CompletedTransaction]) -> Iterator[WorkStep]:
        """Fills the map; its `latest_offset` is the last offset that it covers."""
        order, offsets = self.order, self._offsets
        dirty = [segment for segment in order.segments if segment.end_offset > order.first_dirty_offset]
        start = dirty[0].base_offset if dirty else order.first_uncleanable_offset
        transactions = CleanedTransactions(each for each in aborted if each.last_offset >= start)
        for segment in dirty:
            for chunk in self._chunks(segment):
                for header, batch in chunk:
                    is_aborted = self._discards(transactions, header, batch, segment)
                    with _naming(self._path(segment.base_offset, LOG_SUFFIX), header):
                        has_room = note_batch(
                            offsets,
                            header,
                            batch,
                            order.first_dirty_offset,
                            aborted=is_aborted,
                            decompressed_bytes_max=order.decompressed_bytes_max,
                        )
                    if not has_room:
                        return
                yield WorkStep(sum(header.size_bytes for header, _ in chunk))
        # There may be no batch before the end: those offsets count as read.
        offsets.latest_offset = max(offsets.latest_offset, order.first_uncleanable_offset - 1)

    def _clean_next(self, groups: deque[list[SegmentPlace]], transactions: CleanedTransactions) -> Iterator[WorkStep]:
        """Writes the remaining batches of the first group as a segment.

        If no batch remains, the next groups join it, so that no empty segment with a new file time is left.
        """
        taken = groups.popleft()
        cleaned = CleanedSegment(
            self._filesystem, self.order.directory, taken[0].base_offset, self.order.index_interval_bytes
        )
        is_done = False
        try:
            yield from self._write(cleaned, taken, transactions)
            while groups and not cleaned.size and self._may_join(taken, groups):
                more = groups.popleft()
                taken += more
                yield from self._write(cleaned, more, transactions)
            self._keep_end(cleaned)
            retained, transactions.retained = transactions.retained, []
            cleaned.finish(retained)
            is_done = True
        finally:
            if not is_done:
                cleaned.abandon()
        self._after.add(cleaned.total)
        yield WorkStep(
            0, _encode_outcome(GroupCleaned([segment.base_offset for segment in taken], cleaned.size, bool(retained)))
        )

    def _keep_end(self, cleaned: CleanedSegment) -> None:
        """Keeps the last batch of the result, at least empty: a gap before the next segment would mean a loss."""
        if self._gone is not None:
            place = place_of(self._gone)
            cleaned.append(read_batch_header(place), place)
            self._gone = None

    def _may_join(self, taken: list[SegmentPlace], groups: deque[list[SegmentPlace]]) -> bool:
        """Returns whether the next group may join `taken`, which left no batch."""
        end_offset = groups[1][0].base_offset if len(groups) > 1 else self.order.first_uncleanable_offset
        return (
            len(taken) + len(groups[0]) <= GROUP_SEGMENTS_MAX
            and end_offset - taken[0].base_offset <= RELATIVE_OFFSET_MAX
        )

    def _write(
        self, cleaned: CleanedSegment, group: list[SegmentPlace], transactions: CleanedTransactions
    ) -> Iterator[WorkStep]:
        for segment in group:
            for chunk in self._chunks(segment):
                written = cleaned.size
                for header, batch in chunk:
                    self._compact(cleaned, transactions, segment, header, batch)
                yield WorkStep(sum(header.size_bytes for header, _ in chunk) + cleaned.size - written)

    def _compact(
        self,
        cleaned: CleanedSegment,
        transactions: CleanedTransactions,
        segment: SegmentPlace,
        header: BatchHeader,
        batch: bytes,
    ) -> None:
        self._before.note(header.size_bytes, header.record_count)
        discarded = self._discards(transactions, header, batch, segment)
        is_last = header.next_offset == self.order.first_uncleanable_offset
        with _naming(self._path(segment.base_offset, LOG_SUFFIX), header):
            left = compact_batch(self._offsets, header, batch, self._rules, discarded=discarded, is_last=is_last)
        self._gone = header if left is None else None
        if left is not None:
            cleaned.append(header if left is batch else read_batch_header(left), left)

    def _discards(
        self, transactions: CleanedTransactions, header: BatchHeader, batch: bytes, segment: SegmentPlace
    ) -> bool:
        if not header.is_control:
            return transactions.on_batch(header)
        with _naming(self._path(segment.base_offset, LOG_SUFFIX), header):
            return transactions.on_marker(header, read_control_record(batch, max_bytes=CONTROL_BYTES_MAX))

    def _path(self, base_offset: Offset, suffix: str) -> str:
        return f"{self.order.directory}/{offset_name(base_offset)}{suffix}"

    def _chunks(self, segment: SegmentPlace) -> Iterator[list[tuple[BatchHeader, bytes]]]:
        """Yields the checked batches of a segment after its hole, about a chunk of them at a time."""
        file = self._filesystem.open(self._path(segment.base_offset, LOG_SUFFIX))
        try:
            hole = decode_hole(file.pread(HOLE_HEADER_BYTES, 0), segment.base_offset)
            position, reached = 0 if hole is None else hole.size, segment.base_offset
            while position < segment.size:
                batches = split_batches(file, position, segment.size, reached, segment.end_offset)
                position += sum(header.size_bytes for header, _ in batches)
                reached = batches[-1][0].next_offset
                yield batches
        finally:
            file.close()


def split_batches(
    file: File, position: int, end: int, reached: Offset, end_offset: Offset
) -> list[tuple[BatchHeader, bytes]]:
    """Returns the whole batches, at least one, of a chunk that starts at byte `position`, where a batch begins.

    The readable part of the file ends before byte `end`. Offsets rise from `reached` on and are below `end_offset`,
    which no CRC shows. Errors: DamagedSegmentError, OSError.
    """
    chunk = file.pread(min(_CHUNK_BYTES, end - position), position)
    size = int.from_bytes(chunk[8:LOG_OVERHEAD], "big") + LOG_OVERHEAD
    if len(chunk) < size <= end - position:
        chunk = file.pread(size, position)
    batches = []
    at = 0
    while len(chunk) - at >= RECORD_BATCH_OVERHEAD:
        header = read_batch_header(chunk, at)
        if header.magic != CURRENT_MAGIC or header.batch_length < SMALLEST_BATCH_LENGTH:
            break
        if header.size_bytes > len(chunk) - at:
            break
        batch = chunk[at : at + header.size_bytes]
        has_place = reached <= header.base_offset <= header.last_offset < end_offset
        if not has_place or not check_crc(batch, 0, header):
            break
        batches.append((header, batch))
        reached = header.next_offset
        at += header.size_bytes
    if not batches:
        raise DamagedSegmentError(file.path, f"no sound record batch begins at byte {position + at}")
    return batches


class _naming(contextlib.AbstractContextManager[None]):  # noqa: N801 - used like a function
    """Adds path and offset to the error for invalid bytes."""

    def __init__(self, path: str, header: BatchHeader) -> None:
        self._path = path
        self._header = header

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, ProtocolError):
            raise DamagedSegmentError(self._path, f"the batch at offset {self._header.base_offset}: {error}") from error
