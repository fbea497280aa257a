"""Logs that are set aside: their names are free, and their files are never removed."""

from __future__ import annotations

import errno
from functools import partial

import pytest

from lowtide.protocol.types import TopicId
from lowtide.storage.checkpoint import PARTITION_METADATA
from lowtide.storage.directory.log_manager import KnownTopic

from .managed_logs import A0, A1, CONFIG, ONE, TWO, A, B, World, append

ANEW = b"N" * 16


def strays(world: World, path: str = ONE) -> list[str]:
    return [name for name in world.names(path) if name.endswith("-stray")]


def test_a_log_that_is_set_aside_leaves_its_name_and_keeps_its_files_and_its_start() -> None:
    """Renamed back, the log is what it was, deletes included."""
    world = World()
    (log,) = world.create(A0)
    append(log, 3)
    world.delete_to((A0, 8))
    world.run()
    world.manager.delete_logs([A0], partial(world.note, "aside"), set_aside=True)
    assert log.offline
    world.run()
    assert world.answers == ["trimmed", "aside"]
    again = world.manager.create_log(A0, B, CONFIG)
    assert (again.log_start_offset, again.log_end_offset) == (0, 0)
    world.tick(1_000_000)
    (name,) = strays(world)
    world.manager.close()
    for _ in range(2):
        world.start()
        world.tick(1_000_000)
        assert strays(world) == [name], "no start removes it"
        assert f"{ONE}/{name}" in world.manager.directories.strays
        world.manager.close()
    world.filesystem.remove_tree(f"{ONE}/{A0}")
    world.filesystem.rename(f"{ONE}/{name}", f"{ONE}/{A0}")
    world.start()
    back = world.manager.logs[A0]
    assert (back.topic_id, back.log_start_offset, back.log_end_offset) == (A, 8, 15)


def test_without_room_for_another_name_the_log_stays_and_its_name_is_not_free() -> None:
    """A full disk is neither a disk failure nor a reason to remove anything."""
    world = World()
    append(world.create(A0)[0], 2)
    world.filesystem.fail_next("rename", errno.ENOSPC)
    world.manager.delete_logs([A0], partial(world.note, "aside"), set_aside=True)
    world.run()
    assert world.answers == [("aside", errno.ENOSPC)]
    assert world.manager.directories.any_is_online
    assert world.filesystem.exists(f"{ONE}/{A0}/00000000000000000000.log")


def test_of_two_logs_of_a_name_the_one_of_an_unknown_topic_is_set_aside_and_that_of_a_deleted_one_removed() -> None:
    for deleted, expected in (([], 1), ([A], 0)):
        world = World(ONE, TWO)
        world.manager.create_log(A0, A, CONFIG)
        world.manager.close()
        here, there = (ONE, TWO) if world.filesystem.exists(f"{ONE}/{A0}") else (TWO, ONE)
        world.filesystem.rename(f"{here}/{A0}", f"{here}/moved")
        world.start()
        while A0 not in world.manager.logs or world.manager.logs[A0].parent_directory != there:
            world.manager.create_log(A1, B, CONFIG)
            world.manager.create_log(A0, ANEW, CONFIG)
        world.manager.close()
        world.filesystem.rename(f"{here}/moved", f"{here}/{A0}")
        world.start(topics={"a": KnownTopic(ANEW, CONFIG)}, deleted_topics=deleted)
        assert world.manager.logs[A0].topic_id == ANEW
        world.tick(1_000_000)
        assert len(strays(world, here)) == expected
        assert not world.filesystem.exists(f"{here}/{A0}")


@pytest.mark.parametrize(
    ("before", "now", "deleted", "expected"),
    [
        (A, A, [], "kept"),
        (A, ANEW, [], "set aside"),
        (A, ANEW, [A], "removed"),
        (A, None, [], "set aside"),
        (None, ANEW, [], "set aside"),
    ],
)
def test_a_folder_without_its_topic_id_is_of_no_topic_that_was_made_since(
    before: bytes | None, now: bytes | None, deleted: list[TopicId], expected: str
) -> None:
    """A power cut can leave it so.

    Taken for the log of a topic of the same name, it would bring deleted records back.
    """
    world = World()
    (log,) = world.create(A0)
    append(log, 3)
    world.manager.close()
    world.filesystem.unlink(f"{ONE}/{A0}/{PARTITION_METADATA}")
    world.start(
        topics={} if now is None else {"a": KnownTopic(now, CONFIG)},
        deleted_topics=deleted,
        remembered_topics={ONE: {"a": before}.get},
    )
    created = world.manager.create_log(A0, now or ANEW, CONFIG)
    assert created.log_end_offset == (15 if expected == "kept" else 0)
    world.tick(1_000_000)
    assert len(strays(world)) == (expected == "set aside")
