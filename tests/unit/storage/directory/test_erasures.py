"""Erased records: no file of a log has a byte of what was deleted, and each start finds what was kept."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import msgspec
import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import iterate_batches, iterate_records
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem.memory import SimulatedCrashError
from lowtide.storage.directory.directory_erasures import EraseFailedError
from lowtide.storage.directory.log_settings import ErasingListener
from lowtide.storage.log.log import Log
from lowtide.storage.log.log_holes import LogHoles
from lowtide.storage.log.log_values import AppendedBatch, LogConfig
from lowtide.storage.log.segments.segment_files import load_timestamps
from lowtide.storage.log.segments.segment_names import offset_name
from lowtide.storage.log.timestamps import search_max_timestamp, search_timestamp
from lowtide.storage.log.truncation import LogTruncation
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce
from tests.unit.storage.directory.managed_logs import A0, CONFIG, ONE
from tests.unit.storage.directory.test_holes import World

FOLDER = f"{ONE}/{A0}"
LARGE = msgspec.structs.replace(CONFIG, segment_bytes=1 << 20, index_interval_bytes=300, file_delete_delay_ms=60_000)
BATCH = 5


@cache
def value_of(offset: int) -> bytes:
    return Random(offset).randbytes(40)


def batch_at(offset: int, **options: Any) -> ValidatedBatch:
    content = build_batch(
        [(1000 + each, None, value_of(each), ()) for each in range(offset, offset + BATCH)], **options
    )
    batch = validate_produce(memoryview(content), ValidationRules(), 1)
    assert isinstance(batch, ValidatedBatch)
    return batch


def produce(log: Log, batches: int, **options: Any) -> None:
    for _ in range(batches):
        more = {"base_sequence": log.log_end_offset} if "producer_id" in options else {}
        appended = log.append_as_leader(batch_at(log.log_end_offset, **options, **more), leader_epoch=3, now_ms=1)
        assert isinstance(appended, AppendedBatch)
    log.advance_high_watermark(log.log_end_offset)


def filled(world: World, batches: int = 20, config: LogConfig = LARGE, **options: Any) -> Log:
    log = world.manager.create_log(A0, b"topic-a-16-bytes", config)
    produce(log, batches, **options)
    return log


def loaded(world: World, config: LogConfig = LARGE) -> Log:
    log = world.manager.logs[A0]
    log.configure(config)
    log.advance_high_watermark(log.log_end_offset)
    return log


def ask_to_erase(world: World, log: Log, offset: int) -> tuple[list[EraseFailedError | None], Callable[[], object]]:
    """Deletes, and asks for more. Returns where the answer goes, and what takes the request back."""
    answers: list[EraseFailedError | None] = []
    world.delete_to((A0, offset))
    world.run()
    return answers, world.manager.erase(log, EraseGoal(offset), answers.append)


def erase(world: World, log: Log, offset: int, *, rounds: int = 30) -> list[EraseFailedError | None]:
    """Deletes and erases. Returns what the request was answered."""
    answers, _ = ask_to_erase(world, log, offset)
    for _ in range(rounds):
        if answers:
            break
        world.clock.now_ms += 100
        world.free()
    return answers


def written_again(world: World) -> int:
    """How many segments were."""
    return world.manager._directories[ONE].parts.erasures.erased.segments


def found(world: World, end: int) -> set[int]:
    """The offsets below `end` of which any file of the log has the value."""
    contents = [world.filesystem.read_bytes(f"{FOLDER}/{name}") for name in world.names(FOLDER)]
    return {offset for offset in range(end) if any(value_of(offset) in content for content in contents)}


def records(log: Log, *, everything: bool = False) -> dict[int, bytes | None]:
    """As a consumer reads them from the log start on; `everything` also has what a batch brings along from below."""
    got: dict[int, bytes | None] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        part = log.read(offset, 1 << 20, end_offset=log.log_end_offset).slice
        assert part is not None
        content = part.file.pread(part.size, part.position)
        for position, header in iterate_batches(content):
            batch = content[position : position + header.size_bytes]
            got |= {each.offset: each.value for each in iterate_records(batch, max_bytes=1 << 20)}
            offset = header.next_offset
    return got if everything else {each: value for each, value in got.items() if each >= log.log_start_offset}


def expected(start: int, end: int) -> dict[int, bytes]:
    return {offset: value_of(offset) for offset in range(start, end)}


def check(world: World, log: Log, start: int, end: int) -> None:
    assert (log.log_start_offset, log.log_end_offset) == (start, end)
    assert records(log, everything=True) == expected(start, end)
    assert world.failed == []


@pytest.mark.parametrize("codec", [None, Compression.GZIP, Compression.ZSTD, Compression.LZ4, Compression.SNAPPY])
@pytest.mark.parametrize("offset", [1, 4, 37, 40, 96, 99, 100])
def test_no_file_has_a_record_below_the_offset(codec: Compression | None, offset: int) -> None:
    world = World()
    log = filled(world, **({} if codec is None else {"compression": codec}))
    before = found(world, 100)
    assert len(before) == (100 if codec is None else len(before))
    assert erase(world, log, offset) == [None]
    assert found(world, offset) == set()
    check(world, log, offset, 100)
    assert not [name for name in world.names(FOLDER) if name.endswith((".cleaned", ".swap"))]
    produce(log, 2)
    check(world, log, offset, 110)
    world.manager.flush(log)
    world.run()
    for power in (False, True):
        world.restart(power=power)
        assert found(world, offset) == set()
        check(world, loaded(world), offset, 110)


def test_what_is_erased_takes_no_room() -> None:
    """Nor is it reported to, though it shared a batch with records that are kept."""
    world = World()
    log = filled(world)
    world.delete_to((A0, 52))
    world.run()
    assert LogHoles(log).unfreed_bytes > 0
    assert erase(world, log, 52) == [None]
    assert LogHoles(log).unfreed_bytes == 0


def test_again_and_again() -> None:
    world = World()
    log = filled(world)
    for offset in (3, 4, 51, 52, 53, 99, 100):
        assert erase(world, log, offset) == [None]
        assert found(world, offset) == set()
        produce(log, 1)
        check(world, log, offset, log.log_end_offset)


def test_a_second_request_finds_nothing_to_do() -> None:
    world = World()
    log = filled(world)
    assert erase(world, log, 52) == [None]
    before = world.names(FOLDER)
    assert erase(world, log, 52) == [None]
    assert world.names(FOLDER) == before
    world.manager.close()
    world.restart()
    log = loaded(world)
    assert erase(world, log, 52) == [None]
    assert written_again(world) == 0


@pytest.mark.parametrize("frees", [True, False])
@pytest.mark.parametrize("can_punch", [True, False])
@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
@pytest.mark.parametrize("offset", [38, 40, 100])
def test_where_no_holes_are_made_the_segment_is_written_again(
    frees: bool, can_punch: bool, policy: str, offset: int
) -> None:
    world = World(frees_deleted=frees)
    world.filesystem.can_punch = can_punch
    config = msgspec.structs.replace(LARGE, cleanup_policy=frozenset(policy.split(",")))
    log = filled(world, config=config)
    log.roll(1)
    produce(log, 2)
    assert erase(world, log, offset) == [None]
    assert found(world, offset) == set()
    check(world, log, offset, 110)


def test_segments_that_are_wholly_deleted_are_unlinked_before_their_time() -> None:
    world = World(frees_deleted=False)
    log = filled(world, config=msgspec.structs.replace(LARGE, segment_bytes=1500))
    assert len(log.segments) == 4
    assert erase(world, log, 77) == [None]
    assert found(world, 77) == set()
    assert not [name for name in world.names(FOLDER) if name.endswith(".log.deleted")]
    check(world, log, 77, 100)


def test_many_logs_are_erased_one_after_the_other() -> None:
    world = World()
    keys = [TopicPartition("a", number) for number in range(50)]
    logs = [world.manager.create_log(key, b"topic-a-16-bytes", LARGE) for key in keys]
    for log in logs:
        produce(log, 2)
    world.delete_to(*((key, 7) for key in keys))
    world.run()
    answers: list[Any] = []
    for log in logs:
        world.manager.erase(log, EraseGoal(7), answers.append)
    for _ in range(4):
        world.tick(100)
    assert answers == [None] * len(keys)
    assert written_again(world) == len(keys)


def test_a_reader_from_before_keeps_what_it_was_promised() -> None:
    world = World()
    log = filled(world)
    part = log.read(50, 1 << 20, end_offset=100).slice
    assert part is not None
    before = part.file.pread(part.size, part.position)
    assert erase(world, log, 52) == [None]
    assert found(world, 52) == set()
    assert part.token.valid
    assert part.file.pread(part.size, part.position) == before


@pytest.mark.parametrize("offset", [40, 100])
def test_a_reader_that_stays_does_not_keep_records(offset: int) -> None:
    """Its connection may be slow for ever: the file that it reads has no name any more."""
    world = World()
    log = filled(world)
    part = log.read(0, 1 << 20, end_offset=100).slice
    assert part is not None
    before = part.file.pread(part.size, part.position)
    assert erase(world, log, offset, rounds=40) == [None]
    assert found(world, offset) == set()
    assert part.file.pread(part.size, part.position) == before
    check(world, log, offset, 100)


def test_a_topic_that_says_so_erases_by_itself_once_a_second() -> None:
    world = World()
    log = filled(world, config=msgspec.structs.replace(LARGE, lowtide_delete_erase=True))
    for _ in range(50):
        world.delete_to((A0, log.log_start_offset + 1))
        world.clock.now_ms += 100
        world.free()
    for _ in range(12):
        world.clock.now_ms += 100
        world.free()
    assert found(world, 50) == set()
    check(world, log, 50, 100)
    assert 3 <= written_again(world) <= 6


def test_a_topic_that_is_configured_later_erases_what_was_deleted_before() -> None:
    world = World()
    log = filled(world)
    world.delete_to((A0, 52))
    world.run()
    log.configure(msgspec.structs.replace(LARGE, lowtide_delete_erase=True))
    for _ in range(4):
        world.tick(1000)
    assert found(world, 52) == set()
    check(world, log, 52, 100)


def test_a_log_start_between_two_batches() -> None:
    """As in the log of a follower whose leader's log was compacted."""
    world = World()
    log = world.manager.create_log(A0, b"topic-a-16-bytes", LARGE)
    for offset in (0, 5, 20, 25):
        values = [(1, None, value_of(each), ()) for each in range(offset, offset + BATCH)]
        log.append_as_follower(memoryview(build_batch(values, base_offset=offset)), now_ms=1)
    log.advance_high_watermark(30)
    assert erase(world, log, 13) == [None]
    assert found(world, 20) == set()
    assert records(log, everything=True) == expected(20, 30)


