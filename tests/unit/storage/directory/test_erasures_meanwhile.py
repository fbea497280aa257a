"""Erasing while something else happens to the log: compaction, a delete, a truncation, a round at every step."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from lowtide.protocol.erasure_record import EraseGoal, ErasureRecord
from lowtide.protocol.offset_ranges import OffsetRange
from lowtide.protocol.records import iterate_batches
from lowtide.storage.compaction import erasing
from lowtide.storage.directory.directory_erasures import EraseFailedError
from lowtide.storage.log.log_values import AppendedBatch
from lowtide.storage.log.markers import make_erasure
from lowtide.storage.log.segments.segment_names import offset_name
from tests.unit.storage.directory.managed_logs import A0, ONE
from tests.unit.storage.directory.test_erasures import (
    FOLDER,
    LARGE,
    ask_to_erase,
    batch_at,
    check,
    erase,
    expected,
    filled,
    found,
    loaded,
    produce,
    records,
)
from tests.unit.storage.directory.test_holes import World


def test_a_compaction_that_runs_is_waited_for() -> None:
    world = World()
    log = filled(world, config=msgspec.structs.replace(LARGE, cleanup_policy=frozenset({"compact", "delete"})))
    log.swaps.take()
    answers, _ = ask_to_erase(world, log, 52)
    for _ in range(5):
        world.tick(100)
    assert answers == []
    log.swaps.release()
    world.begin_round()
    assert log.swaps.is_taken, "the other way round, too"
    for _ in range(5):
        world.tick(100)
    assert answers == [None]
    assert not log.swaps.is_taken
    assert found(world, 52) == set()


def test_the_segment_that_gives_way_is_gone_before_the_answer() -> None:
    """Also if a round comes before the new segment's name is durable: what it replaces is still there as `.deleted`."""
    world = World()
    log = filled(world)
    answers, _ = ask_to_erase(world, log, 52)
    committer = world.committers[ONE]
    while not answers:
        world.begin_round()
        (committer if committer.waiting else world.worker).step()
    assert answers == [None]
    assert found(world, 52) == set()


def test_a_compaction_that_runs_may_have_copies_of_what_has_left_the_log() -> None:
    world = World()
    log = filled(world, config=msgspec.structs.replace(LARGE, segment_bytes=1500))
    log.swaps.take()
    copy = f"{FOLDER}/{offset_name(0)}.log.cleaned"
    world.filesystem.write_bytes(copy, world.filesystem.read_bytes(log.segments[0].path))
    offset = log.segments[1].base_offset
    answers, _ = ask_to_erase(world, log, offset)
    for _ in range(5):
        world.tick(100)
    assert answers == []
    world.filesystem.unlink(copy)
    log.swaps.release()
    for _ in range(5):
        world.tick(100)
    assert answers == [None]
    assert found(world, offset) == set()


