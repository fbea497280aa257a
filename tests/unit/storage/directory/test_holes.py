"""Deleted records of a segment that is kept: their bytes become a hole, and every start finds what lies behind it."""

from __future__ import annotations

import msgspec
import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.records import iterate_batches
from lowtide.protocol.types import TopicPartition
from lowtide.storage.directory.hole_notes import HOLE_NOTES, read_notes, write_notes
from lowtide.storage.log.log import FileSlice, Log
from lowtide.storage.log.log_values import AppendedBatch, FollowerAppend
from lowtide.storage.log.segments.hole import Hole, decode_hole
from lowtide.storage.log.segments.index import read_indexes
from lowtide.storage.log.segments.segment_names import offset_name
from lowtide.storage.log.segments.unfreed import UnfreedReason
from lowtide.storage.log.timestamps import search_timestamp
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce
from tests.examples import rounds
from tests.unit.storage.directory import managed_logs
from tests.unit.storage.directory.managed_logs import A0, CONFIG, ONE

FOLDER = f"{ONE}/{A0}"
FIRST = f"{FOLDER}/{offset_name(0)}.log"
DELETED, KEPT = b"-deleted-record-", b"--kept--record--"
LARGE = msgspec.structs.replace(CONFIG, segment_bytes=1 << 20, index_interval_bytes=600)


class World(managed_logs.World):
    """With the rounds that follow a delete, some twenty times a second."""

    def free(self) -> None:
        self.run()
        self.begin_round()
        self.run()

    def begin_round(self) -> None:
        list(self.manager.directories.free_deleted())

    def tick(self, later_ms: int = 0) -> None:
        super().tick(later_ms)
        self.free()


def batch_of(value: bytes, records: int = 5, timestamp: int = 1, **options: int) -> ValidatedBatch:
    content = build_batch([(timestamp, None, value * 10, ()) for _ in range(records)], **options)
    batch = validate_produce(memoryview(content), ValidationRules(), 1)
    assert isinstance(batch, ValidatedBatch)
    return batch


def produce(log: Log, value: bytes, batches: int, **options: int) -> None:
    for number in range(batches):
        more = {"base_sequence": options["base_sequence"] + 5 * number} if "base_sequence" in options else {}
        appended = log.append_as_leader(batch_of(value, **{**options, **more}), leader_epoch=3, now_ms=1)
        assert isinstance(appended, AppendedBatch)
    log.advance_high_watermark(log.log_end_offset)


def filled(world: World, *, deleted: int = 20, kept: int = 4) -> Log:
    log = world.manager.create_log(A0, b"topic-a-16-bytes", LARGE)
    produce(log, DELETED, deleted)
    produce(log, KEPT, kept)
    return log


def loaded(world: World) -> Log:
    log = world.manager.logs[A0]
    log.configure(LARGE)
    log.advance_high_watermark(log.log_end_offset)
    return log


def settle(world: World) -> None:
    for later_ms in (0, 1000, 1000):
        world.tick(later_ms)


def slice_at(log: Log, offset: int) -> FileSlice:
    found = log.read(offset, 1 << 20, end_offset=log.log_end_offset).slice
    assert found is not None
    return found


def offsets(log: Log) -> list[int]:
    start = offset = log.log_start_offset
    found: list[int] = []
    while offset < log.log_end_offset:
        part = slice_at(log, offset)
        for _, header in iterate_batches(part.file.pread(part.size, part.position)):
            found += range(max(header.base_offset, start), header.next_offset)
            offset = header.next_offset
    return found


def raw(world: World, path: str = FIRST) -> bytes:
    return world.filesystem.read_bytes(path)


def test_what_is_deleted_of_the_segment_that_is_written_is_zeros() -> None:
    world = World()
    log = filled(world)
    before = world.filesystem.allocated_bytes(FIRST)
    world.delete_to((A0, 100))
    world.free()
    content = raw(world)
    assert (DELETED in content, content.count(KEPT)) == (False, 200)
    hole = decode_hole(content, 0)
    assert hole is not None
    assert log.size_bytes == len(content) - hole.size
    assert (hole.next_offset, hole.leader_epoch, content[61 : hole.size].strip(b"\0")) == (100, 3, b"")
    assert world.filesystem.allocated_bytes(FIRST) <= before - 3 * 4096
    assert offsets(log) == list(range(100, 120))
    produce(log, KEPT, 1)
    assert offsets(log) == list(range(100, 125))


def test_the_batch_at_the_log_start_is_whole() -> None:
    world = World()
    log = filled(world)
    world.delete_to((A0, 98))
    world.free()
    assert raw(world).count(DELETED) == 50
    assert offsets(log) == list(range(98, 120))
    assert slice_at(log, 98).position == log.segments[0].floor


