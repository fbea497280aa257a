"""When a follower counts as caught up, and whom the high watermark waits for (KIP-16, KIP-497)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.replication import in_sync_replicas
from lowtide.replication.leadership import NEVER_MS, FetchTimes, FollowerFetch, FollowerState

from .leaders import LAG_MS, FakeLog, image_of, leads, partition_of

BROKERS = {1: 1, 2: 2, 3: 3}
IMAGE = image_of(10, BROKERS)


def fetched(
    follower: FollowerState,
    offset: int,
    leader_end: int,
    now_ms: int,
    *,
    epoch: int = 2,
    times: FetchTimes | None = None,
) -> None:
    fetch = FollowerFetch(2, epoch, offset, 0, 5, 5, times)
    follower.note_fetch(fetch, leader_end_offset=leader_end, matches=True, now_ms=now_ms)


def log_of(end: int, **more: Any) -> FakeLog:
    log = FakeLog(log_end_offset=end, **more)
    log.leader_epochs.assign(5, 0)
    return log


def test_a_fetch_at_the_leader_s_end_is_caught_up() -> None:
    follower = FollowerState()
    fetched(follower, 100, 100, 7)
    assert follower.caught_up_ms == 7


def test_a_fetch_at_the_end_of_the_fetch_before_was_caught_up_then() -> None:
    """A follower of a busy leader never sees its end; it has what the leader had when it asked."""
    follower = FollowerState()
    fetched(follower, 50, 100, 1)
    fetched(follower, 99, 150, 2)
    assert follower.caught_up_ms == NEVER_MS, "it never had all"
    fetched(follower, 150, 200, 3)
    assert follower.caught_up_ms == 2
    fetched(follower, 200, 260, 9)
    assert follower.caught_up_ms == 3
    fetched(follower, 210, 300, 10)
    assert follower.caught_up_ms == 3, "it falls behind"


def test_a_follower_that_needs_several_fetches_was_caught_up_when_the_leader_ended_where_it_is() -> None:
    """Many producers write 40 records between two of its fetches, which bring 40 each.

    It is always 120 behind, and never further.
    """
    follower = FollowerState()
    for number in range(40):
        offset, now_ms = 40 * number, 10 * number
        fetched(follower, offset, offset + 120, now_ms)
        lacks_ms = now_ms - follower.caught_up_ms
        if number < 3:
            assert follower.caught_up_ms == NEVER_MS, "it has not yet what the leader had at its first fetch"
        else:
            assert 30 <= lacks_ms <= 60, (
                "it has what the leader had 30 ms ago; twice as long until it has reached its next goal"
            )


def test_a_follower_that_falls_further_behind_is_caught_up_less_and_less() -> None:
    """It gets half of what is written: at each moment it has what the leader had at half of that time."""
    follower = FollowerState()
    for now_ms in range(0, 10 * LAG_MS, 10):
        fetched(follower, now_ms, 2 * now_ms + 1, now_ms)
        assert not follower.caught_up_ms * 2 > now_ms
        if now_ms > 4 * LAG_MS:
            assert not follower.is_caught_up(2 * now_ms + 1, LAG_MS, now_ms)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=60))
def test_it_had_all_at_the_moment_at_which_it_counts_as_caught_up(steps: list[tuple[int, int, int]]) -> None:
    """And as late a one, at least, as by Kafka's rule."""
    follower = FollowerState()
    ends, now_ms, leader_end, offset = list[tuple[int, int]](), 0, 100, 0
    kafkas_ms, before = NEVER_MS, None
    for passed_ms, written, got in steps:
        now_ms, leader_end, offset = now_ms + passed_ms, leader_end + written, min(offset + got, leader_end + written)
        ends.append((now_ms, leader_end))
        fetched(follower, offset, leader_end, now_ms)
        if offset >= leader_end:
            kafkas_ms = now_ms
        elif before is not None and offset >= before[1]:
            kafkas_ms = max(kafkas_ms, before[0])
        before = now_ms, leader_end
        had_all_ms = max((at_ms for at_ms, end in ends if end <= offset), default=NEVER_MS)
        assert kafkas_ms <= follower.caught_up_ms <= had_all_ms


