"""Single cases of a log: limits, errors of the disk, timestamps, rolling.

`test_log_following` has what a follower does, `test_log_machine` histories.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import iterate_batches, iterate_records, read_batch_header
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.directory.log_starts import make_log_start_visible
from lowtide.storage.errors import StorageError
from lowtide.storage.log.durability import LogDurability
from lowtide.storage.log.log import AppendedBatch, Log, LogConfig, SegmentCache
from lowtide.storage.log.log_files import LogPlace
from lowtide.storage.log.opening.known_log import KnownLog
from lowtide.storage.log.opening.loader import create_log, load_log
from lowtide.storage.log.timestamps import TimestampedOffset, search_max_timestamp, search_timestamp
from lowtide.storage.log.truncation import LogTruncation
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce

NOW_MS = 1_700_000_000_000
SMALL_SEGMENTS = LogConfig(segment_bytes=400, index_interval_bytes=100)
RULES = ValidationRules(timestamp_after_max_ms=2**62)


def new_log(
    config: LogConfig | None = None,
    *,
    filesystem: MemoryFileSystem | None = None,
    cache: SegmentCache | None = None,
    log_start: int = 0,
) -> Log:
    return create_log(
        LogPlace(
            filesystem=filesystem or MemoryFileSystem(),
            directory="/disk/t-0",
            config=config or LogConfig(),
            topic_partition=TopicPartition("t", 0),
            topic_id=bytes(16),
            cache=cache if cache is not None else SegmentCache(),
        ),
        now_ms=NOW_MS,
        log_start_offset=log_start,
    )


def batch(*timestamps: int, value: bytes = b"v", rules: ValidationRules = RULES, **keywords: Any) -> ValidatedBatch:
    content = build_batch([(timestamp, None, value, ()) for timestamp in timestamps or (NOW_MS,)], **keywords)
    validated = validate_produce(memoryview(content), rules, NOW_MS)
    assert isinstance(validated, ValidatedBatch)
    return validated


def append(log: Log, *timestamps: int, leader_epoch: int = 0, **keywords: Any) -> AppendedBatch:
    appended = log.append_as_leader(batch(*timestamps, **keywords), leader_epoch=leader_epoch, now_ms=NOW_MS)
    assert isinstance(appended, AppendedBatch)
    return appended


def content_at(log: Log, offset: int, max_bytes: int = 1 << 20, **keywords: Any) -> bytes:
    found = log.read(offset, max_bytes, end_offset=log.log_end_offset, **keywords)
    assert found.error_code == ErrorCode.NONE
    return found.slice.file.pread(found.slice.size, found.slice.position) if found.slice is not None else b""


def test_a_batch_gets_its_offsets_and_its_leader_epoch() -> None:
    log = new_log()
    append(log, 1, 2, 3, leader_epoch=4)
    assert append(log, 4, 5, leader_epoch=5) == AppendedBatch(3, 4, -1)
    headers = [header for _, header in iterate_batches(content_at(log, 0))]
    assert [(header.base_offset, header.last_offset, header.partition_leader_epoch) for header in headers] == [
        (0, 2, 4),
        (3, 4, 5),
    ]
    assert log.high_watermark == 0, "an append commits nothing"


def test_log_append_time_is_returned() -> None:
    log = new_log(LogConfig(message_timestamp_type="LogAppendTime"))
    assert append(log, 5, rules=ValidationRules(timestamp_type="log_append")).log_append_time_ms == NOW_MS


def test_a_batch_that_no_segment_can_hold_is_refused() -> None:
    log = new_log(SMALL_SEGMENTS)
    assert (
        log.append_as_leader(batch(value=b"x" * 400), leader_epoch=0, now_ms=NOW_MS) == ErrorCode.RECORD_LIST_TOO_LARGE
    )
    assert log.log_end_offset == 0


def test_a_repeated_batch_of_an_idempotent_producer_is_answered_and_not_written() -> None:
    """R5; the timestamp of a duplicate is returned even under CreateTime, as in Kafka."""
    log = new_log()
    sent = batch(NOW_MS - 5, producer_id=7, producer_epoch=0, base_sequence=0)
    log.append_as_leader(sent, leader_epoch=0, now_ms=NOW_MS)
    size = log.size_bytes
    assert log.append_as_leader(sent, leader_epoch=0, now_ms=NOW_MS) == AppendedBatch(0, 0, NOW_MS - 5, duplicate=True)
    gap = batch(producer_id=7, producer_epoch=0, base_sequence=9)
    assert log.append_as_leader(gap, leader_epoch=0, now_ms=NOW_MS) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (log.size_bytes, log.log_end_offset) == (size, 1)


@pytest.mark.parametrize("free_bytes", [0, 1, 15, 16, 60, 61, 68])
def test_a_full_disk_refuses_appends_and_leaves_whole_batches(free_bytes: int) -> None:
    """After a short write, reads and deletes continue, and so do appends once there is space."""
    filesystem = MemoryFileSystem()
    log = new_log(filesystem=filesystem)
    append(log)
    whole = content_at(log, 0)
    filesystem.capacity_bytes = len(whole) + free_bytes
    assert log.append_as_leader(batch(), leader_epoch=0, now_ms=NOW_MS) == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.disk_full
    assert not log.offline
    assert content_at(log, 0) == whole
    assert filesystem.file_size("/disk/t-0/00000000000000000000.log") == len(whole)
    log.advance_high_watermark(1)
    log.request_log_start(1)
    assert make_log_start_visible(log, 1) == []
    filesystem.capacity_bytes = None
    assert append(log).base_offset == 1
    assert not log.disk_full


@pytest.mark.parametrize("path", [".log", ".index", ".timeindex", ".snapshot"])
def test_a_full_disk_in_the_middle_of_a_roll_leaves_the_old_segment_in_use(path: str) -> None:
    filesystem = MemoryFileSystem()
    log = new_log(SMALL_SEGMENTS, filesystem=filesystem)
    append(log, value=b"x" * 200)
    filesystem.fail_next("create", errno.ENOSPC, path_contains=path)
    assert log.append_as_leader(batch(value=b"y" * 200), leader_epoch=0, now_ms=NOW_MS) == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(log.segments) == 1
    assert append(log, value=b"y" * 200).base_offset == 1
    assert len(log.segments) == 2
    assert [header.base_offset for _, header in iterate_batches(content_at(log, 1))] == [1]


def test_a_full_disk_at_a_flush_loses_nothing_that_is_to_be_synced() -> None:
    filesystem = MemoryFileSystem()
    log = new_log(SMALL_SEGMENTS, filesystem=filesystem)
    append(log, value=b"x" * 200)
    append(log, value=b"x" * 200)
    before = filesystem.listdir("/disk/t-0")
    filesystem.fail_next("create", errno.ENOSPC, path_contains=".tmp")
    with pytest.raises(StorageError) as caught:
        LogDurability(log).flush_barrier()
    assert caught.value.is_disk_full
    assert filesystem.listdir("/disk/t-0") == before
    assert log.flush_wanted
    barrier = LogDurability(log).flush_barrier()
    assert barrier is not None
    assert {file.path.rpartition(".")[2] for file in barrier.files} == {"log", "index", "timeindex", "snapshot", "tmp"}


def test_a_failing_disk_ends_appends() -> None:
    """The directory must go offline; nothing more is written."""
    filesystem = MemoryFileSystem()
    log = new_log(filesystem=filesystem)
    append(log)
    filesystem.fail_next("write", errno.EIO)
    with pytest.raises(StorageError, match=r"00000000000000000000\.log"):
        log.append_as_leader(batch(), leader_epoch=0, now_ms=NOW_MS)
    assert log.offline
    assert log.append_as_leader(batch(), leader_epoch=0, now_ms=NOW_MS) == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.log_end_offset == 1


def test_a_segment_rolls_by_size_by_age_and_by_full_index() -> None:
    by_size = new_log(LogConfig(segment_bytes=300))
    by_age = new_log(LogConfig(segment_ms=1000))
    by_index = new_log(LogConfig(segment_index_bytes=47, index_interval_bytes=0))
    for number in range(4):
        append(by_size, value=b"x" * 100)
        append(by_age, NOW_MS + number * 600)
        append(by_index)
    assert [segment.base_offset for segment in by_size.segments] == [0, 1, 2, 3]
    assert [segment.base_offset for segment in by_age.segments] == [0, 2], (
        "the age of a segment is in timestamps of its records"
    )
    assert [segment.base_offset for segment in by_index.segments] == [0, 3]


def test_rolling_an_empty_segment_does_nothing() -> None:
    log = new_log()
    assert not log.roll(NOW_MS)
    append(log)
    assert log.roll(NOW_MS)
    assert not log.roll(NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_a_preallocated_segment_is_trimmed_when_it_is_rolled() -> None:
    filesystem = MemoryFileSystem()
    log = new_log(LogConfig(segment_bytes=1000, preallocate=True), filesystem=filesystem)
    assert filesystem.file_size("/disk/t-0/00000000000000000000.log") == 1000
    append(log)
    log.roll(NOW_MS)
    assert filesystem.file_size("/disk/t-0/00000000000000000000.log") == log.segments[0].size


def test_the_first_batch_is_whole_and_the_last_one_may_be_cut() -> None:
    log = new_log()
    for _ in range(3):
        append(log, value=b"x" * 100)
    size = len(content_at(log, 2))
    assert len(content_at(log, 0, 10)) == size
    assert len(content_at(log, 0, size + 10)) == size + 10
    assert content_at(log, 0, size - 1, minimum_one_batch=False) == b""
    assert len(content_at(log, 0, size, minimum_one_batch=False)) == size
    assert len(content_at(log, 1, 1 << 20)) == 2 * size


def test_only_offsets_below_the_start_and_above_the_end_are_out_of_range() -> None:
    """D9; an offset between high watermark and log end is an empty read, not an error."""
    log = new_log()
    append(log, 1, 2, 3, 4)
    log.advance_high_watermark(4)
    log.request_log_start(2)
    make_log_start_visible(log, 2)
    answers = {offset: log.read(offset, 1000, end_offset=4) for offset in range(-1, 6)}
    assert [answers[offset].error_code for offset in (-1, 1, 5)] == [ErrorCode.OFFSET_OUT_OF_RANGE] * 3
    assert answers[4].slice is None
    assert all(answers[offset].slice is not None for offset in (2, 3))
    assert log.read(3, 1000, end_offset=2).slice is None


def test_a_straddling_batch_is_read_whole_and_does_not_lower_the_log_start() -> None:
    log = new_log()
    append(log, 1, 2, 3, 4)
    log.advance_high_watermark(4)
    log.request_log_start(3)
    make_log_start_visible(log, 3)
    assert [record.offset for record in iterate_records(content_at(log, 3), max_bytes=1000)] == [0, 1, 2, 3]
    assert (log.log_start_offset, log.segments[0].base_offset) == (3, 0)


def test_a_slice_survives_the_deletion_of_its_segment_and_ends_with_a_truncation() -> None:
    log = new_log(SMALL_SEGMENTS)
    filesystem = log.files.filesystem
    for _ in range(4):
        append(log, value=b"x" * 150)
    deleted, cut = log.read(0, 1000, end_offset=4).slice, log.read(3, 1000, end_offset=4).slice
    assert deleted is not None
    assert cut is not None
    before = deleted.file.pread(deleted.size, deleted.position)
    log.advance_high_watermark(4)
    log.request_log_start(2)
    removed = make_log_start_visible(log, 2)
    assert [segment.base_offset for segment in removed] == [0, 1]
    for segment in removed:
        segment.mark_deleted(filesystem)
        segment.unlink(filesystem)
    assert deleted.token.valid
    assert deleted.file.pread(deleted.size, deleted.position) == before
    LogTruncation(log).truncate_to(3, now_ms=NOW_MS)
    assert not cut.token.valid


def test_the_open_files_of_closed_segments_are_bounded() -> None:
    log = new_log(SMALL_SEGMENTS, cache=SegmentCache(open_max=2))
    for _ in range(9):
        append(log, value=b"x" * 150)
    for offset in range(9):
        content_at(log, offset)
        assert len(LogDurability(log).files_to_close()) <= 3, "two closed segments and the active one"
    assert len(log.segments) == 9


def test_bytes_between_counts_what_a_reader_would_get() -> None:
    log = new_log(SMALL_SEGMENTS)
    sizes = []
    for number in range(6):
        before = log.size_bytes
        append(log, value=b"x" * (20 * number))
        sizes.append(log.size_bytes - before)
    for start in range(6):
        for end in range(start, 7):
            assert log.bytes_between(start, end, 1 << 30) == sum(sizes[start:end])
    assert log.bytes_between(0, 6, 1) >= 1


def test_a_failing_read_is_a_storage_error() -> None:
    """The caller takes the directory offline; no reader receives other bytes."""
    log = new_log(LogConfig(index_interval_bytes=0))
    append(log)
    append(log, 1, 2)
    log.files.filesystem.fail_next("read", errno.EIO)  # type: ignore[attr-defined]
    with pytest.raises(StorageError):
        log.read(2, 10, end_offset=3)


def test_deleting_everything_keeps_the_end() -> None:
    """D10: no offset is assigned twice."""
    log = new_log(SMALL_SEGMENTS)
    for _ in range(3):
        append(log, value=b"x" * 150)
    log.advance_high_watermark(3)
    log.request_log_start(3)
    assert [segment.base_offset for segment in make_log_start_visible(log, 3)] == [0, 1]
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (3, 3, 3)
    assert log.leader_epochs.entries() == [(0, 3)]
    assert append(log).base_offset == 3


def test_a_delete_that_a_truncation_overtook_changes_nothing() -> None:
    """The offsets above the truncation were assigned again: no delete covers the new records."""
    log = new_log()
    for _ in range(10):
        append(log)
    log.advance_high_watermark(10)
    log.request_log_start(10)
    LogTruncation(log).truncate_to(5, now_ms=NOW_MS)
    for _ in range(10):
        append(log, leader_epoch=1)
    assert make_log_start_visible(log, 10) == []
    assert log.log_start_offset == 0


def test_a_truncation_below_the_log_start_moves_start_and_end_together() -> None:
    """D5: the leader ends below a follower's start."""
    log = new_log()
    append(log, *range(10))
    log.advance_high_watermark(10)
    log.request_log_start(7)
    make_log_start_visible(log, 7)
    LogTruncation(log).truncate_to(4, now_ms=NOW_MS)
    assert (
        log.log_start_offset,
        log.log_start_pending,
        log.high_watermark,
        log.recovery_point,
        log.log_end_offset,
    ) == (4,) * 5
    assert append(log).base_offset == 4
    assert [record.offset for record in iterate_records(content_at(log, 4), max_bytes=1000)] == [4]


