"""One log directory fails while the others serve: at the start, later, and when it returns.

A partition that may be in an unusable directory must never be re-created, empty, elsewhere.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest

from lowtide.protocol.types import ZERO_TOPIC_ID, TopicPartition
from lowtide.storage.checkpoint import (
    CLEAN_SHUTDOWN_MARKER,
    META_PROPERTIES,
    PARTITION_METADATA,
    encode_partition_metadata,
)
from lowtide.storage.directory.known_directories import KNOWN_DIRECTORIES, decode_known, encode_known, read_known
from lowtide.storage.directory.log_manager import KnownTopic
from lowtide.storage.errors import RefusedDirectoryError, StorageError
from lowtide.storage.log_directory import REGISTRATION_COUNTER

from .managed_logs import A0, A1, B0, CONFIG, ONE, TWO, A, B, World, append, damage_journal

ANEW = b"topic-a-made-new"
THREE = "/three"
MARKERS = [f"{path}/{CLEAN_SHUTDOWN_MARKER}" for path in (ONE, TWO)]


def two_directories() -> World:
    """A-0 is in the first directory, a-1 in the second, with five records each, cleanly stopped."""
    world = World(ONE, TWO)
    for log in world.create(A0, A1):
        append(log)
    assert world.manager.expect([(A0, A), (A1, A)]) == []
    world.manager.directories.notes.write_registration(7, world.manager.directories.paths)
    world.manager.close()
    assert all(world.filesystem.exists(marker) for marker in MARKERS)
    return world


def away(world: World, path: str) -> None:
    """A volume that isn't mounted: its mount point is an empty folder."""
    world.filesystem.rename(path, f"{path}-away")
    world.filesystem.make_directories(path)


def partition_twice(world: World) -> None:
    """Creates, in the second directory, a folder with records for a partition that the first one has."""
    world.filesystem.make_directories(f"{TWO}/a-0")
    world.filesystem.write_bytes(f"{TWO}/a-0/00000000000000000000.log", b"records")


def back(world: World, path: str) -> None:
    world.filesystem.remove_tree(path)
    world.filesystem.rename(f"{path}-away", path)


# A start with a directory that fails


@pytest.mark.parametrize(("operation", "count"), [("open", 2), ("create", 1), ("unlink", 1), ("write", 1)])
def test_a_directory_that_cannot_be_used_at_the_start_is_offline_and_the_others_serve(
    operation: Any, count: int
) -> None:
    """Reading the file that names the other directories may fail too."""
    world = two_directories()
    world.filesystem.fail_next(operation, errno.EROFS, count, path_contains=f"{TWO}/")
    world.start()
    assert world.filesystem.fault_counts[operation] == count
    assert list(world.manager.directories.offline) == [TWO]
    assert world.failed == [(TWO, [])]
    assert list(world.manager.logs) == [A0]
    assert world.manager.expect([(A0, A), (A1, A)]) == [A1]
    with pytest.raises(StorageError, match=f"{TWO}: the log directory of a-1 is offline"):
        world.create(A1)
    world.create(B0)
    world.manager.close()
    assert world.filesystem.is_directory(f"{ONE}/b-0")
    world.start()
    assert world.manager.logs[A1].log_end_offset == 5, "the directory serves again"


def test_the_others_are_compacted_beside_a_directory_that_could_not_be_opened() -> None:
    """Protects compaction: its search for logs failed with an AssertionError while any directory was offline."""
    world = two_directories()
    world.filesystem.fail_next("open", errno.EROFS, 2, path_contains=f"{TWO}/")
    world.start()
    assert list(world.manager.directories.offline) == [TWO]
    list(world.manager.directories.write_cleaner_checkpoints())
    world.manager.close()


def test_a_failing_disk_that_cannot_even_be_listed_is_offline() -> None:
    """Its contents are unknown, but it is known to be missing, so a log that is not found may be there."""
    world = two_directories()
    world.filesystem.rename(TWO, f"{TWO}-away")
    world.filesystem.write_bytes(TWO, b"another file")
    world.start()
    assert world.manager.directories.offline == {TWO: "the log directory is a file, it must be a folder"}
    assert world.manager.expect([(A0, A), (A1, A)]) == [A1]
    with pytest.raises(StorageError, match="offline"):
        world.create(A1)


def test_the_required_directory_refuses_the_start_and_no_mark_is_lost() -> None:
    world = two_directories()
    damage_journal(world, TWO)
    for _ in range(2):
        with pytest.raises(StorageError, match=f"^{TWO}/"):
            world.start(required=TWO + "/")
        assert all(world.filesystem.exists(marker) for marker in MARKERS)
    world.start(required=ONE)
    assert list(world.manager.logs) == [A0]
    assert [world.filesystem.exists(marker) for marker in MARKERS] == [False, True]


