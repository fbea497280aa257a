"""Deletes wait for a leader that is about to stop.

Its leadership was moved, and it may not have seen that yet (rule DR3).
"""

from __future__ import annotations

import msgspec
import pytest

from lowtide.metadata.image import MetadataImage
from lowtide.replication.leadership import FollowerFetch, Leadership

from .leaders import LAG_MS, FakeLog, image_of, leads, partition_of

BROKERS = {1: 1, 2: 2, 3: 3}


def with_stopping(image: MetadataImage, broker_id: int) -> MetadataImage:
    stopping = msgspec.structs.replace(image.brokers[broker_id], in_controlled_shutdown=True)
    return msgspec.structs.replace(image, brokers={**image.brokers, broker_id: stopping})


IMAGE = with_stopping(image_of(10, BROKERS), 2)


@pytest.fixture
def leadership() -> Leadership:
    """Broker 1 took over from broker 2, in the step that took that out of the ISR.

    It has deleted, and broker 3 has reported that.
    """
    log = FakeLog(log_end_offset=100)
    log.leader_epochs.assign(5, 0)
    leadership = leads(log, partition_of((1, 3), (1, 3)), IMAGE)
    log.advance_high_watermark(100)
    log.move_log_start(50)
    leadership.note_fetch(FollowerFetch(3, 3, 100, 50, 5, 5), IMAGE, 1)
    return leadership


def test_a_delete_waits_for_the_last_leader(leadership: Leadership) -> None:
    """It would show what was deleted until it sees that it leads no more, which its first fetch proves."""
    assert leadership.low_watermark(IMAGE, 1) == -1
    leadership.note_fetch(FollowerFetch(2, 2, 100, 20, 5, 5), IMAGE, 2)
    assert leadership.low_watermark(IMAGE, 2) == 50, "it follows, and is about to stop"


def test_it_does_not_wait_for_one_that_is_gone_or_silent_for_too_long(leadership: Leadership) -> None:
    """A broker without a registration answers nothing; neither does one whose image is so old."""
    gone = image_of(11, {1: 1, 3: 3})
    leadership.follow_broker(2, gone)
    assert leadership.low_watermark(gone, 2) == 50
    assert leadership.low_watermark(IMAGE, LAG_MS) == -1
    leadership.note_fetch(FollowerFetch(3, 3, 100, 50, 5, 5), IMAGE, LAG_MS)
    assert leadership.low_watermark(IMAGE, LAG_MS + 1) == 50
