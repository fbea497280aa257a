"""Opening a log after any event that can affect its folder (S1)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.records import iterate_batches, iterate_records
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem.memory import MemoryFileSystem, SimulatedCrashError
from lowtide.storage.checkpoint import carry_out
from lowtide.storage.directory.log_starts import make_log_start_visible
from lowtide.storage.errors import StorageError
from lowtide.storage.log.durability import LogDurability
from lowtide.storage.log.log import AppendedBatch, Log, LogConfig
from lowtide.storage.log.log_files import LogPlace
from lowtide.storage.log.opening import log_recovery as recovery
from lowtide.storage.log.opening.known_log import KnownLog, LogRepairs
from lowtide.storage.log.opening.loader import create_log, load_log
from lowtide.storage.log.segments.segment_names import offset_name
from lowtide.storage.log.truncation import LogTruncation
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce

NOW_MS = 1_700_000_000_000
FOLDER = "/disk/t-0"
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)
IDENTITY: dict[str, Any] = {"topic_partition": TopicPartition("t", 0), "topic_id": bytes(16)}


def append(log: Log, count: int = 1, size: int = 100, *, leader_epoch: int = 0, **keywords: Any) -> AppendedBatch:
    content = build_batch([(NOW_MS, None, b"v" * size, ())] * count, **keywords)
    validated = validate_produce(memoryview(content), ValidationRules(), NOW_MS)
    assert isinstance(validated, ValidatedBatch)
    appended = log.append_as_leader(validated, leader_epoch=leader_epoch, now_ms=NOW_MS)
    assert isinstance(appended, AppendedBatch)
    return appended


def log_with(batches: int = 10, *, clean: bool = True, config: LogConfig = CONFIG) -> MemoryFileSystem:
    """A folder with `batches` batches of two records, one producer, leader epochs 0 and 1, three batches a segment."""
    filesystem = MemoryFileSystem()
    log = create_log(LogPlace(filesystem=filesystem, directory=FOLDER, config=config, **IDENTITY), now_ms=NOW_MS)
    for number in range(batches):
        append(log, 2, 20, leader_epoch=number // 5, producer_id=7, producer_epoch=0, base_sequence=number * 2)
    carry_out(filesystem, LogDurability(log).close() if clean else LogDurability(log).flush_barrier())
    filesystem.crash_process()
    return filesystem


def load(
    filesystem: MemoryFileSystem, *, config: LogConfig = CONFIG, clean: bool = False, **known: int
) -> tuple[Log, LogRepairs]:
    report, place = LogRepairs(), LogPlace(filesystem=filesystem, directory=FOLDER, config=config, **IDENTITY)
    offsets = {"recovery_point": 0, "log_start_offset": 0, **known}
    return load_log(place, KnownLog(**offsets, clean=clean), now_ms=NOW_MS, report=report), report


def offsets_of(log: Log) -> list[int]:
    """All offsets that can be read, continuing after each answer as a consumer does."""
    offsets: list[int] = []
    while (position := offsets[-1] + 1 if offsets else log.log_start_offset) < log.log_end_offset:
        found = log.read(position, 1 << 20, end_offset=log.log_end_offset).slice
        assert found is not None
        content = found.file.pread(found.size, found.position)
        for at, header in iterate_batches(content):
            records = iterate_records(content[at : at + header.size_bytes], max_bytes=1 << 20)
            offsets += [record.offset for record in records if record.offset >= position]
    return offsets


def newest(filesystem: MemoryFileSystem, suffix: str = ".log") -> str:
    return FOLDER + "/" + max(name for name in filesystem.listdir(FOLDER) if name.endswith(suffix))


@pytest.mark.parametrize("clean", [True, False])
def test_what_was_written_is_there_again(clean: bool) -> None:
    log, report = load(log_with(clean=clean), clean=clean)
    assert offsets_of(log) == list(range(20))
    assert log.leader_epochs.entries() == [(0, 0), (1, 10)]
    assert log.producer_state.producers[7].last_sequence == 19
    assert report.bytes_cut == report.segments_dropped == 0
    assert log.flush_wanted is not clean
    append(log)
    assert log.log_end_offset == 21


def test_the_tail_is_cut_wherever_the_last_batch_was_torn() -> None:
    """At every byte, with and without something else behind it."""
    whole = log_with().read_bytes(newest(log_with()))
    starts = [position for position, _ in iterate_batches(whole)]
    last = len(whole) - starts[-1]
    for kept in range(last):
        for filler in (b"", b"\x5a" * (last - kept + 7)):
            filesystem = log_with()
            filesystem.write_bytes(newest(filesystem), whole[: starts[-1] + kept] + filler)
            log, report = load(filesystem)
            assert log.log_end_offset == 18, f"cut after {kept} bytes of the batch"
            assert report.bytes_cut == kept + len(filler)
            assert filesystem.file_size(newest(filesystem)) == starts[-1]
            assert log.producer_state.producers[7].last_sequence == 17
            append(log)
            assert offsets_of(log) == list(range(19))


def test_every_flipped_bit_of_the_last_batch_is_noticed() -> None:
    """Only base offset, length, epoch and magic lie outside the CRC; a change of the epoch is not detected."""
    whole = log_with().read_bytes(newest(log_with()))
    start = [position for position, _ in iterate_batches(whole)][-1]
    for place in range(start, len(whole)):
        if start + 12 <= place < start + 16:
            continue
        filesystem = log_with()
        content = bytearray(whole)
        content[place] ^= 0x10
        filesystem.write_bytes(newest(filesystem), bytes(content))
        log, _ = load(filesystem)
        # A base offset that grew looks like a gap left by compaction, and no batch behind it is checked.
        assert log.log_end_offset == 18 or place < start + 8


def test_damage_in_the_middle_drops_all_that_follows() -> None:
    filesystem = log_with()
    path = f"{FOLDER}/{offset_name(6)}.log"
    content = bytearray(filesystem.read_bytes(path))
    content[-1] ^= 1
    filesystem.write_bytes(path, bytes(content))
    log, report = load(filesystem)
    assert offsets_of(log) == list(range(10))
    assert report.reason is not None
    assert path in report.reason
    assert report.segments_dropped == 2
    assert [name for name in filesystem.listdir(FOLDER) if name.endswith(".log")] == [
        offset_name(0) + ".log",
        offset_name(6) + ".log",
    ]


def test_below_the_recovery_point_nothing_is_checked_again() -> None:
    """The time to start doesn't grow with the size of the log."""
    filesystem = log_with()
    _, report = load(filesystem, recovery_point=14)
    assert report.segments_checked == 2, "the segment that holds the recovery point, and the one after it"


