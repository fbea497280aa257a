"""The journal in use: an acknowledged log start survives every crash, and none is visible before it is durable."""

from __future__ import annotations

import errno
from functools import partial
from random import Random
from typing import Any

import pytest

from lowtide.protocol.types import ZERO_TOPIC_ID, TopicPartition
from lowtide.runtime.filesystem.memory import MemoryFileSystem, SimulatedCrashError
from lowtide.storage.checkpoint import LOG_BEGIN_CHECKPOINT, LOG_START_CHECKPOINT, decode_offsets, encode_offsets
from lowtide.storage.log_start.journal_format import REMOVED
from lowtide.storage.log_start.journal_image import JOURNAL_NAME, MINIMUM_CAPACITY
from lowtide.storage.log_start.journal_loading import journal_path
from tests.examples import one_in

from .journals import DIRECTORY, LARGE, A, B, Fixture, fill, reopened_values


def test_an_accepted_value_is_visible_only_when_it_is_durable() -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 100), name="delete")
    assert fixture.journal.value(A, 0) is None
    assert fixture.answers == []
    fixture.committer.step()
    assert fixture.journal.value(A, 0) == 100
    assert fixture.answers == ["delete"]


def test_a_power_cut_after_the_answer_loses_nothing() -> None:
    fixture = Fixture()
    for offset in (5, 90, 17):
        fixture.accept((A, 0, offset), (B, 2, offset + 1))
        fixture.committer.run()
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == {(A, 0): 17, (B, 2): 18}


def test_what_a_killed_process_left_unsynced_is_made_durable_before_it_is_reported() -> None:
    """Read back after a kill and reported, then lost by a power cut, it would be a delete that is undone."""
    fixture = Fixture()
    fixture.accept((A, 0, 100))
    fixture.filesystem.crash_process()
    told = fixture.reopened().journal.value(A, 0)
    assert told == 100
    for seed in range(20):
        fixture.filesystem.power_cut(Random(seed))
        assert fixture.reopened().journal.value(A, 0) == told


@pytest.mark.parametrize("seed", range(20))
def test_after_a_failed_sync_a_restart_trusts_nothing_that_can_merely_be_read(seed: int) -> None:
    """The system may call pages clean that the disk does not have; syncing them again proves nothing (fsyncgate)."""
    fixture = Fixture(MemoryFileSystem(Random(seed)))
    fixture.filesystem.fail_next("sync", errno.EIO)
    fixture.accept((A, 0, 100))
    fixture.committer.run()
    fixture.filesystem.crash_process()
    fixture.filesystem.capacity_bytes = 0 if seed % 2 else None
    told = dict(fixture.reopened().journal.entries)
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == told


def test_deletes_that_wait_leave_together() -> None:
    """Group commit: all that arrive while a frame is under way cost one more write and one more sync."""
    fixture = Fixture()
    for partition in range(50):
        fixture.accept((A, partition, 10), name=partition)
    before = fixture.filesystem.operation_count
    fixture.committer.run()
    assert fixture.answers == list(range(50)), "answers come in order of acceptance"
    assert fixture.committer.synced_files == 2
    assert fixture.filesystem.operation_count - before == 3, "sync, write, sync"


def test_a_thousand_partitions_are_one_frame_and_one_sync() -> None:
    fixture = Fixture()
    before = fixture.filesystem.operation_count
    fixture.accept(*((A, partition, 7) for partition in range(1000)))
    fixture.committer.run()
    assert fixture.filesystem.operation_count - before == 2, "one write, one sync"
    assert fixture.committer.synced_files == 1
    fixture.filesystem.power_cut()
    assert len(fixture.reopened().journal.entries) == 1000


def test_the_cost_of_a_delete_does_not_grow_with_the_number_of_entries() -> None:
    fixture = Fixture()
    fixture.accept(*((A, partition, 7) for partition in range(5000)))
    fixture.committer.run()
    before = fixture.filesystem.operation_count
    fixture.accept((A, 3, 8))
    fixture.committer.run()
    assert fixture.filesystem.operation_count - before == 2