def test_a_log_that_is_deleted_in_between_is_named() -> None:
    world = World()
    log = filled(world)
    answers, _ = ask_to_erase(world, log, 52)
    world.begin_round()
    world.manager.delete_logs([A0], lambda error: world.note("deleted", error))
    world.free()
    world.free()
    assert [str(each) for each in answers] == ["the replica is no longer here"]
    assert world.failed == []


def test_a_request_that_was_taken_back_is_not_answered() -> None:
    world = World()
    log = filled(world)
    answers, take_back = ask_to_erase(world, log, 52)
    take_back()
    for _ in range(5):
        world.tick(100)
    assert answers == []


@pytest.mark.parametrize("unrequested", [False, True])
def test_a_damaged_batch_is_answered_and_reported_and_stays(unrequested: bool) -> None:
    """Once: what erases by itself would find the same each second."""
    world = World()
    reasons: list[str] = []
    world.manager.listeners.erasing.append(ErasingListener(lambda _log, reason: reasons.append(reason), print))
    log = filled(world, config=msgspec.structs.replace(LARGE, lowtide_delete_erase=unrequested))
    log.roll(1)
    path = f"{FOLDER}/{offset_name(0)}.log"
    content = bytearray(world.filesystem.read_bytes(path))
    place = log.segments[0].find(52)
    assert place is not None
    content[place.position + 80] ^= 1
    world.filesystem.write_bytes(path, bytes(content))
    if unrequested:
        world.delete_to((A0, 52))
        for _ in range(30):
            world.tick(100)
    else:
        (answer,) = erase(world, log, 52)
        assert [str(answer)] == reasons
    (reason,) = reasons
    assert "the CRC of the batch at byte" in reason
    assert world.failed == []