def test_a_batch_larger_than_a_chunk_of_reading_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_CHUNK_BYTES", 128)
    filesystem = MemoryFileSystem()
    config = LogConfig(index_interval_bytes=100)
    log = create_log(LogPlace(filesystem=filesystem, directory=FOLDER, config=config, **IDENTITY), now_ms=NOW_MS)
    for size in (10, 500, 3, 128, 127, 129, 2000):
        append(log, size=size)
    assert offsets_of(load(filesystem, config=config)[0]) == list(range(7))
    path = newest(filesystem)
    content = bytearray(filesystem.read_bytes(path))
    content[-1000] ^= 1
    filesystem.write_bytes(path, bytes(content))
    assert offsets_of(load(filesystem, config=config)[0]) == list(range(6))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_missing_index_is_rebuilt(suffix: str, clean: bool) -> None:
    filesystem = log_with()
    for name in filesystem.listdir(FOLDER):
        if name.endswith(suffix):
            filesystem.unlink(f"{FOLDER}/{name}")
    log, report = load(filesystem, recovery_point=20, clean=clean)
    assert offsets_of(log) == list(range(20))
    assert report.indexes_rebuilt == 4 if clean else report.segments_checked == 4
    names = filesystem.listdir(FOLDER)
    assert sum(name.endswith(suffix) for name in names) >= 3, "closed segments have their index files again"