def test_an_empty_request_is_answered_in_its_turn() -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 1), name="first")
    fixture.journal.request_log_starts([], partial(fixture.note, "empty"))
    fixture.journal.forget([(ZERO_TOPIC_ID, 0)], partial(fixture.note, "nobody"))
    assert fixture.answers == []
    fixture.committer.run()
    assert fixture.answers == ["first", "empty", "nobody"]


def test_forgotten_partitions_stay_forgotten() -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 5), (A, 1, 6), (B, 0, 7))
    fixture.journal.forget([(A, 0), (A, 1), (A, 2)], partial(fixture.note, "gone"))
    fixture.committer.run()
    assert fixture.answers[-1] == "gone"
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == {(B, 0): 7}


def test_an_answer_may_bring_the_next_delete() -> None:
    fixture = Fixture()
    fixture.journal.request_log_starts([(A, 0, 1)], lambda _error: fixture.accept((A, 0, 2), name="second"))
    fixture.committer.run()
    assert fixture.answers == ["second"]
    assert fixture.journal.value(A, 0) == 2


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_write_or_sync_fails_every_waiting_delete_once_and_the_journal_permanently(operation: Any) -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 1), name="before")
    fixture.committer.run()
    fixture.filesystem.fail_next(operation, errno.EIO, path_contains=JOURNAL_NAME)
    fixture.accept((A, 0, 2), name="under way")
    assert fixture.answers == ["before"], "never answered from within accept"
    fixture.accept((A, 0, 3), name="waiting")
    fixture.committer.run()
    fixture.accept((A, 0, 4), name="later")
    assert len(fixture.answers) == 3
    with pytest.raises(OSError, match="Input/output error"):
        fixture.stop()
    assert sorted(fixture.answers[1:]) == [(name, errno.EIO) for name in ("later", "under way", "waiting")]
    assert [failure.errno for failure in fixture.failures] == [errno.EIO]
    assert fixture.journal.value(A, 0) == 1
    assert reopened_values(fixture.filesystem)[A, 0] in {1, 2}


# Folding


def test_a_fold_keeps_the_values_and_writes_both_exports() -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 5), (B, 2, 0), (b"an-unknown-topic", 0, 3))
    fixture.journal.fold(partial(fixture.note, "folded"))
    fixture.committer.run()
    assert fixture.answers[-1] == "folded"
    for name in (LOG_BEGIN_CHECKPOINT, LOG_START_CHECKPOINT):
        exported = decode_offsets(fixture.filesystem.read_bytes(f"{DIRECTORY}/{name}"), name)
        assert exported == {TopicPartition("a", 0): 5, TopicPartition("b", 2): 0}
    fixture.accept((A, 0, 6))
    fixture.committer.run()
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == {(A, 0): 6, (B, 2): 0, (b"an-unknown-topic", 0): 3}


def test_a_full_journal_folds_itself_and_the_delete_that_filled_it_is_answered() -> None:
    fixture = Fixture()
    fill(fixture, 90)
    assert fixture.answers == list(range(90))
    assert fixture.filesystem.file_size(journal_path(DIRECTORY)) == MINIMUM_CAPACITY
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == {(A, partition): 89 for partition in range(LARGE)}


def test_the_last_quarter_of_the_journal_is_kept_for_a_full_disk() -> None:
    fixture = Fixture()
    fill(fixture, 28)
    assert not fixture.filesystem.exists(f"{DIRECTORY}/{LOG_BEGIN_CHECKPOINT}")
    fill(fixture, 1)
    assert fixture.filesystem.exists(f"{DIRECTORY}/{LOG_BEGIN_CHECKPOINT}"), "it folded"


def test_a_request_larger_than_the_journal_makes_it_grow() -> None:
    filesystem = MemoryFileSystem(Random(1))
    fixture = Fixture(filesystem)
    fixture.accept(*((A, partition, 3) for partition in range(60_000)), name="large")
    fixture.committer.run()
    assert fixture.answers == ["large"]
    assert filesystem.file_size(journal_path(DIRECTORY)) == 8 << 20
    filesystem.power_cut()
    assert len(fixture.reopened().journal.entries) == 60_000


