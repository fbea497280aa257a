"""The `.snapshot` files of a log: the producer state at an offset, so that a start needn't replay the whole log.

A snapshot named by offset x covers all records below x. One is taken at each roll, named after the new segment and
removed with it, one at a clean stop, and one after a recovery. A damaged one is dropped and the next older one used;
without any, the log is replayed.

A snapshot has the last batch of each producer. Earlier batches are looked up in the log, because a producer that got no
answers sends up to five again, and the first of them would look like a gap (librdkafka then fails the producer). Kafka
does not look them up.

Source: Kafka's ProducerStateManager; the content is in `storage/log/producers/producer_snapshot.py`.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, takewhile

from lowtide.protocol.records import BatchHeader
from lowtide.protocol.types import FilePosition, Offset
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.errors import DamagedSegmentError, remove_file, storage_error
from lowtide.storage.log.producers.open_transactions import CompletedTransaction
from lowtide.storage.log.producers.producer_snapshot import CorruptSnapshotError
from lowtide.storage.log.producers.producer_state import ProducerStateManager
from lowtide.storage.log.producers.transaction_index import TransactionIndex
from lowtide.storage.log.segments.segment import Segment, header_at
from lowtide.storage.log.segments.segment_file import read_control
from lowtide.storage.log.segments.segment_list import SegmentList
from lowtide.storage.log.segments.segment_names import SNAPSHOT_SUFFIX, offset_name

RECALLED_ENTRIES = 256
"""Entries of offset indexes to go back: a megabyte of small batches at Kafka's `index.interval.bytes`, or 256 large
ones.
"""

RECALLED_SEGMENTS = 64
"""Segments to go back, each of which may hold a few batches, and is opened."""


class ProducerSnapshots:
    """The snapshots of one log, by offset."""

    __slots__ = ("_between", "_directory", "_filesystem", "_offsets")

    def __init__(self, filesystem: FileSystem, directory: str, offsets: Iterable[Offset] = ()) -> None:
        """`offsets` are those that have a file."""
        self._filesystem = filesystem
        self._directory = directory
        self._offsets = sorted(offsets)
        self._between: set[Offset] = set()
        """Snapshots that aren't removed with a segment."""

    def relocate(self, directory: str) -> None:
        self._directory = directory

    @property
    def offsets(self) -> tuple[Offset, ...]:
        """The offsets that have a snapshot, rising."""
        return tuple(self._offsets)

    def path(self, offset: Offset) -> str:
        return f"{self._directory}/{offset_name(offset)}{SNAPSHOT_SUFFIX}"

    def take(self, offset: Offset, state: ProducerStateManager) -> str:
        """Writes the state of all records below `offset`; returns the file's path. Errors: OSError."""
        path = self.path(offset)
        self._filesystem.write_bytes(path, state.encode_snapshot())
        if offset not in self._offsets:
            insort(self._offsets, offset)
        return path

    def take_between(self, offset: Offset, state: ProducerStateManager, high_watermark: Offset) -> str | None:
        """Takes a snapshot inside a segment, before batches below `offset` are removed; returns None if there is one.

        The last earlier one stays, and so does the last one at or below the high watermark. Errors: OSError.
        """
        if offset in self._offsets:
            return None
        path = self.take(offset, state)
        committed = max((each for each in self._between if each <= high_watermark), default=offset)
        for each in self._between - {committed}:
            self._remove_between(each)
        self._between.add(offset)
        return path

    def _remove_between(self, offset: Offset) -> None:
        self._between.discard(offset)
        if offset in self._offsets:
            self._offsets.remove(offset)
            with contextlib.suppress(OSError):
                self._filesystem.unlink(self.path(offset))

    def reload(  # noqa: PLR0913  options of the reading, by keyword
        self,
        state: ProducerStateManager,
        segments: SegmentList,
        end_offset: Offset,
        *,
        newest: Offset,
        log_start_offset: Offset,
        now_ms: int,
        recalls: bool = True,
        on_completed: Callable[[Offset, CompletedTransaction], None] | None = None,
    ) -> None:
        """Brings `state` to `end_offset` (exclusive), the end of a segment or the log, by a snapshot and later batches.

        The newest snapshot at or below `newest` is used. A newer one is used only if no transaction had ended in it,
        because it doesn't record which of those were decided. None is used if batches after it, below
        `log_start_offset`, were erased. With `recalls` the batches before the snapshot are looked up. `on_completed`
        gets each transaction that ends, with the base offset of its marker's segment. Errors: StorageError.
        """
        state.reset()
        load_newest = partial(self._load_newest, state, segments, log_start_offset, now_ms=now_ms)
        loaded = None
        if on_completed is None:
            loaded = load_newest(end_offset)
        if loaded is None or (loaded > newest and state.knows_coordinators):
            state.reset()
            loaded = load_newest(newest)
        start = segments[0].first_offset if loaded is None else loaded
        if loaded is not None and recalls:
            _recall(state, segments, start)
        for number in range(max(segments.number_of(start), 0), len(segments)):
            segment = segments[number]
            if segment.base_offset >= end_offset and number:
                break
            place = segment.find(start) if segment.size else None
            if place is not None:
                for position, header in segment.batches(place.position):
                    if header.producer_id >= 0:
                        completed = state.replay(header, now_ms=now_ms, control=read_control(segment, position, header))
                        if completed is not None and on_completed is not None:
                            on_completed(segment.base_offset, completed)
            segments.used(segment)

    def _load_newest(
        self,
        state: ProducerStateManager,
        segments: SegmentList,
        log_start_offset: Offset,
        end_offset: Offset,
        *,
        now_ms: int,
    ) -> Offset | None:
        """Loads the newest good snapshot up to `end_offset` (inclusive) into `state`; returns its offset, or None.

        A snapshot below the first segment's base offset, or below erased batches, is useless, because batches after it
        are missing. A producer with too low a sequence would be refused, while an unknown one may continue
        (KAFKA-7190). Damaged ones are removed. Errors: StorageError.
        """
        first = bisect_left(self._offsets, segments[0].first_offset)
        for offset in reversed(self._offsets[first : bisect_right(self._offsets, end_offset)]):
            if offset < log_start_offset and _lacks_batches_from(offset, segments[0]):
                return None
            path = self.path(offset)
            try:
                state.load_snapshot(self._filesystem.read_bytes(path), now_ms=now_ms)
            except (CorruptSnapshotError, FileNotFoundError):
                self._remove(offset)
            except OSError as error:
                raise storage_error(path, error) from error
            else:
                return offset
        return None

    def drop_above(self, end_offset: Offset) -> None:
        """Removes the snapshots above the exclusive log end `end_offset`, which cover removed records.

        Errors: StorageError.
        """
        for offset in self._offsets[bisect_right(self._offsets, end_offset) :]:
            self._remove(offset)

    def drop_except(self, kept: Iterable[Offset]) -> None:
        """Removes all but the newest and those at the offsets `kept`. Errors: StorageError."""
        keep = {*kept, *self._offsets[-1:]}
        for offset in self.offsets:
            if offset not in keep:
                self._remove(offset)

    def forget_below(self, base_offset: Offset) -> None:
        """Forgets the snapshots below `base_offset`, which are removed with their segments."""
        for offset in [each for each in self._between if each < base_offset]:
            self._remove_between(offset)
        del self._offsets[: bisect_left(self._offsets, base_offset)]

    def forget_replaced(self, offsets: Iterable[Offset]) -> None:
        """Forgets the snapshots at these base offsets, whose segments became part of another one."""
        gone = set(offsets)
        self._offsets = [offset for offset in self._offsets if offset not in gone]

    def _remove(self, offset: Offset) -> None:
        self._offsets.remove(offset)
        self._between.discard(offset)  # Otherwise a later one at this offset would be taken for an old one.
        remove_file(self._filesystem, self.path(offset))


