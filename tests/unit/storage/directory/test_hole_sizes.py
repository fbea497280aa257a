"""Deleted bytes become a hole only if it frees some blocks of the file system."""

from __future__ import annotations

import msgspec
import pytest

from lowtide.storage.log.segments.unfreed import HOLE_BLOCKS, UnfreedReason
from tests.unit.storage.directory.managed_logs import A0
from tests.unit.storage.directory.test_holes import (
    DELETED,
    KEPT,
    LARGE,
    World,
    filled,
    produce,
    raw,
    settle,
    unfreed,
)


def count_punches(world: World) -> list[str]:
    punches: list[str] = []
    begin = world.filesystem.begin

    def counted(operation: str, path: str) -> None:
        if operation == "punch":
            punches.append(path)
        begin(operation, path)

    world.filesystem.begin = counted
    return punches


def test_many_deletes_make_few_holes() -> None:
    world = World()
    filled(world, deleted=100)
    punches = count_punches(world)
    for offset in range(5, 501, 5):
        world.delete_to((A0, offset))
        world.free()
        world.clock.now_ms += 50
    settle(world)
    assert 6 <= len(punches) <= 8, "one each 800 ms, of five seconds"
    assert raw(world).count(DELETED) * len(DELETED) < HOLE_BLOCKS * world.filesystem.block_bytes


def test_less_than_some_blocks_waits_for_the_next_hole() -> None:
    """A purge of a small record per partition ten times a second would otherwise make holes that free nothing."""
    world = World()
    log = world.manager.create_log(A0, b"topic-a-16-bytes", LARGE)
    punches = count_punches(world)
    for _ in range(4):
        produce(log, DELETED, 1)
        world.delete_to((A0, log.log_end_offset))
        settle(world)
        assert (punches, unfreed(world)[1]) == ([], UnfreedReason.BLOCK)
    produce(log, DELETED, 1)
    world.delete_to((A0, log.log_end_offset))
    settle(world)
    assert (len(punches), DELETED in raw(world), unfreed(world)) == (1, False, None)
    produce(log, KEPT, 40)
    world.delete_to((A0, log.log_start_offset + 10))
    settle(world)
    assert (len(punches), unfreed(world)[1]) == (1, UnfreedReason.BLOCK)


def test_what_shares_a_large_batch_waits_for_the_rest_of_it() -> None:
    world = World()
    log = world.manager.create_log(A0, b"topic-a-16-bytes", LARGE)
    produce(log, bytes(500), 1)
    world.delete_to((A0, 4))
    settle(world)
    assert unfreed(world) == (True, UnfreedReason.BATCH)


@pytest.mark.parametrize("offset", [1, 100, 250, 499, 500, 501, 700, 735, 740])
@pytest.mark.parametrize("deleted_before", [0, 200])
def test_a_plan_names_the_bytes_that_a_delete_then_frees(offset: int, deleted_before: int) -> None:
    """The console shows the plan. It is computed by what frees the bytes."""
    world = World()
    log = filled(world, deleted=100)
    log.roll(1)
    produce(log, DELETED, 44)
    if deleted_before:
        world.delete_to((A0, deleted_before))
        settle(world)
    planned = world.manager.directories.planned(log, offset)
    before = log.size_bytes
    if offset > log.log_start_offset:
        world.delete_to((A0, offset))
    settle(world)
    assert before - log.size_bytes == planned.file_bytes + planned.hole_bytes
    found = unfreed(world)
    if offset > deleted_before:
        assert (planned.waits_for, planned.kept_bytes > 0) == ((None, False) if found is None else (found[1], True))


def test_a_plan_says_why_bytes_stay() -> None:
    world = World()
    log = filled(world)
    log.configure(msgspec.structs.replace(LARGE, cleanup_policy=frozenset({"compact", "delete"})))
    planned = world.manager.directories.planned(log, 90)
    assert (planned.hole_bytes, planned.waits_for, planned.delay_ms) == (
        0,
        UnfreedReason.COMPACTED,
        LARGE.file_delete_delay_ms,
    )
    assert planned.kept_bytes > 10_000