def test_a_truncation_below_the_first_segment_starts_over() -> None:
    log = new_log(log_start=100)
    append(log)
    LogTruncation(log).truncate_to(40, now_ms=NOW_MS)
    assert (log.log_start_offset, log.log_end_offset) == (40, 40)
    assert append(log).base_offset == 40


def test_a_full_truncation_moves_everything_together() -> None:
    """KAFKA-9491: this holds for log, high watermark, epochs and producers."""
    log = new_log(SMALL_SEGMENTS)
    for number in range(3):
        append(log, value=b"x" * 150, producer_id=7, producer_epoch=0, base_sequence=number)
    truncation = LogTruncation(log).truncate_fully_and_start_at(500, now_ms=NOW_MS)
    assert (log.log_start_offset, log.high_watermark, log.recovery_point, log.log_end_offset) == (500,) * 4
    assert log.leader_epochs.entries() == []
    assert not log.producer_state.producers
    assert [segment.base_offset for segment in truncation.removed] == [2, 1, 0]
    names = [name for name in log.files.filesystem.listdir(log.directory) if not name.endswith(".deleted")]
    assert [name for name in names if name[0] == "0"] == ["00000000000000000500.log"]
    assert append(log, producer_id=7, producer_epoch=0, base_sequence=55).base_offset == 500


