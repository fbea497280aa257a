"""Who must search for an erasure of a compacted log, and who may join the ISR meanwhile."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from lowtide.replication import in_sync_replicas
from lowtide.replication.erasure_search import ErasureSearch, FoundRecord
from lowtide.replication.leadership import FollowerState

END = 10


class Image:
    """The registrations of brokers."""

    def __init__(self, **epochs: int) -> None:
        self.epochs = {int(name[1:]): epoch for name, epoch in epochs.items()}

    def broker_epoch(self, broker_id: int) -> int | None:
        return self.epochs.get(broker_id)


def search_of(**took_part: int) -> ErasureSearch:
    search = ErasureSearch(UUID(int=7), END)
    for name, epoch in took_part.items():
        search.note(int(name[1:]), epoch, {})
    return search


def follower_of(**fields: Any) -> FollowerState:
    return FollowerState(**{"broker_epoch": 5, "log_end_offset": END, "matches": True} | fields)


@pytest.mark.parametrize(
    ("fields", "may"),
    [
        ({}, True),
        ({"log_end_offset": END - 1}, False),
        ({"matches": False}, False),
        ({"broker_epoch": -1}, False),
        ({"broker_epoch": 4}, False),
    ],
    ids=["ready", "behind", "not compared", "never fetched", "fetched in another registration"],
)
def test_a_follower_is_asked_when_its_log_has_reached_the_end_in_this_epoch(fields: dict[str, Any], may: bool) -> None:
    """Protects against an answer under way, which would bring an old version after the search."""
    image: Any = Image(b2=5)
    assert in_sync_replicas.may_search(search_of(), 2, follower_of(**fields), image) is may
    assert not in_sync_replicas.may_search(search_of(b2=5), 2, follower_of(**fields), image), "it has taken part"


def test_a_result_counts_for_the_present_registration() -> None:
    """Protects against a result of a disk that was replaced since."""
    before: Any = Image(b2=5, b3=5)
    after: Any = Image(b2=6, b3=5)
    gone: Any = Image(b3=5)
    search = search_of(b2=5, b3=5)
    followers = {2: follower_of(), 3: follower_of()}
    assert search.missing({1, 2, 3}, 1, before) == ()
    assert search.participants(1, followers, before) == (1, 2, 3)
    for image in (after, gone):
        assert search.missing({1, 2, 3}, 1, image) == (2,)
        assert search.participants(1, followers, image) == (1, 3)


def test_all_members_must_search_and_others_may() -> None:
    """Protects the log of a member that would start over, and could be elected without it."""
    image: Any = Image(b2=5, b3=5)
    search = search_of(b3=5)
    assert search.missing({1, 2}, 1, image) == (2,)
    assert search.missing({1, 3}, 1, image) == ()
    assert search.participants(1, {2: follower_of(), 3: follower_of()}, image) == (1, 3)


def test_what_any_replica_finds_is_found() -> None:
    """Protects a person whose old record only a follower has."""
    search = search_of()
    search.note(2, 5, {1: FoundRecord(10, 0), 2: FoundRecord(20, 0)})
    search.note(3, 5, {2: FoundRecord(20, 0), 9: FoundRecord(90, 1)})
    assert search.found == {1: (10, 0), 2: (20, 0), 9: (90, 1)}


@pytest.mark.parametrize(
    ("search", "erasures_end", "log_end_offset", "lacks"),
    [
        (None, 0, 0, False),
        (search_of(), 0, END, True),
        (search_of(b2=5), 0, END, False),
        (search_of(b2=4), 0, END, True),
        (None, END + 1, END, True),
        (None, END + 1, END + 1, False),
        (search_of(b2=5), END + 1, END, True),
    ],
    ids=["neither", "searching", "took part", "another registration", "below", "has it", "took part, but below"],
)
def test_who_lacks_an_erasure_joins_no_isr(
    search: ErasureSearch | None, erasures_end: int, log_end_offset: int, lacks: bool
) -> None:
    """Protects the log of a replica that will start over: in the ISR it could be elected without it."""
    image: Any = Image(b2=5)
    leadership: Any = type("Led", (), {"erasure_search": search, "erasures_end": erasures_end})()
    follower = follower_of(log_end_offset=log_end_offset)
    assert in_sync_replicas.lacks_erasure(leadership, 2, follower, image) is lacks
