"""When a journal folds, how often it tries on a full disk, and what is written to the last byte of the file."""

from __future__ import annotations

import errno
from functools import partial
from random import Random

import pytest

from lowtide.runtime.filesystem.memory import MemoryFile, MemoryFileSystem
from lowtide.storage.log_start.journal_format import REMOVED
from lowtide.storage.log_start.journal_image import JOURNAL_NAME, MINIMUM_CAPACITY
from lowtide.storage.log_start.journal_loading import journal_path

from .journals import DIRECTORY, LARGE, A, B, Fixture, fill

NO_ROOM = errno.ENOSPC

FRAMES, FRAME_ENTRIES = 7, 4000
"""So many frames of so many entries, 784,168 bytes, don't fill three quarters of a journal."""
LAST_ENTRIES = 9424
"""And one frame of these, 263,896 bytes, fills the rest to the last byte."""


def nearly_full() -> Fixture:
    fixture = Fixture()
    for offset in range(FRAMES):
        fixture.accept(*((A, partition, offset) for partition in range(FRAME_ENTRIES)), name=offset)
        fixture.committer.run()
    return fixture


def the_last_frame() -> list[tuple[bytes, int, int]]:
    return [(B, partition, 3) for partition in range(LAST_ENTRIES)]


ALL = {(A, partition): FRAMES - 1 for partition in range(FRAME_ENTRIES)} | {
    (B, partition): 3 for partition in range(LAST_ENTRIES)
}


def test_on_a_full_disk_a_journal_is_filled_to_its_last_byte() -> None:
    fixture = nearly_full()
    fixture.filesystem.capacity_bytes = 0
    fixture.accept(*the_last_frame(), name="last")
    fixture.committer.run()
    assert fixture.answers[-1] == "last"
    assert fixture.journal.end == MINIMUM_CAPACITY
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == ALL


def test_a_fold_without_room_for_a_name_leaves_the_file_to_its_last_byte_to_a_frame() -> None:
    fixture = nearly_full()
    fixture.filesystem.fail_next("rename", NO_ROOM)
    fixture.accept(*the_last_frame(), name="last")
    on_done, error = fixture.committer.carry_out()
    fixture.committer.failure = None
    on_done(error)
    fixture.committer.run()
    assert fixture.answers[-1] == "last"
    assert fixture.journal.end == MINIMUM_CAPACITY
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == ALL


def test_a_stop_on_a_full_disk_fills_the_file_to_its_last_byte() -> None:
    fixture = nearly_full()
    fixture.accept(name="under way")
    fixture.accept(*the_last_frame(), name="last")
    fixture.filesystem.capacity_bytes = 0
    fixture.stop()
    assert fixture.answers[-2:] == ["under way", "last"]
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == ALL


def operations_of_a_frame(fixture: Fixture) -> int:
    before = fixture.filesystem.operation_count
    fill(fixture, 1)
    return fixture.filesystem.operation_count - before


def test_on_a_full_disk_a_fold_is_tried_once_in_a_sixteenth_of_the_file() -> None:
    """Deletes are what frees the disk: each of them mustn't pay for a fold that finds no room."""
    fixture = Fixture()
    fill(fixture, 28)
    fixture.filesystem.capacity_bytes = 0
    tried = [operations_of_a_frame(fixture) > 2 for _ in range(7)]
    assert tried == [True, False, False, True, False, False, True], "three frames are more than 64 KiB"


def test_a_fold_that_was_undone_is_tried_again_after_a_sixteenth_of_the_file() -> None:
    fixture = Fixture()
    fill(fixture, 28)
    fixture.filesystem.fail_next("rename", NO_ROOM)
    fixture.accept(*((A, partition, 1) for partition in range(LARGE)), name="undone")
    on_done, error = fixture.committer.carry_out()
    fixture.committer.failure = None
    on_done(error)
    fixture.committer.run()
    assert fixture.answers[-1] == "undone"
    fixture.filesystem.capacity_bytes = 0
    tried = [operations_of_a_frame(fixture) > 2 for _ in range(4)]
    assert tried == [False, False, True, False]


