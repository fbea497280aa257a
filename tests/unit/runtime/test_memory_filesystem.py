"""The simulated disk loses exactly what the port does not promise to keep, and fails when a test requests it."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from random import Random

import pytest

from lowtide.runtime.filesystem import CannotPunchError
from lowtide.runtime.filesystem.memory import MemoryFileSystem, SimulatedCrashError

SEEDS = range(200)


def disk_with(content: bytes, seed: int = 0) -> MemoryFileSystem:
    """Return a disk with the durable file /d/a."""
    disk = MemoryFileSystem(Random(seed))
    disk.make_directories("/d")
    disk.write_bytes("/d/a", content)
    disk.open("/d/a").sync()
    disk.sync_directory("/d")
    disk.sync_directory("/")
    return disk


def after_power_cut(change: Callable[[MemoryFileSystem], None], content: bytes = b"") -> set[bytes | None]:
    """Return every content of /d/a that a power cut after the change leaves, over many seeds.

    None if the file is gone.
    """
    outcomes: set[bytes | None] = set()
    for seed in SEEDS:
        disk = disk_with(content, seed)
        change(disk)
        disk.power_cut()
        outcomes.add(disk.read_bytes("/d/a") if disk.exists("/d/a") else None)
    return outcomes


def test_what_was_synced_survives_every_power_cut() -> None:
    def change(disk: MemoryFileSystem) -> None:
        file = disk.open("/d/a", write=True)
        file.pwritev([b"new"], 2)
        file.truncate(4)
        file.sync()

    assert after_power_cut(change, b"abcdef") == {b"abne"}


def test_an_unsynced_write_within_a_sector_is_there_or_not() -> None:
    """A grown file of zeros is the third result, as after journalling the size before the data."""
    outcomes = after_power_cut(lambda disk: disk.open("/d/a", write=True).pwritev([b"new"], 3), b"old")
    assert outcomes == {b"old", b"oldnew", b"old\0\0\0"}


def test_an_overwrite_within_a_sector_is_never_mixed() -> None:
    assert after_power_cut(lambda disk: disk.open("/d/a", write=True).pwritev([b"new"], 0), b"old") == {b"old", b"new"}


def test_an_unsynced_write_over_sectors_is_torn_only_at_their_edges() -> None:
    old, new = b"o" * 2000, b"n" * 2000
    outcomes = after_power_cut(lambda disk: disk.open("/d/a", write=True).pwritev([new[:1500]], 300), old)
    edges = [300, 512, 1024, 1536, 1800]
    patterns = set()
    for content in outcomes:
        assert content is not None
        assert len(content) == 2000
        pieces = [content[start:stop] for start, stop in itertools.pairwise(edges)]
        assert all(len(set(piece)) == 1 for piece in pieces), "a sector is written wholly or not at all"
        assert content[:300] + content[1800:] == b"o" * 500
        patterns.add("".join(chr(piece[0]) for piece in pieces))
    assert {"oooo", "nnnn", "nooo", "nnoo", "onon"} <= patterns, "whole, lost, prefix, and holes"


def test_unsynced_changes_are_decided_one_by_one() -> None:
    def change(disk: MemoryFileSystem) -> None:
        file = disk.open("/d/a", write=True)
        file.pwritev([b"12"], 0)
        file.pwritev([b"34"], 2)

    assert {b"1234", b"12cd", b"ab34", b"abcd"} == after_power_cut(change, b"abcd")


def test_an_unsynced_truncation_may_be_lost() -> None:
    assert after_power_cut(lambda disk: disk.open("/d/a", write=True).truncate(1), b"abcd") == {b"a", b"abcd"}


def test_a_new_name_needs_its_folder_synced_even_if_its_content_was() -> None:
    def change(disk: MemoryFileSystem) -> None:
        disk.write_bytes("/d/b", b"new")
        disk.open("/d/b").sync()
        disk.rename("/d/b", "/d/a")

    assert after_power_cut(change, b"old") == {b"old", b"new"}


def test_a_rename_before_the_sync_may_leave_an_empty_file() -> None:
    """This is a classic bug; the simulated disk must find it."""

    def change(disk: MemoryFileSystem) -> None:
        disk.write_bytes("/d/b", b"new")
        disk.rename("/d/b", "/d/a")
        disk.sync_directory("/d")

    assert b"" in after_power_cut(change, b"old")


def test_replace_file_has_one_result() -> None:
    assert after_power_cut(lambda disk: disk.replace_file("/d/a", b"new"), b"old") == {b"new"}


def test_replace_file_is_atomic_wherever_the_machine_dies() -> None:
    steps_count = 0
    for crash_at in range(1, 20):
        for seed in range(40):
            disk = disk_with(b"old", seed)
            before = disk.operation_count
            disk.crash_at = before + crash_at
            try:
                disk.replace_file("/d/a", b"new" * 500)
            except SimulatedCrashError:
                steps_count = max(steps_count, crash_at)
            disk.power_cut()
            assert disk.read_bytes("/d/a") in {b"old", b"new" * 500}
    assert 5 <= steps_count < 19, "the crash happened at every step, and the end was reached"


def test_an_unsynced_removal_may_be_undone() -> None:
    assert after_power_cut(lambda disk: disk.unlink("/d/a"), b"old") == {b"old", None}


def test_names_survive_as_a_prefix_of_the_changes() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk = disk_with(b"", seed)
        for name in "bcd":
            disk.write_bytes(f"/d/{name}", b"")
        disk.unlink("/d/a")
        disk.power_cut()
        outcomes.add("".join(disk.listdir("/d")))
    assert outcomes == {"a", "ab", "abc", "abcd", "bcd"}


def test_files_in_a_folder_are_lost_with_the_folder_s_name() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk = disk_with(b"", seed)
        disk.make_directories("/d/x")
        disk.replace_file("/d/x/f", b"synced")
        disk.power_cut()
        outcomes.add(disk.exists("/d/x"))
        assert not disk.exists("/d/x") or disk.read_bytes("/d/x/f") == b"synced"
    assert outcomes == {True, False}


def test_after_a_failed_sync_a_good_one_proves_nothing() -> None:
    """The kernel marks the pages clean: code that syncs again and continues loses data."""
    outcomes = set()
    for seed in SEEDS:
        disk = disk_with(b"old", seed)
        file = disk.open("/d/a", write=True)
        file.pwritev([b"new"], 0)
        disk.fail_next("sync", errno.EIO)
        with pytest.raises(OSError, match="/d/a"):
            file.sync()
        assert file.pread(3, 0) == b"new"
        file.pwritev([b"!"], 3)
        file.sync()
        disk.power_cut()
        outcomes.add(disk.read_bytes("/d/a"))
    assert outcomes == {b"new!", b"old!"}


def test_a_dead_process_loses_only_its_handles_and_locks() -> None:
    disk = disk_with(b"old")
    file, lock = disk.open("/d/a", write=True), disk.lock("/d/.lock")
    file.pwritev([b"new"], 0)
    disk.crash_process()
    for call in (file.sync, file.size, lambda: file.pread(1, 0), lambda: file.pwritev([b"x"], 0)):
        with pytest.raises(OSError, match="/d/a") as caught:
            call()
        assert caught.value.errno == errno.EBADF
    file.close()
    assert disk.read_bytes("/d/a") == b"new"
    second = disk.lock("/d/.lock")
    lock.release()
    assert second is not lock
    disk.power_cut()
    assert disk.read_bytes("/d/a") in {b"old", b"new"}, "what the process wrote was still unsynced"


def test_a_failing_write_leaves_a_prefix() -> None:
    lengths = set()
    for seed in SEEDS:
        disk = disk_with(b"", seed)
        disk.fail_next("write", errno.EIO)
        file = disk.open("/d/a", write=True)
        with pytest.raises(OSError, match="/d/a"):
            file.pwritev([b"abc", b"def"], 0)
        assert b"abcdef".startswith(file.pread(9, 0))
        lengths.add(file.size())
    assert lengths == set(range(7))


def test_faults_hit_the_operations_that_they_name_as_often_as_configured() -> None:
    disk = disk_with(b"abc")
    disk.fail_next("read", errno.EIO, count=2, path_contains="/a")
    disk.write_bytes("/d/b", b"b")
    assert disk.read_bytes("/d/b") == b"b"
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            disk.read_bytes("/d/a")
    assert disk.read_bytes("/d/a") == b"abc"
    disk.fail_next("open", errno.EMFILE)
    disk.fail_next("rename", errno.EIO)
    disk.fail_next("sync_directory", errno.EIO)
    for call in (lambda: disk.open("/d/a"), lambda: disk.rename("/d/a", "/d/c"), lambda: disk.sync_directory("/d")):
        with pytest.raises(OSError, match="/d"):
            call()
    assert disk.listdir("/d") == ["a", "b"]
    assert disk.fault_counts == {"read": 2, "open": 1, "rename": 1, "sync_directory": 1}


def test_a_full_disk_accepts_what_fits_and_is_freed_by_deleting() -> None:
    disk = disk_with(b"12345")
    disk.capacity_bytes = 8
    file = disk.open("/d/a", write=True)
    file.pwritev([b"abc"], 0)
    with pytest.raises(OSError, match="/d/a") as caught:
        file.pwritev([b"XYZ", b"UVW"], 4)
    assert caught.value.errno == errno.ENOSPC
    assert file.pread(99, 0) == b"abc4XYZU"
    assert disk.free_bytes("/d") == 0
    with pytest.raises(OSError, match="/d/a"):
        file.allocate(9)
    file.truncate(2)
    assert disk.free_bytes("/d") == 6
    file.pwritev([b"fits"], 2)
    disk.unlink("/d/a")
    assert disk.free_bytes("/d") == 8
    assert disk.fault_counts == {"no_space": 2}


def test_a_crash_stops_everything_until_the_process_is_started_again() -> None:
    disk = disk_with(b"old")
    died: list[int] = []

    def on_crash() -> None:
        died.append(disk.operation_count)

    disk.on_crash = on_crash
    disk.crash_at = disk.operation_count + 3
    disk.write_bytes("/d/b", b"")
    calls: list[Callable[[], None]] = [
        lambda: disk.unlink("/d/a"),
        lambda: disk.rename("/d/a", "/d/c"),
        lambda: disk.make_directories("/d/e"),
    ]
    for call in calls:
        with pytest.raises(SimulatedCrashError):
            call()
    disk.crash_process()
    assert disk.listdir("/d") == ["a", "b"]
    assert len(died) == 1


def test_cold_reads_happen_as_often_as_configured() -> None:
    disk = disk_with(b"abc", seed=3)
    file, cold_count = disk.open("/d/a"), 0
    disk.cold_read_probability = 0.5
    for _ in range(100):
        try:
            file.preadv([bytearray(3)], 0, nowait=True)
        except BlockingIOError:
            cold_count += 1
        assert file.preadv([bytearray(3)], 0) == 3
    assert 20 < cold_count < 80


def test_the_same_seed_leaves_the_same_disk() -> None:
    def run(seed: int) -> list[bytes]:
        disk = disk_with(b"", seed)
        for number in range(20):
            disk.open(f"/d/{number}", write=True, create=True).pwritev([bytes([number]) * 3000], number)
        disk.power_cut()
        return [disk.read_bytes(f"/d/{name}") for name in disk.listdir("/d")]

    assert run(5) == run(5) != run(6)


def test_a_rename_between_folders_is_refused_because_it_is_not_modelled() -> None:
    disk = disk_with(b"")
    disk.make_directories("/d/x")
    with pytest.raises(AssertionError, match="between folders"):
        disk.rename("/d/a", "/d/x/a")


def test_a_copy_of_the_disk_is_restored_unchanged() -> None:
    """The restored state is durable, and independent of later changes."""
    filesystem = MemoryFileSystem()
    filesystem.make_directories("/a/b")
    filesystem.write_bytes("/a/b/f", b"old")
    copy = filesystem.root.copy()
    filesystem.write_bytes("/a/b/f", b"new")
    filesystem.crash_process()
    filesystem.root = copy
    filesystem.power_cut()
    assert filesystem.read_bytes("/a/b/f") == b"old"


def test_a_hole_that_was_not_synced_is_there_in_parts_after_a_power_cut() -> None:
    seen: set[tuple[bool, ...]] = set()
    for seed in range(60):
        disk = MemoryFileSystem(Random(seed))
        disk.make_directories("/d")
        disk.sync_directory("/")
        file = disk.open("/d/a", write=True, create=True)
        file.pwritev([b"x" * 2048], 0)
        file.sync()
        disk.sync_directory("/d")
        file.punch(512, 1024)
        disk.power_cut()
        content = disk.read_bytes("/d/a")
        assert (len(content), content[:512], content[1536:]) == (2048, b"x" * 512, b"x" * 512)
        sectors = (content[512:1024], content[1024:1536])
        assert set(sectors) <= {b"x" * 512, bytes(512)}
        seen.add(tuple(sector == bytes(512) for sector in sectors))
    assert len(seen) == 4


def test_what_is_punched_is_room_for_others_and_a_disk_that_cannot_says_so() -> None:
    disk = MemoryFileSystem()
    disk.capacity_bytes = 20_000
    file = disk.open("/a", write=True, create=True)
    file.pwritev([b"x" * 20_000], 0)
    assert disk.free_bytes("/") == 0
    file.punch(100, 12_000)
    assert (disk.free_bytes("/"), disk.allocated_bytes("/a"), file.size()) == (4096, 20_000 - 4096, 20_000)
    file.truncate(5000)
    assert disk.free_bytes("/") == 15_000
    disk.can_punch = False
    with pytest.raises(CannotPunchError, match="/a"):
        file.punch(0, 1)