def test_on_a_full_disk_deletes_continue_in_their_reserved_space() -> None:
    """Deletes free the disk, so it must not need a new file."""
    fixture = Fixture()
    filesystem = fixture.filesystem
    filesystem.capacity_bytes = 0
    fixture.journal.fold(partial(fixture.note, "fold"))
    fixture.committer.run()
    assert fixture.answers == [("fold", errno.ENOSPC)]
    fill(fixture, 37)
    assert fixture.answers[1:] == list(range(37))
    fill(fixture, 1)
    assert fixture.answers[-1] == (0, errno.ENOSPC), "then the journal is full too"
    assert fixture.journal.failure is None, "a full disk is not a failed one"
    assert not [name for name in filesystem.listdir(DIRECTORY) if name.endswith(".tmp")]
    filesystem.capacity_bytes = None
    fixture.accept((A, LARGE, 1), name="freed")
    fixture.committer.run()
    assert fixture.answers[-1] == "freed"
    filesystem.power_cut()
    entries = fixture.reopened().journal.entries
    assert entries == {(A, partition): 36 for partition in range(LARGE)} | {(A, LARGE): 1}


@pytest.mark.parametrize("missing", [None, 600, 1100])
@pytest.mark.parametrize("seed", range(8))
def test_a_full_disk_keeps_no_journal_from_being_opened(seed: int, missing: int | None) -> None:
    """Also for a journal with a torn frame or with Kafka's values; and a power cut in between loses nothing."""
    fixture = Fixture(MemoryFileSystem(Random(seed)))
    fixture.accept((A, 0, 5))
    fixture.committer.run()
    fixture.accept(*((B, partition, 7) for partition in range(60)))
    fixture.filesystem.crash_process()
    if missing:
        file = fixture.filesystem.open(journal_path(DIRECTORY), write=True)
        start = max(564, missing // 512 * 512)
        file.pwritev([bytes((start // 512 + 1) * 512 - start)], start)
        file.sync()
    fixture.filesystem.replace_file(f"{DIRECTORY}/{LOG_START_CHECKPOINT}", encode_offsets({TopicPartition("a", 1): 9}))
    fixture.filesystem.capacity_bytes = 0
    expected = {(A, 0): 5, (A, 1): 9} | ({} if missing else {(B, partition): 7 for partition in range(60)})
    for step in range(1, 12):
        fixture.filesystem.crash_at = fixture.filesystem.operation_count + step
        try:
            opened = fixture.reopened()
        except SimulatedCrashError:
            fixture.filesystem.power_cut()
            continue
        break
    assert opened.journal.entries == expected or missing is None
    fixture.filesystem.crash_process()
    told = dict(fixture.reopened().journal.entries)
    assert set(told.items()) >= {((A, 0), 5), ((A, 1), 9)}
    fixture.filesystem.power_cut()
    again = fixture.reopened()
    assert again.journal.entries == told
    again.accept((A, 2, 1))
    again.committer.run()
    assert again.journal.value(A, 2) == 1


def test_a_stop_makes_waiting_entries_durable_and_accepts_no_more() -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 1), name="under way")
    fixture.accept((A, 1, 2), name="waiting")
    fixture.journal.stop()
    fixture.accept((A, 2, 3), name="late")
    fixture.committer.run()
    fixture.journal.finish()
    assert fixture.answers == ["under way", ("late", errno.ESHUTDOWN), "waiting"]
    fixture.filesystem.power_cut()
    exported = decode_offsets(fixture.filesystem.read_bytes(f"{DIRECTORY}/{LOG_START_CHECKPOINT}"), "")
    assert exported == {TopicPartition("a", 0): 1, TopicPartition("a", 1): 2}
    before = fixture.filesystem.operation_count
    again = fixture.reopened()
    assert again.journal.entries == {(A, 0): 1, (A, 1): 2}
    again.stop()
    assert fixture.filesystem.operation_count - before <= 7, (
        "the start wrote the journal once; nothing changed, so nothing was folded"
    )


def test_a_stop_on_a_full_disk_leaves_the_journal_unfolded_and_whole() -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 1), name="under way")
    fixture.accept((A, 1, 2), name="waiting")
    fixture.filesystem.capacity_bytes = 0
    fixture.stop()
    assert fixture.answers == ["under way", "waiting"]
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == {(A, 0): 1, (A, 1): 2}


@pytest.mark.parametrize("power", [True, False])
def test_a_crash_at_any_step_of_a_stop_leaves_the_values(power: bool) -> None:
    step, stopped = 0, False
    while not stopped:
        step += 1
        fixture = folding(step)
        fixture.accept((A, 1, 3), name="under way")
        fixture.accept((A, 0, REMOVED), name="waiting")
        fixture.filesystem.crash_at = fixture.filesystem.operation_count + step
        try:
            fixture.stop()
            stopped = True
        except SimulatedCrashError:
            pass
        if power:
            fixture.filesystem.power_cut()
        else:
            fixture.filesystem.crash_process()
        values = fixture.reopened().journal.entries
        told = 2 if "waiting" in fixture.answers else 1 if "under way" in fixture.answers else 0
        assert values in ALLOWED_AFTER_FOLD[told:], step
    assert step > 12


ALLOWED_AFTER_FOLD = ({(A, 0): 40, (B, 1): 9}, {(A, 0): 40, (B, 1): 9, (A, 1): 3}, {(B, 1): 9, (A, 1): 3})


def folding(seed: int) -> Fixture:
    """A journal with an old export (a: 100), a lower value since, and a fold about to begin with two entries."""
    fixture = Fixture(MemoryFileSystem(Random(seed)))
    fixture.accept((A, 0, 100), (B, 0, 1))
    fixture.journal.fold(partial(fixture.note, "first fold"))
    fixture.committer.run()
    fixture.accept((A, 0, 40), (B, 0, REMOVED), (B, 1, 9))
    fixture.committer.run()
    return fixture


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("seed", one_in(3, range(6)))
def test_a_crash_at_any_step_of_a_fold_leaves_the_values(seed: int, power: bool) -> None:
    """The export has 100 and the journal a later 40: neither an old export nor half a fold may bring the 100 back."""
    steps = 0
    while True:
        fixture = folding(seed)
        steps += 1
        fixture.filesystem.crash_at = fixture.filesystem.operation_count + steps
        crashed = False
        try:
            fixture.journal.fold(partial(fixture.note, "second fold"))
            fixture.accept((A, 1, 3), name="during")
            fixture.committer.run()
        except SimulatedCrashError:
            crashed = True
        if power:
            fixture.filesystem.power_cut(Random(seed * 1000 + steps))
        else:
            fixture.filesystem.crash_process()
        values = dict(fixture.reopened().journal.entries)
        if "during" in fixture.answers:
            assert values == ALLOWED_AFTER_FOLD[1]
        else:
            assert values in ALLOWED_AFTER_FOLD[:2], steps
        fixture.filesystem.power_cut()
        assert dict(fixture.reopened().journal.entries) == values, "a reported value is durable"
        if not crashed:
            break
    assert steps > 12, "the fold has at least three writes, syncs and renames, and a sync of the directory"


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("name", [LOG_BEGIN_CHECKPOINT, LOG_START_CHECKPOINT, JOURNAL_NAME, ""])
@pytest.mark.parametrize("operation", ["open", "write", "truncate", "sync", "rename", "sync_directory"])
def test_a_failure_at_any_step_of_a_fold_leaves_the_values(operation: Any, name: str, error_number: int) -> None:
    fixture = folding(3)
    fixture.filesystem.fail_next(operation, error_number, path_contains=f"{DIRECTORY}/{name}" if name else DIRECTORY)
    fixture.journal.fold(partial(fixture.note, "second fold"))
    fixture.committer.run()
    fixture.accept((A, 1, 3), name="after")
    fixture.committer.run()
    full = error_number == errno.ENOSPC and operation in {"open", "write", "truncate"}
    if name and operation == "sync_directory":
        assert fixture.answers[-1] == "after", "there is no such operation"
    elif full:
        assert fixture.answers[-2:] == [("second fold", errno.ENOSPC), "after"], "the journal stays in service"
    else:
        assert set(fixture.answers[-2:]) == {("second fold", error_number), ("after", error_number)}
        assert [failure.errno for failure in fixture.failures] == [error_number]
    fixture.filesystem.clear_faults()
    for seed in range(4):
        fixture.filesystem.power_cut(Random(seed))
        expected = ALLOWED_AFTER_FOLD[1] if fixture.answers[-1] == "after" else ALLOWED_AFTER_FOLD[0]
        assert fixture.reopened().journal.entries == expected
