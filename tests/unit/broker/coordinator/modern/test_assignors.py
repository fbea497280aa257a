"""The assignors of KIP-848: every partition has one owner, the load is even, and no partition moves without need."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.broker.coordinator.modern import assignors
from lowtide.broker.coordinator.modern.assignors import (
    ASSIGNORS,
    AssignedMember,
    Target,
    assign_range,
    assign_uniform,
)
from tests.examples import examples

TOPICS = [bytes([number]) * 16 for number in range(1, 5)]
A, B = TOPICS[0], TOPICS[1]
GONE = TOPICS[-1]
"""Members may still name it, and its partition count is unknown."""
Counts = Mapping[bytes, int]
Members = dict[str, AssignedMember]

counts_of_topics = st.fixed_dictionaries({topic: st.integers(0, 9) for topic in TOPICS if topic != GONE})
assignments = st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 10)))
subscriptions = st.frozensets(st.sampled_from(TOPICS))
member_ids = st.sampled_from("abcdefgh")
some = settings(deadline=None, max_examples=examples(60))


@st.composite
def groups(draw: st.DrawFn) -> Members:
    """Members may claim anything: partitions that are not theirs, that others claim too, or that do not exist."""
    ids = draw(st.sets(member_ids))
    shared = draw(st.none() | subscriptions)
    return {
        member_id: AssignedMember(
            draw(st.none() | st.just(f"instance-{member_id}")),
            None,
            draw(subscriptions) if shared is None else shared,
            draw(assignments),
        )
        for member_id in ids
    }


def member(topics: frozenset[bytes] = frozenset(TOPICS), instance_id: str | None = None) -> AssignedMember:
    return AssignedMember(instance_id, None, topics, {})


def taken_up(members: Members, target: Target) -> Members:
    """The members after they received the target."""
    return {
        member_id: row._replace(assigned={topic: frozenset(rows) for topic, rows in target[member_id].items()})
        for member_id, row in members.items()
    }


def loads(target: Target) -> dict[str, int]:
    return {member_id: sum(map(len, topics.values())) for member_id, topics in target.items()}


def owners(target: Target) -> dict[tuple[bytes, int], str]:
    return {
        (topic, partition): member_id
        for member_id, topics in target.items()
        for topic, rows in topics.items()
        for partition in rows
    }


def moved(before: Target, after: Target) -> int:
    """The partitions that moved although their previous owner is still in the group."""
    new = owners(after)
    return sum(member_id in after and new.get(key) != member_id for key, member_id in owners(before).items())


@pytest.mark.parametrize("name", ["uniform", "range"])
@some
@given(members=groups(), counts=counts_of_topics)
def test_each_subscribed_partition_has_one_owner_that_subscribes(name: str, members: Members, counts: Counts):
    target = ASSIGNORS[name](members, counts)
    given_out = [
        (topic, partition) for topics in target.values() for topic, rows in topics.items() for partition in rows
    ]
    wanted = {topic for row in members.values() for topic in row.topics}
    assert sorted(given_out) == sorted(
        (topic, partition) for topic in wanted for partition in range(counts.get(topic, 0))
    )
    assert target.keys() == members.keys()
    for member_id, topics in target.items():
        assert topics.keys() <= members[member_id].topics
        assert all(rows and list(rows) == sorted(rows) for rows in topics.values())


@pytest.mark.parametrize("name", ["uniform", "range"])
@some
@given(members=groups(), counts=counts_of_topics)
def test_the_order_of_members_does_not_matter(name: str, members: Members, counts: Counts):
    assert ASSIGNORS[name](dict(reversed(members.items())), counts) == ASSIGNORS[name](members, counts)


@pytest.mark.parametrize("name", ["uniform", "range"])
@some
@given(members=groups(), counts=counts_of_topics)
def test_where_nothing_changes_nothing_moves(name: str, members: Members, counts: Counts):
    target = ASSIGNORS[name](members, counts)
    assert ASSIGNORS[name](taken_up(members, target), counts) == target


@some
@given(members=groups(), counts=counts_of_topics)
def test_no_partition_could_be_moved_to_a_member_with_two_fewer(members: Members, counts: Counts):
    target = assign_uniform(members, counts)
    load = loads(target)
    for member_id, topics in target.items():
        others = [other for other, row in members.items() if row.topics & topics.keys()]
        assert all(load[other] >= load[member_id] - 1 for other in others)


@some
@given(counts=counts_of_topics, ids=st.sets(member_ids, min_size=1), gone=st.sets(member_ids), new=member_ids)
def test_equal_members_move_only_what_balance_needs(counts: Counts, ids: set[str], gone: set[str], new: str):
    """If members leave, the others keep all their partitions; if one joins, only the partitions that it gets move."""
    members = {member_id: member() for member_id in ids}
    first = assign_uniform(members, counts)
    left = {member_id: row for member_id, row in taken_up(members, first).items() if member_id not in gone}
    second = assign_uniform(left, counts)
    assert moved(first, second) == 0
    third = assign_uniform(taken_up(left, second) | ({} if new in left else {new: member()}), counts)
    assert moved(second, third) == (0 if new in left or not left else sum(counts.values()) // len(third))
    for target in (second, third):
        assert max(loads(target).values(), default=0) - min(loads(target).values(), default=0) <= 1


@some
@given(
    counts=counts_of_topics, ids=st.sets(member_ids, min_size=1), grown=st.sampled_from([A, B]), by=st.integers(1, 9)
)
def test_new_partitions_go_to_the_member_with_least(counts: Counts, ids: set[str], grown: bytes, by: int):
    """Members keep their partitions unless the new partitions are too few for the others."""
    members = {member_id: member() for member_id in ids}
    first = assign_uniform(members, counts)
    assert moved(first, assign_uniform(taken_up(members, first), {**counts, grown: counts[grown] + by})) == 0


def test_a_topic_is_spread_over_members_and_not_given_whole():
    """One topic is often much busier than another."""
    target = assign_uniform({"a": member(), "b": member()}, {A: 4, B: 4})
    assert target == {"a": {A: (0, 1), B: (0, 1)}, "b": {A: (2, 3), B: (2, 3)}}
    alone = taken_up({"a": member()}, assign_uniform({"a": member()}, {A: 4, B: 4}))
    assert assign_uniform({**alone, "b": member()}, {A: 4, B: 4}) == target


def test_a_member_with_exclusive_topics_gets_less_of_the_shared_ones():
    members = {"a": member(frozenset([A, B])), "b": member(frozenset([B])), "c": member(frozenset([B]))}
    assert assign_uniform(members, {A: 4, B: 8}) == {
        "a": {A: (0, 1, 2, 3)},
        "b": {B: (0, 2, 4, 6)},
        "c": {B: (1, 3, 5, 7)},
    }


def test_ranges_of_topics_with_equally_many_partitions_are_the_same():
    target = assign_range({"m0": member(), "m1": member()}, {A: 3, B: 3})
    assert target == {"m0": {A: (0, 1), B: (0, 1)}, "m1": {A: (2,), B: (2,)}}


def test_more_members_than_partitions():
    target = assign_range({name: member() for name in "abcd"}, {A: 2, B: 5})
    assert target == {"a": {A: (0,), B: (0, 1)}, "b": {A: (1,), B: (2,)}, "c": {B: (3,)}, "d": {B: (4,)}}


def test_a_range_counts_only_subscribers():
    members = {"a": member(frozenset([A])), "b": member(frozenset([A, B])), "c": member(frozenset([B]))}
    assert assign_range(members, {A: 3, B: 3}) == {"a": {A: (0, 1)}, "b": {A: (2,), B: (0, 1)}, "c": {B: (2,)}}


def test_static_members_keep_their_ranges_under_new_member_ids():
    before = assign_range({"x": member(instance_id="1"), "y": member(instance_id="2"), "a": member()}, {A: 7})
    after = assign_range({"z": member(instance_id="1"), "b": member(instance_id="2"), "a": member()}, {A: 7})
    assert before == {"x": {A: (0, 1, 2)}, "y": {A: (3, 4)}, "a": {A: (5, 6)}}
    assert [after["z"], after["b"], after["a"]] == [before["x"], before["y"], before["a"]]


# ------------------------------------------------------------------ what members have
X, Y, LOST = (bytes([number]) * 16 for number in (8, 9, 7))


def has(*partitions: int, topic: bytes = X, topics: tuple[bytes, ...] = (X,)) -> AssignedMember:
    """A member that has these partitions of a topic, and one of a topic that isn't there any more."""
    return AssignedMember(None, None, frozenset(topics), {LOST: frozenset({0}), topic: frozenset(partitions)})


