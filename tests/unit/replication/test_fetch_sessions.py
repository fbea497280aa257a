"""A follower's fetch session.

What a request names and forgets, when it begins again, and for whom an answer counts (KIP-227).
"""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.replication import fetch_plan
from lowtide.replication.fetch_plan import (
    HOLD_MS,
    OLD_FETCH_VERSION,
    SHORT_WAIT_MS,
    Fetch,
    FetchLimits,
    FollowerFetchPlan,
)
from lowtide.replication.follower import FollowedPartition
from lowtide.replication.follower_phase import FollowerEvent
from lowtide.replication.follower_reads import AnsweredFetches

from .leaders import TOPIC_ID
from .test_fetch_plan import EPOCH, LIMITS, following

SESSION = 3
SECOND_ID = bytes(15) + b"\x02"


def asked(plan: FollowerFetchPlan, now_ms: int = 0, *, epoch: int = EPOCH, limits: FetchLimits = LIMITS) -> Fetch:
    fetch = plan.next_fetch(now_ms, epoch, limits)
    assert fetch is not None
    return fetch


def named(fetch: Fetch) -> list[int]:
    return [row.partition for topic in fetch.request.topics for row in topic.partitions]


def forgotten(fetch: Fetch) -> list[int]:
    return [number for topic in fetch.request.forgotten_topics_data for number in topic.partitions]


def answer(
    plan: FollowerFetchPlan,
    fetch: Fetch,
    *numbers: int,
    session: int = SESSION,
    now_ms: int = 0,
    topic_id: bytes = TOPIC_ID,
) -> list[int]:
    rows = [
        PartitionData(partition_index=number, error_code=0, high_watermark=0, log_start_offset=0, records=b"")
        for number in numbers
    ]
    topics = (
        [FetchableTopicResponse(topic="t" if topic_id == ZERO_TOPIC_ID else "", topic_id=topic_id, partitions=rows)]
        if rows
        else []
    )
    found = plan.on_answer(fetch, FetchResponse(error_code=0, session_id=session, responses=topics), now_ms)
    assert isinstance(found, list)
    return [each.key.partition for each, _ in found]


def in_session(*numbers: int, **options: Any) -> tuple[FollowerFetchPlan, list[FollowedPartition]]:
    """A plan whose session knows these partitions, and nothing new of them."""
    plan, each = FollowerFetchPlan(1, **options), [following(number) for number in numbers]
    for one in each:
        plan.add(one)
    assert answer(plan, asked(plan), *numbers) == list(numbers)
    answer(plan, asked(plan))
    return plan, each


def waits(one: FollowedPartition, *, due: bool = True) -> None:
    """A flush of its log is due from now on, or no longer."""
    log: Any = one.log
    log.flush_is_due = due


def test_the_first_request_names_all_and_later_ones_what_has_changed() -> None:
    plan, (first, second) = FollowerFetchPlan(1), (following(4), following(5))
    assert plan.next_fetch(0, EPOCH, LIMITS) is None, "nothing is followed"
    plan.add(first)
    plan.add(second)
    fetch = asked(plan)
    assert (named(fetch), fetch.request.session_id, fetch.request.session_epoch) == ([4, 5], 0, 0)
    assert (fetch.request.replica_state.replica_epoch, fetch.broker_epoch) == (EPOCH, EPOCH)
    answer(plan, fetch)
    second.log.move_log_end(1)
    plan.touch(second)
    fetch = asked(plan)
    assert (named(fetch), fetch.request.session_id, fetch.request.session_epoch) == ([5], SESSION, 1)
    (row,) = fetch.request.topics[0].partitions
    assert (row.fetch_offset, row.log_start_offset, row.last_fetched_epoch, row.current_leader_epoch) == (1, 0, -1, 0)
    assert row.partition_max_bytes == LIMITS.partition_bytes


def test_at_least_one_byte_is_asked_for() -> None:
    """A limit of 0 stands for a partition that is throttled."""
    plan = FollowerFetchPlan(1)
    plan.add(following(4))
    fetch = asked(plan, limits=FetchLimits(partition_bytes=0))
    assert fetch.request.topics[0].partitions[0].partition_max_bytes == 1


