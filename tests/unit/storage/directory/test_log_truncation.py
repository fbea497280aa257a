"""Truncations of a follower's log: no append before they are durable; a crash loses and restores no records."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.runtime.filesystem.memory import SimulatedCrashError
from lowtide.storage.checkpoint import RECOVERY_POINT_CHECKPOINT, decode_offsets
from lowtide.storage.log.log import Log
from lowtide.storage.log.validation.validator import ValidatedBatch
from lowtide.storage.log_start.journal_image import JOURNAL_NAME

from .managed_logs import A0, BATCH, ONE, World, append


def offsets(log: Log) -> tuple[int, int, int]:
    return log.log_start_offset, log.high_watermark, log.log_end_offset


def try_append(log: Log, leader_epoch: int = 0) -> object:
    assert isinstance(BATCH, ValidatedBatch)
    return log.append_as_leader(BATCH, leader_epoch=leader_epoch, now_ms=1)


def truncate(world: World, log: Log, offset: int) -> None:
    world.manager.truncate(log, offset, partial(world.note, "settled"))


def restart_at(world: World, log: Log, offset: int, is_wanted: Callable[[], bool] = lambda: True) -> None:
    world.manager.restart_at(log, offset, 6, is_wanted, partial(world.note, "settled"))


def world_with(batches: int, log_start: int = 0) -> tuple[World, Log]:
    world = World()
    (log,) = world.create(A0)
    append(log, batches)
    world.manager.flush(log)
    if log_start:
        world.delete_to((A0, log_start))
    world.run()
    world.answers.clear()
    return world, log


def test_a_stop_leaves_the_restart_of_a_log_to_the_next_start() -> None:
    """Protects a clean stop: the journal answers after the committers have closed, and emptying a log needs one."""
    world, log = world_with(2)
    world.delete_to((A0, 5))
    restart_at(world, log, 40)
    world.manager.close()
    assert world.answers == ["trimmed", ("settled", errno.ESHUTDOWN)]
    world.start()
    assert offsets(world.manager.logs[A0]) == (40, 40, 40)


def test_nothing_is_appended_until_a_truncation_is_settled() -> None:
    world, log = world_with(4)
    world.tick(60_000)
    truncate(world, log, 10)
    assert offsets(log) == (0, 10, 10)
    assert try_append(log) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.answers == []
    world.run()
    assert world.answers == ["settled"]
    assert decode_offsets(world.filesystem.read_bytes(f"{ONE}/{RECOVERY_POINT_CHECKPOINT}"), "") == {A0: 10}
    append(log)
    assert offsets(log) == (0, 15, 15)


def test_two_truncations_are_settled_when_both_are() -> None:
    world, log = world_with(4)
    truncate(world, log, 15)
    truncate(world, log, 5)
    committer = world.committers[ONE]
    while world.answers == []:
        committer.step()
    assert try_append(log) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.run()
    assert world.answers == ["settled", "settled"]
    append(log)
    assert log.log_end_offset == 10


def test_where_nothing_goes_nothing_waits() -> None:
    world, log = world_with(4)
    truncate(world, log, 20)
    assert world.answers == []
    append(log)
    world.run()
    assert world.answers == ["settled"]
    assert offsets(log) == (0, 25, 25)


def test_below_the_log_start_that_falls_and_the_journal_says_so_before_the_log_grows() -> None:
    world, log = world_with(4, log_start=12)
    truncate(world, log, 5)
    assert offsets(log) == (5, 5, 5)
    assert try_append(log) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.run()
    append(log)
    assert offsets(log) == (5, 10, 10)
    world.manager.flush(log)
    world.run()
    world.restart(power=True)
    assert offsets(world.manager.logs[A0])[::2] == (5, 10)


def test_a_truncation_ends_a_rise_also_when_the_log_has_grown_beyond_it_again() -> None:
    world, log = world_with(4)
    world.delete_to((A0, 18))
    truncate(world, log, 10)
    assert log.log_start_pending == 0
    world.run()
    append(log, 4)
    world.run()
    assert offsets(log) == (0, 30, 30)
    world.restart()
    assert world.manager.logs[A0].log_start_offset == 0, "the journal was corrected too"


def test_a_rise_that_waits_for_another_frame_is_ended_too() -> None:
    """The journal has one frame under way; the entries that wait behind it are written after the truncation."""
    world, log = world_with(4)
    world.delete_to((A0, 3))
    world.delete_to((A0, 18))
    truncate(world, log, 10)
    world.run()
    append(log, 4)
    world.run()
    assert log.log_start_offset <= 3
    expected = log.log_start_offset
    world.restart()
    assert world.manager.logs[A0].log_start_offset == expected


def test_a_delete_after_a_truncation_is_not_undone_by_the_journal_of_it() -> None:
    """Settling a truncation writes to the journal, possibly after a delete that was accepted later."""
    world, log = world_with(4)
    world.delete_to((A0, 18))
    truncate(world, log, 10)
    committer = world.committers[ONE]
    while len(committer.waiting) > 1:
        committer.step()
    world.delete_to((A0, 7), name="later")
    world.run()
    assert log.log_start_offset == 7
    world.restart()
    assert world.manager.logs[A0].log_start_offset == 7


def test_a_log_start_that_moves_is_journalled_before_it_is_visible() -> None:
    world, log = world_with(4)
    restart_at(world, log, 50)
    assert offsets(log) == (0, 20, 20)
    assert try_append(log) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.run()
    assert world.answers == ["settled"]
    assert offsets(log) == (50, 50, 50)
    assert log.leader_epochs.entries() == [(6, 50)], "its history is the leader's from now on"
    assert not log.producer_state.producers
    world.restart(power=True)
    assert world.manager.logs[A0].leader_epochs.entries() == [(6, 50)]
    assert offsets(world.manager.logs[A0])[::2] == (50, 50)


def test_a_log_that_no_longer_needs_a_new_start_stays_as_it_is() -> None:
    world, log = world_with(4, log_start=3)
    restart_at(world, log, 50, is_wanted=lambda: False)
    world.run()
    assert world.answers == ["settled"]
    append(log)
    assert offsets(log) == (3, 25, 25)
    world.restart()
    assert world.manager.logs[A0].log_start_offset == 3


def test_a_log_deleted_meanwhile_leaves_nothing_in_the_journal() -> None:
    for begins_anew in (False, True):
        world, log = world_with(4, log_start=12)
        if begins_anew:
            restart_at(world, log, 50, is_wanted=lambda: False)
        else:
            truncate(world, log, 5)
        world.manager.delete_logs([A0], partial(world.note, "deleted"))
        world.run()
        assert world.manager._directories[ONE].parts.journal.entries == {}
        assert sorted(world.answers) == ["deleted", "settled"]


@pytest.mark.parametrize("path", [JOURNAL_NAME, f"{A0}/", RECOVERY_POINT_CHECKPOINT])
def test_a_failing_disk_takes_the_directory_offline_and_the_log_stays_closed(path: str) -> None:
    for begins_anew in (False, True):
        world, log = world_with(4, log_start=12)
        world.filesystem.fail_next("sync", errno.EIO, path_contains=path)
        if begins_anew:
            restart_at(world, log, 50)
        else:
            truncate(world, log, 5)
        world.run()
        assert world.answers == [("settled", errno.EIO)]
        assert [failed for failed, _logs in world.failed] == [ONE]
        assert try_append(log) == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("power", [True, False])
def test_a_truncation_below_the_log_start_cut_off_at_any_step_brings_nothing_back(power: bool) -> None:
    """The log is unchanged, or empty at its old start, or ends at the truncation offset; never has records below the
    start.
    """
    outcomes = set()
    for step in range(1, 200):
        world, log = world_with(4, log_start=12)
        world.filesystem.crash_at = world.filesystem.operation_count + step
        try:
            truncate(world, log, 5)
            world.run()
            done = True
        except SimulatedCrashError:
            done = False
        world.restart(power=power)
        start, _watermark, end = offsets(world.manager.logs[A0])
        assert (start, end) in {(12, 20), (12, 15), (12, 12), (5, 5)}, (step, start, end)
        outcomes.add((start, end))
        if done:
            assert (start, end) == (5, 5)
            break
    assert outcomes >= {(12, 20), (5, 5)}


@pytest.mark.parametrize("power", [True, False])
def test_a_new_beginning_cut_off_at_any_step_never_lowers_the_log_start(power: bool) -> None:
    outcomes = set()
    for step in range(1, 200):
        world, log = world_with(4, log_start=7)
        world.filesystem.crash_at = world.filesystem.operation_count + step
        seen = 7
        try:
            restart_at(world, log, 50)
            world.run()
            done = True
        except SimulatedCrashError:
            done = False
        seen = log.log_start_offset
        world.restart(power=power)
        start, _watermark, end = offsets(world.manager.logs[A0])
        assert start >= seen, (step, start, seen)
        assert (start, end) in {(7, 20), (50, 50)}, (step, start, end)
        outcomes.add(start)
        if done:
            break
    assert outcomes == {7, 50}


@pytest.mark.parametrize("power", [True, False])
def test_a_crash_never_mixes_what_was_cut_with_what_came_since(power: bool) -> None:
    """Truncate, settle, append in another epoch: whatever a crash loses, all offsets have the epochs of one history."""
    for step in range(1, 200):
        world, log = world_with(8)
        world.filesystem.crash_at = world.filesystem.operation_count + step
        try:
            truncate(world, log, 10)
            world.run()
            for _ in range(6):
                assert try_append(log, leader_epoch=3)
            world.manager.flush(log)
            world.run()
            done = True
        except SimulatedCrashError:
            done = False
        world.restart(power=power)
        found = world.manager.logs[A0]
        by_offset = {
            header.base_offset: header.partition_leader_epoch
            for segment in found.segments
            for _, header in segment.batches(0)
        }
        new = [offset for offset, epoch in by_offset.items() if epoch == 3]
        old = [offset for offset, epoch in by_offset.items() if epoch == 0]
        assert not new or max(old) < min(new) == 10, (step, by_offset)
        if done:
            assert len(new) == 6
            break


def test_an_emptied_log_keeps_its_last_leader_epoch_over_restarts_and_empty_truncations() -> None:
    """Otherwise, after an unclean election, no replica detects that the log belongs to another history."""
    for power in (False, True):
        world, log = world_with(0)
        assert isinstance(BATCH, ValidatedBatch)
        for epoch in (2, 4):
            log.append_as_leader(BATCH, leader_epoch=epoch, now_ms=1)
        log.advance_high_watermark(10)
        world.manager.flush(log)
        world.run()
        world.delete_to((A0, 10))
        world.run()
        assert log.leader_epochs.entries() == [(4, 10)]
        truncate(world, log, 10)
        world.run()
        assert log.leader_epochs.entries() == [(4, 10)]
        world.restart(power=power)
        assert world.manager.logs[A0].leader_epochs.entries() == [(4, 10)]


def test_a_log_whose_end_was_lost_below_its_start_keeps_the_last_leader_epoch_below() -> None:
    world, log = world_with(0)
    assert isinstance(BATCH, ValidatedBatch)
    log.append_as_leader(BATCH, leader_epoch=2, now_ms=1)
    world.manager.flush(log)
    world.run()
    log.append_as_leader(BATCH, leader_epoch=4, now_ms=1)
    log.advance_high_watermark(10)
    world.delete_to((A0, 9))
    world.run()
    world.filesystem.power_cut()
    world.start()
    found = world.manager.logs[A0]
    if found.log_end_offset == 9:
        assert found.leader_epochs.entries() == [(2, 9)]
