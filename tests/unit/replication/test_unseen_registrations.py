"""A follower's fetch under a registration that the leader's image lacks: it may be new, or it may be invented."""

from __future__ import annotations

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.replication import in_sync_replicas
from lowtide.replication.leadership import FollowerFetch, Leadership

from .leaders import LAG_MS, FakeLog, image_of, leads, partition_of

BROKERS = {1: 1, 2: 2, 3: 3}
IMAGE = image_of(10, BROKERS)
INVENTED = 1 << 40


@pytest.fixture
def log() -> FakeLog:
    log = FakeLog(log_end_offset=100)
    log.leader_epochs.assign(5, 0)
    return log


@pytest.fixture
def leadership(log: FakeLog) -> Leadership:
    """All are in sync and have fetched everything; broker 2 lacks the last ten records."""
    leadership = leads(log, partition_of((1, 2, 3), (1, 2, 3)), IMAGE)
    for fetch in (FollowerFetch(2, 2, 90, 0, 5, 5), FollowerFetch(3, 3, 100, 0, 5, 5)):
        assert leadership.check_fetch(fetch, IMAGE) == ErrorCode.NONE
        assert leadership.note_fetch(fetch, IMAGE, 0) is not None
    log.advance_high_watermark(in_sync_replicas.high_watermark(leadership, IMAGE, 0))
    assert log.high_watermark == 90
    return leadership


@pytest.mark.parametrize("offset", [0, 90, 100])
def test_it_moves_no_watermark_and_no_isr(leadership: Leadership, log: FakeLog, offset: int) -> None:
    fetch = FollowerFetch(2, INVENTED, offset, offset, 5, 5)
    assert leadership.check_fetch(fetch, IMAGE) == ErrorCode.NONE
    assert leadership.note_fetch(fetch, IMAGE, 1) is None
    assert in_sync_replicas.high_watermark(leadership, IMAGE, 1) == 90
    assert in_sync_replicas.next_proposal(leadership, IMAGE, LAG_MS) is None, (
        "another client's fetch removes no replica"
    )


def test_the_named_broker_continues_under_its_own_registration(leadership: Leadership) -> None:
    leadership.note_fetch(FollowerFetch(2, INVENTED, 0, 0, 5, 5), IMAGE, 1)
    fetch = FollowerFetch(2, 2, 100, 0, 5, 5)
    assert leadership.check_fetch(fetch, IMAGE) == ErrorCode.NONE
    assert leadership.note_fetch(fetch, IMAGE, 2) is not None
    assert in_sync_replicas.high_watermark(leadership, IMAGE, 2) == 100


def test_deletes_wait_for_it_for_a_while(leadership: Leadership, log: FakeLog) -> None:
    log.move_log_start(50)
    for fetch in (FollowerFetch(2, 2, 90, 50, 5, 5), FollowerFetch(3, 3, 100, 50, 5, 5)):
        leadership.note_fetch(fetch, IMAGE, 1)
    assert leadership.low_watermark(IMAGE, 1) == 50
    leadership.note_fetch(FollowerFetch(2, 11, 90, 50, 5, 5), IMAGE, 2)
    assert leadership.low_watermark(IMAGE, 2) == -1, "its report counts when the image has the registration"
    assert leadership.slow_at_ms(IMAGE, 2) == 2 + LAG_MS + 1
    assert leadership.low_watermark(IMAGE, 2 + LAG_MS + 1) == 50, "there is no such registration"


def test_the_next_fetch_counts_once_the_image_has_it(leadership: Leadership) -> None:
    leadership.note_fetch(FollowerFetch(2, 11, 95, 0, 5, 5), IMAGE, 1)
    later = image_of(11, {**BROKERS, 2: 11})
    assert leadership.follow_broker(2, later), "waiting requests must be checked"
    assert leadership.low_watermark(later, 1) == -1
    fetch = FollowerFetch(2, 11, 95, 0, 5, 5)
    assert leadership.check_fetch(fetch, later) == ErrorCode.NONE
    assert leadership.note_fetch(fetch, later, 2) is not None
    assert leadership.low_watermark(later, 2) == 0
    assert in_sync_replicas.high_watermark(leadership, later, 2) == 95


def test_a_report_of_an_earlier_registration_acknowledges_no_delete(leadership: Leadership, log: FakeLog) -> None:
    """Broker 2 has registered again in the image.

    Partitions apply an image in slices, and this one has not applied it yet.
    """
    log.move_log_start(50)
    for fetch in (FollowerFetch(2, 2, 90, 50, 5, 5), FollowerFetch(3, 3, 100, 50, 5, 5)):
        leadership.note_fetch(fetch, IMAGE, 1)
    assert leadership.low_watermark(IMAGE, 1) == 50
    later = image_of(11, {**BROKERS, 2: 11})
    assert leadership.low_watermark(later, 1) == -1, "its directory may have been restored to an earlier state"
    leadership.follow_broker(2, later)
    assert leadership.low_watermark(later, 1) == -1
    leadership.note_fetch(FollowerFetch(2, 11, 90, 50, 5, 5), later, 2)
    assert leadership.low_watermark(later, 2) == 50
