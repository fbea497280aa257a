"""A delete that leaves much is answered when its hole is made: deleted bytes don't pile up behind a slow disk."""

from __future__ import annotations

import errno
from functools import partial

import msgspec
import pytest

from lowtide.storage.directory.held_answers import HELD_BYTES, HELD_MS, LARGE_BYTES
from lowtide.storage.directory.log_starts import LogStartIncrement
from lowtide.storage.log.log import Log
from lowtide.storage.log.log_holes import LogHoles
from tests.unit.storage.directory.managed_logs import A0, ONE
from tests.unit.storage.directory.test_holes import FIRST, LARGE, World, produce, slice_at

VALUE = bytes(20_000)
BATCH_BYTES = 5 * 10 * len(VALUE)
MUCH = 3
"""So many batches are more than `HELD_BYTES`."""


def filled(world: World, batches: int = MUCH + 1) -> Log:
    log = world.manager.create_log(A0, b"topic-a-16-bytes", msgspec.structs.replace(LARGE, segment_bytes=1 << 28))
    produce(log, VALUE, batches)
    return log


def delete(world: World, offset: int, name: str = "trimmed") -> None:
    """A delete as a broker answers it, and its journal has it; what follows from that is under way."""
    log = world.manager.logs[A0]
    increments = [LogStartIncrement(log, offset)]
    answer = partial(world.note, name, None)
    world.manager.log_starts.request_log_starts(
        increments, lambda _error: world.manager.directories.answers.hold([log], answer)
    )
    world.committers[ONE].step()
    if world.worker.waiting:
        world.worker.step()  # Holes begin behind the answers.


def test_answers_go_before_holes_begin() -> None:
    world = World()
    log = filled(world)
    world.manager.log_starts.request_log_starts(
        [LogStartIncrement(log, 5 * 2)], lambda _error: world.note("trimmed", None)
    )
    world.committers[ONE].step()
    assert (world.answers, LogHoles(log).pending) == (["trimmed"], None)
    world.worker.step()
    assert LogHoles(log).pending is not None


def test_a_delete_of_much_is_answered_when_its_room_is_free() -> None:
    world = World()
    log = filled(world)
    delete(world, 5 * MUCH)
    world.committers[ONE].step()
    assert (log.log_start_offset, world.answers) == (5 * MUCH, [])
    assert world.filesystem.allocated_bytes(FIRST) > MUCH * BATCH_BYTES
    world.worker.step()
    assert world.answers == ["trimmed"]
    assert world.filesystem.allocated_bytes(FIRST) < BATCH_BYTES + 3 * 4096


def test_a_delete_of_little_is_answered_when_it_is_durable() -> None:
    world = World()
    filled(world)
    delete(world, 5 * (MUCH - 1))
    assert world.answers == ["trimmed"]


def test_what_little_deletes_leave_adds_up() -> None:
    world = World()
    filled(world)
    delete(world, 5, "1")
    delete(world, 5 * MUCH, "2")
    assert world.answers == ["1"]
    world.run()
    assert world.answers == ["1", "2"]


def test_a_delete_of_very_much_does_not_wait() -> None:
    world = World()
    batches = LARGE_BYTES // BATCH_BYTES + 1
    filled(world, batches)
    delete(world, 5 * batches)
    assert world.answers == ["trimmed"]


def test_a_reader_holds_no_answer_back() -> None:
    world = World()
    log = filled(world)
    part = slice_at(log, 0)
    delete(world, 5 * MUCH)
    assert world.answers == ["trimmed"]
    assert part.token.valid


def test_a_reader_that_is_gone_soon_changes_nothing() -> None:
    world = World()
    log = filled(world)
    part = slice_at(log, 0)
    delete(world, 5, "1")
    world.run()
    delete(world, 5 * MUCH, "2")
    assert (world.answers, part.token.valid) == (["1", "2"], True)


@pytest.mark.parametrize("why", ["no holes", "switched off", "compacted", "many producers"])
def test_where_no_hole_is_made_soon_nothing_waits(why: str) -> None:
    world = World(frees_deleted=why != "switched off")
    world.filesystem.can_punch = why != "no holes"
    log = filled(world)
    if why == "compacted":
        log.configure(msgspec.structs.replace(log.config, cleanup_policy=frozenset({"compact", "delete"})))
    if why == "many producers":
        for number in range(1000):
            produce(log, b"", 1, producer_id=number, producer_epoch=0, base_sequence=0)
        world.delete_to((A0, 5))
        world.free()
        world.answers.clear()
    delete(world, 5 * MUCH)
    if why == "no holes":
        world.run()  # That is found out by the first one.
    assert world.answers == ["trimmed"]


def test_an_answer_waits_for_a_second_at_most() -> None:
    world = World()
    filled(world)
    delete(world, 5 * MUCH)
    world.committers[ONE].step()
    world.filesystem.fail_next("open", errno.EMFILE, 1000, FIRST)
    for _ in range(HELD_MS // 50 - 1):
        world.clock.now_ms += 50
        world.free()
        assert world.answers == []
    world.clock.now_ms += 50
    world.free()
    assert world.answers == ["trimmed"]


@pytest.mark.parametrize("end", ["stop", "failure", "deletion"])
def test_every_answer_is_given(end: str) -> None:
    world = World()
    filled(world)
    delete(world, 5 * MUCH)
    if end == "stop":
        world.manager.close()
    elif end == "failure":
        world.filesystem.fail_next("sync", errno.EIO, 1, "lowtide-holes")
        world.run()
        world.begin_round()
    else:
        world.manager.delete_logs([A0], lambda error: world.note("deleted", error))
        world.free()
    assert world.answers.count("trimmed") == 1


def test_the_bounds() -> None:
    assert BATCH_BYTES * (MUCH - 1) < HELD_BYTES < BATCH_BYTES * MUCH
