"""What a log takes from a leader: whole batches as they are, none twice, none that is damaged."""

from __future__ import annotations

import errno
from typing import Any
from uuid import UUID

import pytest

from lowtide.protocol.erasure_record import ErasureRecord, ReplicaSearch
from lowtide.protocol.errors import ErrorCode
from lowtide.storage.directory.log_starts import make_log_start_visible
from lowtide.storage.log.durability import LogDurability
from lowtide.storage.log.log import FollowerAppend
from lowtide.storage.log.log_erasures import NotSearchedError
from lowtide.storage.log.log_values import LogConfig
from lowtide.storage.log.markers import make_erasure
from lowtide.storage.log.segments.segment import Segment
from lowtide.storage.log.stored_batches import StoredBatch, split_stored_batches
from lowtide.storage.log.truncation import LogTruncation

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


def test_a_follower_takes_no_erasure_for_which_it_was_not_searched() -> None:
    """Protects a person whose old record only this replica has: nothing is written, and it starts over."""
    leader, follower = new_log(), new_log()
    append(leader, 1, 2)
    search = ReplicaSearch(UUID(int=9), (1, 2))
    leader.append_as_leader(make_erasure(ErasureRecord(UUID(int=7), (), search), 0), leader_epoch=0, now_ms=NOW_MS)
    content = memoryview(content_at(leader, 0))
    with pytest.raises(NotSearchedError):
        follower.append_as_follower(content, now_ms=NOW_MS, broker_id=2)
    assert follower.log_end_offset == 0
    follower.erasures.note_search(search.search_id)
    with pytest.raises(NotSearchedError):
        follower.append_as_follower(content, now_ms=NOW_MS, broker_id=3)
    assert isinstance(follower.append_as_follower(content, now_ms=NOW_MS, broker_id=2), FollowerAppend)
    assert [each.has_search for each in follower.erasures.known] == [True]


def test_a_follower_takes_an_erasure_that_the_leader_had_when_the_copying_began() -> None:
    """Protects followers of a leader that can't commit its erasure without them: they would start over for ever."""
    leader, follower = new_log(), new_log()
    search = ReplicaSearch(UUID(int=9), (1,))
    for number in range(2):
        erasure = make_erasure(ErasureRecord(UUID(int=number), (), search), 0)
        leader.append_as_leader(erasure, leader_epoch=0, now_ms=NOW_MS)
    content = memoryview(content_at(leader, 0))
    with pytest.raises(NotSearchedError) as met:
        follower.append_as_follower(content, now_ms=NOW_MS, broker_id=2)
    assert met.value.offset == 0
    with pytest.raises(NotSearchedError) as met:
        follower.append_as_follower(content, now_ms=NOW_MS, broker_id=2, erasures_before=1)
    assert met.value.offset == 1
    taken = follower.append_as_follower(content, now_ms=NOW_MS, broker_id=2, erasures_before=2)
    assert isinstance(taken, FollowerAppend)


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
        make_log_start_visible(follower, 7)
    taken = follower.append_as_follower(memoryview(content_at(leader, 7)), now_ms=NOW_MS)
    assert isinstance(taken, FollowerAppend)
    assert (follower.log_start_offset, follower.log_end_offset) == (7, 11)
    assert follower.leader_epochs.entries() == [(0, 7)]
    assert content_at(follower, 7) == content_at(leader, 7)
    assert follower.read(6, 10, end_offset=11).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_what_straddles_the_log_start_is_on_the_disk_when_it_is_flushed() -> None:
    """S1: its segment takes the place of the one that the log had, and both names must be as they are now."""
    leader, follower = new_log(), new_log()
    append(leader, *range(10))
    truncation = LogTruncation(follower).truncate_fully_and_start_at(7, leader_epoch=0, now_ms=NOW_MS)
    assert truncation.barrier is not None
    assert follower.directory in truncation.barrier.directories
    assert isinstance(follower.append_as_follower(memoryview(content_at(leader, 7)), now_ms=NOW_MS), FollowerAppend)
    assert [segment.base_offset for segment in follower.segments] == [0]
    barrier = LogDurability(follower).flush_barrier()
    assert barrier is not None
    assert follower.directory in barrier.directories


@pytest.mark.parametrize(
    "limits", [SMALL_SEGMENTS, LogConfig(), LogConfig(segment_index_bytes=36, index_interval_bytes=0)]
)
def test_batches_taken_together_leave_the_log_as_one_by_one(limits: LogConfig) -> None:
    """Also where some of them belong into another segment, for its bytes or for its index."""
    leader, together, singly = new_log(), new_log(limits), new_log(limits)
    for number in range(12):
        append(leader, number, number + 100, leader_epoch=number // 5)
    content = memoryview(content_at(leader, 0))
    for first in (0, 2, 14):
        size = sum(
            batch.header.size_bytes for batch in _batches(content, first, 14 if first == 2 else 24 if first else 2)
        )
        start = sum(batch.header.size_bytes for batch in _batches(content, 0, first))
        assert isinstance(together.append_as_follower(content[start : start + size], now_ms=NOW_MS), FollowerAppend)
    for batch in _batches(content, 0, 24):
        assert isinstance(singly.append_as_follower(batch.content, now_ms=NOW_MS), FollowerAppend)
    assert (together.log_end_offset, singly.log_end_offset) == (24, 24)
    assert together.leader_epochs.entries() == singly.leader_epochs.entries()
    for one, other in zip(together.segments, singly.segments, strict=True):
        assert (one.base_offset, one.size, one.max_timestamp) == (other.base_offset, other.size, other.max_timestamp)
        assert [index.encode() for index in one.indexes] == [index.encode() for index in other.indexes]
        assert list(one.batches(0)) == list(other.batches(0))


def test_batches_taken_together_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = new_log(), new_log()
    for number in range(6):
        append(leader, number)
    content = memoryview(content_at(leader, 0))
    first = _batches(content, 0, 1)[0].header.size_bytes
    written: list[int] = []
    write = Segment.write
    monkeypatch.setattr(
        Segment, "write", lambda *args, **options: (written.append(args[2]), write(*args, **options))[1]
    )
    follower.append_as_follower(content[:first], now_ms=NOW_MS)
    follower.append_as_follower(content[first:], now_ms=NOW_MS)
    assert written == [first, len(content) - first]
    assert content_at(follower, 0) == content


def test_where_there_is_no_room_for_all_those_that_fit_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletes that the leader made since are learned with them, and make room."""
    leader, follower = new_log(), new_log()
    for number in range(4):
        append(leader, number)
    content = memoryview(content_at(leader, 0))
    size = _batches(content, 0, 1)[0].header.size_bytes
    follower.append_as_follower(content[:size], now_ms=NOW_MS)
    write = Segment.write

    def write_while_there_is_room(segment: Segment, parts: list[Any], count: int, **options: Any) -> None:
        if segment.size + count > 3 * size:
            raise OSError(errno.ENOSPC, "full")
        write(segment, parts, count, **options)

    monkeypatch.setattr(Segment, "write", write_while_there_is_room)
    assert follower.append_as_follower(content[size:], now_ms=NOW_MS) == ErrorCode.KAFKA_STORAGE_ERROR
    assert (follower.log_end_offset, follower.disk_full) == (3, True)
    assert content_at(follower, 0) == content[: 3 * size]


def _batches(content: memoryview, first: int, end: int) -> list[StoredBatch]:
    """Those with offsets from `first` up to `end`."""
    split = split_stored_batches(content)
    assert isinstance(split, list)
    return [batch for batch in split if first <= batch.header.base_offset < end]
