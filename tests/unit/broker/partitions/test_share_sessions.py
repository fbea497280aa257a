"""Share sessions: their epochs, their bounds, and what they have together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.partitions.share import share_sessions
from lowtide.broker.partitions.share.share_sessions import SessionKey, ShareSession, ShareSessions
from lowtide.broker.security.principal import KafkaPrincipal
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.share_acknowledge import FINAL_EPOCH
from lowtide.protocol.share_state_records import SharePlace

KEY, OTHER = SessionKey("g", "m"), SessionKey("g", "n")
A, B, C = (SharePlace("g", bytes(16), number) for number in range(3))


def connection(name: str = "alice") -> Any:
    return SimpleNamespace(closed=False, principal=KafkaPrincipal("User", name), client_address="10.0.0.1")


def begin(sessions: ShareSessions, key: SessionKey, *places: SharePlace, most: int = 10) -> Any:
    return sessions.begin(key, connection(), places, most)


def test_a_session_counts_its_requests_and_keeps_its_partitions() -> None:
    sessions = ShareSessions()
    begin(sessions, KEY, A, B)
    assert sessions.follow(KEY, 2) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    session = sessions.follow(KEY, 1, [C, A], [B])
    assert isinstance(session, ShareSession)
    assert (session.epoch, list(session.places)) == (2, [A, C])
    assert sessions.follow(KEY, 1) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert sessions.follow(KEY, FINAL_EPOCH) is session
    assert sessions.follow(OTHER, 1) is ErrorCode.SHARE_SESSION_NOT_FOUND
    session.epoch = 2**31 - 1
    sessions.follow(KEY, 2**31 - 1)
    assert session.epoch == 1


def test_each_fetch_begins_with_another_partition() -> None:
    session = begin(ShareSessions(), KEY, A, B, C)
    assert [session.next_turn()[0] for _ in range(4)] == [A, B, C, A]
    assert begin(ShareSessions(), KEY).next_turn() == []


def test_what_no_session_has_is_not_named() -> None:
    sessions = ShareSessions()
    begin(sessions, KEY, A, B)
    begin(sessions, OTHER, B)
    assert dict(sessions.named) == {A: 1, B: 2}
    begin(sessions, KEY, C)
    assert dict(sessions.named) == {B: 1, C: 1}
    assert sessions.end(OTHER) == [B]
    assert sessions.end(OTHER) == []
    assert (dict(sessions.named), len(sessions)) == ({C: 1}, 1)


def test_there_are_no_more_than_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that takes the place of its member's last one needs no room of its own."""
    monkeypatch.setattr(share_sessions, "PARTITIONS_MAX", 2)
    sessions = ShareSessions()
    begin(sessions, KEY, A, B, most=1)
    assert begin(sessions, OTHER, most=1) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert isinstance(begin(sessions, KEY, B, C, most=1), ShareSession)
    assert begin(sessions, OTHER, A) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert sessions.follow(KEY, 1, [A]) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert isinstance(sessions.follow(KEY, 1, [B]), ShareSession)


def test_a_user_with_many_sessions_gives_way_to_one_with_few() -> None:
    sessions = ShareSessions()
    keys = [SessionKey("g", f"m{number}") for number in range(4)]
    for key in keys:
        assert sessions.giving_way(key, connection(), 4) is None
        begin(sessions, key, A, most=4)
    assert sessions.giving_way(OTHER, connection(), 4) is None
    assert sessions.giving_way(keys[1], connection("bob"), 4) is None
    assert sessions.giving_way(OTHER, connection("bob"), 4) == keys[0]
    sessions.end(keys[0])
    sessions.begin(OTHER, connection("bob"), [A], 4)
    sessions.end(keys[1])
    sessions.begin(KEY, connection("bob"), [A], 4)
    assert sessions.giving_way(SessionKey("g", "x"), connection("bob"), 4) is None
    assert sessions.giving_way(SessionKey("g", "x"), connection("eve"), 4) == keys[2]


def test_sessions_of_lost_connections_are_found() -> None:
    sessions = ShareSessions()
    session = begin(sessions, KEY, A)
    begin(sessions, OTHER, A)
    assert sessions.of_lost_connections() == []
    session.connection.closed = True
    assert sessions.of_lost_connections() == [KEY]