def test_the_largest_timestamp_is_found_though_its_record_is_erased() -> None:
    world = World()
    log = world.manager.create_log(A0, b"topic-a-16-bytes", LARGE)
    content = build_batch([(9_000 - each, None, value_of(each), ()) for each in range(BATCH)])
    batch = validate_produce(memoryview(content), ValidationRules(), 10_000)
    assert isinstance(batch, ValidatedBatch)
    log.append_as_leader(batch, leader_epoch=3, now_ms=1)
    produce(log, 19)
    assert erase(world, log, 2) == [None]
    load_timestamps(log.segments[0])
    assert log.segments[0].max_timestamp == 8_998, "rules of retention go by it"
    found_now: Any = search_max_timestamp(log)
    assert (found_now.timestamp, found_now.offset) == (8_998, 2)
    for timestamp, offset in ((0, 2), (1_004, 2), (8_998, 2)):
        searched: Any = search_timestamp(log, timestamp)
        assert searched.offset == offset
    assert search_timestamp(log, 8_999) is None


def test_producers_go_on_where_they_were() -> None:
    for power in (False, True):
        world = World()
        log = filled(world, producer_id=7, producer_epoch=0)
        world.manager.flush(log)
        world.run()
        assert erase(world, log, 98) == [None]
        again = log.append_as_leader(
            batch_at(95, producer_id=7, producer_epoch=0, base_sequence=95), leader_epoch=3, now_ms=1
        )
        assert isinstance(again, AppendedBatch)
        assert again.duplicate
        world.restart(power=power)
        log = loaded(world)
        again = log.append_as_leader(
            batch_at(95, producer_id=7, producer_epoch=0, base_sequence=95), leader_epoch=3, now_ms=1
        )
        assert isinstance(again, AppendedBatch)
        assert (again.duplicate, again.last_offset) == (True, 99)
        produce(log, 1, producer_id=7, producer_epoch=0)
        check(world, log, 98, 105)


