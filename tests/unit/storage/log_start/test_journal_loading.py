"""A start that can't replace the journal: on a full disk it overwrites the journal; any other error ends it."""

from __future__ import annotations

import errno
from functools import partial
from random import Random

import pytest

from lowtide.runtime.filesystem.memory import MemoryFileSystem, SimulatedCrashError
from lowtide.storage.log_start.journal_loading import journal_path, load_journal
from lowtide.storage.log_start.journal_reading import decode_journal

from .journals import DIRECTORY, FOLDERS, A, B, Fixture
from .test_journal_room import Handles


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_directory"])
def test_an_error_other_than_a_full_disk_ends_the_start(operation: str) -> None:
    """Written over itself on a broken disk, the journal could lose what it has."""
    fixture = Fixture()
    fixture.accept((A, 0, 5))
    fixture.committer.run()
    fixture.filesystem.crash_process()
    fixture.filesystem.fail_next(operation, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        fixture.reopened()
    fixture.filesystem.crash_process()
    assert fixture.reopened().journal.entries == {(A, 0): 5}


def test_a_new_directory_needs_room_for_a_journal() -> None:
    filesystem = MemoryFileSystem(Random(1))
    filesystem.make_directories(DIRECTORY)
    filesystem.capacity_bytes = 0
    with pytest.raises(OSError, match="No space left"):
        Fixture(filesystem)
    filesystem.capacity_bytes = None
    assert Fixture(filesystem).journal.entries == {}


def test_a_torn_frame_is_wiped_on_a_full_disk_too() -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 5))
    fixture.committer.run()
    end = fixture.journal.end
    fixture.filesystem.open(journal_path(DIRECTORY), write=True).pwritev([b"LSF1\0\0\0"], end)
    fixture.filesystem.capacity_bytes = 0
    content = load_journal(fixture.filesystem, DIRECTORY, folders=FOLDERS, expected=True)
    assert (content.entries, content.end, content.torn) == ({(A, 0): 5}, end, False)
    assert not decode_journal(fixture.filesystem.read_bytes(journal_path(DIRECTORY))).torn


def test_a_journal_written_over_itself_is_closed_before_it_is_used() -> None:
    filesystem = Handles()
    fixture = Fixture(filesystem)
    fixture.filesystem.crash_process()
    filesystem.capacity_bytes = 0
    filesystem.journals.clear()
    fixture.reopened()
    in_place, in_use = filesystem.journals[-2:]
    assert (in_place.is_open, in_use.is_open) == (False, True)


@pytest.mark.parametrize("seed", range(10))
def test_on_a_full_disk_the_name_of_a_journal_becomes_durable_too(seed: int) -> None:
    """The process was killed between the renames of a fold and the sync of the directory: the name is the new
    journal's, but the disk may still have the old one's, without what is written from now on.
    """
    fixture = Fixture(MemoryFileSystem(Random(seed)))
    fixture.accept((A, 0, 5))
    fixture.committer.run()
    fixture.journal.fold(partial(fixture.note, "fold"))
    fixture.filesystem.crash_at = fixture.filesystem.operation_count + 7
    with pytest.raises(SimulatedCrashError, match="before sync_directory"):
        fixture.committer.run()
    fixture.filesystem.crash_process()
    fixture.filesystem.capacity_bytes = 0
    again = fixture.reopened()
    again.accept((B, 0, 9), name="value")
    again.committer.run()
    assert again.answers == ["value"]
    fixture.filesystem.power_cut()
    assert fixture.filesystem.exists(journal_path(DIRECTORY))
    assert fixture.reopened().journal.entries == {(A, 0): 5, (B, 0): 9}