def test_a_session_epoch_begins_with_one_again_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_plan, "_SESSION_EPOCH_MAX", 3)
    plan, _ = in_session(4)
    epochs = []
    for _ in range(5):
        fetch = asked(plan)
        epochs.append(fetch.request.session_epoch)
        answer(plan, fetch)
    assert epochs == [2, 3, 1, 2, 3]


@pytest.mark.parametrize(("epoch", "limits"), [(EPOCH + 1, LIMITS), (EPOCH, FetchLimits(partition_bytes=5))])
def test_a_new_registration_or_size_begins_again(epoch: int, limits: FetchLimits) -> None:
    """The leader keeps the registration and the sizes with the session."""
    plan, _ = in_session(4, 5)
    reads = plan.session
    fetch = asked(plan, epoch=epoch, limits=limits)
    assert (named(fetch), fetch.request.session_epoch, fetch.request.session_id) == ([4, 5], 0, SESSION)
    assert plan.session is not reads, "what the old one received says nothing of the new one"
    answer(plan, fetch)
    assert asked(plan, epoch=epoch, limits=limits).request.session_epoch == 1


def test_an_answer_to_a_request_under_another_registration_does_not_count() -> None:
    plan, _ = in_session(4)
    before = asked(plan)
    after = asked(plan, epoch=EPOCH + 1)
    assert after.request.session_epoch == 0
    assert answer(plan, before, 4) == []
    assert asked(plan, epoch=EPOCH + 1).request.session_epoch == 0


@pytest.mark.parametrize(
    ("error", "session_id"),
    [(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0), (ErrorCode.INVALID_FETCH_SESSION_EPOCH, SESSION)],
)
def test_an_error_of_the_session_begins_again(error: ErrorCode, session_id: int) -> None:
    plan, _ = in_session(4, 5)
    fetch = asked(plan)
    assert plan.on_answer(fetch, FetchResponse(error_code=error, session_id=0, responses=[]), 0) == error
    again = asked(plan)
    assert (named(again), again.request.session_epoch, again.request.session_id) == ([4, 5], 0, session_id)


def test_a_leader_that_answers_with_another_session_is_asked_for_all() -> None:
    plan, _ = in_session(4)
    answer(plan, asked(plan), session=SESSION + 1)
    assert asked(plan).request.session_epoch == 0


def test_a_leader_without_a_session_is_asked_for_all_each_time() -> None:
    plan = FollowerFetchPlan(1)
    plan.add(following(4))
    for _ in range(3):
        fetch = asked(plan)
        assert (named(fetch), fetch.request.session_epoch) == ([4], 0)
        assert answer(plan, fetch, 4, session=0) == [4]


def test_an_old_leader_is_asked_by_name_and_has_no_session() -> None:
    plan = FollowerFetchPlan(1, version=OLD_FETCH_VERSION)
    plan.add(following(4))
    for _ in range(2):
        fetch = asked(plan)
        assert (named(fetch), fetch.request.session_epoch, fetch.version) == ([4], 0, OLD_FETCH_VERSION)
        assert answer(plan, fetch, 4, topic_id=ZERO_TOPIC_ID) == [4]


# Partitions that come and go


def test_a_partition_that_is_followed_no_longer_is_forgotten_once() -> None:
    plan, (first, second) = in_session(4, 5)
    first.partition.follower_reads.session = AnsweredFetches(9)
    plan.remove(first.key)
    assert (first.has_left, second.has_left) == (True, False)
    assert first.partition.follower_reads.session is None, "the session says no more of it"
    fetch = asked(plan)
    assert (named(fetch), forgotten(fetch)) == ([], [4])
    answer(plan, fetch)
    assert forgotten(asked(plan)) == []
    plan.remove(first.key)


def test_one_that_has_left_hides_no_other_change() -> None:
    plan, (first, second) = in_session(4, 5)
    plan.touch(first)
    plan.remove(first.key)
    second.log.move_log_end(1)
    plan.touch(second)
    assert named(asked(plan)) == [5]


def test_without_a_session_a_delayed_partition_is_left_out_too() -> None:
    plan, first = FollowerFetchPlan(1), following(4)
    plan.add(first)
    plan.add(following(5))
    answer(plan, asked(plan), 4, 5, session=0)
    plan.delay(first, 100)
    assert named(asked(plan, 10)) == [5]


