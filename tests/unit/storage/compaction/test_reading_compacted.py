"""Reading a compacted log, whose offsets have gaps."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.protocol.records import BatchHeader, iterate_batches, read_batch_header
from lowtide.storage.compaction.cleanable import GROUP_SEGMENTS_MAX

from .compacting import CompactedLog
from .test_log_cleaning import fill, new_log


@pytest.mark.parametrize("offset", range(9))
def test_reading_anywhere_continues_with_the_next_record(offset: int) -> None:
    log = new_log()
    fill(log, "abc", "ab", "cd")
    log.append((b"a", b"newest"))
    log.clean()
    found = log.log.read(offset, 1 << 20, end_offset=log.log.log_end_offset)
    if offset == 8:
        assert found.slice is None
        return
    assert found.slice is not None
    header = read_batch_header(found.slice.file.pread(found.slice.size, found.slice.position))
    assert header.last_offset == max(offset, 3)


def read_headers(log: CompactedLog, offset: int, max_bytes: int = 1 << 20, **keywords: Any) -> list[BatchHeader]:
    """The batches of one read."""
    found = log.log.read(offset, max_bytes, **{"end_offset": log.log.log_end_offset, **keywords}).slice
    return (
        [] if found is None else [header for _, header in iterate_batches(found.file.pread(found.size, found.position))]
    )


def test_a_read_for_records_passes_over_segments_without_any() -> None:
    """librdkafka gives up after eleven answers in a row without a record: each looks like too large a batch."""
    log = new_log(segment_bytes=100)
    fill(log, *["a"] * (4 * GROUP_SEGMENTS_MAX), "b")
    log.append((b"z", b""))
    log.clean()
    last = 4 * GROUP_SEGMENTS_MAX - 1
    assert [segment.base_offset for segment in log.log.segments][:3] == [0, GROUP_SEGMENTS_MAX, 2 * GROUP_SEGMENTS_MAX]
    for offset in (0, 1, GROUP_SEGMENTS_MAX - 1, GROUP_SEGMENTS_MAX, last):
        assert [
            header.last_offset for header in read_headers(log, offset, seeks_records=True) if header.record_count
        ] == [last], offset
    # A follower receives all batches. So does a reader that may not see the records: it continues behind the empty
    # batches.
    assert [(header.last_offset, header.record_count) for header in read_headers(log, 0)] == [
        (GROUP_SEGMENTS_MAX - 1, 0)
    ]
    end_offset = 2 * GROUP_SEGMENTS_MAX
    assert [header.last_offset for header in read_headers(log, 0, seeks_records=True, end_offset=end_offset)] == [
        end_offset - 1
    ]
    found = read_headers(log, 0, seeks_records=True, max_bytes=10, minimum_one_batch=False)
    assert found == []