def test_a_journal_that_has_grown_folds_when_three_quarters_of_its_new_size_are_full() -> None:
    fixture = Fixture()
    fixture.accept(*((A, partition, 3) for partition in range(60_000)), name="large")
    fixture.committer.run()
    assert fixture.filesystem.file_size(journal_path(DIRECTORY)) > MINIMUM_CAPACITY
    assert operations_of_a_frame(fixture) == 2, "one write, one sync"


def test_a_fold_of_what_is_folded_is_answered_and_writes_nothing() -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 5), name="value")
    fixture.journal.fold(partial(fixture.note, "first"))
    fixture.committer.run()
    before = fixture.filesystem.operation_count
    fixture.journal.fold(partial(fixture.note, "second"))
    assert fixture.answers == ["value", "first"], "never answered from within fold"
    fixture.committer.run()
    assert fixture.answers == ["value", "first", "second"]
    assert fixture.filesystem.operation_count == before


def test_a_value_that_came_back_is_folded_though_the_exports_have_it() -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 5))
    fixture.committer.run()
    fixture.journal.fold(partial(fixture.note, "first"))
    fixture.committer.run()
    end = fixture.journal.end
    for offset in (6, 5):
        fixture.accept((A, 0, offset))
        fixture.committer.run()
    assert fixture.journal.end > end
    fixture.journal.fold(partial(fixture.note, "second"))
    fixture.committer.run()
    assert fixture.journal.end == end
    assert fixture.journal.entries == {(A, 0): 5}


def test_an_equal_value_that_waits_for_a_fold_is_answered() -> None:
    """The new journal would be the same as the old one, but its callers wait."""
    fixture = Fixture()
    fixture.accept((A, 0, 5), name="first")
    fixture.journal.fold(partial(fixture.note, "fold"))
    fixture.committer.run()
    fixture.accept(name="under way")
    fixture.accept((A, 0, 5), name="equal")
    fixture.journal.fold(partial(fixture.note, "again"))
    fixture.committer.run()
    assert fixture.answers == ["first", "fold", "under way", "equal", "again"]


def test_two_that_wait_are_both_written() -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 1), name="under way")
    fixture.accept((A, 1, 2), name="second")
    fixture.accept((A, 2, 3), name="third")
    fixture.committer.run()
    assert fixture.journal.entries == {(A, 0): 1, (A, 1): 2, (A, 2): 3}
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == {(A, 0): 1, (A, 1): 2, (A, 2): 3}


def test_what_comes_during_a_fold_waits_for_it_and_goes_into_the_new_journal() -> None:
    """In the old one it would be lost with that file."""
    fixture = Fixture()
    fixture.accept((A, 0, 1))
    fixture.committer.run()
    fixture.journal.fold(partial(fixture.note, "fold"))
    fixture.accept((A, 1, 2), name="during")
    assert len(fixture.committer.waiting) == 1, "one at a time"
    fixture.committer.run()
    assert fixture.answers[1:] == ["fold", "during"]
    assert fixture.failures == []
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == {(A, 0): 1, (A, 1): 2}


def test_what_is_forgotten_with_a_fold_is_gone_at_once() -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 1), (A, 1, 2), name="under way")
    fixture.accept((A, 0, REMOVED), name="forgotten")
    fixture.journal.fold(partial(fixture.note, "fold"))
    fixture.committer.run()
    assert fixture.answers == ["under way", "forgotten", "fold"]
    assert fixture.journal.entries == {(A, 1): 2}


def test_a_fold_refused_for_room_lets_those_behind_it_pass() -> None:
    """What doesn't fit is answered with the error; a small frame that came during the fold still fits."""
    fixture = Fixture()
    fill(fixture, 27)
    fixture.accept((A, 0, 50), name="under way")
    for _ in range(12):
        fixture.accept(*((B, partition, 3) for partition in range(LARGE)), name="large")
    fixture.filesystem.fail_next("rename", NO_ROOM)
    fixture.committer.step()
    fixture.accept((A, 1, 60), name="small")
    on_done, error = fixture.committer.carry_out()
    fixture.committer.failure = None
    on_done(error)
    fixture.committer.run()
    assert fixture.answers[27:] == ["under way", *[("large", NO_ROOM)] * 12, "small"]
    assert fixture.journal.value(A, 1) == 60