def test_a_partition_that_comes_back_before_the_next_request_is_named_and_not_forgotten() -> None:
    plan, (first, _) = in_session(4, 5)
    plan.remove(first.key)
    plan.add(following(4))
    fetch = asked(plan)
    assert (named(fetch), forgotten(fetch)) == ([4], [])


def test_a_partition_that_is_left_out_of_no_request_stays_in_the_session() -> None:
    """Its leader has not learned that it was left out, and names it only with news.

    Until then each answer says that there are none.

    Otherwise consumers could not read from a follower that has flushed the last records of an idle partition.
    """
    plan, (only,) = in_session(4)
    session = only.partition.follower_reads.session = AnsweredFetches(9)
    waits(only)
    plan.touch(only)
    assert plan.next_fetch(10, EPOCH, LIMITS) is None
    waits(only, due=False)
    only.log.move_log_end(1)
    plan.touch(only)
    fetch = asked(plan, 20)
    assert (named(fetch), forgotten(fetch)) == ([4], [])
    assert only.partition.follower_reads.session is session


def test_a_new_session_forgets_nothing() -> None:
    plan, (first, _) = in_session(4, 5)
    plan.remove(first.key)
    plan.start_full_session()
    fetch = asked(plan)
    assert (named(fetch), forgotten(fetch)) == ([5], [])
    answer(plan, fetch)
    assert forgotten(asked(plan)) == []


def test_without_a_session_nothing_is_forgotten_later() -> None:
    """A partition that leaves during the first request isn't known to be part of the new session."""
    plan, (first, second) = FollowerFetchPlan(1), (following(4), following(5))
    plan.add(first)
    plan.add(second)
    fetch = asked(plan)
    plan.remove(first.key)
    answer(plan, fetch)
    assert forgotten(asked(plan)) == []


def test_a_delayed_partition_is_left_out_until_its_time() -> None:
    plan, (first, second) = in_session(4, 5)
    first.partition.follower_reads.session = AnsweredFetches(9)
    plan.delay(first, 100)
    assert plan.next_due_ms == 100
    fetch = asked(plan, 10)
    assert (named(fetch), forgotten(fetch), fetch.request.max_wait_ms) == ([], [4], 90)
    assert first.partition.follower_reads.session is None
    answer(plan, fetch)
    fetch = asked(plan, 95)
    assert (named(fetch), fetch.request.max_wait_ms) == ([], SHORT_WAIT_MS), "not shorter than that"
    answer(plan, fetch)
    fetch = asked(plan, 100)
    assert (named(fetch), plan.next_due_ms, fetch.request.max_wait_ms) == ([4], None, LIMITS.wait_ms)
    assert not second.delayed_until_ms


def test_a_delay_may_end_early() -> None:
    plan, (first, _) = in_session(4, 5)
    plan.delay(first, 100)
    answer(plan, asked(plan, 10))
    plan.end_delay(first)
    assert named(asked(plan, 11)) == [4]
    assert first.delayed_until_ms == 0


def test_a_delay_of_a_partition_that_has_left_wakes_nobody() -> None:
    plan, (first, _) = in_session(4, 5)
    plan.delay(first, 100)
    plan.remove(first.key)
    assert asked(plan, 10).request.max_wait_ms == LIMITS.wait_ms
    assert plan.next_due_ms is None


def test_nothing_is_asked_while_all_are_delayed() -> None:
    plan, (first,) = in_session(4)
    plan.delay(first, 100)
    assert plan.next_fetch(10, EPOCH, LIMITS) is None
    assert named(asked(plan, 100)) == [4]


def test_in_a_first_request_what_is_left_out_leaves_the_session() -> None:
    plan, one, other = FollowerFetchPlan(1), following(4), following(5)
    plan.add(one)
    plan.add(other)
    plan.delay(one, 100)
    one.partition.follower_reads.session = AnsweredFetches(9)
    assert named(asked(plan, 10)) == [5]
    assert one.partition.follower_reads.session is None


# The disk


