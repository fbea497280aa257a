"""The last records before an offset are found wherever they are, and those that are left out are the oldest.

Offsets are not a number of records: compacted and transactional logs have gaps, and records may be large.
"""

from __future__ import annotations

import asyncio
import os

from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.admin import records
from lowtide.admin.errors import BrokerAnsweredError
from lowtide.admin.records import FetchedRecords, LastRows, last_rows
from lowtide.console.records import FETCH_BYTES, records_of
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import Record


class Partition:
    """Batches of a log with gaps between them."""

    def __init__(self, batches: list[tuple[int, int, int]]) -> None:
        """Each batch: the gap before it, its records, and the bytes of each."""
        self.batches: list[tuple[int, int, bytes]] = []
        self.end = 0
        for gap, count, size in batches:
            base = self.end + gap
            batch = build_batch([(1, None, os.urandom(size), ()) for _ in range(count)], base_offset=base)
            self.end = base + count
            self.batches.append((base, self.end, batch))
        self.fetched_bytes = self.fetches = 0

    def offsets(self) -> list[int]:
        return [offset for base, end, _ in self.batches for offset in range(base, end)]

    async def fetch(self, offset: int) -> FetchedRecords:
        found = b""
        for _, end, batch in self.batches:
            if end > offset and (not found or len(found) + len(batch) <= FETCH_BYTES):
                found += batch
            elif found:
                break
        self.fetched_bytes += len(found)
        self.fetches += 1
        return FetchedRecords(
            records=found, log_start_offset=0, high_watermark=self.end, last_stable_offset=self.end, aborted=()
        )

    def last(self, count: int, *, log_start: int = 0, before: int | None = None) -> LastRows[Record]:
        def rows(fetched: FetchedRecords, first: int, end: int) -> tuple[list[Record], int]:
            found, following = records_of(fetched.records, first, end, end - first)
            return [each for each in found if isinstance(each, Record)], following

        return asyncio.run(last_rows(self.fetch, rows, log_start, self.end if before is None else before, count))


BATCHES = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 1, 7, 500, 10**6]), st.integers(1, 20), st.sampled_from([0, 10, 3000, 90_000])),
    min_size=1,
    max_size=12,
)


@given(BATCHES, st.integers(1, 40), st.data())
@settings(deadline=None)
def test_the_last_records_are_exactly_the_last(batches: list[tuple[int, int, int]], count: int, data: st.DataObject):
    log = Partition(batches)
    before = data.draw(st.integers(0, log.end))
    log_start = data.draw(st.integers(0, before))
    found = log.last(count, log_start=log_start, before=before)
    wanted = [offset for offset in log.offsets() if log_start <= offset < before]
    assert [each.offset for each in found.rows] == wanted[-count:]
    assert found.is_complete
    assert not [offset for offset in wanted[:-count] if found.first <= offset] or len(found.rows) == count


def test_pages_of_older_records_arrive_at_the_log_start():
    """In a sparse log a page was as many offsets as records were shown, and never arrived."""
    log = Partition([(9_999, 1, 10)] * 50)
    before, seen = log.end, list[int]()
    while before > 0:
        found = log.last(20, before=before)
        seen = [each.offset for each in found.rows] + seen
        before = found.rows[0].offset if len(found.rows) == 20 else found.first
    assert seen == log.offsets()
    assert log.fetches < 300


def test_large_records_cost_a_bounded_read():
    log = Partition([(0, 1, 900_000)] * 60)
    found = log.last(50)
    offsets = [each.offset for each in found.rows]
    assert offsets == list(range(offsets[0], 60)), "the newest, without a gap"
    assert not found.is_complete
    assert log.fetched_bytes <= records.BACKWARD_BYTES_MAX + 4 * records.STEP_BYTES_MAX


def test_a_delete_meanwhile_ends_the_search():
    log = Partition([(0, 5, 10)] * 5)
    answer = log.fetch

    async def fetch(offset: int) -> FetchedRecords:
        if offset < 10:
            raise BrokerAnsweredError(ErrorCode.OFFSET_OUT_OF_RANGE, "t-0")
        return await answer(offset)

    log.fetch = fetch
    found = log.last(25)
    assert [each.offset for each in found.rows][-1] == 24
    assert found.is_complete