@pytest.mark.parametrize(
    "change",
    [
        lambda world: world.filesystem.replace_file(
            f"{TWO}/{META_PROPERTIES}", b"version=1\ncluster.id=other\nnode.id=1\n"
        ),
        lambda world: world.filesystem.replace_file(
            f"{TWO}/{META_PROPERTIES}", b"version=1\ncluster.id=our-cluster\nnode.id=2\n"
        ),
        lambda world: world.filesystem.unlink(f"{TWO}/{META_PROPERTIES}"),
        lambda world: world.filesystem.lock(f"{TWO}/.lock"),
        lambda world: world.filesystem.replace_file(
            f"{TWO}/{META_PROPERTIES}", world.filesystem.read_bytes(f"{ONE}/{META_PROPERTIES}")
        ),
        partition_twice,
    ],
    ids=["cluster", "node", "no owner", "in use", "copy", "partition twice"],
)
def test_a_wrong_idea_of_the_directories_refuses_the_start_though_another_one_works(change: Any) -> None:
    """It is no disk failure; the markers of clean stops stay for the correct start."""
    world = two_directories()
    change(world)
    with pytest.raises(RefusedDirectoryError):
        world.start()
    assert all(world.filesystem.exists(marker) for marker in MARKERS)


def test_a_full_disk_is_no_reason_not_to_start() -> None:
    """Deletes free it."""
    world = two_directories()
    world.filesystem.fail_next("create", errno.ENOSPC, path_contains=f"{TWO}/.lowtide-write-check")
    world.start()
    assert world.filesystem.fault_counts["create"] == 1
    assert not world.manager.directories.offline
    world.filesystem.fail_next("write", errno.ENOSPC, path_contains=f"{TWO}/{REGISTRATION_COUNTER}")
    world.manager.directories.notes.write_registration(8, world.manager.directories.paths)
    assert world.manager.directories.notes.registrations() == {ONE: 8, TWO: 7}, (
        "without space its counter is not raised"
    )
    world.filesystem.fail_next("sync", errno.EIO, path_contains=f"{TWO}/{REGISTRATION_COUNTER}")
    world.manager.directories.notes.write_registration(9, world.manager.directories.paths)
    assert world.manager.directories.notes.registrations() == {ONE: 9}
    assert world.failed == [(TWO, [A1])]


# A directory that is missing


@pytest.mark.parametrize("configured", [True, False])
def test_a_partition_of_a_missing_directory_is_offline_until_the_directory_is_back(configured: bool) -> None:
    """Whether its mount point is empty, or it was left out of the configuration."""
    world = two_directories()
    away(world, TWO)
    world.paths = [ONE, TWO] if configured else [ONE]
    for _ in range(2):
        world.start()
        assert world.manager.expect([(A0, A), (A1, A), (B0, B)]) == [A1, B0]
        assert world.manager.lost_directories == (TWO,)
        assert world.names(TWO) == [], "a volume may be mounted over it"
        with pytest.raises(StorageError, match=f"^{TWO}: the log directory of a-1 is offline"):
            world.create(A1)
        world.manager.close()
    back(world, TWO)
    world.paths = [ONE, TWO]
    world.start()
    assert world.manager.expect([(A0, A), (A1, A), (B0, B)]) == []
    assert world.manager.logs[A1].log_end_offset == 5
    world.create(B0)


def test_the_operator_may_say_that_a_directory_is_empty_for_good() -> None:
    """By removing the files that name it; its partitions then start empty."""
    world = two_directories()
    away(world, TWO)
    world.start()
    assert f"remove {KNOWN_DIRECTORIES} from the other" in world.manager.directories.offline[TWO]
    world.manager.close()
    world.filesystem.unlink(f"{ONE}/{KNOWN_DIRECTORIES}")
    world.start()
    assert world.manager.expect([(A0, A), (A1, A)]) == []
    assert [log.directory for log in world.create(A1)] == [f"{TWO}/a-1"]


def test_a_deleted_topic_s_name_is_free_though_its_directory_is_missing() -> None:
    world = two_directories()
    away(world, TWO)
    world.start()
    world.manager.expect([(A0, A), (A1, A)])
    assert world.manager.create_log(A1, ANEW, CONFIG).topic_id == ANEW, "another topic"
    assert world.manager.expect([(A0, A)]) == [A1]
    world.manager.delete_logs([A1], lambda error: world.note("deleted", error))
    world.run()
    assert world.answers == ["deleted"]
    assert world.manager.create_log(A1, A, CONFIG).log_end_offset == 0


