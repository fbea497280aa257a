"""Fetch sessions (KIP-227): ids, epochs, forgotten partitions, declined sessions."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from lowtide.broker.partitions.fetch.fetch_session import FetchPlan, FetchSessionCache
from lowtide.broker.partitions.fetch.fetch_session_slots import EVICT_AFTER_IDLE_MS, MAXIMUM_CACHED_PARTITIONS
from lowtide.broker.partitions.fetch.fetch_targets import FetchTarget
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)


def request(
    session: tuple[int, int], partitions: dict[int, int] | None = None, forgotten: list[int] | None = None, **more: Any
) -> FetchRequest:
    """A fetch of topic `t`: partition → offset."""
    rows = [
        FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=100)
        for number, offset in (partitions or {}).items()
    ]
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic="t", partitions=rows)] if rows else [],
        forgotten_topics_data=[ForgottenTopic(topic="t", partitions=forgotten)] if forgotten else [],
        **more,
    )


def cache(slots: int = 10) -> FetchSessionCache:
    return FetchSessionCache(slots, random.Random(1))


def offsets(plan: FetchPlan) -> dict[int, int]:
    return {target.partition: target.fetch_offset for target in plan.targets}


def answer(
    partition: int, *, high_watermark: int = 5, log_start: int = 0, records: bytes = b"", error: int = 0
) -> PartitionData:
    return PartitionData(
        partition_index=partition,
        error_code=error,
        high_watermark=high_watermark,
        log_start_offset=log_start,
        records=records,
    )


def test_sessionless_fetch_opens_nothing() -> None:
    sessions = cache()
    plan = sessions.plan(request((0, -1), {0: 7}), 12, 0)
    assert (plan.session_id, plan.incremental, offsets(plan)) == (0, False, {0: 7})
    assert len(sessions) == 0


def test_session_remembers_partitions_and_takes_new_offsets() -> None:
    sessions = cache()
    opened = sessions.plan(request((0, 0), {0: 7, 1: 8}), 12, 0)
    assert opened.session_id > 0
    plan = sessions.plan(request((opened.session_id, 1), {1: 9}), 12, 0)
    assert plan.incremental
    assert offsets(plan) == {0: 7, 1: 9}


def test_wrong_epoch_leaves_the_session_alive() -> None:
    sessions = cache()
    session_id = sessions.plan(request((0, 0), {0: 7}), 12, 0).session_id
    assert sessions.plan(request((session_id, 5)), 12, 0).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.plan(request((session_id, 1)), 12, 0).error_code == ErrorCode.NONE


def test_unknown_session() -> None:
    for session in ((99, 1), (0, 1), (0, -2)):
        assert cache().plan(request(session, {0: 1}), 12, 0).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_that_grows_beyond_the_limit_of_all_sessions_is_closed() -> None:
    """Its client starts again with a full fetch, for which no session is opened. Sessions that do not grow continue."""
    sessions = cache()
    other = sessions.plan(request((0, 0), {0: 7}), 12, 0).session_id
    session_id = sessions.plan(request((0, 0), {0: 7}), 12, 0).session_id
    plan = sessions.plan(request((session_id, 1), dict.fromkeys(range(MAXIMUM_CACHED_PARTITIONS - 1), 0)), 12, 0)
    assert (plan.error_code, len(sessions)) == (ErrorCode.NONE, 2)
    plan = sessions.plan(request((session_id, 2), {MAXIMUM_CACHED_PARTITIONS: 0}), 12, 0)
    assert (plan.error_code, len(sessions)) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 1)
    assert sessions.plan(request((other, 1), {1: 7}), 12, 0).error_code == ErrorCode.NONE


def test_forgetting_the_last_partition_closes_the_session() -> None:
    sessions = cache()
    session_id = sessions.plan(request((0, 0), {0: 7}), 12, 0).session_id
    plan = sessions.plan(request((session_id, 1), forgotten=[0]), 12, 0)
    assert (plan.error_code, plan.session_id, len(sessions)) == (ErrorCode.NONE, 0, 0)
    assert sessions.plan(request((session_id, 2)), 12, 0).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_topic_ids_and_names_do_not_mix_in_a_session() -> None:
    sessions = cache()
    session_id = sessions.plan(request((0, 0), {0: 7}), 12, 0).session_id
    assert sessions.plan(request((session_id, 1)), 13, 0).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_full_cache_declines_until_a_session_is_idle() -> None:
    """A client that opens session after session cannot evict those in use."""
    sessions = cache(slots=2)
    first = sessions.plan(request((0, 0), {0: 1}), 12, 0).session_id
    sessions.plan(request((0, 0), {0: 1}), 12, 0)
    assert sessions.plan(request((0, 0), {0: 1}), 12, EVICT_AFTER_IDLE_MS - 1).session_id == 0
    assert sessions.plan(request((0, 0), {0: 1}), 12, EVICT_AFTER_IDLE_MS).session_id > 0
    assert (
        sessions.plan(request((first, 1)), 12, EVICT_AFTER_IDLE_MS).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )
    assert len(sessions) == 2


def test_idle_sessions_make_room_for_the_partitions_of_a_new_one() -> None:
    """Otherwise a client that opens a large session and disconnects would keep all others without one for good."""
    sessions = cache()
    for begin in (0, 1):
        half = dict.fromkeys(range(begin, MAXIMUM_CACHED_PARTITIONS, 2), 0)
        assert sessions.plan(request((0, 0), half), 12, begin).session_id > 0
    assert sessions.plan(request((0, 0), {0: 1}), 12, EVICT_AFTER_IDLE_MS - 1).session_id == 0
    too_many = dict.fromkeys(range(MAXIMUM_CACHED_PARTITIONS + 1), 0)
    assert sessions.plan(request((0, 0), too_many), 12, EVICT_AFTER_IDLE_MS).session_id == 0
    assert len(sessions) == 2, "no session gives way to one that has no room anyway"
    assert sessions.plan(request((0, 0), {0: 1}), 12, EVICT_AFTER_IDLE_MS).session_id > 0
    assert len(sessions) == 2


def test_no_session_keeps_names_that_are_too_long_for_a_topic() -> None:
    """Protects memory: a client without any right could fill it with 100,000 names of 32 KiB."""
    sessions, row = cache(), FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    longest, too_long = (FetchTopic(topic="t" * length, partitions=[row]) for length in (249, 250))
    asked = FetchRequest(session_id=0, session_epoch=0, max_wait_ms=0, min_bytes=1, topics=[too_long])
    plan = sessions.plan(asked, 12, 0)
    assert (plan.session_id, len(list(plan.targets)), len(sessions)) == (0, 1, 0)
    session_id = sessions.plan(replace(asked, topics=[longest]), 12, 0).session_id
    assert session_id > 0
    plan = sessions.plan(replace(asked, session_id=session_id, session_epoch=1, topics=[too_long]), 12, 0)
    assert (plan.error_code, len(sessions)) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)


def test_new_session_replaces_the_one_it_names() -> None:
    sessions = cache()
    first = sessions.plan(request((0, 0), {0: 1}), 12, 0).session_id
    second = sessions.plan(request((first, 0), {0: 1}), 12, 0).session_id
    assert second not in (0, first)
    assert len(sessions) == 1


def test_news_are_records_moved_offsets_and_errors() -> None:
    target = next(iter(cache().plan(request((0, 0), {0: 1}), 12, 0).targets))
    target.tell(answer(0))
    assert not target.has_news(answer(0))
    assert target.has_news(answer(0, high_watermark=6))
    assert target.has_news(answer(0, log_start=1))
    assert target.has_news(answer(0, records=b"x"))
    failed = answer(0, error=ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=-1, log_start=-1)
    target.tell(failed)
    assert target.has_news(failed), "an error is returned every time"
    assert target.has_news(answer(0)), "the end of the error is news too"


# What a reader is assumed to know

FOLLOWER = 2


def in_session(replica_id: int, *, offset: int = 7, epoch: int = 4) -> tuple[FetchSessionCache, FetchTarget]:
    """A session of partition 0, and what it has of that."""
    sessions = cache()
    plan = sessions.plan(asked((0, 0), offset, epoch), 12, 0, replica_id=replica_id)
    return sessions, next(iter(plan.targets))


def asked(session: tuple[int, int], offset: int, epoch: int, log_start: int = 0) -> FetchRequest:
    row = FetchPartition(
        partition=0,
        fetch_offset=offset,
        current_leader_epoch=epoch,
        log_start_offset=log_start,
        partition_max_bytes=100,
    )
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic="t", partitions=[row])],
    )


@pytest.mark.parametrize("replica_id", [-1, FOLLOWER])
@pytest.mark.parametrize("unused", ["error", "diverging epoch", "preferred replica"])
def test_of_an_answer_of_which_the_reader_uses_nothing_else_nothing_is_known(unused: str, replica_id: int) -> None:
    """A follower that has to truncate its log uses neither the high watermark nor the log start (KAFKA-14704)."""
    _, target = in_session(replica_id)
    target.tell(answer(0))
    assert not target.has_news(answer(0))
    part = answer(0)
    match unused:
        case "error":
            part = answer(0, error=ErrorCode.OFFSET_OUT_OF_RANGE)
        case "diverging epoch":
            part.diverging_epoch = EpochEndOffset(epoch=3, end_offset=5)
        case _:
            part.preferred_read_replica = 3
    target.tell(part)
    assert target.has_news(answer(0))


def test_a_follower_knows_a_log_start_as_soon_as_it_reports_that() -> None:
    """Until then every answer has it, and the partition is visited for each."""
    sessions, target = in_session(FOLLOWER)
    session = target.session
    assert session is not None
    for epoch, log_start in enumerate((0, 0, 2, 3), 1):
        target.tell(answer(0, log_start=3))
        assert target.has_news(answer(0, log_start=3))
        sessions.plan(asked((session.session_id, epoch), 7, 4, log_start), 12, 0, replica_id=FOLLOWER)
    target.tell(answer(0, log_start=3))
    assert not target.has_news(answer(0, log_start=3))
    target.tell(answer(0, log_start=2))
    assert not target.has_news(answer(0, log_start=2)), "one that starts above its leader's log start lacks nothing"


def test_a_consumer_knows_what_it_was_sent() -> None:
    """It reports nothing."""
    _, target = in_session(-1)
    target.tell(answer(0, log_start=3))
    assert not target.has_news(answer(0, log_start=3))


@pytest.mark.parametrize(
    ("offset", "epoch", "has_used"), [(8, 4, True), (7, 4, False), (6, 4, False), (8, 5, False), (7, 5, False)], ids=str
)
def test_a_follower_that_names_a_partition_is_sent_all_again_but_where_it_has_more_records(
    offset: int,
    epoch: int,
    has_used: bool,
) -> None:
    """In a new leader epoch it starts empty, and a change without more records is sent too."""
    sessions, target = in_session(FOLLOWER)
    target.tell(answer(0))
    assert target.session is not None
    sessions.plan(asked((target.session.session_id, 1), offset, epoch), 12, 0, replica_id=FOLLOWER)
    assert target.has_news(answer(0)) is not has_used
    assert (target.fetch_offset, target.current_leader_epoch) == (offset, epoch)


def test_a_consumer_that_names_a_partition_again_keeps_what_it_knows() -> None:
    """As in Kafka: it names one whenever it reads elsewhere."""
    sessions, target = in_session(-1)
    target.tell(answer(0))
    assert target.session is not None
    sessions.plan(asked((target.session.session_id, 1), 3, 5), 12, 0)
    assert not target.has_news(answer(0))