def _lacks_batches_from(offset: Offset, first: Segment) -> bool:
    """Returns whether the first segment has no batch at or below `offset`, which lies in it. Errors: StorageError."""
    header = next((header for _, header in first.batches(first.floor)), None) if first.size > first.floor else None
    return header is None or header.base_offset > offset


def _recall(state: ProducerStateManager, segments: SegmentList, start: Offset) -> None:
    """Adds the last batches below `start` to `state`, which was loaded from a snapshot there. Errors: StorageError."""
    first, last = max(segments.number_of(start), 0), max(segments.number_of(start), 0)
    places: list[tuple[FilePosition, FilePosition]] = []
    entries = RECALLED_ENTRIES
    for number in range(last, max(last - RECALLED_SEGMENTS, -1), -1):
        segment = segments[number]
        place = segment.find(start) if segment.size and number == last else None
        end = segment.size if place is None else place.position
        index = segment.indexes[0]
        places.append((index.place_before(end, entries), end))
        first, entries = number, entries - len(index) - 1
        segments.used(segment)
        if entries <= 0:
            break
    headers = [_headers(segments[first + number], *place) for number, place in enumerate(reversed(places))]
    try:
        state.recall(chain.from_iterable(headers))
    except DamagedSegmentError:
        return  # An entry that names no batch, or damage, which its reader finds.


