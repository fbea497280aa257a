"""What a log takes from a leader: whole batches as they are, none twice, none that is damaged."""

from __future__ import annotations

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.storage.log.log import FollowerAppend

from .test_log import NOW_MS, SMALL_SEGMENTS, append, content_at, new_log


def test_a_follower_takes_batches_as_they_are() -> None:
    """P1: bytes, offsets and epochs are the leader's; a batch that is cut off at the end is fetched again."""
    leader, follower = new_log(), new_log(SMALL_SEGMENTS)
    append(leader, 1, 2, leader_epoch=3)
    append(leader, 3, leader_epoch=4, producer_id=9, producer_epoch=0, base_sequence=0)
    append(leader, 4, leader_epoch=4)
    content = content_at(leader, 0)
    taken = follower.append_as_follower(memoryview(content)[:-5], now_ms=NOW_MS)
    assert isinstance(taken, FollowerAppend)
    assert (taken.first_offset, taken.last_offset, follower.log_end_offset) == (0, 2, 3)
    assert follower.append_as_follower(memoryview(content_at(leader, 3)), now_ms=NOW_MS) == FollowerAppend(
        3, 3, len(content_at(leader, 3)), []
    )
    assert content_at(follower, 0) == content
    assert follower.leader_epochs.entries() == leader.leader_epochs.entries()
    assert follower.producer_state.producers[9].last_sequence == 0


@pytest.mark.parametrize("position", [12 + 5, 21, 70])
def test_a_follower_takes_nothing_with_a_wrong_checksum(position: int) -> None:
    """S3."""
    leader, follower = new_log(), new_log()
    append(leader, 1, 2)
    content = bytearray(content_at(leader, 0))
    content[position] ^= 1
    assert follower.append_as_follower(memoryview(content), now_ms=NOW_MS) == ErrorCode.CORRUPT_MESSAGE
    assert follower.size_bytes == 0


def test_a_follower_takes_no_offset_twice() -> None:
    leader, follower = new_log(), new_log()
    append(leader, 1, 2)
    append(leader, 3)
    content = memoryview(content_at(leader, 0))
    follower.append_as_follower(content, now_ms=NOW_MS)
    assert follower.append_as_follower(content, now_ms=NOW_MS) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert follower.log_end_offset == 3


@pytest.mark.parametrize("with_old_records", [False, True])
def test_an_empty_follower_takes_a_batch_that_straddles_its_log_start(with_old_records: bool) -> None:
    """KAFKA-6975: the log start lies inside the leader's batch, and stays where it is."""
    leader = new_log()
    append(leader, *range(10))
    append(leader, 11)
    follower = new_log(log_start=0 if with_old_records else 7)
    if with_old_records:
        append(follower, *range(7))
        follower.advance_high_watermark(7)
        follower.request_log_start(7)
        follower.make_log_start_visible(7)
    taken = follower.append_as_follower(memoryview(content_at(leader, 7)), now_ms=NOW_MS)
    assert isinstance(taken, FollowerAppend)
    assert (follower.log_start_offset, follower.log_end_offset) == (7, 11)
    assert follower.leader_epochs.entries() == [(0, 7)]
    assert content_at(follower, 7) == content_at(leader, 7)
    assert follower.read(6, 10, end_offset=11).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