@pytest.mark.parametrize("content", [None, b"", b"0\n1\n5 x\n", b"garbage", b"0\n2\n1 0\n"])
def test_a_lost_epoch_file_is_read_from_the_batches(content: bytes | None) -> None:
    """Batches have epochs too."""
    filesystem = log_with()
    path = f"{FOLDER}/leader-epoch-checkpoint"
    filesystem.unlink(path)
    if content is not None:
        filesystem.write_bytes(path, content)
    log, report = load(filesystem, clean=True, recovery_point=20)
    assert log.leader_epochs.entries() == [(0, 0), (1, 10)]
    assert report.epochs_rebuilt


def test_epochs_are_cut_to_the_log_at_both_ends() -> None:
    """P6: the file may be older or newer than the log."""
    filesystem = log_with()
    filesystem.write_bytes(f"{FOLDER}/leader-epoch-checkpoint", b"0\n3\n0 0\n1 10\n9 400\n")
    log, _ = load(filesystem, clean=True, log_start_offset=12)
    assert log.leader_epochs.entries() == [(1, 12)]


@pytest.mark.parametrize("damage", ["missing", "empty", "flipped"])
def test_a_lost_snapshot_costs_a_replay_and_no_producer(damage: str) -> None:
    filesystem = log_with()
    for name in filesystem.listdir(FOLDER):
        if name.endswith(".snapshot"):
            path = f"{FOLDER}/{name}"
            content = filesystem.read_bytes(path)
            filesystem.unlink(path)
            if damage != "missing":
                filesystem.write_bytes(path, b"" if damage == "empty" else content[:-1] + bytes([content[-1] ^ 1]))
    log, _ = load(filesystem, clean=True)
    assert log.producer_state.producers[7].last_sequence == 19


def test_producers_whose_records_are_all_deleted_are_kept_after_a_clean_stop() -> None:
    """KAFKA-7190."""
    filesystem = MemoryFileSystem()
    log = create_log(LogPlace(filesystem=filesystem, directory=FOLDER, config=CONFIG, **IDENTITY), now_ms=NOW_MS)
    append(log, 2, producer_id=7, producer_epoch=0, base_sequence=0)
    log.roll(NOW_MS)
    append(log)
    log.advance_high_watermark(3)
    log.request_log_start(3)
    for removed in make_log_start_visible(log, 3):
        removed.mark_deleted(filesystem)
    carry_out(filesystem, LogDurability(log).close())
    log, _ = load(filesystem, log_start_offset=3, clean=True)
    assert log.producer_state.producers[7].last_sequence == 1


@pytest.mark.parametrize("high_watermark", [0, 14, 19, 20])
def test_a_producer_may_send_again_what_was_not_answered_before_a_clean_stop(high_watermark: int) -> None:
    """Protects a producer that repeats batches to a leader that stopped before it could answer (seeds 26, 21686)."""
    filesystem = log_with()
    log, _ = load(filesystem, config=LogConfig(), clean=True, high_watermark=high_watermark)
    for sequence in (14, 16, 18):
        appended = append(log, 2, 20, leader_epoch=1, producer_id=7, producer_epoch=0, base_sequence=sequence)
        assert (appended.base_offset, appended.duplicate) == (sequence, True)


