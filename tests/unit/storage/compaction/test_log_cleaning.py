"""Running a compaction: histories beside a model, a crash at every step, and changes of the log during it."""

from __future__ import annotations

import errno
from random import Random

import pytest
from msgspec.structs import replace

from lowtide.protocol.control_records import ControlRecordType
from lowtide.protocol.records import DELETE_HORIZON_BIT, read_batch_header
from lowtide.runtime.filesystem.memory import MemoryFileSystem, SimulatedCrashError
from lowtide.storage.directory.log_starts import make_log_start_visible
from lowtide.storage.log.truncation import LogTruncation

from .compacting import CONFIG, DIRECTORY, NOW_MS, CompactedLog, abort, end, produce


def new_log(**config: object) -> CompactedLog:
    return CompactedLog(MemoryFileSystem(Random(1)), replace(CONFIG, **config))


def fill(log: CompactedLog, *rounds: str) -> None:
    """A segment for each word: a record for each letter, its value the number of the segment."""
    for number, letters in enumerate(rounds):
        for letter in letters:
            log.append((letter.encode(), b"%d" % number))
        log.roll()
    log.flush()


def test_the_last_record_of_each_key_stays() -> None:
    log = new_log()
    fill(log, "abc", "ab", "cd")
    log.append((b"a", b"newest"))
    report = log.clean()
    assert report is not None
    assert log.rows() == [(3, b"a", b"1"), (4, b"b", b"1"), (5, b"c", b"2"), (6, b"d", b"2"), (7, b"a", b"newest")]
    assert (log.log.swaps.cleaned_to, log.log.log_end_offset) == (7, 8)
    assert report.done is not None
    assert (report.done.records_before, report.done.records_after) == (7, 4)
    assert (report.segments_before, report.segments_after) == (3, 1)
    assert [segment.base_offset for segment in log.log.segments] == [0, 7]
    assert [name for name in log.names() if name.endswith((".log", ".index", ".timeindex"))] == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000007.log",
    ]
    log.reopen()
    assert [row[0] for row in log.rows()] == [3, 4, 5, 6, 7]


def test_empty_segments_become_part_of_the_next() -> None:
    """An empty segment would have the age of its file, and would keep retention from the segments behind it."""
    log = new_log(segment_bytes=100)
    fill(log, "a", "b", "a", "b", "c", "a", "b")
    log.append((b"z", b""))
    report = log.clean()
    assert report is not None
    assert (report.segments_before, report.segments_after) == (7, 3)
    assert [(segment.base_offset, segment.size > 0) for segment in log.log.segments] == [
        (0, True),
        (5, True),
        (6, True),
        (7, True),
    ]
    assert [row[0] for row in log.rows()] == [4, 5, 6, 7]
    log.reopen()
    assert [row[0] for row in log.rows()] == [4, 5, 6, 7]


def test_segments_are_always_joined() -> None:
    """Otherwise a power cut that removes the end of a segment would look like compaction.

    A follower's segments join too.
    """
    log = new_log(segment_bytes=100)
    fill(log, "abcd", "efgh", "ab", "ef", "c")
    log.append((b"z", b""))
    log.clean()
    assert log.gaps() == []
    follower = new_log(segment_bytes=300)
    for batch in log.contents():
        follower.append_batch(batch)
    assert len(follower.log.segments) > 2
    assert follower.gaps() == []


def test_nothing_is_compacted_that_is_not_on_the_disk() -> None:
    log = new_log()
    for letters in ("ab", "ab"):
        for letter in letters:
            log.append((letter.encode(), b""))
        log.roll()
    assert log.cleanable().dirty_bytes == 0
    log.flush()
    assert log.cleanable().first_uncleanable_offset == 4


@pytest.mark.parametrize("entries", [1, 2, 3])
def test_a_map_that_is_too_small_takes_several_passes(entries: int) -> None:
    log = new_log()
    fill(log, "abcde", "abc", "ed", "a")
    log.append((b"z", b""))
    for _ in range(12):
        if log.clean(entries) is None:
            break
    assert [row[:2] for row in log.rows()] == [(6, b"b"), (7, b"c"), (8, b"e"), (9, b"d"), (10, b"a"), (11, b"z")]


