"""One search of one log, as the event loop runs it: a worker reads the segments, and the results are checked here.

Guards: the records of a segment count only if it is still as it was when the search was ordered. If it was compacted,
erased or removed meanwhile, the rest of the log is searched again from its first offset on. If records were cut, the
search begins again: other records may have their offsets now. A log that changes too often ends the search with an
error, as does a damaged one.

Does not promise: records that are appended after `begin`.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from lowtide.protocol.types import FilePosition, Offset
from lowtide.runtime.filesystem import FileSystem
from lowtide.runtime.heavy_work import HeavyWorker, RunningWork, WorkFailedError
from lowtide.storage.checkpoint import TEMPORARY_SUFFIX
from lowtide.storage.erasures.found_keys import FoundKeys
from lowtide.storage.erasures.key_filter import key_filter_path
from lowtide.storage.erasures.record_search import KEY_BYTES_MAX, KEYS_MAX, FoundRecords, RecordSelector
from lowtide.storage.erasures.search_work import (
    FOUND_MAX,
    SearchedSegment,
    SearchOrder,
    SearchProgress,
    SegmentDone,
    decode_report,
    encode_search,
    search_log,
)
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import Log
from lowtide.storage.log.segments.segment import Segment
from lowtide.storage.log.segments.segment_file import SliceToken

ATTEMPTS_MAX: Final = 20
"""How often a search is ordered if the log changes meanwhile."""


class SearchFailure(Enum):
    """Why a search has no result."""

    CHANGED = "the log changed too often during the search; ask again"
    MOVED = "the replica was moved or removed meanwhile; ask again"
    CUT = "the log was truncated below the end of the search; ask again"
    TOO_MANY = f"more than {FOUND_MAX} records of the partition match; at most {FOUND_MAX} can be found at once"
    TOO_MANY_KEYS = f"the records have more than {KEYS_MAX} keys, or keys of more than {KEY_BYTES_MAX} bytes together"
    UNREADABLE = "the log can't be read"
    BUSY = "too many searches are waiting; ask again"
    CANCELLED = "the search was ended by the broker"

    @property
    def sentence(self) -> str:
        """The message for a client."""
        return f"{self.value[0].upper()}{self.value[1:]}."


class SearchedLog(msgspec.Struct):
    """The result of a search."""

    first_offset: Offset
    """The first offset searched; it may be below the log start."""
    end_offset: Offset
    """Exclusive."""
    records: FoundRecords
    keys: FoundKeys | None = None
    """Those of the records, if they are wanted."""


class SearchPorts(NamedTuple):
    """The functions and ports that a search uses."""

    filesystem: FileSystem
    worker: HeavyWorker
    is_here: Callable[[Log], bool]
    """Whether the log is still the directory's, and the directory is served."""


class SearchTerms(NamedTuple):
    """What is searched, and how."""

    selector: RecordSelector
    end_offset: Offset
    """Exclusive; at most the log end."""
    first_offset: Offset
    """Inclusive; -1 for the first offset in the files."""
    uses_filters: bool
    bytes_per_second: float
    secret: bytes
    """32 random bytes of this search."""
    with_keys: bool = False
    """Whether the result has the keys of the records."""


OnSearched = Callable[["SearchedLog | SearchFailure", "str | None"], None]
"""Receives the result, or why there is none, with a detail for the broker's log."""


class _Seen(NamedTuple):
    """A segment as it was when it was ordered."""

    segment: Segment
    token: SliceToken
    """Replaced when the segment is cut."""
    floor: FilePosition
    size: int
    end_offset: Offset