@pytest.mark.parametrize("restarts", [False, True])
def test_producers_continue_after_a_truncation_below_their_snapshot(restarts: bool) -> None:
    """The newest snapshot that is left is older than what was erased: it lacks their last batches."""
    world = World()
    log = filled(world, 2, producer_id=7, producer_epoch=0)
    log.roll(1)
    produce(log, 2, producer_id=7, producer_epoch=0)
    produce(log, 1)
    log.append_as_leader(batch_at(25), leader_epoch=3, now_ms=1)
    world.manager.flush(log)
    world.run()
    assert erase(world, log, 22) == [None]
    if restarts:
        world.restart()
        log = world.manager.logs[A0]
        log.configure(LARGE)
    LogTruncation(log).truncate_to(25, now_ms=1)
    again = log.append_as_leader(
        batch_at(25, producer_id=7, producer_epoch=0, base_sequence=20), leader_epoch=3, now_ms=1
    )
    assert isinstance(again, AppendedBatch)
    assert (again.duplicate, again.last_offset) == (False, 29)
    following = log.append_as_leader(
        batch_at(30, producer_id=7, producer_epoch=0, base_sequence=30), leader_epoch=3, now_ms=1
    )
    assert following is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    check(world, log, 22, 30)


@pytest.mark.parametrize("power", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("offset", [12, 22])
def test_a_crash_at_any_step(offset: int, power: bool) -> None:
    """What was deleted and durable stays deleted, all others are there, and the next erase leaves nothing."""
    for after in range(1, 80):
        world = World(seed=after)
        log = filled(world, 5)
        world.manager.flush(log)
        world.delete_to((A0, offset))
        world.run()
        world.filesystem.crash_at = world.filesystem.operation_count + after
        answers: list[Any] = []
        try:
            world.manager.erase(log, EraseGoal(offset), answers.append)
            for _ in range(10):
                world.tick(100)
            is_done = True
        except SimulatedCrashError:
            is_done = False
        world.restart(power=power)
        log = loaded(world)
        assert records(log) == expected(offset, 25)
        if answers == [None]:
            assert found(world, offset) == set()
        assert erase(world, log, offset) == [None]
        assert found(world, offset) == set()
        check(world, log, offset, 25)
        if is_done:
            break
    else:
        pytest.fail("it never came to its end")


def test_a_broken_disk_takes_the_directory_offline() -> None:
    world = World()
    log = filled(world)
    world.delete_to((A0, 52))
    world.run()
    answers: list[Any] = []
    world.manager.erase(log, EraseGoal(52), answers.append)
    world.begin_round()
    work, on_done = world.worker.waiting.pop()
    on_done(OSError(errno.EIO, "broken"))
    world.run()
    assert [path for path, _ in world.failed] == [ONE]
    assert isinstance(answers[0], EraseFailedError)
    del work


def test_a_request_for_erasures_does_not_wait_for_later_records_on_the_disk() -> None:
    """Protects a repeated request that finds nothing more: it isn't held until the log happens to be flushed."""
    world = World()
    log = filled(world)
    log.advance_high_watermark(log.log_end_offset)
    assert log.recovery_point < log.log_end_offset
    answers: list[EraseFailedError | None] = []
    world.manager.erase(log, EraseGoal(0, log.log_end_offset), answers.append)
    for _ in range(30):
        world.tick(100)
    assert answers == [None]
