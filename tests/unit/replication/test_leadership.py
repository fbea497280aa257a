"""What a leader accepts of a fetch, whom deletes wait for, and who joins and leaves the ISR.

Each condition on its own.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lowtide.metadata.image import MetadataImage
from lowtide.protocol.errors import ErrorCode
from lowtide.replication import in_sync_replicas
from lowtide.replication.eligible_leaders import IsrProposal
from lowtide.replication.leadership import (
    FetchTimes,
    FollowerFetch,
    FollowerState,
    Leadership,
    may_be_registered,
)

from .leaders import LAG_MS, SELF, TOPIC_ID, FakeLog, image_of, leads, partition_of

BROKERS = {1: 1, 2: 2, 3: 3}
IMAGE = image_of(10, BROKERS)
OLD_IMAGE = image_of(10, BROKERS, reporting=False)
OFFLINE = image_of(10, BROKERS, offline_replicas={2: {TOPIC_ID: (0,)}})


def stopping(image: MetadataImage, broker_id: int) -> MetadataImage:
    leaving = msgspec.structs.replace(image.brokers[broker_id], in_controlled_shutdown=True)
    return msgspec.structs.replace(image, brokers={**image.brokers, broker_id: leaving})


def log_of(end: int = 100, **more: Any) -> FakeLog:
    log = FakeLog(log_end_offset=end, **more)
    log.leader_epochs.assign(5, 0)
    return log


def fetch_of(broker_id: int = 2, offset: int = 100, start: int = 0, **more: Any) -> FollowerFetch:
    given = {"broker_epoch": broker_id, "leader_epoch": 5, "last_fetched_epoch": 5} | more
    return FollowerFetch(broker_id=broker_id, fetch_offset=offset, log_start_offset=start, **given)


def led(*isr: int, log: FakeLog | None = None, image: MetadataImage = IMAGE, **more: Any) -> Leadership:
    return leads(log or log_of(), partition_of(isr, isr, **more), image)


# How it begins, and follows the metadata


def test_a_leadership_begins_at_the_log_s_end_and_start() -> None:
    log = log_of(100, log_start_offset=30)
    leadership = leads(log, partition_of((1, 2), (1, 2)), image_of(10, {1: 1, 2: 2}), 7)
    assert (leadership.epoch_start_offset, leadership.floor) == (100, 30)
    assert leadership.maximal_isr == {1, 2}
    assert set(leadership.followers) == {2, 3}
    assert leadership.followers[2].caught_up_ms == 7
    assert leadership.followers[2].last_fetch_ms == 7
    assert leadership.followers[3] == FollowerState(), "it isn't registered, and wasn't in sync"
    alive = leads(log, partition_of((1, 2), (1, 2)), IMAGE, 7).followers[3]
    assert alive == FollowerState(noted_fetch_ms=7), "alive, and not in sync"


def test_replicas_come_and_go_within_the_leader_epoch() -> None:
    leadership = led(1, 2)
    leadership.note_fetch(fetch_of(2), IMAGE, 1)
    kept = leadership.followers[2]
    leadership.follow(partition_of((1, 2, 4), (1, 2, 4), replicas=(1, 2, 4), revision=11))
    assert leadership.followers == {2: kept, 4: FollowerState()}
    assert leadership.followers[2] is kept
    assert leadership.maximal_isr == {1, 2, 4}


def test_a_proposal_ends_with_a_change_of_the_record_only() -> None:
    leadership = led(1, 2)
    proposal = IsrProposal(leadership.state, 10, (1, 2, 3), (1, 2, 3))
    in_sync_replicas.propose(leadership, proposal)
    assert leadership.maximal_isr == {1, 2, 3}
    leadership.follow(leadership.state)
    assert leadership.proposal is proposal
    assert leadership.maximal_isr == {1, 2, 3}
    leadership.follow(partition_of((1,), (1,), revision=11))
    assert leadership.proposal is None
    assert leadership.maximal_isr == {1}


@pytest.mark.parametrize("conflicted", [True, False])
def test_after_a_conflict_nothing_is_decided_on_the_same_image(conflicted: bool) -> None:
    """It would conflict again. What failed for another reason is tried again."""
    leadership = led(1, 2, 3)
    leadership.note_fetch(fetch_of(2), IMAGE, LAG_MS + 1)
    proposal = in_sync_replicas.next_proposal(leadership, IMAGE, LAG_MS + 1)
    assert proposal is not None
    assert (proposal.isr, proposal.decided_at) == ((1, 2), 10)
    in_sync_replicas.propose(leadership, proposal)
    assert in_sync_replicas.next_proposal(leadership, image_of(11, BROKERS), LAG_MS + 1) is None, "one is under way"
    assert in_sync_replicas.on_refused(leadership, proposal, conflicted=conflicted)
    again = in_sync_replicas.next_proposal(leadership, IMAGE, LAG_MS + 1)
    assert (again is None) == conflicted
    assert in_sync_replicas.next_proposal(leadership, image_of(11, BROKERS), LAG_MS + 1) is not None


def test_a_broker_that_registers_again_is_forgotten() -> None:
    leadership = led(1, 2)
    leadership.note_fetch(fetch_of(2), IMAGE, 1)
    assert not leadership.follow_broker(2, IMAGE)
    assert leadership.followers[2].log_end_offset == 100, "the same registration"
    assert not leadership.follow_broker(2, image_of(11, {1: 1}))
    assert leadership.followers[2].log_end_offset == 100, "it is gone, and comes perhaps no more"
    assert not leadership.follow_broker(2, image_of(12, {1: 1, 2: 12}))
    assert leadership.followers[2].log_end_offset == -1
    assert not leadership.follow_broker(9, image_of(12, {1: 1, 9: 12})), "no replica"


def test_what_it_reported_under_a_registration_newer_than_the_image_stays() -> None:
    leadership = led(1, 2)
    leadership.note_fetch(fetch_of(2), IMAGE, 1)
    leadership.followers[2].broker_epoch = 20
    leadership.follow_broker(2, IMAGE)
    assert leadership.followers[2].log_end_offset == 100


# Fetches


@pytest.mark.parametrize(
    ("changed", "image", "code"),
    [
        ({}, IMAGE, ErrorCode.NONE),
        ({"broker_id": 9}, IMAGE, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"broker_id": 9, "leader_epoch": -1}, IMAGE, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"leader_epoch": -1}, IMAGE, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"leader_epoch": -1}, OLD_IMAGE, ErrorCode.NONE),
        ({"broker_epoch": 1}, IMAGE, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"broker_epoch": 3}, IMAGE, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"broker_epoch": 10}, IMAGE, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"broker_epoch": 11}, IMAGE, ErrorCode.NONE),
        ({}, image_of(10, {1: 1}), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"start": -2}, IMAGE, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"start": -1}, IMAGE, ErrorCode.NONE),
        ({"start": 100}, IMAGE, ErrorCode.NONE),
        ({"start": 101}, IMAGE, ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_what_is_accepted_of_a_fetch(changed: dict[str, Any], image: MetadataImage, code: ErrorCode) -> None:
    assert led(1, 2).check_fetch(fetch_of(**({"broker_epoch": 2} | changed)), image) == code


def test_a_registration_that_is_over_is_refused_before_the_image_shows_that() -> None:
    leadership = led(1, 2)
    leadership.followers[2].broker_epoch = 3
    assert leadership.check_fetch(fetch_of(2), IMAGE) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_registration_may_be_in_force_if_it_is_shown_or_newer_than_the_image() -> None:
    assert [may_be_registered(2, epoch, IMAGE) for epoch in (1, 2, 3, 10, 11)] == [False, True, False, False, True]
    assert not may_be_registered(9, 2, IMAGE)
    assert may_be_registered(9, 11, IMAGE)


def test_a_registration_that_is_not_shown_counts_for_a_while() -> None:
    began = 7 * LAG_MS
    follower = FollowerState()
    follower.note_unseen(20, LAG_MS, began)
    follower.note_unseen(15, LAG_MS, began + LAG_MS)
    assert (follower.unseen_epoch, follower.unseen_ms) == (20, began + LAG_MS), "the newest"
    assert [follower.may_have_registered(revision, LAG_MS, began + 2 * LAG_MS) for revision in (19, 20)] == [
        True,
        False,
    ]
    assert not follower.may_have_registered(19, LAG_MS, began + 2 * LAG_MS + 1)
    follower.note_unseen(15, LAG_MS, began + 2 * LAG_MS + 1)
    assert follower.unseen_epoch == 15, "the other one was invented"


# Deletes


def deleted(*isr: int, image: MetadataImage = IMAGE) -> Leadership:
    """A leader that has deleted up to 50; all have fetched at 1 and have that."""
    leadership = led(*isr, image=image)
    leadership.log.advance_high_watermark(100)
    leadership.log.move_log_start(50)
    for broker_id in (2, 3):
        leadership.note_fetch(fetch_of(broker_id, start=50), image, 1)
    return leadership


def test_the_low_watermark_is_the_smallest_log_start() -> None:
    leadership = deleted(1, 2)
    assert leadership.low_watermark(IMAGE, 1) == 50
    leadership.note_fetch(fetch_of(3, start=20), IMAGE, 2)
    assert leadership.low_watermark(IMAGE, 2) == 20, "live, though not in sync"
    assert leadership.low_watermark(IMAGE, 3 + LAG_MS) == 50, "silent"
    leadership.note_fetch(fetch_of(2, start=10), IMAGE, 4)
    assert leadership.low_watermark(IMAGE, 5 + LAG_MS) == 10, "a member of the ISR is waited for"
    leadership.note_fetch(fetch_of(2, start=60), IMAGE, 5)
    assert leadership.low_watermark(IMAGE, 5 + LAG_MS) == 50, "its own counts, too"


def test_nothing_is_acknowledged_while_others_are_eligible_as_leaders() -> None:
    leadership = deleted(1, 2)
    leadership.follow(partition_of((1, 2), (1, 2), elr=(3,), elr_epochs=(3,)))
    assert leadership.low_watermark(IMAGE, 1) == -1


def test_one_whose_directory_is_offline_is_not_waited_for() -> None:
    leadership = deleted(1, 3)
    leadership.note_fetch(fetch_of(2, start=20), IMAGE, 2)
    assert leadership.low_watermark(IMAGE, 2) == 20
    assert leadership.low_watermark(OFFLINE, 2) == 50
    assert leadership.low_watermark(stopping(IMAGE, 2), 2) == 50, "it follows, and is about to stop"


def test_a_report_counts_under_the_present_registration() -> None:
    leadership = deleted(1, 2)
    follower = leadership.followers[2]
    assert leadership.reported_log_start(2, follower, IMAGE, 1) == 50
    assert leadership.reported_log_start(2, follower, image_of(11, {1: 1, 2: 11}), 1) == -1
    assert leadership.reported_log_start(2, follower, image_of(11, {1: 1}), 1) == 50, "the ISR has it still"
    leadership.note_fetch(fetch_of(2, broker_epoch=12), IMAGE, 1)
    assert leadership.reported_log_start(2, follower, IMAGE, 1) == -1
    assert leadership.reported_log_start(2, follower, IMAGE, 1 + LAG_MS) == -1
    assert leadership.reported_log_start(2, follower, IMAGE, 2 + LAG_MS) == 50
    assert leadership.reported_log_start(2, follower, image_of(12, BROKERS), 1) == 50, "there is no such registration"


def test_a_fetch_under_a_registration_that_was_not_shown_counts_when_it_is() -> None:
    """Its answer lets the follower serve consumers, though the leader has kept nothing of it but its time."""
    leadership, began, moment = deleted(1, 2), 10 * LAG_MS, 10 * LAG_MS + 7
    leadership.note_fetch(fetch_of(2, start=50), IMAGE, began)
    assert leadership.low_watermark(IMAGE, moment) == 50
    leadership.note_fetch(fetch_of(3, broker_epoch=12, start=50), IMAGE, began)
    shown = image_of(12, {1: 1, 2: 2, 3: 12})
    assert [leadership.low_watermark(image, moment) for image in (IMAGE, shown)] == [-1, -1]
    assert leadership.slow_at_ms(shown, moment) == began + LAG_MS + 1
    assert [leadership.low_watermark(shown, now_ms) for now_ms in (began + LAG_MS, began + LAG_MS + 1)] == [-1, 50]
    assert leadership.low_watermark(image_of(12, BROKERS), moment) == 50, "there is no such registration"
    assert leadership.low_watermark(image_of(12, {1: 1, 2: 2}), moment) == 50, "it is over"
    leadership.note_fetch(fetch_of(3, broker_epoch=12, start=50), shown, moment)
    assert leadership.low_watermark(shown, moment) == 50


def test_a_delete_looks_again_when_the_first_live_replica_has_been_silent() -> None:
    leadership = deleted(1, 2)
    assert leadership.slow_at_ms(IMAGE, 1) == 1 + LAG_MS + 1
    leadership.note_fetch(fetch_of(3, start=50), IMAGE, 30)
    assert leadership.slow_at_ms(IMAGE, 30) == 30 + LAG_MS + 1
    assert leadership.slow_at_ms(OFFLINE, 30) == 30 + LAG_MS + 1, "that is broker 2"
    assert leadership.slow_at_ms(image_of(10, {1: 1, 2: 2}), 30) is None, (
        "a member of the ISR is waited for, however silent"
    )
    assert leadership.slow_at_ms(IMAGE, 31 + LAG_MS) is None
    leadership.note_fetch(fetch_of(2, broker_epoch=12), IMAGE, 20)
    assert leadership.slow_at_ms(IMAGE, 30) == 20 + LAG_MS + 1, "a registration that isn't shown, and is the first"
    both = deleted(1)
    both.note_fetch(fetch_of(3, start=50), IMAGE, 40)
    assert both.slow_at_ms(IMAGE, 40) == 1 + LAG_MS + 1, "the first of two"


def test_the_floor_is_the_largest_delete_that_was_acknowledged() -> None:
    leadership = led(1, 2, log=log_of(100, log_start_offset=10))
    assert leadership.floor == 10
    leadership.note_acknowledged(40)
    leadership.note_acknowledged(30)
    assert leadership.floor == 40


@pytest.mark.parametrize(
    ("start", "offset", "last_epoch", "matches"),
    [(50, 50, 5, True), (60, 60, 3, True), (20, 50, 5, True), (20, 50, 6, True), (20, 50, 4, False), (20, 51, 4, True)],
)
def test_a_log_that_ends_where_the_leader_s_starts_has_to_show_its_last_epoch(
    start: int, offset: int, last_epoch: int, matches: bool
) -> None:
    leadership = deleted(1, 2)
    leadership.log.leader_epochs.truncate_from_start(50)
    assert leadership.matches(fetch_of(offset=offset, start=start, last_fetched_epoch=last_epoch)) == matches


# The ISR


def joins(leadership: Leadership, image: MetadataImage = IMAGE, now_ms: int = 1) -> bool:
    proposal = in_sync_replicas.next_proposal(leadership, image, now_ms)
    assert proposal is None or (proposal.isr, proposal.isr_epochs) == ((1, 3, 2), (1, 3, 2))
    return proposal is not None


def about_to_join(*, image: MetadataImage = IMAGE, **fetch: Any) -> Leadership:
    """The leadership began at offset 100 with 1 and 3 in sync, and 2 had all.

    Now the high watermark is at 110, and 2 has fetched again.
    """
    log = log_of(100, log_start_offset=50)
    leadership = led(1, 3, log=log, image=image)
    leadership.note_fetch(fetch_of(2, 100, 50), image, 1)
    log.move_log_end(120)
    leadership.note_fetch(fetch_of(3, 120, 50), image, 1)
    log.advance_high_watermark(110)
    leadership.note_fetch(fetch_of(2, **({"offset": 110, "start": 50} | fetch)), image, 1)
    return leadership


def test_a_follower_joins_that_has_what_is_committed_and_every_delete() -> None:
    assert joins(about_to_join())
    assert joins(about_to_join(offset=120))
    assert not joins(about_to_join(offset=109)), "a committed record is missing"
    assert not joins(about_to_join(start=49)), "a delete is missing"
    assert not joins(about_to_join(start=-1))
    leadership = about_to_join()
    leadership.note_acknowledged(51)
    assert not joins(leadership)


def test_a_follower_joins_when_it_has_the_leader_epoch_s_first_offset() -> None:
    """What was committed before the election may be more than the high watermark says.

    It was in sync then, and has been dropped since.
    """
    log = log_of(100, log_start_offset=50)
    leadership = led(1, 2, 3, log=log)
    leadership.follow(partition_of((1, 3), (1, 3), revision=10))
    log.move_log_end(120)
    leadership.note_fetch(fetch_of(3, 120, 50), IMAGE, 1)
    leadership.note_fetch(fetch_of(2, 99, 50), IMAGE, 1)
    assert not joins(leadership)
    leadership.note_fetch(fetch_of(2, 100, 50), IMAGE, 1)
    assert joins(leadership)


def test_a_follower_joins_only_while_its_broker_may_be_in_sync() -> None:
    leadership = about_to_join()
    assert not joins(leadership, OFFLINE)
    assert not joins(leadership, stopping(IMAGE, 2))
    assert not joins(leadership, image_of(11, {1: 1, 3: 3}))
    assert not joins(leadership, image_of(11, {1: 1, 2: 11, 3: 3})), "it fetched under another registration"
    leadership.note_fetch(fetch_of(3, 120, 50), IMAGE, 2 + LAG_MS)
    assert joins(leadership, now_ms=1 + LAG_MS)
    assert not joins(leadership, now_ms=2 + LAG_MS), "it is silent"


def test_a_follower_whose_log_may_be_another_one_does_not_join() -> None:
    leadership = about_to_join()
    leadership.followers[2].matches = False
    assert not joins(leadership)


def test_before_all_brokers_report_log_starts_a_follower_joins_without() -> None:
    leadership = about_to_join(image=OLD_IMAGE, start=-1)
    assert joins(leadership, OLD_IMAGE)
    leadership.followers[2].matches = False
    assert joins(leadership, OLD_IMAGE)


def leaves(leadership: Leadership, image: MetadataImage = IMAGE, now_ms: int = 1) -> bool:
    proposal = in_sync_replicas.next_proposal(leadership, image, now_ms)
    assert proposal is None or (proposal.isr, proposal.isr_epochs) == ((1, 3), (1, 3))
    return proposal is not None


def members() -> Leadership:
    """All are in sync; broker 2 lacks ten records since 1, broker 3 none."""
    log = log_of(90)
    leadership = led(1, 2, 3, log=log)
    leadership.note_fetch(fetch_of(2, 90), IMAGE, 1)
    log.move_log_end(100)
    leadership.note_fetch(fetch_of(3, 100), IMAGE, 1)
    return leadership


def test_a_member_leaves_that_falls_behind_for_too_long() -> None:
    assert not leaves(members(), now_ms=1 + LAG_MS)
    assert leaves(members(), now_ms=2 + LAG_MS)
    caught_up = members()
    caught_up.note_fetch(fetch_of(2, 100), IMAGE, 2)
    assert not leaves(caught_up, now_ms=10 * LAG_MS), "nothing was written since"


def test_a_member_leaves_whose_broker_is_gone_stops_or_has_registered_again() -> None:
    assert not leaves(members())
    assert leaves(members(), OFFLINE)
    assert leaves(members(), stopping(IMAGE, 2))
    assert leaves(members(), image_of(11, {1: 1, 3: 3}))
    assert leaves(members(), image_of(11, {1: 1, 2: 11, 3: 3}))


def test_a_member_that_is_no_replica_leaves() -> None:
    """A reassignment that was cancelled, for example."""
    leadership = members()
    leadership.follow(partition_of((1, 2, 3), (1, 2, 3), replicas=(1, 3), revision=11))
    assert leaves(leadership)


def test_the_leader_itself_never_leaves() -> None:
    assert in_sync_replicas.next_proposal(led(SELF), stopping(image_of(10, {1: 7}), 1), 10 * LAG_MS) is None


# The high watermark


def test_the_high_watermark_waits_for_the_maximal_isr() -> None:
    leadership = members()
    assert in_sync_replicas.high_watermark(leadership, IMAGE, 1) == 90
    assert in_sync_replicas.high_watermark(leadership, IMAGE, 10 * LAG_MS) == 90, "however long"
    leadership.follow(partition_of((1, 3), (1, 3), revision=11))
    assert in_sync_replicas.high_watermark(leadership, IMAGE, 10 * LAG_MS) == 100
    in_sync_replicas.propose(leadership, IsrProposal(leadership.state, 11, (1, 2, 3), (1, 2, 3)))
    assert in_sync_replicas.high_watermark(leadership, IMAGE, 10 * LAG_MS) == 90


def test_it_waits_for_who_is_caught_up_and_may_join() -> None:
    leadership = members()
    leadership.follow(partition_of((1, 3), (1, 3), revision=11))
    assert in_sync_replicas.high_watermark(leadership, IMAGE, 1 + LAG_MS) == 90
    assert in_sync_replicas.high_watermark(leadership, IMAGE, 2 + LAG_MS) == 100, "it isn't any more"
    assert in_sync_replicas.high_watermark(leadership, OFFLINE, 1) == 100
    assert in_sync_replicas.high_watermark(leadership, image_of(11, {1: 1, 2: 11, 3: 3}), 1) == 100


@pytest.mark.parametrize(
    ("least", "isr", "moves"), [(2, (1, 3), True), (3, (1, 3), False), (3, (1, 2, 3), True), (9, (1, 2, 3), True)]
)
def test_it_stands_still_while_the_isr_is_too_small(least: int, isr: tuple[int, ...], moves: bool) -> None:
    leadership = led(*isr, log=log_of(100, min_insync_replicas=least))
    for broker_id in (2, 3):
        leadership.note_fetch(fetch_of(broker_id), IMAGE, 1)
    assert in_sync_replicas.high_watermark(leadership, IMAGE, 1) == (100 if moves else 0)


def test_it_stands_still_while_others_are_eligible_as_leaders() -> None:
    leadership = led(1, 3, elr=(2,), elr_epochs=(2,))
    for broker_id in (2, 3):
        leadership.note_fetch(fetch_of(broker_id), IMAGE, 1)
    assert in_sync_replicas.high_watermark(leadership, IMAGE, 1) == 0


def test_a_session_s_requests_keep_a_follower_live() -> None:
    leadership, times = deleted(1, 2), FetchTimes(1)
    leadership.note_fetch(fetch_of(3, start=20, times=times), IMAGE, 1)
    times.last_ms = 500
    assert leadership.low_watermark(IMAGE, 500 + LAG_MS) == 20
    assert leadership.slow_at_ms(IMAGE, 500) == 500 + LAG_MS + 1
    assert leadership.low_watermark(IMAGE, 501 + LAG_MS) == 50