class LogSearch:
    """A search of a log. `begin` is called once; `on_done` is called once, never from within `begin` or `cancel`."""

    def __init__(self, log: Log, terms: SearchTerms, ports: SearchPorts, on_done: OnSearched) -> None:
        self.log = log
        self.searched_bytes = 0
        self.total_bytes = 0
        """Of all segments; an estimate after a change of the log."""
        self._terms = terms
        self._ports = ports
        self._on_done = on_done
        self._records = FoundRecords()
        self._keys = FoundKeys() if terms.with_keys else None
        self._first_offset: Offset | None = None
        self._next_offset: Offset = terms.first_offset
        """All before it is searched."""
        self._seen: list[_Seen] = []
        """Segments that are still to be searched."""
        self._last: _Seen | None = None
        """The segment with the end of the search, as it was at the beginning."""
        self._running: RunningWork | None = None
        self._attempts = 0
        self._again = False
        self._stopped: tuple[SearchFailure, str | None] | None = None
        self._before_bytes = 0
        """The bytes of the segments that were searched."""

    def begin(self) -> None:
        """Orders the search from the worker."""
        assert self._terms.end_offset <= self.log.log_end_offset, (self._terms.end_offset, self.log.describe())
        self._order()

    def cancel(self) -> None:
        """Ends the search; its result is CANCELLED."""
        self._stop(SearchFailure.CANCELLED)

    def on_message(self, message: bytes) -> None:
        report = decode_report(message)
        if self._again or self._stopped is not None:
            if isinstance(report, SegmentDone) and report.has_filter:
                self._drop_filter(report.base_offset)
            return
        if isinstance(report, SearchProgress):
            self.searched_bytes += report.searched_bytes
        elif isinstance(report, SegmentDone):
            self._on_segment(report)
        elif not self._is_whole():
            self._repeat()
        elif report.is_too_many:
            self._stop(SearchFailure.TOO_MANY)
        elif report.has_too_many_keys:
            self._stop(SearchFailure.TOO_MANY_KEYS)
        else:
            self._stop(SearchFailure.UNREADABLE, report.reason)

    def on_end(self, error: WorkFailedError | None) -> None:
        self._running = None
        if self._stopped is None and not self._again and self._seen:
            self._stop(SearchFailure.UNREADABLE, str(error) if error is not None else "the worker stopped")
        if self._stopped is None and (self._again or not self._is_uncut()):
            self._again = False
            if not self._is_uncut():
                self._records, self._first_offset, self._next_offset = FoundRecords(), None, self._terms.first_offset
                self._keys = FoundKeys() if self._terms.with_keys else None
                self.searched_bytes = self._before_bytes = 0
            self.searched_bytes = self._before_bytes
            self._order()
            return
        if self._stopped is not None:
            self._on_done(*self._stopped)
            return
        first_offset = self._terms.end_offset if self._first_offset is None else self._first_offset
        first_offset = min(first_offset, self._terms.end_offset)
        self._on_done(SearchedLog(first_offset, self._terms.end_offset, self._records, self._keys), None)

    def _order(self) -> None:
        self._attempts += 1
        if not self._ports.is_here(self.log) or self.log.offline:
            self._stop(SearchFailure.MOVED)
        elif self._terms.end_offset > self.log.log_end_offset:
            self._stop(SearchFailure.CUT)
        elif self._attempts > ATTEMPTS_MAX:
            self._stop(SearchFailure.CHANGED)
        segments = [] if self._stopped is not None else self._plan()
        order = SearchOrder(
            directory=self.log.directory,
            segments=segments,
            end_offset=self._terms.end_offset,
            selector=self._terms.selector,
            found_max=FOUND_MAX - len(self._records),
            uses_filters=self._terms.uses_filters,
            secret=self._terms.secret,
            with_keys=self._terms.with_keys,
        )
        # Without segments the worker has nothing to do, and `on_end` follows later.
        self._running = self._ports.worker.begin(search_log, encode_search(order), self, self._terms.bytes_per_second)

    def _plan(self) -> list[SearchedSegment]:
        """Returns the segments that are still to be searched, as they are now."""
        log, end_offset = self.log, self._terms.end_offset
        ends = [*log.segments.bases[1:], log.log_end_offset]
        self._seen = [
            _Seen(segment, segment.token, segment.floor, segment.size, end)
            for segment, end in zip(log.segments, ends, strict=True)
            if end > self._next_offset and segment.base_offset < end_offset
        ]
        self._last = self._seen[-1] if self._seen else None
        self._before_bytes = self.searched_bytes
        self.total_bytes = self.searched_bytes + sum(each.size - each.floor for each in self._seen)
        return [
            SearchedSegment(
                each.segment.base_offset,
                each.end_offset,
                each.segment.path,
                self._begin(each),
                each.size,
                not each.segment.is_pinned,
            )
            for each in self._seen
        ]

    def _begin(self, seen: _Seen) -> FilePosition:
        """Returns where the first batch begins that is to be searched."""
        if self._next_offset <= seen.segment.base_offset:
            return seen.floor
        try:
            place = seen.segment.find(self._next_offset)
        except StorageError:  # The search reports it.
            return seen.floor
        return seen.size if place is None else max(place.position, seen.floor)

    def _on_segment(self, done: SegmentDone) -> None:
        seen = self._seen[0]
        assert done.base_offset == seen.segment.base_offset, done.base_offset
        if not self._is_whole():
            if done.has_filter:
                self._drop_filter(done.base_offset)
            self._repeat()
            return
        if done.has_filter:
            self._name_filter(done.base_offset)
        if self._first_offset is None:
            self._first_offset = seen.segment.base_offset if done.first_offset is None else done.first_offset
        self._add(done)
        self._next_offset = seen.end_offset
        self._before_bytes += seen.size - seen.floor
        del self._seen[0]
        if len(self._records) > FOUND_MAX:
            self._stop(SearchFailure.TOO_MANY)
        if self._keys is not None and self._keys.are_too_many:
            self._stop(SearchFailure.TOO_MANY_KEYS)

    def _add(self, done: SegmentDone) -> None:
        """Adds the records from where the search was before to the end of the search."""
        columns = (array("q", done.offsets), array("q", done.timestamps), array("i", done.leader_epochs))
        records = self._records
        keys = FoundKeys(done.keys, array("i", done.numbers), array("q", done.producer_ids)).each()
        for offset, timestamp, leader_epoch in zip(*columns, strict=True):
            key = next(keys, None)
            if self._next_offset <= offset < self._terms.end_offset:
                records.offsets.append(offset)
                records.timestamps.append(timestamp)
                records.leader_epochs.append(leader_epoch)
                if self._keys is not None and key is not None:
                    self._keys.add(*key)

    def _is_whole(self) -> bool:
        """Returns whether the next segment is as it was, and nothing was cut."""
        return self._is_uncut() and (not self._seen or self._is_unchanged(self._seen[0]))

    def _is_unchanged(self, seen: _Seen) -> bool:
        segment = seen.segment
        return (
            self._ports.is_here(self.log)
            and self.log.segments.holds(segment)
            and segment.token is seen.token
            and segment.floor == seen.floor
        )

    def _is_uncut(self) -> bool:
        """Returns whether no record below the end of the search was cut; False also if that is in doubt.

        A truncation changes or removes the segment with the end. Compaction does so too, but not while it is the last.
        """
        last = self._last
        return last is None or (self.log.segments.holds(last.segment) and last.segment.token is last.token)

    def _repeat(self) -> None:
        """Searches again what isn't searched yet; everything if records may have been cut."""
        self._again = True
        if self._running is not None:
            self._running.cancel()

    def _stop(self, failure: SearchFailure, detail: str | None = None) -> None:
        if self._stopped is None:
            self._stopped = (failure, detail)
            if self._running is not None:
                self._running.cancel()

    def _name_filter(self, base_offset: Offset) -> None:
        path = key_filter_path(self.log.directory, base_offset)
        try:
            self._ports.filesystem.rename(path + TEMPORARY_SUFFIX, path)
        except OSError:
            self._drop_filter(base_offset)

    def _drop_filter(self, base_offset: Offset) -> None:
        """Removes a filter of a segment that has changed: it may still attest erased keys."""
        path = key_filter_path(self.log.directory, base_offset)
        with contextlib.suppress(OSError):
            self._ports.filesystem.unlink(path + TEMPORARY_SUFFIX)