def test_after_a_full_truncation_no_batch_that_was_refused_before_is_waited_for() -> None:
    """It was appended at another leader, and deleted: the producer never sends it again."""
    log = new_log()
    log.producer_state.note_refused(
        read_batch_header(build_batch([(1, None, b"v", ())], producer_id=7, producer_epoch=0, base_sequence=21)),
        now_ms=NOW_MS,
    )
    assert log.producer_state.check(7, 0, 27, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    LogTruncation(log).truncate_fully_and_start_at(67, now_ms=NOW_MS)
    assert append(log, producer_id=7, producer_epoch=0, base_sequence=27).base_offset == 67


def test_a_new_segment_never_takes_the_name_of_one_whose_files_are_still_to_be_renamed() -> None:
    """The worker renames later; it must rename the old segment's files."""
    log = new_log(SMALL_SEGMENTS)
    for _ in range(3):
        append(log, value=b"x" * 150)
    log.advance_high_watermark(3)
    log.request_log_start(2)
    waiting = make_log_start_visible(log, 2)
    LogTruncation(log).truncate_fully_and_start_at(1, now_ms=NOW_MS)
    append(log, value=b"new")
    for segment in waiting:
        segment.mark_deleted(log.files.filesystem)
        segment.unlink(log.files.filesystem)
    assert log.files.filesystem.exists("/disk/t-0/00000000000000000001.log")
    assert b"new" in content_at(log, 1)


def test_segments_of_a_log_that_is_deleted_are_not_searched_in_its_successor() -> None:
    """When the worker runs, the folder may already have another topic's log."""
    log = new_log(SMALL_SEGMENTS)
    for _ in range(2):
        append(log, value=b"x" * 150)
    log.advance_high_watermark(2)
    log.request_log_start(1)
    waiting = make_log_start_visible(log, 1)
    log.files.forget_removed()
    for segment in waiting:
        segment.mark_deleted(log.files.filesystem)
    assert log.files.filesystem.exists("/disk/t-0/00000000000000000000.log")


def test_a_timestamp_never_finds_a_deleted_record() -> None:
    """D11: the search reads records inside batches, compressed ones too, and begins at the log start."""
    for compression in (Compression.NONE, Compression.LZ4):
        log = new_log()
        append(log, 100, 300, 200, 400, compression=compression)
        log.advance_high_watermark(4)
        log.request_log_start(2)
        make_log_start_visible(log, 2)
        found = search_timestamp(log, 150)
        assert isinstance(found, TimestampedOffset)
        assert (found.offset, found.timestamp, found.leader_epoch) == (2, 200, 0)
        log.request_log_start(4)
        make_log_start_visible(log, 4)
        assert search_timestamp(log, 150) is None


def test_a_segment_whose_newest_record_is_deleted_does_not_hide_the_next_one() -> None:
    """Kafka returns no record here; there is one, so it is found."""
    log = new_log(LogConfig(segment_bytes=200))
    append(log, 500, 100, 100)
    append(log, 600, value=b"x" * 100)
    log.advance_high_watermark(4)
    log.request_log_start(1)
    make_log_start_visible(log, 1)
    assert len(log.segments) == 2
    found = search_timestamp(log, 400)
    assert isinstance(found, TimestampedOffset)
    assert (found.offset, found.timestamp) == (3, 600)


def test_the_largest_timestamp_is_the_first_of_equals_at_or_above_the_log_start() -> None:
    """Kafka's may be of a record that is deleted."""
    log = new_log()
    assert search_max_timestamp(log) is None
    append(log, -1, -1)
    found = search_max_timestamp(log)
    assert isinstance(found, TimestampedOffset)
    assert (found.offset, found.timestamp) == (0, -1)
    append(log, 100, 300, 300, leader_epoch=2)
    append(log, 300, 200, leader_epoch=3)
    log.advance_high_watermark(7)
    for log_start, expected in ((2, (3, 300, 2)), (4, (4, 300, 2)), (5, (5, 300, 3)), (6, (6, 200, 3)), (7, None)):
        log.request_log_start(log_start)
        make_log_start_visible(log, log_start)
        found = search_max_timestamp(log)
        assert (found and (found.offset, found.timestamp, found.leader_epoch)) == expected


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=4), max_size=15),
    st.integers(0, 60),
    st.integers(0, 51),
    st.booleans(),
)
def test_a_search_by_timestamp_is_a_scan_of_the_records(
    batches: list[list[int]], log_start: int, wanted: int, reopen: bool
) -> None:
    config = LogConfig(segment_bytes=300, index_interval_bytes=50)
    log = new_log(config)
    for timestamps in batches:
        append(log, *timestamps)
    timestamps = [timestamp for group in batches for timestamp in group]
    log_start = min(log_start, len(timestamps))
    log.advance_high_watermark(len(timestamps))
    log.request_log_start(log_start)
    make_log_start_visible(log, log_start)
    if reopen:
        LogDurability(log).close()
        place = LogPlace(
            filesystem=log.files.filesystem,
            directory=log.directory,
            config=config,
            topic_partition=log.topic_partition,
            topic_id=log.topic_id,
        )
        log = load_log(place, KnownLog(recovery_point=0, log_start_offset=log_start, clean=True), now_ms=NOW_MS)
    expected = next((offset for offset in range(log_start, len(timestamps)) if timestamps[offset] >= wanted), None)
    found = search_timestamp(log, wanted)
    assert (found and found.offset) == expected
    newest = search_max_timestamp(log)
    largest = max(timestamps[log_start:], default=None)
    assert (newest and (newest.offset, newest.timestamp)) == (
        None if largest is None else (timestamps.index(largest, log_start), largest)
    )
