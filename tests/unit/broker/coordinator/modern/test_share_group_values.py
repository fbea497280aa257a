"""A share group as a value: what follows from its records and their being taken back, and what it holds."""

from __future__ import annotations

from typing import Any

from lowtide.broker.coordinator.member_memory import MemberMemory
from lowtide.broker.coordinator.modern.modern_group import INITIAL_EPOCH
from lowtide.broker.coordinator.modern.modern_member import ModernMember
from lowtide.broker.coordinator.modern.share_group import (
    NO_STATES,
    InitializingTopic,
    KnownStates,
    ShareGroup,
    ShareGroupState,
    states_of,
)
from lowtide.protocol.consumer_group_records import MemberTarget, TargetAssignmentEpoch, TargetTopicPartitions
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.share_group_records import (
    ShareGroupChange,
    ShareMemberCurrent,
    ShareMemberSubscription,
    ShareRecordType,
)

A, B, C, D = (bytes([number]) * 16 for number in (1, 2, 3, 4))
STATES = KnownStates(
    initializing={A: InitializingTopic("a", frozenset({2, 1}), 9)},
    initialized={A: ("a", frozenset({0})), B: ("b", frozenset({1, 0}))},
    deleting={C: "c"},
)


def note(group: ShareGroup, kind: ShareRecordType, name: str, value: Any) -> None:
    group.apply(ShareGroupChange(kind, "g", name, value))


def said(*topics: str, client_id: str = "client") -> ShareMemberSubscription:
    return ShareMemberSubscription(
        rack_id=None, client_id=client_id, client_host="/host", subscribed_topic_names=list(topics)
    )


def has(epoch: int, *numbers: int) -> ShareMemberCurrent:
    rows = [TargetTopicPartitions(topic_id=A, partitions=list(numbers))] if numbers else []
    return ShareMemberCurrent(member_epoch=epoch, previous_member_epoch=epoch - 1, assigned_partitions=rows)


def group_of(*names: str, memory: MemberMemory | None = None) -> ShareGroup:
    group = ShareGroup("g", memory)
    for name in names:
        note(group, ShareRecordType.MEMBER, name, said("t"))
        note(group, ShareRecordType.CURRENT, name, has(5, 0, 1))
    return group


# ------------------------------------------------------------------ states
def test_a_topic_has_states_in_each_of_their_stages() -> None:
    assert [STATES.includes(topic) for topic in (A, B, C, D)] == [True, True, True, False]
    for states in (KnownStates(initializing=STATES.initializing), KnownStates(initialized=STATES.initialized)):
        assert [states.includes(topic) for topic in (A, C)] == [True, False]


def test_states_are_the_same_after_a_load() -> None:
    record = STATES.record()
    assert states_of(record) == STATES
    assert [row.partitions for row in (*record.initializing_topics, *record.initialized_topics)] == [
        [1, 2],
        [0],
        [0, 1],
    ]


def test_the_hash_stands_for_what_may_be_assigned() -> None:
    assert STATES.hash_of([]) == STATES.hash_of([C, D]) == NO_STATES.hash_of([A, B]) == 0
    one, other = STATES.hash_of([A]), STATES.hash_of([B])
    assert STATES.hash_of([D, A]) == one
    assert STATES.hash_of([B, A]) == STATES.hash_of([A, B]) not in (0, one, other)
    more = KnownStates(initialized={A: ("a", frozenset({0, 1}))})
    assert more.hash_of([A]) not in (0, one, other)
    assert any(KnownStates(initialized={A: ("a", frozenset({number}))}).hash_of([A]) < 0 for number in range(20))


# ------------------------------------------------------------------ records
def test_members_follow_their_records() -> None:
    group = group_of("a", "b")
    assert group.members["a"] == ModernMember(
        "a", client_id="client", client_host="/host", topic_names=frozenset({"t"}),
        member_epoch=5, previous_epoch=4, assigned={A: frozenset({0, 1})},
    )  # fmt: skip
    assert (group.state, group.is_subscribed_to("t"), group.check_delete()) == (
        ShareGroupState.STABLE,
        True,
        ErrorCode.NON_EMPTY_GROUP,
    )
    note(group, ShareRecordType.CURRENT, "a", None)
    member = group.members["a"]
    assert (member.member_epoch, member.previous_epoch, member.assigned) == (-1, -1, {})
    note(group, ShareRecordType.MEMBER, "a", None)
    note(group, ShareRecordType.MEMBER, "stranger", None)
    note(group, ShareRecordType.CURRENT, "stranger", None)
    assert (list(group.members), group.subscriptions.topic_counts) == (["b"], {"t": 1})


def test_targets_and_states_are_taken_back() -> None:
    group = ShareGroup("g")
    note(
        group,
        ShareRecordType.TARGET,
        "a",
        MemberTarget(topic_partitions=[TargetTopicPartitions(topic_id=A, partitions=[0])]),
    )
    note(group, ShareRecordType.TARGET_EPOCH, "", TargetAssignmentEpoch(assignment_epoch=7, assignment_timestamp=9))
    group.checked_image = 3
    note(group, ShareRecordType.STATES, "", STATES.record())
    assert (group.targets, group.target_epoch, group.assigned_wall_ms) == ({"a": {A: frozenset({0})}}, 7, 9)
    assert (group.states, group.checked_image) == (STATES, 0)
    group.checked_image = 3
    note(group, ShareRecordType.TARGET, "stranger", None)
    note(group, ShareRecordType.TARGET, "a", None)
    note(group, ShareRecordType.TARGET_EPOCH, "", None)
    assert (group.targets, group.target_epoch, group.states) == ({}, INITIAL_EPOCH, STATES)
    note(group, ShareRecordType.STATES, "", None)
    assert (group.states, group.checked_image) == (NO_STATES, 0)


def test_what_a_member_has_of_its_target_is_kept_once() -> None:
    target = {A: frozenset({0, 1})}
    assert ModernMember("a").with_current(has(5, 0, 1), target).assigned is target
    assert ModernMember("a").with_current(has(5, 0), target).assigned == {A: frozenset({0})}


def test_the_places_of_a_group_are_those_that_have_a_state() -> None:
    group = ShareGroup("g")
    group.states = STATES
    places = [(place.topic_id, place.partition) for place in group.places({C: 2}.__getitem__)]
    assert places == [(A, 1), (A, 2), (A, 0), (B, 0), (B, 1), (C, 0), (C, 1)]


# ------------------------------------------------------------------ memory