def markers(log: CompactedLog) -> list[int]:
    return [header.base_offset for batch in log.batches() if (header := read_batch_header(batch)).is_control]


def next_round(log: CompactedLog, later_ms: int = 0) -> None:
    """Appends more records, then compacts."""
    log.now_ms += later_ms
    log.append((b"more", b""))
    log.roll()
    log.flush()
    report = log.clean()
    assert report is not None
    assert report.done is not None


def test_a_marker_is_removed_when_its_transaction_has_no_record_and_its_time_is_over() -> None:
    """LogCleanerTest: testCommitMarkerRemoval, testAbortMarkerRemoval."""
    log = new_log()
    produce(log, 1, 0, b"a", b"b")  # 0, 1
    end(log, 1, ControlRecordType.COMMIT)  # 2
    produce(log, 2, 0, b"a")  # 3
    abort(log, 2)  # 4
    produce(log, 1, 2, b"c")  # 5
    end(log, 1, ControlRecordType.COMMIT)  # 6
    produce(log, 2, 1, b"d")  # 7
    end(log, 2, ControlRecordType.COMMIT)  # 8
    log.roll()
    next_round(log)
    assert markers(log) == [2, 4, 6, 8]
    assert [row[:2] for row in log.rows()][:4] == [(0, b"a"), (1, b"b"), (5, b"c"), (7, b"d")]
    log.append((b"a", b""), (b"b", b""))
    next_round(log)
    assert markers(log) == [2, 4, 6, 8]
    assert not read_batch_header(log.batches()[0]).attributes & DELETE_HORIZON_BIT, (
        "a reader may have read as far as the records"
    )
    next_round(log)
    assert markers(log) == [2, 4, 6, 8], "its time begins"
    assert read_batch_header(log.batches()[0]).attributes & DELETE_HORIZON_BIT
    next_round(log, later_ms=999)
    assert markers(log) == [2, 4, 6, 8]
    next_round(log, later_ms=1)
    assert markers(log) == [6, 8], "the other transactions have records, or the last sequence of their producer"
    log.reopen()
    assert {producer: entry.last_sequence for producer, entry in log.log.producer_state.producers.items()} == {
        1: 2,
        2: 1,
    }


def test_aborted_records_are_removed_and_readers_need_no_marker() -> None:
    log = new_log()
    log.append((b"a", b"good"))
    produce(log, 1, 0, b"a", b"x")
    log.roll()
    produce(log, 1, 2, b"y")
    abort(log, 1)
    log.roll()
    assert [each.first_offset for each in log.log.files.aborted.collect(0, 0, 10)] == [1]
    next_round(log)
    # The producer's last batch stays, empty, for its sequence; so does its marker, and the index entry that readers
    # receive.
    assert [row[:2] for row in log.rows()] == [(0, b"a"), (5, b"more")]
    assert [each.first_offset for each in log.log.files.aborted.collect(0, 0, 10)] == [1]
    log.append((b"z", b""), producer_id=1, producer_epoch=0, base_sequence=3)
    next_round(log)
    next_round(log)
    assert not log.log.files.aborted.bases, "no record of it is left, so no reader needs the entry"
    assert not [name for name in log.names() if name.endswith(".txnindex")]
    next_round(log, later_ms=1000)
    assert markers(log) == []


def test_an_open_transaction_holds_compaction_back() -> None:
    """LogCleanerManagerTest: testUndecidedTransactionalDataNotCleanable."""
    log = new_log()
    fill(log, "ab", "ab")
    produce(log, 1, 0, b"a")
    log.roll()
    log.append((b"b", b""))
    log.roll()
    log.flush()
    assert log.cleanable().first_uncleanable_offset == 4
    end(log, 1, ControlRecordType.COMMIT)
    log.roll()
    log.flush()
    assert log.cleanable().first_uncleanable_offset == log.log.log_end_offset


