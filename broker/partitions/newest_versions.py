"""Finds the newest versions of keys in a compacted log, among records that offsets or a header name.

An erasure refuses some of them (`older_versions.py`). A search that erases nothing names them, so that a dry run tells
what the erasure would do. Only the leader's log is read: the newest version of a key is there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lowtide.broker.partitions.older_versions import ends_of, newest_named
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.storage.erasures.found_keys import FoundKeys
from lowtide.storage.erasures.log_search import SearchedLog, SearchFailure
from lowtide.storage.erasures.record_search import FoundRecords, KeySelector, why_invalid
from lowtide.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lowtide.broker.partitions.log_searches import LogSearches, PartitionSearch
    from lowtide.protocol.types import Offset, ProducerId
    from lowtide.runtime.tasks import TaskRegistry
    from lowtide.storage.log.log import Log
    from lowtide.storage.log.producers.open_transactions import CompletedTransaction


class NewestSearch:
    """A search for records, and then for the versions of their keys. `begin` is called once."""

    def __init__(self, searches: LogSearches, running: PartitionSearch) -> None:
        """`running` is the search for the records, with their keys."""
        self.done = asyncio.Event()
        """Set when both have ended."""
        self.outcome: SearchedLog | SearchFailure | None = None
        """The records; None while it is under way."""
        self.newest = OffsetRanges(())
        """Those that are the newest versions of their keys."""
        self._searches = searches
        self._running = running
        self._task: asyncio.Task[None] | None = None

    def begin(self, tasks: TaskRegistry) -> None:
        self._task = tasks.spawn(self._run(), name="newest-versions")

    def cancel(self) -> None:
        """Ends it without a result, unless it has ended."""
        if self._task is not None:
            self._task.cancel()
        self._end(SearchFailure.CANCELLED)

    def _end(self, outcome: SearchedLog | SearchFailure) -> None:
        if self.outcome is None:
            self.outcome = outcome
        self.done.set()

    async def _run(self) -> None:
        outcome: SearchedLog | SearchFailure = SearchFailure.CANCELLED
        try:
            await self._running.done.wait()
            assert self._running.outcome is not None
            outcome = self._running.outcome
            if isinstance(outcome, SearchedLog):
                outcome = await self._with_newest(outcome)
        finally:
            self._end(outcome)

    async def _with_newest(self, named: SearchedLog) -> SearchedLog | SearchFailure:
        """Notes the newest versions. Returns the named records, or why the versions can't be found."""
        ends = ends_of(named)
        versions = await versions_of(self._searches, self._running, ends, named.end_offset)
        if isinstance(versions, SearchFailure):
            return versions
        newest = newest_named(ends, versions, live_records(self._running.log, named.end_offset))
        self.newest = OffsetRanges.of_offsets(newest)
        return named


async def versions_of(
    searches: LogSearches, running: PartitionSearch, ends: Mapping[bytes, Offset], end_offset: Offset
) -> SearchedLog | SearchFailure:
    """Returns all versions of the keys of `ends` that the leader has below `end_offset`, with their keys."""
    if not ends:
        return SearchedLog(end_offset, end_offset, FoundRecords(), FoundKeys())
    selector = KeySelector(frozenset(ends))
    if why_invalid(selector) is not None:
        return SearchFailure.TOO_MANY_KEYS
    if not running.is_current():
        return SearchFailure.MOVED
    return await searches.search(running.partition, selector, end_offset, with_keys=True)


def live_records(log: Log, end_offset: Offset) -> Callable[[Offset, ProducerId], bool]:
    """Returns what tells whether consumers get a record of a producer below `end_offset`, or certainly will.

    They don't if its transaction is open or aborted, or an erasure names it. The producer id is negative outside of
    transactions. In doubt (a damaged index) a transaction counts as aborted.
    """
    stable, start = log.last_stable_offset, log.log_start_offset
    erased = OffsetRanges.union_of(each.left for each in log.erasures.known)
    aborted: dict[ProducerId, list[CompletedTransaction]] = {}
    is_damaged = False
    try:
        for each in log.files.aborted.collect(log.segments.bases[0], start, end_offset):
            aborted.setdefault(each.producer_id, []).append(each)
    except StorageError:
        is_damaged = True

    def is_live(offset: Offset, producer_id: ProducerId) -> bool:
        if offset < start or erased.contains(offset):
            return False
        if producer_id < 0:
            return True
        if offset >= stable or is_damaged:
            return False
        return not any(each.first_offset <= offset <= each.last_offset for each in aborted.get(producer_id, ()))

    return is_live
