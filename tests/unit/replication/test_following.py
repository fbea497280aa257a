"""A follower's smaller answers.

Leader epoch 0, logs without epochs, whether it is in sync, and what an append changes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.replication.follower import (
    FollowedPartition,
    NextStep,
    Truncate,
    append_fetched,
    decide,
    note_truncated,
    truncation,
)
from lowtide.replication.follower_phase import FollowerEvent, Phase
from lowtide.storage.log.log_values import LogConfig

from .leaders import FakeLog
from .test_follower import following, row, stored


def test_leader_epoch_zero_is_one_like_others() -> None:
    log = following(0, 0, 2).log
    assert truncation(log, 0, 1) == Truncate(1, 0)
    assert truncation(log, 0, 9) == Truncate(2, 0)
    assert truncation(log, 1, 3) == Truncate(2, 0)


def test_a_log_without_epochs_is_cut_where_the_leader_s_epoch_ends() -> None:
    log = following(-1, -1, -1).log
    assert log.leader_epochs.entries() == []
    assert truncation(log, 3, 2) == Truncate(2, 3)
    assert truncation(log, 3, 9) == Truncate(3, 3)


def test_only_an_emptied_log_takes_the_leader_s_word_for_the_epoch_below() -> None:
    """Records say themselves which epoch they are of."""
    kept = following(4, 6)
    note_truncated(kept.log, Truncate(1, 9))
    assert kept.log.leader_epochs.entries() == [(4, 0), (6, 1)]
    emptied = following(4, start=1)
    note_truncated(emptied.log, Truncate(1, 0))
    assert emptied.log.leader_epochs.entries() == [(0, 1)]
    unknown = following(4, start=1)
    before = unknown.log.leader_epochs.entries()
    note_truncated(unknown.log, Truncate(1))
    assert unknown.log.leader_epochs.entries() == before


def test_it_is_in_sync_when_the_leader_has_answered_and_nothing_committed_is_missing() -> None:
    one = following(1, 1)
    assert not one.is_in_sync, "a new one isn't"
    append_fetched(one, row(high_watermark=3), 1)
    assert (one.lag, one.is_in_sync) == (1, False)
    append_fetched(one, row(high_watermark=2), 1)
    assert (one.lag, one.is_in_sync) == (0, True)
    append_fetched(one, row(high_watermark=1), 1)
    assert (one.lag, one.is_in_sync) == (0, True), "it may have more than is committed"
    one.heard = False
    assert not one.is_in_sync


def test_an_answer_with_records_makes_the_log_grow() -> None:
    one = following(1)
    taken = append_fetched(one, row(records=stored(1, 1, count=2), high_watermark=1, log_start_offset=1), 1)
    assert (taken.has_grown, taken.has_news, taken.counts) == (True, True, True)
    assert taken.appended_bytes == len(stored(1, 1, count=2))
    assert one.received_log_start == 1
    again = append_fetched(one, row(high_watermark=1), 1)
    assert (again.has_grown, again.has_news, again.appended_bytes) == (False, False, 0)


def test_it_waits_for_the_disk_while_a_flush_is_due_in_every_leader_epoch() -> None:
    one = following(1, 1, 1)
    end = one.log.log_end_offset
    assert not one.waits_for_flush, "nothing has to be flushed"
    one.log.configure(LogConfig(flush_messages=3))
    assert one.waits_for_flush
    assert FollowedPartition(partition=one.partition, leader_epoch=10).waits_for_flush
    one.log.raise_recovery_point(end - 2)
    assert not one.waits_for_flush, "fewer than that are left"


def test_a_phase_leads_to_the_next() -> None:
    one = following(1)
    assert decide(one, row()) is NextStep.APPEND
    one.on_event(FollowerEvent.CUT)
    assert one.phase is Phase.SETTLING
    with pytest.raises(AssertionError, match="ASK_RANGE can't happen"):
        one.on_event(FollowerEvent.ASK_RANGE)
    one.on_event(FollowerEvent.SETTLED)
    assert one.phase is Phase.FETCHING


@pytest.mark.parametrize(
    ("disk_full", "offline", "counts"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, False)],
)
def test_of_an_answer_that_cannot_be_appended_the_rest_counts_while_the_disk_is_full_only(
    disk_full: bool, offline: bool, counts: bool
) -> None:
    """Deletes make room, and have to reach a follower that has none."""
    log: Any = FakeLog(log_end_offset=3)
    log.disk_full, log.offline = disk_full, offline
    log.append_as_follower = lambda *_args, **_kwargs: ErrorCode.KAFKA_STORAGE_ERROR
    one = FollowedPartition(partition=SimpleNamespace(log=log, local_broker_id=1), leader_epoch=9, backoff_ms=40)
    taken = append_fetched(one, row(records=stored(3, 9), high_watermark=2, log_start_offset=1), 1)
    assert (taken.error, taken.counts, taken.has_grown) == (ErrorCode.KAFKA_STORAGE_ERROR, counts, False)
    assert (one.heard, one.received_log_start, log.high_watermark) == ((True, 1, 2) if counts else (False, -1, 0))
    assert one.backoff_ms == 40, "an error doesn't end the rests"
