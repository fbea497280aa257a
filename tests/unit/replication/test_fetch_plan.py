"""The next fetch of a follower.

Of a thousand partitions the changed ones, and for a throttled one everything but records.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from lowtide.protocol.types import TopicPartition
from lowtide.replication import fetch_plan
from lowtide.replication.fetch_plan import SHORT_WAIT_MS, THROTTLE_MS_MAX, FetchLimits, FollowerFetchPlan
from lowtide.replication.follower import FollowedPartition
from lowtide.replication.follower_reads import FollowerReads

from .leaders import TOPIC_ID, FakeLog

COUNT = 1000
EPOCH = 7
LIMITS = FetchLimits()


def following(number: int) -> FollowedPartition:
    log: Any = FakeLog()
    log.offline, log.truncating = False, 0
    key = TopicPartition("t", number)
    partition: Any = SimpleNamespace(topic_partition=key, topic_id=TOPIC_ID, log=log, follower_reads=FollowerReads())
    return FollowedPartition(partition=partition, leader_epoch=0)


def answered(plan: FollowerFetchPlan, fetch: Any, *numbers: int) -> list[FollowedPartition]:
    rows = [
        PartitionData(partition_index=number, error_code=0, high_watermark=0, log_start_offset=0, records=b"")
        for number in numbers
    ]
    topics = [FetchableTopicResponse(topic="", topic_id=TOPIC_ID, partitions=rows)] if rows else []
    found = plan.on_answer(fetch, FetchResponse(error_code=0, session_id=3, responses=topics), 0)
    assert isinstance(found, list)
    return [each for each, _ in found]


def test_a_thousand_idle_partitions_cost_a_session_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = FollowerFetchPlan(1)
    for number in range(COUNT):
        plan.add(following(number))
    fetch = plan.next_fetch(0, EPOCH, LIMITS)
    assert fetch is not None
    assert sum(len(topic.partitions) for topic in fetch.request.topics) == COUNT
    answered(plan, fetch, *range(COUNT))
    after_them = plan.next_fetch(0, EPOCH, LIMITS)  # Answered partitions are visited once more.
    assert after_them is not None
    assert after_them.request.topics == []
    answered(plan, after_them)
    visited: list[int] = []
    row = FollowerFetchPlan._row

    def spied(self: FollowerFetchPlan, each: FollowedPartition, now_ms: int) -> Any:
        visited.append(each.key.partition)
        return row(self, each, now_ms)

    monkeypatch.setattr(FollowerFetchPlan, "_row", spied)
    for epoch in range(2, 10):
        fetch = plan.next_fetch(0, EPOCH, LIMITS)
        assert fetch is not None
        assert (fetch.request.topics, fetch.request.session_epoch) == ([], epoch)
        answered(plan, fetch)
    assert visited == []
    plan.followed[TopicPartition("t", 5)].log.move_log_end(1)
    plan.touch(plan.followed[TopicPartition("t", 5)])
    fetch = plan.next_fetch(0, EPOCH, LIMITS)
    assert fetch is not None
    assert [each.partition for topic in fetch.request.topics for each in topic.partitions] == visited == [5]


def test_a_response_about_a_partition_that_was_added_again_meanwhile_is_requested_again() -> None:
    """The response is ignored, but its session considers it delivered.

    Only a new session returns the log start of a waiting delete.
    """
    plan = FollowerFetchPlan(1)
    for number in range(2):
        plan.add(following(number))
    fetch = plan.next_fetch(0, EPOCH, LIMITS)
    assert len(answered(plan, fetch, 0, 1)) == 2
    waiting = plan.next_fetch(0, EPOCH, LIMITS)
    assert waiting is not None
    assert waiting.request.session_epoch == 1
    plan.add(following(0))
    assert [each.key.partition for each in answered(plan, waiting, 0, 1)] == [1]
    again = plan.next_fetch(0, EPOCH, LIMITS)
    assert again is not None
    assert again.request.session_epoch == 0
    assert [each.partition for topic in again.request.topics for each in topic.partitions] == [1, 0]


def test_a_log_start_from_an_earlier_leader_is_reported_when_it_is_on_the_disk() -> None:
    """No event announces that: until then the plan polls at short intervals, because a delete waits for the report."""
    plan, known = FollowerFetchPlan(1), following(0)
    known.log.log_start_pending = 5
    plan.add(known)
    fetch = plan.next_fetch(0, EPOCH, LIMITS)
    assert fetch is not None
    assert fetch.request.max_wait_ms == SHORT_WAIT_MS
    answered(plan, fetch)
    known.log.log_start_offset = 5
    fetch = plan.next_fetch(0, EPOCH, LIMITS)
    assert fetch is not None
    assert [each.log_start_offset for topic in fetch.request.topics for each in topic.partitions] == [5]


def test_a_throttled_partition_stays_in_the_session_and_is_asked_for_records_again_in_time() -> None:
    waits = [300, 0]
    plan = FollowerFetchPlan(1, throttle=lambda _following: waits[0])
    plan.add(following(0))

    def asked(now_ms: int) -> list[int]:
        fetch = plan.next_fetch(now_ms, EPOCH, LIMITS)
        assert fetch is not None
        answered(plan, fetch)
        assert fetch.request.forgotten_topics_data == []
        assert fetch.request.max_wait_ms <= max(300 - now_ms, 10) or now_ms >= 300
        return [each.partition_max_bytes for topic in fetch.request.topics for each in topic.partitions]

    assert asked(0) == [0]
    assert asked(100) == []
    waits.pop(0)
    assert asked(299) == []
    assert asked(300) == [LIMITS.partition_bytes]


def test_a_long_throttle_is_checked_again_before_it_is_over() -> None:
    """It may be lifted earlier."""
    plan = FollowerFetchPlan(1, throttle=lambda _following: 10 * THROTTLE_MS_MAX)
    plan.add(following(0))
    plan.next_fetch(0, EPOCH, LIMITS)
    assert plan.next_due_ms == THROTTLE_MS_MAX


def test_a_partition_that_the_disk_is_done_with_costs_no_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = FollowerFetchPlan(1)
    all_of_them = [following(number) for number in range(COUNT)]
    for each in all_of_them:
        plan.add(each)
        each.log.truncating = 1
        plan.wait_for_disk(each)
    looks: list[FollowedPartition] = []
    awaits = fetch_plan._awaits_disk

    def spied(each: FollowedPartition) -> bool:
        looks.append(each)
        return awaits(each)

    monkeypatch.setattr(fetch_plan, "_awaits_disk", spied)
    for each in all_of_them:
        each.log.truncating = 0
        plan.on_disk_of(each)
    assert looks == all_of_them
    assert plan.hold_ms(0) == 0
    fetch = plan.next_fetch(0, EPOCH, LIMITS)
    assert fetch is not None
    assert sum(len(topic.partitions) for topic in fetch.request.topics) == COUNT