def test_where_much_waits_a_hole_comes_at_once() -> None:
    world = World()
    log = world.manager.create_log(A0, b"topic-a-16-bytes", msgspec.structs.replace(LARGE, segment_bytes=1 << 26))
    for number in range(1, 8):
        produce(log, bytes(18_000), 2)
        world.delete_to((A0, 10 * number))
        world.run()
        assert world.filesystem.allocated_bytes(FIRST) <= 2 * 4096, "no round is waited for"
        world.clock.now_ms += 100


def test_where_much_waits_in_many_logs_each_has_its_turn() -> None:
    world = World()
    config = msgspec.structs.replace(LARGE, segment_bytes=1 << 26)
    logs = [world.manager.create_log(TopicPartition("a", number), b"topic-a-16-bytes", config) for number in range(11)]
    for log in logs:
        produce(log, bytes(18_000), 2)
    world.delete_to(*((log.topic_partition, 10) for log in logs))
    world.run()
    assert [world.filesystem.allocated_bytes(log.segments[0].path) <= 2 * 4096 for log in logs] == [True] * 11


def test_what_is_deleted_while_a_hole_is_made_has_the_next_one() -> None:
    world = World()
    log = world.manager.create_log(A0, b"topic-a-16-bytes", msgspec.structs.replace(LARGE, segment_bytes=1 << 26))
    produce(log, bytes(18_000), 8)
    part = slice_at(log, 0)
    for offset in (10, 20, 40):
        world.delete_to((A0, offset))
        world.run()
    del part
    world.begin_round()
    world.run()
    assert world.filesystem.allocated_bytes(FIRST) <= 2 * 4096


def test_nothing_is_punched_under_a_slice() -> None:
    world = World()
    log = filled(world)
    part = slice_at(log, 0)
    before = part.file.pread(part.size, part.position)
    world.delete_to((A0, 50))
    settle(world)
    other = slice_at(log, 60)
    world.delete_to((A0, 100))
    settle(world)
    assert part.file.pread(part.size, part.position) == before
    del part
    settle(world)
    kept = other.file.pread(other.size, other.position)
    assert kept.count(DELETED) == 10 * 40
    del other
    settle(world)
    assert DELETED not in raw(world)


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("end", ["clean", "kill", "power"])
@pytest.mark.parametrize("is_flushed", [False, True])
@pytest.mark.seeds
def test_a_start_finds_what_lies_behind_a_hole(end: str, everything: bool, is_flushed: bool) -> None:
    for seed in range(rounds(25)):
        world = World(seed=seed)
        log = filled(world)
        if is_flushed or end == "power":
            world.manager.flush(log)
            world.run()
        start = 120 if everything else 97
        world.delete_to((A0, 42))
        world.free()
        world.clock.now_ms += 1000
        world.delete_to((A0, start))
        world.free()
        if end == "clean":
            world.manager.close()
            world.restart(power=True)
        else:
            world.restart(power=end == "power")
        log = loaded(world)
        assert (log.log_start_offset, log.log_end_offset, offsets(log)) == (start, 120, list(range(start, 120))), seed
        settle(world)
        assert raw(world, f"{FOLDER}/{offset_name(log.segments[0].base_offset)}.log").count(DELETED) == (
            0 if everything else 50
        )
        produce(log, KEPT, 2)
        assert offsets(log) == list(range(start, 130))
        world.restart()
        assert offsets(loaded(world)) == list(range(start, 130))


@pytest.mark.seeds
def test_what_a_power_cut_brought_back_goes_though_a_clean_stop_follows_at_once() -> None:
    """The next start takes the hole for made, so a stop makes it again."""
    for seed in range(rounds(25)):
        world = World(seed=seed)
        world.manager.flush(filled(world))
        world.run()
        world.delete_to((A0, 100))
        world.free()
        world.restart(power=True)
        world.manager.close()
        assert DELETED not in raw(world), seed


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_directory_of_before_gives_its_room_back_after_a_start(is_clean: bool) -> None:
    world = World(frees_deleted=False)
    filled(world)
    world.delete_to((A0, 100))
    settle(world)
    assert DELETED in raw(world)
    world.frees_deleted = True
    if is_clean:
        world.manager.close()
    world.restart()
    settle(world)
    assert DELETED not in raw(world)
    assert offsets(loaded(world)) == list(range(100, 120))