def test_a_missing_directory_in_which_no_log_is_missed_is_removed_from_the_list() -> None:
    world = two_directories()
    assert len(read_known(world.filesystem, ONE)) == 2
    world.paths = [ONE]
    world.start()
    assert world.manager.expect([(A0, A)]) == []
    assert list(read_known(world.filesystem, ONE).values()) == [ONE]
    world.manager.close()
    world.start()
    assert world.manager.expect([(A0, A), (A1, A)]) == []
    world.create(A1)


def test_a_log_that_a_crash_lost_is_re_created_while_no_directory_is_missing() -> None:
    """Its folder was not durable, so no record in it was acknowledged as durable."""
    world = World(ONE, TWO)
    world.manager.expect([])
    world.restart()
    assert world.manager.expect([(A0, A)]) == []
    assert world.create(A0)[0].log_end_offset == 0


def test_a_log_whose_start_a_working_directory_has_is_not_in_the_missing_one() -> None:
    world = World(ONE, TWO)
    log, _other = world.create(A0, A1)
    append(log)
    world.manager.expect([])
    world.delete_to((A0, 3))
    world.run()
    world.manager.close()
    world.filesystem.remove_tree(f"{ONE}/a-0")
    away(world, TWO)
    world.start()
    assert world.manager.expect([(A0, A), (A1, A)]) == [A1]
    assert world.create(A0)[0].log_start_offset == 3


def test_a_note_of_the_directories_that_cannot_be_read_or_written_is_no_error() -> None:
    world = two_directories()
    for content in (b"", b"version=7\n", b"\xff", b"version=0\nx y\n"):
        world.filesystem.replace_file(f"{ONE}/{KNOWN_DIRECTORIES}", content)
        world.start()
        assert not world.manager.directories.offline
        world.filesystem.fail_next("write", errno.ENOSPC, path_contains=KNOWN_DIRECTORIES)
        world.manager.expect([(A0, A), (A1, A)])
        assert not world.manager.directories.offline
        world.manager.close()
    assert decode_known(encode_known({A: "/a b", B: "/c"})) == {A: "/a b", B: "/c"}


# A directory that fails while the broker runs


def test_a_topic_deleted_while_its_directory_is_offline_is_gone_when_the_directory_is_back() -> None:
    """The topic that was created since under its name stays."""
    world = two_directories()
    world.start()
    world.manager.fail_directory_of(world.manager.logs[A1], OSError(errno.EIO, "broken"))
    world.manager.delete_logs([A0, A1], lambda error: world.note("deleted", error))
    world.run()
    assert world.answers == [("deleted", errno.EIO)], "one folder could not be removed"
    for log in (world.manager.create_log(key, ANEW, CONFIG) for key in (A0, A1)):
        assert log.directory.startswith(f"{ONE}/")
        append(log, 2)
    world.manager.close()
    world.start(topics={"a": KnownTopic(ANEW, CONFIG)}, deleted_topics={A})
    assert {key: (log.topic_id, log.log_end_offset) for key, log in world.manager.logs.items()} == {
        A0: (ANEW, 10),
        A1: (ANEW, 10),
    }
    world.tick(100_000)
    assert not [name for name in world.names(TWO) if name.startswith("a-1")]
    world.manager.close()


@pytest.mark.parametrize("is_named_again", [True, False])
def test_a_deleted_topic_goes_beside_a_log_that_a_power_cut_left_without_its_id(is_named_again: bool) -> None:
    """The next topic of that name may have lost its id to the power cut, and may be deleted by then too."""
    world = two_directories()
    world.filesystem.make_directories(f"{ONE}/a-1")
    world.start(topics={"a": KnownTopic(ANEW, CONFIG)} if is_named_again else {}, deleted_topics={A})
    assert A1 not in world.manager.logs or world.manager.logs[A1].directory == f"{ONE}/a-1"
    world.tick(100_000)
    assert not [name for name in world.names(TWO) if name.startswith("a-1")]
    world.manager.close()


@pytest.mark.parametrize("files", [(), (PARTITION_METADATA,), ("00000000000000000000.log",)])
def test_a_folder_without_records_goes_beside_the_log(files: tuple[str, ...]) -> None:
    """A log that can't be created in one directory is created in another; an empty folder may stay in the first."""
    world = two_directories()
    world.filesystem.make_directories(f"{ONE}/a-1")
    for name in files:
        world.filesystem.write_bytes(f"{ONE}/a-1/{name}", encode_partition_metadata(A) if ".meta" in name else b"")
    world.start(topics={"a": KnownTopic(A, CONFIG)})
    assert world.manager.logs[A1].directory == f"{TWO}/a-1"
    world.tick(100_000)
    assert not [name for name in world.names(ONE) if name.startswith("a-1")]
    world.manager.close()