@pytest.mark.parametrize("steps", range(6))
def test_no_hole_is_made_under_a_segment_that_is_copied(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log start rises meanwhile: what is deleted then is still to be read by the worker that copies."""
    monkeypatch.setattr(erasing, "COPY_BYTES", 300)
    world = World()
    log = filled(world)
    answers, _ = ask_to_erase(world, log, 52)
    world.begin_round()
    for _ in range(steps):
        world.worker.step()
    world.clock.now_ms += 1000
    world.delete_to((A0, 80))
    for _ in range(40):
        world.clock.now_ms += 50
        for committer in world.committers.values():
            while committer.waiting:
                committer.step()
        world.begin_round()
        if world.worker.waiting:
            world.worker.step()
    world.run()
    assert answers == [None]
    assert records(log, everything=True) == expected(80, 100)
    assert found(world, 52) == set()
    world.free()
    assert found(world, 80) == set(), "the hole comes behind it"
    world.restart()
    assert records(loaded(world)) == expected(80, 100)


def test_a_truncation_in_between_wins() -> None:
    world = World()
    log = filled(world)
    answers, _ = ask_to_erase(world, log, 52)
    world.begin_round()
    world.worker.step()
    world.manager.truncate(log, 30, lambda error: world.note("cut", error))
    for _ in range(10):
        world.tick(100)
    assert (log.log_start_offset, log.log_end_offset) == (30, 30)
    assert "lowered the log start to 30" in str(answers[0])
    produce(log, 4)
    check(world, log, 30, 50)
    assert erase(world, log, 33) == [None]
    assert found(world, 33) == set()
    check(world, log, 33, 50)


def test_segments_that_were_emptied_before_are_unlinked_too() -> None:
    """A power cut may give them their bytes again, as long as they have a name."""
    world = World()
    log = filled(world, config=msgspec.structs.replace(LARGE, segment_bytes=1500))
    world.delete_to((A0, 60))
    world.free()
    emptied = [name for name in world.names(FOLDER) if name.endswith(".log.deleted")]
    assert emptied
    assert all(world.filesystem.file_size(f"{FOLDER}/{name}") == 0 for name in emptied)
    assert erase(world, log, 60) == [None]
    assert not [name for name in world.names(FOLDER) if name.endswith(".deleted")]


@pytest.mark.parametrize("steps", range(3))
def test_a_stop_in_between_gives_the_worker_nothing_more(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is about to be closed. The next start removes what is written."""
    monkeypatch.setattr(erasing, "COPY_BYTES", 300)
    world = World()
    answers, _ = ask_to_erase(world, filled(world), 52)
    world.begin_round()
    for _ in range(steps):
        world.worker.step()
    assert world.worker.waiting
    world.manager.close()
    monkeypatch.setattr(world.worker, "submit", lambda *_work: pytest.fail("the worker is closed"))
    world.worker.close()
    assert ["stops" in str(answer) for answer in answers] == [True]
    world.restart()
    assert records(loaded(world)) == expected(52, 100)
    assert not [name for name in world.names(FOLDER) if name.endswith(".cleaned")]


@pytest.mark.parametrize("leaves_late", [False, True])
def test_a_hole_is_on_the_disk_before_the_answer_though_its_segment_leaves_the_log(leaves_late: bool) -> None:
    """The segment lies wholly below the log start once there is another.

    It gets another name then, and a sync by the old finds nothing.
    """
    for seed in range(20):
        world = World(seed=seed)
        log = filled(world, 20)
        world.manager.flush(log)
        world.delete_to((A0, 100))
        world.free()
        assert log.segments[0].gone_offset == 100
        answers: list[EraseFailedError | None] = []
        world.manager.erase(log, EraseGoal(100), answers.append)
        if not leaves_late:
            log.roll(world.clock.now_ms)
        world.begin_round()
        if leaves_late:
            assert world.committers[ONE].waiting
            log.roll(world.clock.now_ms)
            world.manager.remove_segments(log, log.files.remove_below(log.log_start_offset, log.config))
        while world.worker.waiting:
            world.worker.step()
        for _ in range(10):
            if not answers:
                world.tick(100)
        assert answers == [None]
        world.filesystem.power_cut()
        assert found(world, 100) == set(), seed


def test_rewriting_waits_for_its_allowance() -> None:
    """Protects the disk for requests: a limit of bytes per second, which may change while a segment is rewritten."""
    world = World()
    log = filled(world)
    rates = [1.0]
    world.manager.erasing.limit(lambda: rates[0])
    assert erase(world, log, 52, rounds=50) == []
    assert records(log) == expected(52, 100)
    rates[0] = 1e9
    assert erase(world, log, 52) == [None]
    assert found(world, 52) == set()
    check(world, log, 52, 100)


def test_the_last_five_batches_of_a_producer_are_known_without_their_records() -> None:
    """Protects against a retry that a new leader, which knows the producer from its log only, would refuse."""
    world = World()
    log = filled(world, 8, producer_id=7, producer_epoch=0)
    log.roll(1)
    produce(log, 2)
    named = ErasureRecord(UUID(int=1), (OffsetRange(0, 39),))
    appended = log.append_as_leader(make_erasure(named, 1), leader_epoch=3, now_ms=1)
    assert isinstance(appended, AppendedBatch)
    log.advance_high_watermark(log.log_end_offset)
    world.manager.flush(log)
    world.run()
    answers: list[EraseFailedError | None] = []
    world.manager.erase(log, EraseGoal(0, log.log_end_offset), answers.append)
    for _ in range(5):
        world.tick(1000)
    assert answers == [None]
    for name in world.filesystem.listdir(FOLDER):
        if name.endswith(".snapshot"):
            world.filesystem.unlink(f"{FOLDER}/{name}")
    world.restart(power=True)
    log = loaded(world)
    frames = [header.base_offset for _, header in iterate_batches(world.filesystem.read_bytes(log.segments[0].path))]
    assert frames == [15, 20, 25, 30, 35]
    for offset in frames:
        again = log.append_as_leader(
            batch_at(offset, producer_id=7, producer_epoch=0, base_sequence=offset), leader_epoch=3, now_ms=1
        )
        assert isinstance(again, AppendedBatch)
        assert (again.duplicate, again.last_offset) == (True, offset + 4)
