"""A consumer group as a value: its records, who may commit and fetch, and its subscriptions."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.coordinator.modern.consumer_group import (
    ConsumerGroup,
    ConsumerGroupState,
)
from lowtide.broker.coordinator.modern.member_state import MemberState
from lowtide.broker.coordinator.modern.modern_group import INITIAL_EPOCH
from lowtide.broker.coordinator.modern.modern_member import ModernMember
from lowtide.broker.coordinator.modern.subscriptions import NO_COUNTS, NO_PATTERNS, ResolvedPattern, Subscriptions
from lowtide.protocol.consumer_group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupChange,
    RecordType,
    SubscribedTopics,
    TargetAssignmentEpoch,
)
from lowtide.protocol.errors import ErrorCode

A, B = (bytes([number]) * 16 for number in (1, 2))
MEMBER, CURRENT, TARGET = RecordType.MEMBER, RecordType.CURRENT, RecordType.TARGET
NONE, UNKNOWN, STALE = ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH


def classic(*protocols: str) -> ClassicMemberMetadata:
    """What a member says that speaks these protocols of the classic kind."""
    return ClassicMemberMetadata(
        session_timeout_ms=1, supported_protocols=[ClassicProtocol(name=name, metadata=b"") for name in protocols]
    )


def member(name: str, **fields: Any) -> ModernMember:
    return ModernMember(name, **fields)


def put(group: ConsumerGroup, *members: ModernMember) -> None:
    """Take over what records say about members."""
    for each in members:
        group.apply(ConsumerGroupChange(MEMBER, "g", each.member_id, each.subscription_record()))
        group.apply(ConsumerGroupChange(CURRENT, "g", each.member_id, each.current_record()))


def take_back(group: ConsumerGroup, kind: RecordType, name: str = "") -> None:
    group.apply(ConsumerGroupChange(kind, "g", name, None))


def group_of(*members: ModernMember) -> ConsumerGroup:
    group = ConsumerGroup("g")
    put(group, *members)
    return group


# ------------------------------------------------------------------ what it is
def test_a_group_with_members_is_in_use_and_its_offsets_may_expire() -> None:
    group = group_of(member("m"))
    assert (group.is_unused, group.may_expire_offsets, group.check_delete()) == (False, True, ErrorCode.NON_EMPTY_GROUP)
    take_back(group, MEMBER, "m")
    assert (group.is_unused, group.check_delete(), group.check_offset_delete()) == (True, NONE, NONE)
    group.close()
    assert (group.is_unused, group.state) == (False, ConsumerGroupState.DEAD)
    assert group.check_delete() == group.check_offset_delete() == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_member_waits_for_others_that_have_something_of_its_target() -> None:
    group = group_of(member("a", assigned={A: frozenset({0, 1})}), member("b", assigned={A: frozenset({2})}))
    for numbers, waits in (({2}, False), ({2, 3}, False), ({2, 1}, True), ({3, 0}, True)):
        group.targets["b"] = {A: frozenset(numbers)}
        assert group.waits_for_others(group.members["b"]) is waits
    assert not group.waits_for_others(group.members["a"])


# ------------------------------------------------------------------ who may
@pytest.mark.parametrize(
    ("who", "epoch", "is_transaction", "error"),
    [
        ("m", 5, False, NONE),
        ("m", 4, False, STALE),
        ("m", 6, False, STALE),
        ("m", -1, False, STALE),
        ("", -1, False, UNKNOWN),
        ("", 0, False, UNKNOWN),
        ("stranger", 5, False, UNKNOWN),
        ("m", 5, True, NONE),
        ("m", -1, True, STALE),
        ("", -1, True, NONE),
        ("", 0, True, UNKNOWN),
        ("stranger", -1, True, UNKNOWN),
        ("c", 5, False, NONE),
        ("c", 4, False, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_commits_are_accepted_of_members_in_their_epoch(
    who: str, epoch: int, is_transaction: bool, error: ErrorCode
) -> None:
    group = group_of(member("m", member_epoch=5), member("c", member_epoch=5, classic=classic("range")))
    assert group.check_commit(who, epoch, 9, is_transaction=is_transaction) == error
    assert group.check_commit(who, epoch, 9, [(A, 0)], is_transaction=is_transaction) == error


@pytest.mark.parametrize(
    ("who", "epoch", "error"), [("", -1, NONE), ("m", -1, NONE), ("", 0, UNKNOWN), ("m", 5, UNKNOWN)]
)
@pytest.mark.parametrize("is_transaction", [False, True])
def test_commits_from_outside_are_accepted_while_there_are_no_members(
    who: str, epoch: int, error: ErrorCode, is_transaction: bool
) -> None:
    assert ConsumerGroup("g").check_commit(who, epoch, 9, is_transaction=is_transaction) == error


def test_old_versions_can_commit_for_members_of_the_classic_protocol_and_in_transactions() -> None:
    group = group_of(member("m", member_epoch=5), member("c", member_epoch=5, classic=classic("range")))
    assert [group.check_commit(who, 5, 8) for who in "mc"] == [ErrorCode.UNSUPPORTED_VERSION, NONE]
    assert group.check_commit("m", 5, 8, is_transaction=True) == NONE


@pytest.mark.parametrize(
    ("epoch", "numbers", "error"),
    [
        (4, [0], NONE),
        (4, [0, 1], NONE),
        (3, [0], NONE),
        (3, [0, 1], STALE),
        (4, [0, 2], STALE),
        (4, [], STALE),
        (6, [0], STALE),
        (4, [3], STALE),
    ],
)
def test_a_member_in_an_older_epoch_commits_for_what_it_had_then(
    epoch: int, numbers: list[int], error: ErrorCode
) -> None:
    given = {A: {0: 3, 1: 4, 2: 5}}
    group = group_of(member("m", member_epoch=5, assigned={A: frozenset({0, 1, 2})}, epochs=given))
    assert group.check_commit("m", epoch, 9, [(A, number) for number in numbers]) == error


@pytest.mark.parametrize(
    ("who", "epoch", "error"),
    [
        (None, -1, NONE),
        (None, 0, UNKNOWN),
        (None, 5, UNKNOWN),
        ("m", 5, NONE),
        ("m", -1, STALE),
        ("m", 4, STALE),
        ("stranger", -1, UNKNOWN),
    ],
)
def test_offsets_are_returned_to_members_and_to_clients_that_name_none(
    who: str | None, epoch: int, error: ErrorCode
) -> None:
    assert group_of(member("m", member_epoch=5)).check_fetch(who, epoch) == error


def test_an_instance_id_belongs_to_the_last_member_that_has_it() -> None:
    group = group_of(member("a", instance_id="i"), member("b", instance_id="i"))
    assert (group.find_member("b", "i"), group.find_member("a", "i")) == (
        group.members["b"],
        ErrorCode.FENCED_INSTANCE_ID,
    )
    take_back(group, MEMBER, "a")
    assert group.static_members == {"i": "b"}
    put(group, member("b", instance_id="j"))
    assert group.static_members == {"j": "b"}
    put(group, member("b"))
    assert group.static_members == {}
    put(group, member("b", instance_id="i"))
    take_back(group, MEMBER, "b")
    assert group.static_members == {}


# ------------------------------------------------------------------ records
def test_records_are_taken_back() -> None:
    one = member(
        "a", member_epoch=5, previous_epoch=4, assigned={A: frozenset({0})}, state=MemberState.STABLE, epochs=5
    )
    group = group_of(one, member("b", assigned={A: frozenset({1})}), member("c", assigned={B: frozenset({0})}))
    group.apply(ConsumerGroupChange(RecordType.TOPICS, "g", "", SubscribedTopics(topics=[])))
    group.apply(
        ConsumerGroupChange(
            RecordType.TARGET_EPOCH, "g", "", TargetAssignmentEpoch(assignment_epoch=7, assignment_timestamp=9)
        )
    )
    group.targets = {"a": {}, "b": {}}
    assert (group.has_topics_record, group.target_epoch, group.assigned_wall_ms) == (True, 7, 9)
    for kind in (CURRENT, TARGET):
        take_back(group, kind, "a")
        take_back(group, kind, "stranger")
    take_back(group, MEMBER, "b")
    take_back(group, MEMBER, "stranger")
    take_back(group, RecordType.TOPICS)
    take_back(group, RecordType.TARGET_EPOCH)
    assert (list(group.members), group.targets) == (["a", "c"], {"b": {}})
    assert group.members["a"] == member("a", member_epoch=-1, previous_epoch=-1)
    assert group.owners.by_topic == {B: {0: "c"}}
    assert (group.has_topics_record, group.target_epoch) == (False, INITIAL_EPOCH)


# ------------------------------------------------------------------ memory
# ------------------------------------------------------------------ subscriptions
def subscriptions_of(*members: ModernMember, **patterns: set[str]) -> Subscriptions:
    """Of these members; `patterns` are those that were matched."""
    made = Subscriptions()
    for each in members:
        made.replace(None, each)
    for pattern, topics in patterns.items():
        made.note_pattern(pattern, ResolvedPattern(frozenset(topics), 1, 2))
    return made


def names(*topics: str, pattern: str | None = None, **fields: Any) -> ModernMember:
    return member("m", topic_names=frozenset(topics), topic_regex=pattern, **fields)


def test_what_members_ask_for_is_counted() -> None:
    one = names("t", "u", pattern="p", server_assignor="range", classic=classic("x", "y"))
    other = names("t", pattern="q", classic=classic("x"))
    made = subscriptions_of(one, other, names("t", pattern="", server_assignor="uniform"))
    assert (made.topic_counts, made.pattern_counts) == ({"t": 3, "u": 1}, {"p": 1, "q": 1})
    assert (made.assignors, made.classic_count, made.classic_protocols) == (
        {"range": 1, "uniform": 1},
        2,
        {"x": 2, "y": 1},
    )
    made.replace(one, other)
    assert (made.topic_counts, made.pattern_counts, made.assignors) == ({"t": 3}, {"q": 2}, {"uniform": 1})
    assert (made.classic_count, made.classic_protocols) == (2, {"x": 2})
    for each in (other, other, names("t", pattern="", server_assignor="uniform")):
        made.replace(each, None)
    assert made.classic_count == 0
    assert all(
        counts is NO_COUNTS
        for counts in (made.topic_counts, made.pattern_counts, made.assignors, made.classic_protocols)
    )


def test_patterns_are_matched_when_each_one_is() -> None:
    made = subscriptions_of(names(pattern="p"), names(pattern="q"), p={"a"})
    assert not made.is_matched
    made.note_pattern("q", ResolvedPattern(frozenset({"b"}), 1, 2))
    assert made.is_matched
    assert (made.names(), made.includes("b"), made.includes("c")) == ({"a", "b"}, True, False)
    assert [made.matched_by(chosen) for chosen in ((), ("p",), ("p", "q"), ("r",))] == [set(), {"a"}, {"a", "b"}, set()]
    made.note_pattern("p", None)
    made.note_pattern("p", None)
    assert (dict(made.patterns), made.is_matched) == ({"q": ResolvedPattern(frozenset({"b"}), 1, 2)}, False)
    made.note_pattern("q", None)
    assert made.patterns is NO_PATTERNS


def test_a_member_consumes_what_it_names_and_what_its_pattern_matches() -> None:
    made = subscriptions_of(p={"a"}, q={"b"})
    assert made.names_of(names("t")) == {"t"}
    assert made.names_of(names("t", pattern="p")) == {"t", "a"}
    assert made.names_of(names("t", pattern="unmatched")) == {"t"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (names("t"), names("t"), "tuab"),
        (names("t"), names("v"), "tuvab"),
        (names("u"), names("v"), "tvab"),
        (names("u"), names("u", "v"), "tuvab"),
        (names("t", pattern="p"), names("t"), "tub"),
        (names("t", pattern="p"), names("t", pattern="p"), "tuab"),
        (names("t", pattern="q"), names("t", pattern="p"), "tuab"),
        (names(), names("v"), "tuvab"),
    ],
)
def test_the_topics_of_a_group_in_which_a_member_takes_anothers_place(
    old: ModernMember, new: ModernMember, expected: str
) -> None:
    """Two members consume `t`, one `u`; one has the pattern `p`, two have `q`."""
    made = subscriptions_of(
        names("t", pattern="p"), names("t", pattern="q"), names("u"), names(pattern="q"), p={"a"}, q={"b"}
    )  # fmt: skip
    assert made.names_after(old, new) == set(expected)


def test_patterns_stay_while_a_member_has_them() -> None:
    one, other = names(pattern="p"), names(pattern="q")
    made = subscriptions_of(one, other, one)
    assert made.patterns_without([]) == {"p", "q"}
    assert made.patterns_without([one, names()]) == {"p", "q"}
    assert made.patterns_without([one, one]) == {"q"}
    assert made.patterns_without([one, other, one]) == frozenset()


def asks(assignor: str | None) -> ModernMember:
    return names(server_assignor=assignor)


def test_the_assignor_that_most_members_ask_for_is_preferred() -> None:
    assert subscriptions_of(names()).preferred_assignor() is None
    one = subscriptions_of(asks("uniform"), asks("range"))
    assert one.preferred_assignor() == "range", "of equals the first by name"
    assert one.preferred_assignor(None, asks("uniform")) == "uniform"
    assert one.preferred_assignor(asks("range"), asks(None)) == "uniform"
    assert one.preferred_assignor(asks("range"), None) == "uniform"
    assert one.preferred_assignor(asks(""), asks("")) == "range"
    assert one.preferred_assignor(asks("uniform"), asks("uniform")) == "range"
    assert dict(one.assignors) == {"uniform": 1, "range": 1}
    three = subscriptions_of(asks("uniform"), asks("uniform"), asks("uniform"), asks("range"))
    assert three.preferred_assignor(asks("uniform"), asks(None)) == "uniform", "two are left"
    assert subscriptions_of(asks("x"), asks("uniform"), asks("uniform")).preferred_assignor() == "uniform"


def test_a_member_of_the_classic_protocol_speaks_what_all_others_of_it_speak() -> None:
    made = subscriptions_of(names(classic=classic("x", "y")), names(classic=classic("y")), names())
    assert made.speaks("consumer", ["x", "y"])
    assert not made.speaks("consumer", ["x", "z"])
    assert not made.speaks("connect", ["y"])
    assert subscriptions_of(names()).speaks("consumer", ["any"])
    assert not subscriptions_of(names()).speaks("consumer", [])