def test_a_crash_in_a_roll_loses_no_producer() -> None:
    """The new segment exists and its snapshot doesn't; then the segments before it are deleted."""
    filesystem = log_with()
    log, _ = load(filesystem, clean=True)
    append(log, producer_id=7, producer_epoch=0, base_sequence=20)
    filesystem.fail_next("create", errno.EIO, path_contains=".snapshot")
    with pytest.raises(StorageError):
        log.roll(NOW_MS)
    filesystem.write_bytes(f"{FOLDER}/{offset_name(21)}.log", b"")
    filesystem.crash_process()
    load(filesystem)
    filesystem.crash_process()
    log, _ = load(filesystem, log_start_offset=21)
    assert log.producer_state.producers[7].last_sequence == 20
    append(log, producer_id=7, producer_epoch=0, base_sequence=21)


def test_a_snapshot_from_before_the_first_segment_is_not_used() -> None:
    """The segment behind it is gone: its producers become unknown, and may continue, rather than be refused."""
    filesystem = log_with(9)
    log, _ = load(filesystem, clean=True)
    append(log)
    carry_out(filesystem, LogDurability(log).close())
    for name in filesystem.listdir(FOLDER):
        if name.endswith(".snapshot") and name[:20] > offset_name(6):
            filesystem.unlink(f"{FOLDER}/{name}")
    for base_offset in (0, 6, 12):
        filesystem.unlink(f"{FOLDER}/{offset_name(base_offset)}.log")
    log, _ = load(filesystem, log_start_offset=18, clean=True)
    assert filesystem.exists(f"{FOLDER}/{offset_name(6)}.snapshot"), "the snapshot is there, but it is not used"
    assert 7 not in log.producer_state.producers
    append(log, producer_id=7, producer_epoch=0, base_sequence=18)


# The log start


def test_segments_wholly_below_the_log_start_are_removed() -> None:
    """The journal's entry survives a crash that comes before the removal of the files."""
    filesystem = log_with()
    log, report = load(filesystem, log_start_offset=7)
    assert offsets_of(log) == list(range(7, 20))
    assert report.segments_dropped == 1
    assert not [name for name in filesystem.listdir(FOLDER) if name.startswith(offset_name(0))]
    assert (log.high_watermark, log.recovery_point) == (7, 7)


def test_a_log_start_inside_a_batch_stays_there() -> None:
    """The base offsets of the segment and of the batch are below it."""
    log, _ = load(log_with(), log_start_offset=7, clean=True)
    assert (log.log_start_offset, log.segments[0].base_offset) == (7, 6)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("log_start", [21, 500])
def test_a_log_that_ends_below_its_start_is_emptied_at_it(log_start: int, clean: bool) -> None:
    """KAFKA-8306: no deleted record returns, no offset is assigned twice."""
    filesystem = log_with()
    log, report = load(filesystem, log_start_offset=log_start, clean=clean)
    assert (log.log_start_offset, log.high_watermark, log.recovery_point, log.log_end_offset) == (log_start,) * 4
    assert report.restarted_at_log_start
    assert log.leader_epochs.entries() == [(1, log_start)], (
        "otherwise no replica detects that it belongs to another history"
    )
    assert not log.producer_state.producers
    assert [name for name in filesystem.listdir(FOLDER) if name.endswith((".log", ".snapshot"))] == [
        offset_name(log_start) + ".log"
    ]


def test_an_empty_folder_becomes_a_log_at_its_start() -> None:
    filesystem = MemoryFileSystem()
    filesystem.make_directories(FOLDER)
    log, report = load(filesystem, log_start_offset=42)
    assert (log.log_start_offset, log.log_end_offset) == (42, 42)
    assert not report.restarted_at_log_start


def test_checkpoints_ahead_of_the_data_are_lowered_to_its_end() -> None:
    """KAFKA-10101."""
    log = load_log(
        LogPlace(filesystem=log_with(), directory=FOLDER, config=CONFIG, **IDENTITY),
        KnownLog(recovery_point=99, high_watermark=99, log_start_offset=0, clean=False),
        now_ms=NOW_MS,
    )
    assert (log.recovery_point, log.high_watermark, log.log_end_offset) == (20, 20, 20)


# Other files in the folder