@pytest.mark.parametrize("cause", ["offline", "truncating", "flush", "settling"])
def test_a_partition_that_cannot_append_is_left_out(cause: str) -> None:
    plan, (first, _) = in_session(4, 5)
    log: Any = first.log
    if cause == "flush":
        log.flush_is_due = True
    elif cause == "settling":
        first.on_event(FollowerEvent.CUT)
    else:
        setattr(log, cause, 1)
    plan.wait_for_disk(first)
    fetch = asked(plan)
    assert (named(fetch), forgotten(fetch)) == ([], [4])
    is_awaited = cause != "offline"
    assert fetch.request.max_wait_ms == (SHORT_WAIT_MS if is_awaited else LIMITS.wait_ms)
    answer(plan, fetch)
    log.truncating = 0
    log.flush_is_due = log.offline = False
    if cause == "settling":
        first.on_event(FollowerEvent.SETTLED)
    plan.on_disk_of(first)
    if cause == "offline":
        plan.touch(first)
    fetch = asked(plan)
    assert (named(fetch), fetch.request.max_wait_ms) == ([4], LIMITS.wait_ms)


def test_only_what_is_done_is_looked_at() -> None:
    plan, (first, second) = in_session(4, 5)
    for one in (first, second):
        waits(one)
        plan.wait_for_disk(one)
    assert plan.next_fetch(0, EPOCH, LIMITS) is None
    waits(first, due=False)
    plan.on_disk_of(second)
    plan.on_disk_of(first)
    plan.on_disk_of(following(9))
    fetch = asked(plan)
    assert (named(fetch), fetch.request.max_wait_ms) == ([4], SHORT_WAIT_MS), "the other one waits still"


def test_a_request_is_held_for_the_disk_after_an_answer() -> None:
    plan, (first, _) = in_session(4, 5)
    assert plan.hold_ms(0) == 0, "nothing waits"
    waits(first)
    plan.wait_for_disk(first)
    answer(plan, asked(plan, 100), now_ms=100)
    assert [plan.hold_ms(now_ms) for now_ms in (100, 102, 100 + HOLD_MS, 200)] == [HOLD_MS, HOLD_MS - 2, 0, 0]
    first.on_event(FollowerEvent.CUT)
    assert plan.hold_ms(100) == 0, "what was cut takes longer"
    fresh = FollowerFetchPlan(1)
    fresh.add(first)
    first.on_event(FollowerEvent.SETTLED)
    assert fresh.hold_ms(0) == 0, "there was no answer yet"
    plan.remove(first.key)
    assert plan.hold_ms(100) == 0


def test_what_the_disk_is_done_with_holds_no_request() -> None:
    plan, (first, _) = in_session(4, 5)
    waits(first)
    plan.wait_for_disk(first)
    answer(plan, asked(plan))
    assert plan.hold_ms(0) == HOLD_MS
    waits(first, due=False)
    plan.on_disk_of(first)
    assert plan.hold_ms(0) == 0


# Whose answer it is


def test_partitions_that_are_not_followed_are_passed_over() -> None:
    plan, _ = in_session(4, 5)
    assert answer(plan, asked(plan), 9, 5, 4) == [5, 4]
    assert asked(plan).request.session_epoch > 0, "nothing is lost"
    assert answer(plan, asked(plan), 4, topic_id=SECOND_ID) == []


def test_a_named_partition_leaves_the_session_s_idle_ones() -> None:
    """That nothing is new isn't what the answer says of it."""
    plan, (first, second) = in_session(4, 5)
    sessions = [AnsweredFetches(7), AnsweredFetches(8)]
    first.partition.follower_reads.session, second.partition.follower_reads.session = sessions
    fetch = asked(plan, 50)
    answer(plan, fetch, 4)
    assert first.partition.follower_reads.session is None
    assert second.partition.follower_reads.session is sessions[1]
    assert plan.session.sent_ms == 50


@pytest.mark.parametrize("change", ["leader epoch", "phase", "log end", "truncating"])
def test_an_answer_about_what_has_changed_since_does_not_count_and_is_asked_for_again(change: str) -> None:
    """Its session takes it for known."""
    plan, (first, _) = in_session(4, 5)
    fetch = asked(plan)
    match change:
        case "leader epoch":
            first.leader_epoch = 1
        case "phase":
            first.on_event(FollowerEvent.ASK_RANGE)
        case "log end":
            first.log.move_log_end(1)
        case _:
            log: Any = first.log
            log.truncating = 1
    assert answer(plan, fetch, 4, 5) == [5]
    again = asked(plan)
    assert again.request.session_epoch == 0
    assert named(again) == ([4, 5] if change in {"leader epoch", "log end"} else [5])
