"""A journal that stops, or whose fold lacks room, while entries wait: each is durable, or its caller has the error."""

from __future__ import annotations

import errno
from functools import partial

import pytest

from lowtide.storage.log_start.journal_image import JOURNAL_NAME, MINIMUM_CAPACITY
from lowtide.storage.log_start.journal_loading import journal_path

from .journals import DIRECTORY, LARGE, A, B, Fixture, fill

NO_ROOM = errno.ENOSPC
UNNAMED = b"an-unknown-topic"


def a_large_request(offset: int) -> list[tuple[bytes, int, int]]:
    return [(B, partition, offset) for partition in range(LARGE)]


def test_a_stop_writes_what_has_no_room_in_the_file_with_the_fold() -> None:
    fixture = Fixture()
    fixture.journal.fold(partial(fixture.note, "fold"))
    fixture.committer.run()
    fill(fixture, 27)
    fixture.accept((A, 0, 50), name="under way")
    for _ in range(12):
        fixture.accept(*a_large_request(3), name="waiting")
    fixture.stop()
    assert fixture.answers[28:] == ["under way", *["waiting"] * 12]
    assert fixture.journal.value(B, LARGE - 1) == 3
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == fixture.journal.entries


def test_a_stop_refuses_what_has_room_neither_in_the_file_nor_on_the_disk() -> None:
    """An answer without an error would be a delete that the next start takes back."""
    fixture = Fixture()
    fill(fixture, 27)
    fixture.accept((A, 0, 50), name="under way")
    for _ in range(12):
        fixture.accept(*a_large_request(3), name="waiting")
    fixture.filesystem.capacity_bytes = 0
    with pytest.raises(OSError, match="No space left") as raised:
        fixture.stop()
    assert raised.value.errno == NO_ROOM
    assert fixture.answers[27:] == ["under way", *[("waiting", NO_ROOM)] * 12]
    assert fixture.failures == []
    assert fixture.journal.value(B, 0) is None
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == {(A, 0): 50} | {(A, partition): 26 for partition in range(1, LARGE)}


def test_a_stop_writes_the_frame_that_had_no_room_and_then_those_behind_it() -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 1), name="first")
    fixture.committer.run()
    fixture.filesystem.fail_next("write", NO_ROOM, count=2, path_contains=JOURNAL_NAME)
    fixture.accept((A, 0, 2), (A, 1, 2), name="stalled")
    fixture.accept((A, 2, 3), name="behind it")
    assert fixture.journal.is_stalled
    fixture.filesystem.capacity_bytes = 0
    fixture.stop()
    assert fixture.answers == ["first", "stalled", "behind it"]
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == {(A, 0): 2, (A, 1): 2, (A, 2): 3}


def test_a_fold_without_room_for_a_name_leaves_its_entries_to_a_frame() -> None:
    """The old journal has room for them: only the fold is refused."""
    fixture = Fixture()
    fixture.accept((A, 0, 1), name="under way")
    fixture.accept((A, 1, 2), name="waiting")
    fixture.journal.fold(partial(fixture.note, "fold"))
    fixture.filesystem.fail_next("rename", NO_ROOM)
    fixture.committer.step()
    on_done, error = fixture.committer.carry_out()
    fixture.committer.failure = None
    on_done(error)
    fixture.committer.run()
    assert fixture.answers == ["under way", "waiting", ("fold", NO_ROOM)]
    fixture.accept((A, 2, 3), name="later")
    fixture.committer.run()
    assert (fixture.answers[-1], fixture.failures) == ("later", [])
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == {(A, 0): 1, (A, 1): 2, (A, 2): 3}


def test_a_fold_without_room_for_a_name_refuses_what_the_old_journal_has_no_room_for() -> None:
    fixture = Fixture()
    fill(fixture, 27)
    fixture.accept((A, 0, 50), name="under way")
    for _ in range(12):
        fixture.accept(*a_large_request(3), name="waiting")
    fixture.filesystem.fail_next("rename", NO_ROOM)
    fixture.committer.step()
    on_done, error = fixture.committer.carry_out()
    fixture.committer.failure = None
    on_done(error)
    fixture.committer.run()
    assert fixture.answers[27:] == ["under way", *[("waiting", NO_ROOM)] * 12]
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == {(A, 0): 50} | {(A, partition): 26 for partition in range(1, LARGE)}


def test_a_stop_never_writes_beyond_the_end_of_the_file() -> None:
    fixture = Fixture()
    fill(fixture, 27)
    fixture.accept((A, 0, 50), name="under way")
    for _ in range(12):
        fixture.accept(*a_large_request(3), name="waiting")
    fixture.filesystem.fail_next("create", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        fixture.stop()
    assert fixture.answers[27:] == ["under way", *[("waiting", errno.EIO)] * 12]
    assert [failure.errno for failure in fixture.failures] == [errno.EIO], (
        "the directory goes offline; on a full disk it does not"
    )
    assert fixture.filesystem.file_size(journal_path(DIRECTORY)) == MINIMUM_CAPACITY


def test_a_stop_keeps_entries_that_no_export_has() -> None:
    """A topic without a name isn't exported: right exports don't show that the journal has the entries."""
    fixture = Fixture()
    fixture.accept((A, 0, 1), name="first")
    fixture.journal.fold(partial(fixture.note, "fold"))
    fixture.committer.run()
    fixture.accept(name="under way")
    for offset in range(40):
        fixture.accept(*((UNNAMED, partition, offset) for partition in range(LARGE)), name="waiting")
    fixture.stop()
    assert fixture.answers[2:] == ["under way", *["waiting"] * 40]
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == {(A, 0): 1} | {(UNNAMED, partition): 39 for partition in range(LARGE)}