def _headers(segment: Segment, position: FilePosition, end: FilePosition) -> Iterator[BatchHeader]:
    return (header for _, header in takewhile(lambda found: found[0] < end, segment.batches(position)))


def unconfirmed_aborted(index: TransactionIndex, segments: SegmentList) -> list[Offset]:
    """Returns the base offsets of the segments whose files are invalid, or say what the log contradicts.

    The files have no checksum, and with a wrong one consumers of committed records would get aborted ones. Errors:
    StorageError.
    """
    found = []
    for base_offset in index.bases:
        try:
            if not all(_is_confirmed(each, segments) for each in index.entries(base_offset)):
                found.append(base_offset)
        except DamagedSegmentError:
            found.append(base_offset)
    return found


def _is_confirmed(aborted: CompletedTransaction, segments: SegmentList) -> bool:
    """Returns whether the log has this marker, and this first batch unless that is gone. Errors: StorageError."""
    marker = _header_at(aborted.last_offset, segments)
    if marker is None or not marker.is_control or marker.producer_id != aborted.producer_id:
        return False
    first = _header_at(aborted.first_offset, segments)
    if first is None or first.base_offset > aborted.first_offset:
        return True
    return first.base_offset == aborted.first_offset and first.producer_id == aborted.producer_id


def _header_at(offset: Offset, segments: SegmentList) -> BatchHeader | None:
    segment = segments[max(segments.number_of(offset), 0)]
    header = header_at(segment, offset)
    segments.used(segment)
    return header


def rebuild_aborted(
    index: TransactionIndex,
    base_offsets: Sequence[Offset],
    segments: SegmentList,
    snapshots: ProducerSnapshots,
    log_end_offset: Offset,
) -> list[str]:
    """Rebuilds the entries of the segments at `base_offsets`, in rising order. Returns the written files.

    The active segment's file is written when it is closed. On a full disk the others are rebuilt another time. Errors:
    StorageError.
    """
    wanted = set(base_offsets)
    after = segments.number_of(base_offsets[-1]) + 1
    end_offset = segments.bases[after] if after < len(segments) else log_end_offset

    def on_completed(base_offset: Offset, transaction: CompletedTransaction) -> None:
        if transaction.is_aborted and base_offset in wanted:
            index.note(base_offset, transaction)

    for base_offset in base_offsets:
        index.begin_rebuild(base_offset)
    # The starts of transactions count here; a snapshot has them even if batches after it were erased.
    snapshots.reload(
        ProducerStateManager(),
        segments,
        end_offset,
        newest=base_offsets[0],
        log_start_offset=0,
        now_ms=0,
        recalls=False,
        on_completed=on_completed,
    )
    for base_offset in base_offsets:
        index.end_rebuild(base_offset)
    written: list[str] = []
    with contextlib.suppress(OSError):
        for base_offset in base_offsets:
            if base_offset != segments.active.base_offset:
                written += index.write(base_offset)
    return written