def test_tombstones_are_removed_after_their_time() -> None:
    log = new_log()
    fill(log, "ab")
    log.append((b"a", None))
    next_round(log)
    assert [row[:2] for row in log.rows()] == [(1, b"b"), (2, b"a"), (3, b"more")]
    next_round(log, later_ms=999)
    assert (2, b"a", None) in log.rows()
    next_round(log, later_ms=1)
    assert [row[:2] for row in log.rows()] == [(1, b"b"), (5, b"more")]


# ---------------------------------------------------------------------- crashes
def filled(seed: int = 1) -> CompactedLog:
    """Three groups of segments, with tombstones and an aborted transaction."""
    log = CompactedLog(MemoryFileSystem(Random(seed)), replace(CONFIG, segment_bytes=700))
    log.append((b"a", b"0"), (b"b", b"0"), (b"c", b"0"))
    produce(log, 1, 0, b"a", b"d")
    log.roll()
    log.append((b"a", b"1"), (b"b", None))
    abort(log, 1)
    log.roll()
    log.append((b"c", b"2"), (b"e", b"2" * 300))
    log.roll()
    log.append((b"e", b"3" * 300), (b"f", b"3"))
    log.append((b"f", b"3"))
    log.roll()
    log.append((b"z", b"4"))
    log.flush()
    for folder in ("/", "/disk"):
        log.filesystem.sync_directory(folder)
    return log


def contents_on_the_way() -> list[list[bytes]]:
    """The contents of the log before the compaction, between its groups, and afterwards."""
    log = filled()
    found = [log.batches()]

    def look() -> None:
        if log.batches() != found[-1]:
            found.append(log.batches())

    log.clean(between=look)
    assert len(found) == 4, "three groups"
    return found


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_any_step_leaves_a_group_as_it_was_or_as_it_will_be(power: bool) -> None:
    """The start continues from there, and another compaction has the same result."""
    expected = contents_on_the_way()
    seen = set()
    for step in range(1, 400):
        log = filled(step)
        log.filesystem.crash_at = log.filesystem.operation_count + step
        try:
            log.clean()
        except SimulatedCrashError:
            pass
        else:
            break
        if power:
            log.filesystem.power_cut(Random(step))
        else:
            log.filesystem.crash_process()
        log.reopen()
        assert log.batches() in expected, step
        seen.add(expected.index(log.batches()))
        assert not [name for name in log.names() if name.endswith((".cleaned", ".swap", ".deleted"))], step
        assert [each.first_offset for each in log.log.files.aborted.collect(0, 0, 20)] == [3]
        log.flush()
        report = log.clean()
        assert report is not None
        assert report.done is not None
        assert log.batches() == expected[-1]
    else:
        pytest.fail("the compaction never ended")
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "create", "sync_directory", "unlink"])
def test_a_failing_disk_leaves_the_log_readable(operation: str) -> None:
    expected = contents_on_the_way()
    for number in range(30):
        log = filled(number)
        if log.begin_cleaning() is None:
            pytest.fail("nothing to do")
        for _ in range(number):
            if not log.step():
                return
        log.filesystem.fail_next(operation, errno.EIO)
        while log.step():
            pass
        log.filesystem.clear_faults()
        if not log.failures:
            assert log.batches() in expected
        log.filesystem.crash_process()
        log.reopen()
        assert log.batches() in expected


