"""The assignor of share groups: no partition without a member, equal loads, and nothing moves without a reason."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lowtide.broker.coordinator.modern.simple_assignor import assign

A, B = b"a" * 16, b"b" * 16
NAMES = st.sets(st.integers(0, 20), min_size=1, max_size=12)


def sizes(made) -> list[int]:
    return [sum(len(numbers) for numbers in assignment.values()) for assignment in made.values()]


def members(numbers, topics=frozenset((A, B))):
    return {f"m{number}": frozenset(topics) for number in numbers}


@given(before=NAMES, after=NAMES, a=st.integers(0, 8), b=st.integers(0, 8), more=st.integers(0, 3))
def test_it_is_balanced_and_complete_whatever_was_before(before, after, a, b, more) -> None:
    first = assign(members(before), {A: range(a), B: range(b)}, {})
    partitions = {A: range(a + more), B: range(b)}
    made = assign(members(after), partitions, first)
    assert set(made) == set(members(after))
    assert max(sizes(made)) - min(sizes(made)) <= 1
    for topic_id, numbers in partitions.items():
        for number in numbers:
            sharing = sum(number in assignment.get(topic_id, ()) for assignment in made.values())
            assert sharing == -(-len(after) // (a + more + b))
    assert assign(members(after), partitions, made) == made, "nothing has changed, nothing moves"


@example(numbers={0, 1, 2, 3}, subscriptions=[frozenset((A, B))] * 12)  # Two places each, of three and five.
@given(
    numbers=NAMES,
    subscriptions=st.lists(
        st.sampled_from([frozenset((A,)), frozenset((B,)), frozenset((A, B))]), min_size=12, max_size=12
    ),
)
def test_different_subscriptions(numbers, subscriptions) -> None:
    """Members get only their topics, some of each if they differ; every subscribed partition has a member."""
    wanted = {f"m{number}": subscriptions[index] for index, number in enumerate(sorted(numbers))}
    partitions = {A: range(3), B: range(5)}
    made = assign(wanted, partitions, {})
    for name, assignment in made.items():
        assert set(assignment) <= wanted[name]
        assert len(set(wanted.values())) == 1 or all(assignment.get(topic_id) for topic_id in wanted[name])
    for topic_id, some in partitions.items():
        if any(topic_id in topics for topics in wanted.values()):
            assert {number for assignment in made.values() for number in assignment.get(topic_id, ())} == set(some)


def test_a_new_member_takes_only_what_makes_it_equal() -> None:
    first = assign(members([1, 2]), {A: range(6)}, {})
    made = assign(members([1, 2, 3]), {A: range(6)}, first)
    assert sizes(made) == [2, 2, 2]
    for name in ("m1", "m2"):
        assert made[name][A] < first[name][A]


def test_there_may_be_nothing_to_assign() -> None:
    assert assign(members([1]), {A: ()}, {}) == {"m1": {}}
    assert assign({}, {A: range(2)}, {}) == {}


@pytest.mark.parametrize(
    ("count", "had", "expected"),
    [
        (5, ({0, 1}, {3, 4}), [{0, 1, 2}, {3, 4}]),
        (5, ({0, 1}, {2, 3, 4}), [{0, 1}, {2, 3, 4}]),
        (5, ({0, 1, 2, 3, 4}, set()), [{0, 1, 2}, {3, 4}]),
        (6, ({5}, set(), set()), [{2, 5}, {0, 3}, {1, 4}]),
        (7, ({0, 1, 2}, {3, 4, 5}, set()), [{0, 1, 2}, {3, 4}, {5, 6}]),
        (2, ({1}, {0}, {0}, {0}, set()), [{1}, {0, 1}, {0}, {0}, {1}]),
        (3, ({0}, {1}, {1}, {1}, {0}, {2}, {2}), [{0, 2}, {0, 1}, {1}, {1}, {0}, {2}, {2}]),
    ],
)
def test_members_keep_what_their_share_allows(count: int, had: tuple[set[int], ...], expected: list[set[int]]) -> None:
    names = [f"m{number}" for number in range(len(had))]
    current = {name: {A: frozenset(numbers)} for name, numbers in zip(names, had, strict=True)}
    made = assign(members(range(len(had)), (A,)), {A: range(count)}, current)
    assert [made[name][A] for name in names] == expected