def test_closed_segments_have_holes_too_and_their_indexes_know() -> None:
    world = World()
    log = filled(world)
    log.roll(1)
    produce(log, KEPT, 3)
    world.delete_to((A0, 100))
    settle(world)
    assert DELETED not in raw(world)
    log.segments[0].forget()
    assert offsets(log) == list(range(100, 135))
    assert log.segments[0].indexes[0].lookup(100) in (0, log.segments[0].floor)
    world.manager.close()
    world.restart()
    log = loaded(world)
    assert read_indexes(world.filesystem, log.segments[0].path.removesuffix(".log"), 0, log.segments[0].size)
    assert offsets(log) == list(range(100, 135))
    for offset in range(100, 135):
        assert search_timestamp(log, 1, offset) is not None


@pytest.mark.parametrize("offset", [10, 60, 99, 100, 103, 115])
@pytest.mark.parametrize("power", [None, False, True])
@pytest.mark.seeds
def test_a_log_with_a_hole_is_cut_anywhere(offset: int, power: bool | None) -> None:
    """Below the log start nothing is left, and no byte of what was there before comes back."""
    for seed in range(rounds(10)):
        world = World(seed=seed)
        log = filled(world)
        world.manager.flush(log)
        world.run()
        world.delete_to((A0, 100))
        world.run()
        world.begin_round()
        if seed % 2:
            world.run()  # Else the hole is on its way.
        world.manager.truncate(log, offset, lambda error: world.note("cut", error))
        settle(world)
        start = min(offset, 100)
        end = max(start, offset // 5 * 5)
        assert (log.log_start_offset, log.log_end_offset, offsets(log)) == (start, end, list(range(start, end)))
        produce(log, KEPT, 3)
        expected = list(range(start, end + 15))
        assert offsets(log) == expected
        settle(world)
        assert offsets(log) == expected
        if power is not None:
            world.manager.flush(log)
            world.run()
            world.restart(power=power)
            assert offsets(loaded(world)) == expected


def test_a_topic_that_is_created_again_keeps_its_bytes_from_the_hole_of_the_old_one() -> None:
    world = World()
    log = filled(world)
    part = slice_at(log, 0)
    world.delete_to((A0, 100))
    settle(world)
    world.manager.delete_logs([A0], lambda error: world.note("deleted", error))
    world.run()
    log = world.manager.create_log(A0, b"topic-c-16-bytes", LARGE)
    produce(log, KEPT, 30)
    del part
    settle(world)
    assert offsets(log) == list(range(150))


def test_where_the_file_system_makes_no_holes_all_stays_as_it_is() -> None:
    world = World()
    world.filesystem.can_punch = False
    log = filled(world)
    world.delete_to((A0, 100))
    settle(world)
    assert raw(world).count(DELETED) == 1000
    assert (offsets(log), world.failed) == (list(range(100, 120)), [])
    world.restart()
    assert offsets(loaded(world)) == list(range(100, 120))


def test_a_full_disk_has_room_again_though_nothing_can_be_added() -> None:
    world = World()
    log = filled(world, deleted=200)
    disk = world.filesystem
    disk.capacity_bytes = 1 << 30
    disk.capacity_bytes -= disk.free_bytes("/")
    assert disk.free_bytes("/") == 0
    world.delete_to((A0, 1000))
    settle(world)
    assert disk.free_bytes("/") > 100_000
    assert offsets(log) == list(range(1000, 1020))
    assert world.failed == []


def test_producers_are_known_though_their_batches_are_gone() -> None:
    for power in (False, True):
        world = World()
        log = world.manager.create_log(A0, b"topic-a-16-bytes", LARGE)
        produce(log, DELETED, 10, producer_id=7, producer_epoch=0, base_sequence=0)
        produce(log, KEPT, 2)
        world.manager.flush(log)
        world.run()
        world.delete_to((A0, 50))
        settle(world)
        world.restart(power=power)
        log = loaded(world)
        again = log.append_as_leader(
            batch_of(DELETED, producer_id=7, producer_epoch=0, base_sequence=45), leader_epoch=3, now_ms=1
        )
        assert isinstance(again, AppendedBatch)
        assert (again.duplicate, again.last_offset) == (True, 49)
        produce(log, KEPT, 1, producer_id=7, producer_epoch=0, base_sequence=50)


def test_without_its_notes_a_kill_is_survived_all_the_same() -> None:
    world = World()
    filled(world)
    world.delete_to((A0, 100))
    settle(world)
    for name in HOLE_NOTES:
        if world.filesystem.exists(f"{ONE}/{name}"):
            world.filesystem.unlink(f"{ONE}/{name}")
    world.restart()
    assert offsets(loaded(world)) == list(range(100, 120))


def test_notes_of_many_logs_have_room_on_a_full_disk() -> None:
    world = World()
    holes = {(bytes(16), number): Hole(0, 100, 5000, 3) for number in range(400)}
    disk = world.filesystem
    write_notes(disk, ONE, 1, holes)
    write_notes(disk, ONE, 2, holes)
    disk.capacity_bytes = 1 << 30
    disk.capacity_bytes -= disk.free_bytes("/")
    for number in range(400, 600):
        holes[bytes(16), number] = Hole(0, 100, 5000, 3)
    write_notes(disk, ONE, 3, holes)
    assert read_notes(disk, ONE) == (3, holes)


def test_notes_of_three_hundred_logs_fit_from_the_beginning() -> None:
    world = World()
    disk = world.filesystem
    disk.capacity_bytes = 1 << 30
    disk.capacity_bytes -= disk.free_bytes("/")
    holes = {(bytes(16), number): Hole(0, 1 << 40, 1 << 30, 3) for number in range(300)}
    write_notes(disk, ONE, 1, holes)
    assert read_notes(disk, ONE) == (1, holes)


def unfreed(world: World, key: TopicPartition = A0) -> tuple[bool, UnfreedReason] | None:
    found = world.manager.directories.unfreed(ONE, world.manager.logs[key])
    return None if found is None else (found.size_bytes > 1000, found.waits_for)


def test_what_is_not_freed_has_a_reason() -> None:
    world = World()
    log = filled(world)
    assert unfreed(world) is None
    part = slice_at(log, 0)
    world.delete_to((A0, 50))
    world.run()
    assert unfreed(world) == (True, UnfreedReason.ROUND)
    world.free()
    assert unfreed(world) == (True, UnfreedReason.READER)
    del part
    settle(world)
    assert unfreed(world) is None
    world.delete_to((A0, 98))
    settle(world)
    assert unfreed(world) == (False, UnfreedReason.BLOCK)
    log.configure(msgspec.structs.replace(LARGE, cleanup_policy=frozenset({"compact", "delete"})))
    world.delete_to((A0, 110))
    settle(world)
    assert unfreed(world) == (True, UnfreedReason.COMPACTED)


@pytest.mark.parametrize("frees", [False, True])
def test_what_is_never_freed_within_a_segment_has_a_reason(frees: bool) -> None:
    world = World(frees_deleted=frees)
    world.filesystem.can_punch = False
    filled(world)
    world.delete_to((A0, 98))
    settle(world)
    assert unfreed(world) == (True, UnfreedReason.FILE_SYSTEM if frees else UnfreedReason.SWITCHED_OFF)


def with_a_gap(world: World) -> Log:
    """Batches of five records below 50; then none before 60, as in a log that was compacted elsewhere."""
    log = world.manager.create_log(A0, b"topic-a-16-bytes", LARGE)
    for offset in (*range(0, 50, 5), *range(60, 80, 5)):
        value = DELETED if offset < 50 else KEPT
        content = build_batch([(1, None, value * 10, ()) for _ in range(5)], base_offset=offset, leader_epoch=3)
        assert isinstance(log.append_as_follower(memoryview(content), now_ms=1), FollowerAppend)
    log.advance_high_watermark(80)
    return log


@pytest.mark.parametrize("start", [50, 55, 60])
@pytest.mark.parametrize("end", ["clean", "kill", "power"])
@pytest.mark.parametrize("is_rolled", [False, True])
@pytest.mark.seeds
def test_a_log_start_in_a_gap_frees_all_that_lies_before(start: int, end: str, is_rolled: bool) -> None:
    for seed in range(rounds(10)):
        world = World(seed=seed)
        log = with_a_gap(world)
        if is_rolled:
            log.roll(1)
        world.manager.flush(log)
        world.run()
        world.delete_to((A0, 20))
        world.free()
        world.clock.now_ms += 1000
        world.delete_to((A0, start))
        world.free()
        if end == "clean":
            assert DELETED not in raw(world)
            world.manager.close()
        world.restart(power=end != "kill")
        log = loaded(world)
        assert (log.log_start_offset, log.log_end_offset, offsets(log)) == (start, 80, list(range(60, 80))), seed
        settle(world)
        assert DELETED not in raw(world)
        world.delete_to((A0, max(start, 57)))
        settle(world)
        assert offsets(log) == list(range(60, 80))
        assert unfreed(world) is None or not unfreed(world)[0]
        world.restart()
        assert offsets(loaded(world)) == list(range(60, 80))


def test_a_gap_is_noted_with_its_hole() -> None:
    world = World()
    holes = {(bytes(16), 0): Hole(0, 100, 5000, 3, 7), (bytes(16), 1): Hole(0, 100, 5000, 3)}
    write_notes(world.filesystem, ONE, 1, holes)
    assert read_notes(world.filesystem, ONE) == (1, holes)