def test_the_fetch_before_may_be_one_of_its_session() -> None:
    """A session's requests that don't name the partition say that the follower has nothing new to say of it."""
    follower, times = FollowerState(), FetchTimes(1)
    fetched(follower, 100, 100, 1, times=times)
    times.last_ms = 40
    fetched(follower, 100, 130, 50, times=times)
    assert follower.caught_up_ms == 40


def test_it_is_caught_up_at_the_end_or_for_a_while_after() -> None:
    follower = FollowerState()
    fetched(follower, 100, 100, 7)
    assert follower.is_caught_up(100, LAG_MS, 10 * LAG_MS), "however long ago that was: nothing was written since"
    assert follower.is_caught_up(101, LAG_MS, 7 + LAG_MS)
    assert not follower.is_caught_up(101, LAG_MS, 8 + LAG_MS)


def test_its_last_fetch_is_the_noted_one_or_the_last_of_its_session() -> None:
    follower, times = FollowerState(), FetchTimes()
    fetched(follower, 100, 100, 7, times=times)
    assert follower.last_fetch_ms == 7
    times.last_ms = 9
    assert follower.last_fetch_ms == 9
    follower.leave_session()
    times.last_ms = 50
    assert follower.last_fetch_ms == 9, "the session speaks for it no more"


def test_while_the_leader_s_log_grows_it_was_caught_up_at_the_last_fetch_of_its_session() -> None:
    follower, times = FollowerState(), FetchTimes()
    follower.note_idle_until_now()
    assert follower.caught_up_ms == NEVER_MS
    fetched(follower, 100, 100, 7, times=times)
    times.last_ms = 6
    follower.note_idle_until_now()
    assert follower.caught_up_ms == 7
    times.last_ms = 30
    follower.note_idle_until_now()
    assert follower.caught_up_ms == 30


def test_a_new_registration_begins_with_nothing_known() -> None:
    follower, times = FollowerState(), FetchTimes()
    fetched(follower, 100, 100, 7, times=times)
    follower.sent_log_start = 30
    times.last_ms = 20
    follower.forget()
    times.last_ms = 60
    assert follower == FollowerState(noted_fetch_ms=20)
    fetched(follower, 40, 100, 61, epoch=12)
    assert (follower.broker_epoch, follower.log_end_offset, follower.caught_up_ms) == (12, 40, NEVER_MS)


def test_a_fetch_under_another_registration_forgets_the_one_before() -> None:
    follower = FollowerState()
    fetched(follower, 100, 100, 7)
    follower.sent_log_start = 30
    fetched(follower, 40, 110, 8, epoch=12)
    assert (follower.broker_epoch, follower.sent_log_start, follower.caught_up_ms) == (12, -1, NEVER_MS)
    assert not follower.is_caught_up(110, LAG_MS, 8)


def test_who_begins_a_session_is_told_again_from_what_it_has() -> None:
    """It may have lost what it was sent before."""
    follower, first = FollowerState(), FetchTimes()
    fetched(follower, 100, 100, 1, times=first)
    follower.sent_log_start = 30
    fetched(follower, 100, 100, 2, times=first)
    assert follower.sent_log_start == 30, "the same session"
    fetched(follower, 100, 100, 3)
    assert follower.sent_log_start == 30, "none"
    fetched(follower, 100, 100, 4, times=FetchTimes())
    assert follower.sent_log_start == 0
    follower.sent_log_start = -1
    fetched(follower, 100, 100, 5, times=FetchTimes())
    assert follower.sent_log_start == -1


# Whom the high watermark waits for


def test_it_does_not_wait_for_a_follower_that_was_never_caught_up() -> None:
    """Otherwise a replica far behind, outside the ISR at an election, would delay every acks=all by the lag time."""
    log = log_of(100)
    leadership = leads(log, partition_of((1, 3), (1, 3)), IMAGE)
    leadership.note_fetch(FollowerFetch(3, 3, 100, 0, 5, 5), IMAGE, 1)
    leadership.note_fetch(FollowerFetch(2, 2, 10, 0, 5, 5), IMAGE, 2)
    assert in_sync_replicas.high_watermark(leadership, IMAGE, 2) == 100