def test_leftovers_are_removed_and_unknown_files_are_left_alone() -> None:
    """Files that a crash between two steps leaves are removed; other files are not ours."""
    filesystem = log_with()
    kept = ["partition.metadata", "notes.txt"]
    gone = [
        f"{offset_name(0)}.log.deleted", f"{offset_name(0)}.snapshot.deleted", f"{offset_name(6)}.log.cleaned",
        "leader-epoch-checkpoint.3.tmp",
        *(f"{offset_name(900)}.{suffix}" for suffix in ("index", "timeindex", "txnindex", "snapshot")),
    ]  # fmt: skip
    for name in [*kept, *gone]:
        filesystem.write_bytes(f"{FOLDER}/{name}", b"x")
    log, _ = load(filesystem, clean=True)
    assert offsets_of(log) == list(range(20))
    names = filesystem.listdir(FOLDER)
    assert set(kept) <= set(names)
    assert not set(gone) & set(names)


def test_a_swap_of_compacted_segments_is_finished() -> None:
    """Kafka's LogLoader: `.swap` files are complete and take the place of the segments whose offsets they span."""
    filesystem = log_with()
    merged = b"".join(filesystem.read_bytes(f"{FOLDER}/{offset_name(base)}.log") for base in (0, 6))
    filesystem.write_bytes(f"{FOLDER}/{offset_name(0)}.log.swap", merged)
    log, _ = load(filesystem)
    assert [segment.base_offset for segment in log.segments] == [0, 12, 18]
    assert offsets_of(log) == list(range(20))


def test_a_swap_that_was_not_complete_is_undone() -> None:
    filesystem = log_with()
    filesystem.write_bytes(
        f"{FOLDER}/{offset_name(0)}.log.swap", filesystem.read_bytes(f"{FOLDER}/{offset_name(0)}.log")
    )
    filesystem.write_bytes(f"{FOLDER}/{offset_name(0)}.log.cleaned", b"half")
    log, _ = load(filesystem)
    assert [segment.base_offset for segment in log.segments] == [0, 6, 12, 18]
    assert offsets_of(log) == list(range(20))


def test_a_gap_that_a_power_cut_left_ends_the_log() -> None:
    """R3: the end of an unsynced segment is lost, and the next one is there."""
    filesystem = log_with()
    path = f"{FOLDER}/{offset_name(6)}.log"
    content = filesystem.read_bytes(path)
    first_batch = next(header.size_bytes for _, header in iterate_batches(content))
    filesystem.write_bytes(path, content[:first_batch])
    log, _ = load(filesystem, recovery_point=6)
    assert offsets_of(log) == list(range(8))


@pytest.mark.parametrize(
    ("recovery_point", "cleaned_to", "is_there"), [(6, 11, False), (6, 12, True), (11, 0, False), (12, 0, True)]
)
def test_a_gap_below_what_is_compacted_or_flushed_stays(recovery_point: int, cleaned_to: int, is_there: bool) -> None:
    """In a compacted log, too, a gap above both was left by a power cut: the next segment begins at 12."""
    filesystem = log_with()
    path = f"{FOLDER}/{offset_name(6)}.log"
    content = filesystem.read_bytes(path)
    first_batch = next(header.size_bytes for _, header in iterate_batches(content))
    filesystem.write_bytes(path, content[:first_batch])
    config = LogConfig(segment_bytes=400, index_interval_bytes=100, cleanup_policy=frozenset({"compact"}))
    log, _ = load(filesystem, recovery_point=recovery_point, cleaned_to=cleaned_to, config=config)
    assert offsets_of(log) == [*range(8), *(range(12, 20) if is_there else ())]


def test_a_segment_that_overlaps_the_one_before_it_is_not_served() -> None:
    """Two contents for one offset; the lower segment's are kept."""
    filesystem = log_with()
    stray = filesystem.read_bytes(f"{FOLDER}/{offset_name(18)}.log")
    filesystem.write_bytes(f"{FOLDER}/{offset_name(17)}.log", stray)
    log, _ = load(filesystem)
    assert offsets_of(log) == list(range(18))