@pytest.mark.parametrize("operation", ["create", "sync"])
def test_a_fold_that_fails_answers_those_it_would_have_written_and_those_behind_it(operation: str) -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 1), name="under way")
    fixture.accept((A, 1, 2), name="in the fold")
    fixture.journal.fold(partial(fixture.note, "fold"))
    fixture.filesystem.fail_next(operation, errno.EIO, path_contains=".tmp")
    fixture.committer.step()
    fixture.accept((A, 2, 3), name="behind it")
    fixture.committer.run()
    assert fixture.answers[0] == "under way"
    assert set(fixture.answers[1:]) == {(name, errno.EIO) for name in ("in the fold", "fold", "behind it")}
    assert len(fixture.answers) == 4
    assert [failure.errno for failure in fixture.failures] == [errno.EIO]


def test_a_fold_without_room_whose_frame_fails_reports_the_failure() -> None:
    fixture = Fixture()
    fixture.filesystem.capacity_bytes = 0
    fixture.filesystem.fail_next("sync", errno.EIO, path_contains=JOURNAL_NAME)
    fixture.accept(name="under way")
    fixture.accept((A, 0, 1), name="value")
    fixture.journal.fold(partial(fixture.note, "fold"))
    fixture.committer.run()
    assert fixture.answers == ["under way", ("value", errno.EIO), ("fold", errno.EIO)]


def test_a_frame_that_found_no_room_is_written_by_a_retry() -> None:
    fixture = Fixture()
    fixture.filesystem.fail_next("write", NO_ROOM, path_contains=JOURNAL_NAME)
    fixture.accept((A, 0, 1), name="stalled")
    fixture.committer.run()
    assert (fixture.answers, fixture.journal.is_stalled) == ([], True)
    fixture.journal.retry()
    fixture.committer.run()
    assert (fixture.answers, fixture.journal.is_stalled) == (["stalled"], False)
    fixture.accept((A, 1, 2), name="next")
    fixture.committer.run()
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == {(A, 0): 1, (A, 1): 2}


def test_a_journal_that_has_failed_writes_nothing_more() -> None:
    """What it holds in memory and what the file has may differ from then on."""
    fixture = Fixture()
    fixture.filesystem.fail_next("sync", errno.EIO)
    fixture.accept((A, 0, 1), name="failed")
    fixture.committer.run()
    before = fixture.filesystem.operation_count
    fixture.journal.fold(partial(fixture.note, "fold"))
    fixture.journal.retry()
    fixture.committer.run()
    with pytest.raises(OSError, match="Input/output error"):
        fixture.stop()
    assert fixture.filesystem.operation_count == before
    assert fixture.answers == [("failed", errno.EIO), ("fold", errno.EIO)]


def test_a_fold_that_waits_at_a_stop_is_answered() -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 1), name="under way")
    fixture.journal.fold(partial(fixture.note, "fold"))
    fixture.stop()
    assert fixture.answers == ["under way", "fold"]


class Handles(MemoryFileSystem):
    """It keeps the handles through which journals are written, so that one that isn't closed stays open."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.journals: list[MemoryFile] = []

    def open(self, path: str, *, write: bool = False, create: bool = False, mode: int = 0o644) -> MemoryFile:
        file = super().open(path, write=write, create=create, mode=mode)
        if write and JOURNAL_NAME in path:
            self.journals.append(file)
        return file


def test_folds_and_a_stop_close_the_journals_that_they_leave() -> None:
    filesystem = Handles()
    fixture = Fixture(filesystem)
    del filesystem.journals[:-1]  # Those that a start has written; the last one is in use.
    for offset in (1, 2):
        fixture.accept((A, 0, offset))
        fixture.journal.fold(partial(fixture.note, "fold"))
        fixture.committer.run()
    assert [file.is_open for file in filesystem.journals] == [False, False, True]
    fixture.stop()
    assert not any(file.is_open for file in filesystem.journals)


@pytest.mark.parametrize("entry", [(b"short", 0, 1), (bytes(16), 0, 1), (A, -1, 1), (A, 0, REMOVED - 1)])
def test_an_entry_that_no_frame_can_hold_is_refused_before_anything_is_written(entry: tuple[bytes, int, int]) -> None:
    fixture = Fixture()
    before = fixture.filesystem.operation_count
    with pytest.raises(AssertionError):
        fixture.accept((A, 1, 1), entry)
    fixture.committer.run()
    assert (fixture.answers, fixture.filesystem.operation_count) == ([], before)
