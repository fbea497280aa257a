"""Searches for a person's records, in rounds, with its progress; and what was found.

The brokers search. A round asks them for `ROUND_S`; the next one continues the same search. It ends when all partitions
are searched, or when nothing has advanced in a round: then the others' errors are the results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.errors import AdminError, DeadlineExceededError
from lowtide.admin.finding import FindCall, RecordQuery, SearchedPartition
from lowtide.console.answers import sentence_of
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.console.person import PersonScope

ROUND_S: Final = 20.0
RANGES_MAX: Final = 200
"""The most ranges of found offsets that are kept for a partition."""

RUNNING_SHOWN: Final = 20
RANGES_SHOWN: Final = 10
ROWS_MAX: Final = 500
"""Partitions on the page, those with records first; the others are only counted."""

STEP: Final = 200
"""Partitions that are worked on without a break for the event loop."""

Searched = SearchedPartition | AdminError


class PersonSearch:
    """One search. Call `run` once, and `value` at any time."""

    def __init__(self, client: AdminClient, scope: PersonScope, search_id: bytes) -> None:
        self._client = client
        self._search_id = search_id
        self._left = list(scope.partitions)
        self._partitions = scope.partitions
        self._without_leader = scope.without_leader
        self._topic_ids = scope.topic_ids
        self._query: RecordQuery | None = replace(scope.query, names_newest=not scope.query.keys)
        self._bytes: dict[TopicPartition, tuple[int, int]] = {}
        self._call: FindCall | None = None
        self.results: dict[TopicPartition, Searched] = {}
        self.count = 0
        """The records that were found."""

    async def run(self) -> None:
        """Searches all partitions, and forgets the keys. Errors: AdminError."""
        query, self._query = self._query, None
        advanced = True
        while self._left and advanced and query is not None:
            before = self._done()
            found = await self._round(query)
            late = {key for key, each in found.items() if isinstance(each, DeadlineExceededError)}
            advanced = self._done() > before or len(late) < len(self._left)
            self.results |= {key: each for key, each in found.items() if key not in late or not advanced}
            self._left = [key for key in self._left if key not in self.results]
        self.count = sum(each.count for each in self.results.values() if isinstance(each, SearchedPartition))

    async def _round(self, query: RecordQuery) -> dict[TopicPartition, Searched]:
        call = FindCall(self._client.call(ROUND_S), query, None, search_id=self._search_id, ranges_max=RANGES_MAX)
        call.topic_ids = dict(self._topic_ids)
        self._call = call
        try:
            return await call.run(self._left)
        finally:
            self._bytes |= call.progress
            self._call = None

    def _done(self) -> int:
        return sum(done for done, _ in self._bytes.values())

    def progress(self) -> dict[str, Any]:
        """Returns how far the search is, with the partitions that are searched now."""
        found = self._bytes if self._call is None else self._bytes | dict(self._call.progress)
        searched = sum(1 for key, (done, total) in found.items() if key in self.results or 0 < total <= done)
        return {
            "partitions": len(self._partitions),
            "searched": max(searched, len(self.results)),
            "bytes": sum(done for done, _ in found.values()),
            "total_bytes": sum(total for _, total in found.values()),
            "running": [
                {**key._asdict(), "bytes": done, "total_bytes": total}
                for key, (done, total) in found.items()
                if key not in self.results and done < total
            ][:RUNNING_SHOWN],
        }

    def found(self) -> dict[TopicPartition, SearchedPartition]:
        """Returns the partitions with records."""
        return {key: each for key, each in self.results.items() if isinstance(each, SearchedPartition) and each.count}

    def searched(self) -> list[TopicPartition]:
        """Returns the partitions that were searched."""
        return [key for key, each in self.results.items() if isinstance(each, SearchedPartition)]

    async def value(self) -> dict[str, Any]:
        """Returns what was found: a row for each topic, and rows of partitions with records or errors."""
        topics: dict[str, dict[str, Any]] = {}
        rows: list[dict[str, Any]] = []
        for start in range(0, len(self._partitions), STEP):
            for key in self._partitions[start : start + STEP]:
                each = self.results.get(key)
                _add(topics, key, each)
                if len(rows) < ROWS_MAX and (each is None or isinstance(each, AdminError) or each.count):
                    rows.append(partition_row(key, each))
            await asyncio.sleep(0)
        for key in self._without_leader:
            _add(topics, key, None)
            rows.append({**key._asdict(), "records": None, "error": "It has no leader now, so it can't be searched."})
        shown = sum(each.count for each in self.found().values())
        return {
            "records": shown,
            "topics": sorted(topics.values(), key=lambda row: (-row["records"], row["topic"])),
            "partitions": sorted(rows, key=lambda row: (-(row["records"] or 0), row["topic"], row["partition"])),
            "left_out": max(0, len(self.found()) + self._failed() - len(rows)),
        }

    def _failed(self) -> int:
        return len(self._partitions) - len(self.searched()) + len(self._without_leader)


def _add(topics: dict[str, dict[str, Any]], key: TopicPartition, each: Searched | None) -> None:
    row = topics.setdefault(
        key.topic, {"topic": key.topic, "partitions": 0, "with_records": 0, "records": 0, "failed": 0}
    )
    row["partitions"] += 1
    if isinstance(each, SearchedPartition):
        row["records"] += each.count
        row["with_records"] += bool(each.count)
    else:
        row["failed"] += 1


def partition_row(key: TopicPartition, each: Searched | None) -> dict[str, Any]:
    """Returns a partition for the page."""
    if not isinstance(each, SearchedPartition):
        reason = "It was not searched." if each is None else sentence_of(each).removeprefix(f"{key}: ")
        return {**key._asdict(), "records": None, "error": reason}
    shown, newest = each.offsets[:RANGES_SHOWN], each.newest[:RANGES_SHOWN]
    return {
        **key._asdict(),
        "records": each.count,
        "error": None,
        "searched_from": each.searched_from,
        "searched_to": each.searched_to,
        "offsets": [list(pair) for pair in shown],
        "more_offsets": each.has_more or len(each.offsets) > len(shown),
        "newest": [list(pair) for pair in newest],
        "newest_count": sum(last - first + 1 for first, last in each.newest),
    }


def below(ranges: Iterable[tuple[int, int]], offset: int) -> int:
    """Returns how many offsets of the ranges are below `offset`."""
    return sum(max(0, min(last + 1, offset) - first) for first, last in ranges)


def first_offsets(found: Mapping[TopicPartition, SearchedPartition]) -> dict[TopicPartition, int]:
    """Returns the lowest offset that was found in each partition."""
    return {key: each.offsets[0].first for key, each in found.items() if each.offsets}