def test_it_does_not_wait_for_a_broker_that_is_back_and_far_behind() -> None:
    leadership = leads(log_of(100), partition_of((1, 2, 3), (1, 2, 3)), IMAGE)
    for now_ms in (1, 2):
        for broker_id in (2, 3):
            leadership.note_fetch(FollowerFetch(broker_id, broker_id, 100, 0, 5, 5), IMAGE, now_ms)
    later = image_of(20, {1: 1, 2: 12, 3: 3})
    leadership.follow(partition_of((1, 3), (1, 3), revision=20))
    leadership.follow_broker(2, later)
    leadership.note_fetch(FollowerFetch(2, 12, 10, 0, 5, 5), later, 5)
    assert in_sync_replicas.high_watermark(leadership, later, 5) == 100


@pytest.mark.parametrize("now_ms", [2, LAG_MS, LAG_MS + 1])
def test_a_member_of_the_isr_was_caught_up_when_the_leader_was_elected(now_ms: int) -> None:
    """Its first fetch may come with a few records missing: it stays a member, and is waited for."""
    leadership = leads(log_of(100), partition_of((1, 2, 3), (1, 2, 3)), IMAGE)
    leadership.note_fetch(FollowerFetch(3, 3, 100, 0, 5, 5), IMAGE, 1)
    leadership.note_fetch(FollowerFetch(2, 2, 90, 0, 5, 5), IMAGE, 2)
    proposal = in_sync_replicas.next_proposal(leadership, IMAGE, now_ms)
    if now_ms <= LAG_MS:
        assert proposal is None
    else:
        assert proposal is not None
        assert proposal.isr == (1, 3)
    assert in_sync_replicas.high_watermark(leadership, IMAGE, now_ms) == 90


@pytest.mark.parametrize("now_ms", [2, 2 + LAG_MS, 3 + LAG_MS])
def test_it_waits_for_a_follower_that_is_about_to_join(now_ms: int) -> None:
    """It was caught up lately, under a registration that may be in sync."""
    log = log_of(100)
    leadership = leads(log, partition_of((1, 3), (1, 3)), IMAGE)
    leadership.note_fetch(FollowerFetch(2, 2, 100, 0, 5, 5), IMAGE, 2)
    log.move_log_end(110)
    leadership.note_fetch(FollowerFetch(3, 3, 110, 0, 5, 5), IMAGE, 2)
    waits = now_ms <= 2 + LAG_MS
    assert in_sync_replicas.high_watermark(leadership, IMAGE, now_ms) == (100 if waits else 110)
    gone = image_of(11, {1: 1, 3: 3})
    assert in_sync_replicas.high_watermark(leadership, gone, now_ms) == 110, "it may not be in sync"


def test_an_event_of_a_broker_that_has_not_fetched_yet_takes_nothing_from_it() -> None:
    """Its image may come again, for another broker's sake: it was caught up at the election."""
    leadership = leads(log_of(100), partition_of((1, 2), (1, 2)), IMAGE, 5)
    leadership.follow_broker(2, image_of(11, BROKERS))
    assert leadership.followers[2] == FollowerState(noted_fetch_ms=5, caught_up_ms=5)


def test_who_is_dropped_for_being_slow_does_not_come_back_before_it_keeps_up() -> None:
    """While too few are in sync, the high watermark stays where the slow follower is, which perhaps can't append.

    Its disk is full.
    """
    log = log_of(100, min_insync_replicas=2)
    log.advance_high_watermark(100)
    leadership = leads(log, partition_of((1, 2), (1, 2)), IMAGE)
    log.move_log_end(110)
    slow_ms = LAG_MS + 1
    leadership.note_fetch(FollowerFetch(2, 2, 100, 0, 5, 5), IMAGE, slow_ms)
    proposal = in_sync_replicas.next_proposal(leadership, IMAGE, slow_ms)
    assert proposal is not None
    assert proposal.isr == (1,)
    in_sync_replicas.propose(leadership, proposal)
    leadership.follow(partition_of((1,), (1,), revision=11))
    leadership.note_fetch(FollowerFetch(2, 2, 100, 0, 5, 5), IMAGE, slow_ms + 1)
    assert in_sync_replicas.high_watermark(leadership, IMAGE, slow_ms + 1) == 100
    assert in_sync_replicas.next_proposal(leadership, image_of(11, BROKERS), slow_ms + 1) is None
    leadership.note_fetch(FollowerFetch(2, 2, 110, 0, 5, 5), IMAGE, slow_ms + 2)
    back = in_sync_replicas.next_proposal(leadership, image_of(11, BROKERS), slow_ms + 2)
    assert back is not None
    assert back.isr == (1, 2)