def test_a_full_disk_stops_it_without_harm() -> None:
    log = filled()
    expected = log.batches()
    log.filesystem.fail_next("write", errno.ENOSPC, path_contains=".cleaned")
    report = log.clean()
    assert report is not None
    assert report.done is None
    assert report.failure is not None
    assert not report.is_damaged
    assert log.batches() == expected
    assert not log.failures, "the directory stays online"
    assert not [name for name in log.names() if name.endswith(".cleaned")]
    assert log.clean() is not None
    assert log.batches() == contents_on_the_way()[-1]


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
@pytest.mark.parametrize("crashes", [False, True])
def test_a_folder_without_room_for_another_name_stops_it_without_harm(suffix: str, crashes: bool) -> None:
    """A new name may need another block.

    The next start removes what is left, and takes none of it for the rest of a swap.
    """
    log = filled()
    expected = log.batches()
    log.filesystem.fail_next("rename", errno.ENOSPC, path_contains=f"{suffix}.cleaned")
    report = log.clean()
    assert report is not None
    assert (report.done, report.is_damaged, report.failure is None, log.failures) == (None, False, False, [])
    if crashes:
        log.filesystem.crash_process()
        log.reopen()
    assert log.batches() == expected
    assert not [name for name in log.names() if name.endswith(".swap")]
    log.flush()
    assert log.clean() is not None


def test_a_damaged_log_is_reported_as_such() -> None:
    for position, damage in ((30, b"\xff"), (8, b"\x7f\xff\xff\xff"), (75, b"\x00\x01\x02")):
        log = filled()
        before = log.batches()
        file = log.filesystem.open(log.log.segments[1].path, write=True)
        file.pwritev([damage], position)
        report = log.clean()
        assert report is not None
        assert report.is_damaged
        assert log.log.segments[1].path in (report.failure or "")
        assert len(log.log.segments) == 5, before


@pytest.mark.parametrize("base_offset", [1, 4, 2**40])
def test_offsets_that_no_crc_contains_do_not_decide_which_record_is_newer(base_offset: int) -> None:
    """Protects the newest record of a key: an older batch with a damaged base offset would supersede it."""
    log = new_log()
    fill(log, "ab", "ab")
    before = [segment.file.pread(segment.size, 0) for segment in list(log.log.segments)[1:2]]
    second = log.log.segments[0].find(1)
    assert second is not None
    damaged = 0 if base_offset == 1 else second.position  # The first batch ends where the second begins.
    log.filesystem.open(log.log.segments[0].path, write=True).pwritev([base_offset.to_bytes(8, "big")], damaged)
    report = log.clean()
    assert report is not None
    assert report.is_damaged
    assert "no sound record batch begins at byte" in (report.failure or "")
    assert [segment.file.pread(segment.size, 0) for segment in list(log.log.segments)[1:2]] == before


# ---------------------------------------------------------------------- what may happen meanwhile
def test_readers_keep_what_they_have() -> None:
    log = filled()
    found = log.log.read(0, 1 << 20, end_offset=log.log.log_end_offset)
    assert found.slice is not None
    before = found.slice.file.pread(found.slice.size, found.slice.position)
    log.clean()
    for removed in log.removed:
        removed.unlink(log.filesystem)
    assert found.slice.token.valid
    assert found.slice.file.pread(found.slice.size, found.slice.position) == before
    assert not [name for name in log.names() if name.endswith(".deleted")]


@pytest.mark.parametrize("after", range(14))
def test_a_truncation_during_compaction_wins(after: int) -> None:
    """Truncated records do not return, not even after a crash; and no record is removed because of a truncated one."""
    for offset in (1, 4, 7, 9, 12):
        log = filled()
        written = log.batches()
        log.begin_cleaning()
        for _ in range(after):
            log.step()
        was_replaced = log.batches() != written
        LogTruncation(log.log).truncate_to(offset, now_ms=NOW_MS)
        left = log.rows()
        end_offset = log.log.log_end_offset
        while log.step():
            pass
        records = log.rows()
        assert all(row[0] < end_offset for row in records)
        assert was_replaced or records == left, "a record was removed because of one that was truncated"
        assert log.log.swaps.cleaned_to is None or log.log.swaps.cleaned_to <= end_offset
        assert not log.failures
        log.filesystem.crash_process()
        log.reopen(high_watermark=min(log.log.high_watermark, end_offset))
        assert log.rows() == records
        assert log.log.log_end_offset <= end_offset, "it may be lower where compaction has left a gap"


