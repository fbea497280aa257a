"""A fold that had no room for one of its names is undone; no other error is taken for that."""

from __future__ import annotations

import errno
from functools import partial
from random import Random

import pytest

from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.checkpoint import LOG_BEGIN_CHECKPOINT, LOG_START_CHECKPOINT, decode_offsets
from lowtide.storage.log_start.journal_image import JOURNAL_NAME

from .journals import DIRECTORY, LARGE, A, B, Fixture, fill

NO_ROOM = errno.ENOSPC
START_EXPORT = f"{DIRECTORY}/{LOG_START_CHECKPOINT}"


def answer_next(fixture: Fixture) -> None:
    """Reports the next barrier, whose failure is its own: others are carried out after it, as after a failed rename."""
    on_done, error = fixture.committer.carry_out()
    fixture.committer.failure = None
    on_done(error)


def undone_fold(fixture: Fixture, *, value: int) -> None:
    """A fold with an entry that waits, of which the exports have got their names and the journal hasn't."""
    fixture.accept(name="under way")
    fixture.accept((A, 0, value), name="value")
    fixture.journal.fold(partial(fixture.note, "fold"))
    fixture.filesystem.fail_next("rename", NO_ROOM, path_contains=JOURNAL_NAME)
    fixture.committer.step()
    answer_next(fixture)


def temporary_files(fixture: Fixture) -> list[str]:
    return [name for name in fixture.filesystem.listdir(DIRECTORY) if name.endswith(".tmp")]


@pytest.mark.parametrize("seed", range(10))
def test_the_export_of_an_undone_fold_does_not_raise_what_a_truncation_has_lowered(seed: int) -> None:
    fixture = Fixture(MemoryFileSystem(Random(seed)))
    fixture.accept((A, 0, 100))
    fixture.committer.run()
    undone_fold(fixture, value=200)
    fixture.committer.run()
    assert fixture.answers[-2:] == ["value", ("fold", NO_ROOM)]
    fixture.accept((A, 0, 50), name="truncated")
    fixture.committer.run()
    assert fixture.answers[-1] == "truncated"
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == {(A, 0): 50}


def test_an_undone_fold_gives_its_room_back() -> None:
    fixture = Fixture()
    undone_fold(fixture, value=200)
    fixture.committer.run()
    assert temporary_files(fixture) == []
    assert fixture.failures == []


def test_a_fold_that_cannot_be_undone_fails_the_journal_once() -> None:
    fixture = Fixture()
    fixture.filesystem.fail_next("unlink", errno.EIO, count=2, path_contains=LOG_START_CHECKPOINT)
    undone_fold(fixture, value=200)
    fixture.committer.run()
    assert fixture.answers == ["under way", ("value", errno.EIO), ("fold", errno.EIO)]
    assert [failure.errno for failure in fixture.failures] == [errno.EIO]


def test_a_rename_that_fails_for_another_reason_fails_the_journal() -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 1), name="value")
    fixture.committer.run()
    fixture.journal.fold(partial(fixture.note, "fold"))
    fixture.filesystem.fail_next("rename", errno.EIO, path_contains=JOURNAL_NAME)
    answer_next(fixture)
    fixture.committer.run()
    assert fixture.answers == ["value", ("fold", errno.EIO)]
    assert [failure.errno for failure in fixture.failures] == [errno.EIO]


# At a stop


@pytest.mark.parametrize("seed", range(10))
def test_a_stop_whose_fold_is_undone_leaves_nothing_of_what_it_refuses(seed: int) -> None:
    """The exports have it already: a start that adopted them would apply deletes that were refused."""
    fixture = Fixture(MemoryFileSystem(Random(seed)))
    fill(fixture, 27)
    fixture.accept(name="under way")
    for _ in range(12):
        fixture.accept(*((B, partition, 3) for partition in range(LARGE)), name="waiting")
    fixture.filesystem.fail_next("rename", NO_ROOM, path_contains=JOURNAL_NAME)
    with pytest.raises(OSError, match="No space left"):
        fixture.stop()
    assert fixture.answers[27:] == ["under way", *[("waiting", NO_ROOM)] * 12]
    assert fixture.failures == []
    assert temporary_files(fixture) == []
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == {(A, partition): 26 for partition in range(LARGE)}


def test_a_stop_whose_fold_is_undone_is_clean_when_the_file_has_all() -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 1), name="value")
    fixture.filesystem.fail_next("rename", NO_ROOM, path_contains=JOURNAL_NAME)
    fixture.stop()
    assert fixture.answers == ["value"]
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == {(A, 0): 1}


@pytest.mark.parametrize("operation", ["create", "rename"])
def test_a_stop_whose_fold_fails_says_so(operation: str) -> None:
    """The directory isn't marked as cleanly closed then."""
    fixture = Fixture()
    fixture.accept((A, 0, 1), name="value")
    fixture.filesystem.fail_next(operation, errno.EIO, path_contains=JOURNAL_NAME)
    with pytest.raises(OSError, match="Input/output error"):
        fixture.stop()
    assert fixture.answers == ["value"]
    assert [failure.errno for failure in fixture.failures] == [errno.EIO]


# When there is something to fold


def test_a_fold_writes_exports_that_are_older_than_the_journal() -> None:
    """After a kill the journal is nothing but its snapshot, and the exports are those of the fold before."""
    fixture = Fixture()
    fixture.accept((A, 0, 1))
    fixture.journal.fold(partial(fixture.note, "fold"))
    fixture.committer.run()
    fixture.accept((A, 0, 2))
    fixture.committer.run()
    fixture.filesystem.crash_process()
    again = fixture.reopened()
    again.journal.fold(partial(again.note, "fold"))
    again.committer.run()
    exported = decode_offsets(fixture.filesystem.read_bytes(START_EXPORT), START_EXPORT)
    assert exported == {TopicPartition("a", 0): 2}


@pytest.mark.parametrize("name", [LOG_BEGIN_CHECKPOINT, LOG_START_CHECKPOINT])
def test_a_fold_writes_an_export_that_is_missing(name: str) -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 1))
    fixture.journal.fold(partial(fixture.note, "fold"))
    fixture.committer.run()
    fixture.filesystem.unlink(f"{DIRECTORY}/{name}")
    fixture.journal.fold(partial(fixture.note, "again"))
    fixture.committer.run()
    exported = decode_offsets(fixture.filesystem.read_bytes(f"{DIRECTORY}/{name}"), name)
    assert exported == {TopicPartition("a", 0): 1}
