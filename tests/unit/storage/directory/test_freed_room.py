"""What was deleted gives its room back at once, whatever its names wait for, and never under a reader."""

from __future__ import annotations

import errno
from functools import partial

import msgspec
import pytest

from lowtide.protocol.types import TopicPartition
from lowtide.storage.log.log import FileSlice, Log
from tests.unit.storage.directory.managed_logs import A0, CONFIG, ONE, World, append

DELAY_MS = CONFIG.file_delete_delay_ms
FOLDER = f"{ONE}/{A0}"


def sizes(world: World, folder: str) -> dict[str, int]:
    """Of the files of records, by name."""
    return {name: world.filesystem.file_size(f"{folder}/{name}") for name in world.names(folder) if ".log" in name}


def deleted_sizes(world: World) -> list[int]:
    return [size for name, size in sizes(world, FOLDER).items() if name.endswith(".deleted")]


def filled(world: World) -> Log:
    (log,) = world.create(A0)
    append(log, 12)
    assert len(log.segments) > 3
    return log


def slice_at(log: Log, offset: int) -> FileSlice:
    found = log.read(offset, 1 << 20, end_offset=log.log_end_offset).slice
    assert found is not None
    return found


def delete_topic(world: World, key: TopicPartition = A0) -> str:
    """Deletes it; the folder that is left of it."""
    world.manager.delete_logs([key], partial(world.note, "deleted"))
    world.run()
    assert world.answers == ["deleted"]
    (folder,) = (name for name in world.names(ONE) if name.endswith("-delete"))
    return f"{ONE}/{folder}"


def test_segments_below_the_log_start_are_emptied_and_keep_their_names_for_a_while() -> None:
    world = World()
    log = filled(world)
    world.delete_to((A0, 33))
    world.run()
    assert deleted_sizes(world)
    assert set(deleted_sizes(world)) == {0}
    assert slice_at(log, 33).size > 0
    world.tick(DELAY_MS)
    assert deleted_sizes(world) == []


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_no_file_is_emptied_under_a_slice(is_forgotten: bool) -> None:
    """Also where the segment has let go of the file, for others to be opened."""
    world = World()
    log = filled(world)
    part = slice_at(log, 0)
    before = part.file.pread(part.size, part.position)
    if is_forgotten:
        log.segments[0].forget()
        slice_at(log, 0)
    world.delete_to((A0, 33))
    world.run()
    world.tick()
    assert part.token.valid
    assert part.file.pread(part.size, part.position) == before
    assert max(deleted_sizes(world)) > 0 == sorted(deleted_sizes(world))[-2]
    del part
    world.tick()
    assert set(deleted_sizes(world)) == {0}


def test_where_it_is_switched_off_or_a_compaction_may_read_the_room_waits_for_the_names() -> None:
    for is_compacted in (False, True):
        world = World(frees_deleted=is_compacted)
        log = filled(world)
        if is_compacted:
            log.configure(msgspec.structs.replace(CONFIG, cleanup_policy=frozenset({"compact", "delete"})))
        world.delete_to((A0, 33))
        world.run()
        assert min(deleted_sizes(world)) > 0
        world.tick(DELAY_MS)
        assert deleted_sizes(world) == []


def test_a_deleted_topic_gives_its_room_back_and_keeps_its_folder_for_a_while() -> None:
    world = World()
    log = filled(world)
    part = slice_at(log, 40)
    folder = delete_topic(world)
    assert min(sizes(world, folder).values()) > 0
    del part
    world.tick()
    assert set(sizes(world, folder).values()) == {0}
    assert "partition.metadata" in world.names(folder)
    world.tick(DELAY_MS)
    assert not world.filesystem.exists(folder)


def test_what_is_set_aside_keeps_its_records() -> None:
    world = World()
    filled(world)
    before = sorted(sizes(world, FOLDER).values())
    world.manager.delete_logs([A0], partial(world.note, "set aside"), set_aside=True)
    world.run()
    world.tick()
    (folder,) = (name for name in world.names(ONE) if name.startswith("a-0."))
    assert sorted(sizes(world, f"{ONE}/{folder}").values()) == before


def test_deleting_makes_room_on_a_full_disk_at_once() -> None:
    for deletes_topic in (False, True):
        world = World()
        log = filled(world)
        disk = world.filesystem
        disk.capacity_bytes = 1 << 30
        disk.capacity_bytes -= disk.free_bytes("/") - 500
        before, total = disk.free_bytes("/"), log.size_bytes
        if deletes_topic:
            delete_topic(world)
            assert disk.free_bytes("/") >= before + total - 200
        else:
            world.delete_to((A0, log.segments[-1].base_offset))
            world.run()
            assert disk.free_bytes("/") >= before + total - log.segments[-1].size - 200


@pytest.mark.parametrize("power", [False, True])
def test_what_a_crash_leaves_of_it_is_removed_by_the_start(power: bool) -> None:
    for seed in range(30):
        world = World(seed=seed)
        log = filled(world)
        world.manager.flush(log)
        world.run()
        world.delete_to((A0, 33))
        world.run()
        end = log.log_end_offset
        world.restart(power=power)
        log = world.manager.logs[A0]
        assert (log.log_start_offset, log.log_end_offset) == (33, end)
        assert (
            world.manager.directories.load_reports.get(A0) is None
            or not world.manager.directories.load_reports[A0].bytes_cut
        )
        offset = 33
        while offset < end:
            offset += 5 - offset % 5
            assert slice_at(log, min(offset, end - 1)).size > 0


def test_a_lack_of_descriptors_passes() -> None:
    world = World()
    filled(world)
    world.filesystem.fail_next("open", errno.EMFILE, path_contains=".deleted")
    world.delete_to((A0, 33))
    world.run()
    assert world.failed == []
    assert max(deleted_sizes(world)) > 0
    world.tick(1000)
    assert (deleted_sizes(world), world.failed) == ([], [])
