"""The search for a timestamp: the same result in loop, thread and plain Python, and never long in the loop."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.protocol import native
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression, DecompressedTooLargeError
from lowtide.protocol.records import TimestampType, iterate_records
from lowtide.storage.directory.log_starts import make_log_start_visible
from lowtide.storage.log import timestamps
from lowtide.storage.log.timestamps import (
    QUICK_BYTES,
    LongSearch,
    SearchOn,
    TimestampedOffset,
    find_in_batch,
    search_max_timestamp,
    search_timestamp,
)
from lowtide.storage.log.validation.decompression_room import DecompressionRoom

from .test_log import append, content_at, new_log


def room() -> DecompressionRoom:
    return DecompressionRoom(memoryview(bytearray(4 * QUICK_BYTES)), 4 * QUICK_BYTES)


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("timestamp_type", TimestampType)
@pytest.mark.parametrize("compiled", [True, False])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    times=st.lists(st.integers(0, 20), min_size=1, max_size=30), wanted=st.integers(0, 21), start=st.integers(90, 135)
)
def test_every_way_finds_the_first_record_of_a_scan(
    monkeypatch: pytest.MonkeyPatch,
    compression: Compression,
    timestamp_type: TimestampType,
    compiled: bool,
    times: list[int],
    wanted: int,
    start: int,
) -> None:
    with monkeypatch.context() as patch:
        if not compiled:
            patch.setattr(native, "compiled", None)
        content = build_batch(
            [(time, None, b"v", ()) for time in times],
            base_offset=100,
            compression=compression,
            timestamp_type=timestamp_type,
            leader_epoch=7,
        )
        records = iterate_records(content, max_bytes=1 << 20)
        expected = next((record for record in records if record.timestamp >= wanted and record.offset >= start), None)
        for found in (find_in_batch(content, wanted, start), find_in_batch(content, wanted, start, room())):
            assert found == (None if expected is None else TimestampedOffset(expected.offset, expected.timestamp, 7))


def test_a_batch_that_decompresses_to_much_is_left_to_a_thread() -> None:
    """A batch of some kilobytes blocked the loop for as long as 256 MiB take; Python read a million records singly."""
    content = build_batch([(1, None, bytes(QUICK_BYTES), ()), (2, None, b"", ())], compression=Compression.ZSTD)
    with pytest.raises(DecompressedTooLargeError):
        find_in_batch(content, 2, 0)
    assert find_in_batch(content, 2, 0, room()) == TimestampedOffset(1, 2, -1)


def test_without_the_compiled_form_fewer_records_are_read_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "compiled", None)
    content = build_batch([(1, None, b"", ())] * 20_000 + [(2, None, b"", ())])
    with pytest.raises(DecompressedTooLargeError):
        find_in_batch(content, 2, 0)
    assert find_in_batch(content, 2, 0, room()) == TimestampedOffset(20_000, 2, -1)


def test_a_search_names_the_batch_that_takes_long_and_continues_behind_it() -> None:
    log = new_log()
    append(log, 5, 50, 10)
    append(log, 60, 60, value=bytes(QUICK_BYTES), compression=Compression.ZSTD, leader_epoch=1)
    append(log, 70, leader_epoch=2)
    log.advance_high_watermark(6)
    assert search_timestamp(log, 40) == TimestampedOffset(1, 50, 0)
    step = search_timestamp(log, 60)
    assert isinstance(step, LongSearch)
    assert (step.base_offset, step.timestamp_ms, step.start_offset, step.next_offset) == (3, 60, 0, 5)
    assert find_in_batch(content_at(log, 3), 60, 4, room()) == TimestampedOffset(4, 60, 1)
    assert search_timestamp(log, 60, step.next_offset) == TimestampedOffset(5, 70, 2)
    assert search_max_timestamp(log) == TimestampedOffset(5, 70, 2)


def test_a_search_over_many_batches_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest timestamp comes first, so the index has one entry, and each search reads the whole segment."""
    monkeypatch.setattr(timestamps, "BATCHES_AT_ONCE", 10)
    log = new_log()
    append(log, 1000)
    for _ in range(95):
        append(log, 5)
    append(log, 900)
    log.advance_high_watermark(97)
    start, pauses = 1, 0
    while isinstance(step := search_timestamp(log, 800, start), SearchOn):
        assert step.start_offset > start
        start, pauses = step.start_offset, pauses + 1
    assert step == TimestampedOffset(96, 900, 0)
    assert pauses == 10


def test_the_largest_timestamp_of_what_a_delete_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The headers behind the log start are read in portions; in its batch only the remaining records count."""
    monkeypatch.setattr(timestamps, "BATCHES_AT_ONCE", 10)
    log = new_log()
    append(log, 1000, 7, 6)
    for time in range(50):
        append(log, time)
    append(log, 49)
    log.advance_high_watermark(54)
    log.request_log_start(1)
    make_log_start_visible(log, 1)
    start, largest, pauses = 0, None, 0
    while isinstance(step := search_max_timestamp(log, start, largest), SearchOn):
        assert step.start_offset > start
        start, largest, pauses = step.start_offset, step.largest, pauses + 1
    assert step == TimestampedOffset(52, 49, 0)
    assert pauses == 5
    log.request_log_start(40)
    make_log_start_visible(log, 40)
    assert isinstance(largest, TimestampedOffset)
    log.request_log_start(54)
    make_log_start_visible(log, 54)
    assert search_max_timestamp(log, start, largest) is None, "what was found is deleted since"


def test_records_by_the_time_of_their_append_have_one_timestamp() -> None:
    content = build_batch(
        [(5, None, b"", ()), (9, None, b"", ())], base_offset=3, timestamp_type=TimestampType.LOG_APPEND_TIME
    )
    assert find_in_batch(content, None, 4) == TimestampedOffset(4, 9, -1)
    assert find_in_batch(content, None, 5) is None


def test_the_largest_timestamp_of_a_long_batch_is_for_a_thread() -> None:
    content = build_batch([(time % 7, None, b"", ()) for time in range(20_000)])
    with pytest.raises(DecompressedTooLargeError):
        find_in_batch(content, None, 7)
    assert find_in_batch(content, None, 7, room()) == TimestampedOffset(13, 6, -1)
