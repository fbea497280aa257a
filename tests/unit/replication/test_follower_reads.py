"""When a follower may answer consumers: rule DR7, word by word."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.replication.follower_reads import AnsweredFetches, FollowerReads
from lowtide.storage.log.offsets import LogOffsets

LIMIT_MS = 100


def offsets(start: int = 5, end: int = 9) -> LogOffsets:
    return LogOffsets(log_start_offset=start, log_end_offset=end, high_watermark=end, recovery_point=end)


def heard(start: int = 5, *, sent_ms: int = 1000, session: AnsweredFetches | None = None) -> FollowerReads:
    reads = FollowerReads()
    reads.note_answer(leader_epoch=7, broker_epoch=3, leader_log_start_offset=start, sent_ms=sent_ms, session=session)
    return reads


def serves(reads: FollowerReads, log: LogOffsets | None = None, **changed: Any) -> bool:
    asked = {"leader_epoch": 7, "broker_epoch": 3, "now_ms": 1000, "limit_ms": LIMIT_MS} | changed
    return reads.may_serve(log or offsets(), **asked)


def test_it_serves_once_its_log_start_has_reached_the_leader_s() -> None:
    assert not serves(FollowerReads(), leader_epoch=-1, broker_epoch=-1), "nothing was received yet"
    assert serves(heard(5))
    assert serves(heard(4)), "it may be further"
    assert not serves(heard(6))
    assert serves(heard(0), offsets(0)), "no record was ever deleted"
    assert not serves(heard(-1), offsets(0)), "the leader tells none"


def test_not_while_its_own_log_start_is_on_its_way_to_the_disk() -> None:
    log = offsets()
    log.request_log_start(8)
    assert not serves(heard(5), log)
    log.move_log_start(8)
    assert serves(heard(8), log)


@pytest.mark.parametrize(
    "changed", [{"leader_epoch": 6}, {"leader_epoch": 8}, {"broker_epoch": 2}, {"broker_epoch": 4}]
)
def test_what_was_received_counts_in_its_leader_epoch_and_registration_only(changed: dict[str, int]) -> None:
    assert not serves(heard(), **changed)


def test_an_answer_counts_for_a_while_from_when_its_fetch_was_sent() -> None:
    assert serves(heard(), now_ms=1000 + LIMIT_MS)
    assert not serves(heard(), now_ms=1001 + LIMIT_MS)
    assert serves(heard(sent_ms=2000), now_ms=2000)


def test_each_answer_of_its_session_counts() -> None:
    session = AnsweredFetches()
    reads = heard(session=session)
    assert serves(reads, now_ms=1000 + LIMIT_MS), "the session has had no answer since"
    session.sent_ms = 1500
    assert serves(reads, now_ms=1500 + LIMIT_MS)
    assert not serves(reads, now_ms=1501 + LIMIT_MS)


def test_answers_after_it_has_left_the_session_do_not() -> None:
    session = AnsweredFetches()
    reads = heard(session=session)
    session.sent_ms = 1500
    reads.leave_session()
    session.sent_ms = 9000
    assert serves(reads, now_ms=1500 + LIMIT_MS)
    assert not serves(reads, now_ms=9000)
    reads.leave_session()
    assert serves(reads, now_ms=1500 + LIMIT_MS), "it was in none"


def test_the_answer_is_the_later_one_when_the_session_s_is_older() -> None:
    session = AnsweredFetches(900)
    reads = heard(session=session)
    reads.leave_session()
    assert serves(reads, now_ms=1000 + LIMIT_MS)