@pytest.mark.parametrize("after", range(20))
def test_a_crash_after_a_truncation_during_compaction_brings_nothing_back(after: int) -> None:
    """A start finishes a swap that it finds, so the swap must not contain truncated records."""
    for offset in (1, 4, 7, 9, 12):
        log = filled()
        log.begin_cleaning()
        for _ in range(after):
            log.step()
        LogTruncation(log.log).truncate_to(offset, now_ms=NOW_MS)
        records = log.rows()
        log.filesystem.crash_process()
        log.reopen(high_watermark=min(log.log.high_watermark, offset))
        assert log.rows() == records


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_log_that_loses_later_records_than_compaction_kept_starts_over(*, is_loaded: bool) -> None:
    """Protects keys: compaction removed their earlier records, which the leader may have; the truncation the later."""
    log = filled()
    log.clean()
    records, cleaned_to = log.rows(), log.log.swaps.cleaned_to
    assert cleaned_to == 13
    if is_loaded:
        log.reopen(high_watermark=log.log.high_watermark)
        log.log.swaps.note_cleaned_to(cleaned_to)  # From the directory's checkpoint.
    LogTruncation(log.log).truncate_to(13, now_ms=NOW_MS)
    assert log.rows() == [row for row in records if row[0] < 13]
    LogTruncation(log.log).truncate_to(12, now_ms=NOW_MS)
    assert (log.rows(), log.log.log_end_offset, log.log.swaps.cleaned_to) == ([], log.log.log_start_offset, 0)


@pytest.mark.parametrize("after", range(14))
@pytest.mark.parametrize("offset", [2, 5, 6, 9, 12])
def test_a_delete_meanwhile_is_kept(after: int, offset: int) -> None:
    log = filled()
    log.begin_cleaning()
    for _ in range(after):
        log.step()
    log.log.request_log_start(offset)
    removed = make_log_start_visible(log.log, offset)
    for each in removed:
        each.mark_deleted(log.filesystem)
    while log.step():
        pass
    assert log.log.segments[0].base_offset <= offset
    assert log.log.log_start_offset == offset
    last = {row[1]: row for row in filled().rows() if row[0] not in (3, 4)}
    here = {row[1]: row for row in log.rows() if row[0] >= offset}
    assert here.items() >= {key: row for key, row in last.items() if row[0] >= offset and row[2] is not None}.items()
    log.filesystem.crash_process()
    log.reopen()
    assert {row[1]: row for row in log.rows() if row[0] >= offset} == here


def test_a_roll_and_appends_meanwhile_change_nothing() -> None:
    log = filled()

    def more() -> None:
        log.append((b"a", b"later"))
        log.roll()

    report = log.clean(between=more)
    assert report is not None
    assert report.done is not None
    assert (b"a", b"1") in [row[1:] for row in log.rows()], "later records were not read"
    log.flush()
    log.clean()
    assert [row for row in log.rows() if row[1] == b"a"] == [(log.log.log_end_offset - 1, b"a", b"later")]


def test_files_of_an_attempt_that_was_killed_are_removed_by_the_next() -> None:
    log = filled()
    for name in ("00000000000000000000.log.cleaned", "00000000000000000009.index.cleaned"):
        log.filesystem.write_bytes(f"{DIRECTORY}/{name}", b"old")
    log.clean()
    assert not [name for name in log.names() if name.endswith(".cleaned")]


def test_a_checkpoint_outside_of_the_log_is_ignored() -> None:
    """LogCleanerManagerTest: testDirtyOffsetResetIfLargerThanEndOffset, ...IfSmallerThanStartOffset."""
    log = filled()
    log.log.swaps.cleaned_to = 1000
    assert log.cleanable().first_dirty_offset == 0
    log.log.request_log_start(6)
    make_log_start_visible(log.log, 6)
    log.log.swaps.cleaned_to = 2
    assert log.cleanable().first_dirty_offset == 6