def test_a_member_that_had_a_topic_which_is_gone_keeps_the_rest():
    assert assign_uniform({"a": has(1), "b": has()}, {X: 2}) == {"a": {X: (1,)}, "b": {X: (0,)}}


def test_a_partition_that_two_members_claim_is_the_first_ones():
    assert assign_uniform({"a": has(0), "b": has(0)}, {X: 2}) == {"a": {X: (0,)}, "b": {X: (1,)}}
    assert assign_uniform({"a": has(), "b": has(0), "c": has(0)}, {X: 3}) == {
        "a": {X: (1,)},
        "b": {X: (0,)},
        "c": {X: (2,)},
    }


def test_a_free_partition_goes_to_the_member_with_least_of_its_subscription():
    members = {"a": has(0, 1), "b": has(), "c": has(topics=(X, Y))}
    assert assign_uniform(members, {X: 3, Y: 1}) == {"a": {X: (0, 1)}, "b": {X: (2,)}, "c": {Y: (0,)}}


def after_moves(monkeypatch: pytest.MonkeyPatch, count: int, *held: int) -> list[int]:
    """The loads of members with these numbers of partitions after at most so many moves; one more has another topic."""
    names = "abcdef"[: len(held)]
    firsts = [sum(held[:number]) for number in range(len(held))]
    members = {name: has(*range(first, first + size)) for name, first, size in zip(names, firsts, held, strict=True)}
    members["z"] = has(0, topic=Y, topics=(Y,))
    monkeypatch.setattr(assignors, "MOVES_PER_PARTITION", Fraction(count, sum(held) + 1))
    target = loads(assign_uniform(members, {X: sum(held), Y: 1}))
    return [target[name] for name in names]


@pytest.mark.parametrize(
    ("count", "held", "expected"),
    [
        (0, (4, 0), [4, 0]),
        (1, (4, 0), [3, 1]),
        (2, (4, 0), [2, 2]),
        (9, (4, 0), [2, 2]),
        (1, (2, 4, 0), [2, 3, 1]),
        (2, (6, 5, 0), [4, 5, 2]),
        (3, (6, 5, 0), [4, 4, 3]),
        (9, (6, 5, 0), [4, 4, 3]),
    ],
)
def test_those_who_have_most_give_first_and_not_more_often_than_allowed(
    monkeypatch: pytest.MonkeyPatch, count: int, held: tuple[int, ...], expected: list[int]
):
    assert after_moves(monkeypatch, count, *held) == expected