def test_a_disk_that_cannot_be_read_is_a_storage_error() -> None:
    filesystem = log_with()
    filesystem.fail_next("read", errno.EIO)
    with pytest.raises(StorageError):
        load(filesystem)


# Crashes


def _damage_tail(filesystem: MemoryFileSystem) -> None:
    path = f"{FOLDER}/{offset_name(6)}.log"
    content = filesystem.read_bytes(path)
    filesystem.write_bytes(path, content[:-3])


def _nothing(_: MemoryFileSystem) -> None: ...


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize(
    ("damage", "log_start", "expected"),
    [
        (_damage_tail, 0, range(10)),
        (_damage_tail, 7, range(7, 10)),
        (_damage_tail, 11, range(0)),
        (_nothing, 13, range(13, 20)),
    ],
)
def test_a_crash_at_any_step_of_recovery_does_not_change_its_result(
    damage: Callable[[MemoryFileSystem], None], log_start: int, expected: range, power: bool
) -> None:
    """However often and wherever recovery starts again; every crash may be a power cut."""
    for crash_after in range(1, 60):
        filesystem = log_with()
        damage(filesystem)
        for node_folder in (FOLDER, "/disk", "/"):
            filesystem.sync_directory(node_folder)
        for name in filesystem.listdir(FOLDER):
            filesystem.open(f"{FOLDER}/{name}").sync()
        finished = False
        for attempt in range(10):
            filesystem.crash_at = filesystem.operation_count + crash_after + attempt % 3
            try:
                load(filesystem, log_start_offset=log_start)
                finished = True
            except SimulatedCrashError:
                pass
            if power:
                filesystem.power_cut(Random(crash_after * 100 + attempt))
            else:
                filesystem.crash_process()
        log, _ = load(filesystem, log_start_offset=log_start)
        assert offsets_of(log) == list(expected)
        assert log.log_end_offset == (expected.stop if expected else log_start)
        if finished and crash_after > 30:
            break


@pytest.mark.parametrize("operation", ["roll", "truncate", "truncate_fully", "close", "flush"])
def test_a_crash_at_any_step_of_a_change_leaves_the_old_log_or_the_new(operation: str) -> None:
    """A truncation may be partly done, from the end; the other changes do not show in the records."""
    changes: dict[str, Callable[[Log], object]] = {
        "roll": lambda log: log.roll(NOW_MS),
        "truncate": lambda log: LogTruncation(log).truncate_to(4, now_ms=NOW_MS),
        "truncate_fully": lambda log: LogTruncation(log).truncate_fully_and_start_at(500, now_ms=NOW_MS),
        "close": lambda log: LogDurability(log).close(),
        "flush": lambda log: LogDurability(log).flush_barrier(),
    }
    seen = set()
    for crash_after in range(1, 40):
        filesystem = log_with()
        log, _ = load(filesystem, clean=True, recovery_point=20)
        append(log, 2, leader_epoch=1)
        filesystem.crash_at = filesystem.operation_count + crash_after
        finished = True
        try:
            changes[operation](log)
        except SimulatedCrashError:
            finished = False
        filesystem.crash_process()
        # The journal has the start of a full truncation before the truncation begins.
        log, _ = load(filesystem, recovery_point=4, log_start_offset=500 if operation == "truncate_fully" else 0)
        seen.add(log.log_end_offset)
        if operation == "truncate_fully":
            assert (log.log_start_offset, log.log_end_offset) == (500, 500)
        else:
            assert offsets_of(log) == list(range(log.log_end_offset))
        if finished:
            break
    assert finished
    expected = {"truncate": {22, 18, 12, 6, 4}, "truncate_fully": {500}}
    assert seen == expected.get(operation, {22})