def test_one_of_two_folders_without_records_stays() -> None:
    """A power cut may bring back both."""
    world = two_directories()
    world.filesystem.remove_tree(f"{TWO}/a-1")
    for path in (ONE, TWO):
        world.filesystem.make_directories(f"{path}/a-1")
    world.start(topics={"a": KnownTopic(A, CONFIG)})
    world.create(A1)
    world.tick(100_000)
    assert [path for path in (ONE, TWO) if "a-1" in world.names(path)] == [world.manager.logs[A1].parent_directory]
    world.manager.close()


def test_two_logs_neither_of_which_is_the_known_topic_s_are_refused() -> None:
    world = two_directories()
    world.filesystem.make_directories(f"{ONE}/a-1")
    world.filesystem.write_bytes(f"{ONE}/a-1/{PARTITION_METADATA}", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    for topics in (
        {},
        {"a": KnownTopic(ANEW, CONFIG)},
        {"b": KnownTopic(A, CONFIG)},
        {"a": KnownTopic(ZERO_TOPIC_ID, CONFIG)},
    ):
        with pytest.raises(RefusedDirectoryError, match="the partition is in /one too"):
            world.start(topics=topics)


def test_a_new_log_goes_to_the_next_directory_when_the_best_one_is_full() -> None:
    world = World(ONE, TWO, THREE)
    world.create(A0)
    world.manager.directories.without_room.add(TWO)
    assert [log.directory for log in world.create(A1)] == [f"{THREE}/a-1"]
    world.manager.directories.without_room.update([ONE, THREE])
    assert [log.directory for log in world.create(B0)] == [f"{TWO}/b-0"], "it may have room by the time it is written"


def test_a_directory_that_was_removed_is_not_brought_back_by_a_new_log() -> None:
    """It would have partitions without an owner."""
    world = World(ONE, TWO)
    world.create(A0)
    world.filesystem.remove_tree(TWO)
    assert [log.directory for log in world.create(A1)] == [f"{ONE}/a-1"]
    assert world.manager.directories.offline == {TWO: "the log directory is gone"}
    assert not world.filesystem.exists(TWO)


def test_new_logs_go_to_the_working_directory_with_the_fewest_partitions() -> None:
    world = World(ONE, TWO, THREE)
    world.create(A0, A1)
    world.manager.fail_directory_of(world.manager.logs[A1], OSError(errno.EIO, "broken"))
    assert [log.directory for log in world.create(B0)] == [f"{THREE}/b-0"]


def test_new_logs_avoid_cordoned_directories() -> None:
    """KIP-1066. If all are cordoned the controller has decided before it knew: the log is created nevertheless."""
    world = World(ONE, TWO)
    directories = world.manager.directories
    directories.cordon([ONE])
    assert [log.parent_directory for log in world.create(A0, A1)] == [TWO, TWO]
    assert (directories.cordoned, directories.all_cordoned) == ({ONE}, False)
    world.manager.preferred.note(B0, ONE)
    assert [log.parent_directory for log in world.create(B0)] == [TWO]
    world.manager.fail_directory_of(world.manager.logs[A0], OSError(errno.EIO, "broken"))
    assert directories.all_cordoned
    assert [log.parent_directory for log in world.create(TopicPartition("b", 1))] == [ONE]


def test_the_contents_of_a_directory_are_reported_without_reading_the_disk() -> None:
    world = World(ONE, TWO)
    world.filesystem.capacity_bytes = 1 << 30
    log, other = world.create(A0, A1)
    append(log, 3)
    usage = world.manager.directories.usage(ONE)
    assert (usage.absolute_path, usage.logs, usage.total_bytes) == (ONE, (log,), 1 << 30)
    assert 0 < usage.usable_bytes < 1 << 30
    world.manager.fail_directory_of(other, OSError(errno.EIO, "broken"))
    with pytest.raises(StorageError, match=f"{TWO}: the log directory is offline: broken"):
        world.manager.directories.usage(TWO)
    world.filesystem.remove_tree(ONE)
    with pytest.raises(StorageError, match=ONE):
        world.manager.directories.usage(ONE)


def test_directories_are_known_by_any_path_that_a_system_allows() -> None:
    paths = ["/data one", "/with\u2028and\x85", "/not utf-8 \udcff"]
    known = {bytes([number]) * 16: path for number, path in enumerate(paths, 1)}
    assert decode_known(encode_known(known)) == known
