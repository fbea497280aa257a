"""Heartbeats of consumer groups: what they must say, which epochs are accepted, and what the answer tells."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest

from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.modern.consumer_heartbeats import MEMBERS_MAX, heartbeat_failed
from lowtide.broker.coordinator.modern.modern_member import ModernMember
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import OffsetCommit, OffsetCommitKey, OffsetCommitValue
from tests.unit.broker.coordinator.consumer_world import ConsumerWorld, subscription
from tests.unit.broker.coordinator.group_world import GROUP, World

NONE, INVALID, FENCED = ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.FENCED_MEMBER_EPOCH
JOIN: dict[str, Any] = {"owned": {}, "rebalance_timeout_ms": 1_000, "subscribed_topic_names": ["t"]}
ALL = {"t": {0, 1, 2, 3}}


@pytest.fixture
def world() -> ConsumerWorld:
    return ConsumerWorld()


# ------------------------------------------------------------------ what a heartbeat must say
@pytest.mark.parametrize(
    ("version", "epoch", "error"),
    [
        (0, 0, NONE),
        (0, -2, NONE),
        (0, 1, INVALID),
        (0, 2, INVALID),
        (0, -1, INVALID),
        (1, 0, INVALID),
        (1, -2, INVALID),
    ],
)
def test_a_member_names_itself_since_version_1_and_before_that_unless_it_joins(
    world: ConsumerWorld, version: int, epoch: int, error: ErrorCode
) -> None:
    world.enter("a", instance_id="one")
    answer = world.beat("", epoch, version=version, instance_id="one", **(JOIN if epoch == 0 else {}))
    assert (answer.error == INVALID) == (error == INVALID)
    if error == INVALID:
        assert answer.response.error_message == "MemberId can't be empty."


def test_an_id_that_is_given_is_a_random_one(world: ConsumerWorld) -> None:
    given = [world.beat("", 0, version=0, **JOIN).response.member_id for _ in range(20)]
    assert list(world.group.members) == given
    assert {uuid.UUID(member_id).version for member_id in given} == {4}


def test_a_failure_without_words_has_no_message() -> None:
    assert [heartbeat_failed(FENCED, message).error_message for message in (None, "", "why")] == [None, None, "why"]


@pytest.mark.parametrize("names", [True, False])
def test_a_join_names_topics_or_a_pattern(world: ConsumerWorld, names: bool) -> None:
    said = {"subscribed_topic_names": ["t"]} if names else {"subscribed_topic_regex": "t"}
    assert world.beat("a", 0, owned={}, rebalance_timeout_ms=1, **said).error == NONE
    assert world.beat("b", 0, owned={}, rebalance_timeout_ms=1).error == INVALID


# ------------------------------------------------------------------ what the answer tells
@pytest.mark.parametrize(
    ("said", "tells"),
    [
        ({}, False),
        ({"owned": ALL}, False),
        ({"owned": ALL, "rebalance_timeout_ms": 1_000}, False),
        ({"owned": ALL, "subscribed_topic_names": ["t"]}, False),
        ({"rebalance_timeout_ms": 1_000, "subscribed_topic_names": ["t"]}, False),
        ({"owned": ALL, "rebalance_timeout_ms": 1_000, "subscribed_topic_names": ["t"]}, True),
        ({"owned": ALL, "rebalance_timeout_ms": 1_000, "subscribed_topic_regex": ""}, True),
        ({"owned": ALL, "rebalance_timeout_ms": 1, "subscribed_topic_names": ["t"]}, True),
    ],
)
def test_a_member_that_says_everything_is_told_its_assignment(
    world: ConsumerWorld, said: dict[str, Any], tells: bool
) -> None:
    world.enter("a")
    response = world.beat("a", 2, **said).response
    assert world.assigned(response) == ({world.ids(): {0, 1, 2, 3}} if tells else None)


def test_a_member_that_joins_is_told_its_assignment_though_it_is_empty(world: ConsumerWorld) -> None:
    world.enter("a")
    assert world.assigned(world.enter("b")) == {}
    assert world.assigned(world.enter("b")) == {}, "and when it joins again"


def test_a_member_is_told_what_changes(world: ConsumerWorld) -> None:
    world.enter("a")
    world.enter("b")
    assert world.assigned(world.beat("a", 2).response) is not None


# ------------------------------------------------------------------ members and groups
def test_a_new_group_is_counted_and_one_that_is_taken_over_is_not() -> None:
    world = ConsumerWorld(GroupSettings(consumer_assignment_interval_ms=0, groups_max=1))
    world.groups.admission.count_groups = lambda: len(world.groups.by_id)
    value = OffsetCommitValue(offset=1, metadata="", commit_timestamp=1)
    world.append(OffsetCommit(OffsetCommitKey(group=GROUP, topic="t", partition=0), value))
    world.enter("a")
    assert world.beat("b", 0, group="other", **JOIN).error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.beat("b", 0, **JOIN).error == NONE, "a group that is there may grow"
    assert "other" not in world.groups.by_id
    assert world.groups.admission.refused_count == 1


@pytest.mark.parametrize(
    ("settings", "room"), [(GroupSettings(consumer_max_size=3), 3), (GroupSettings(), MEMBERS_MAX)]
)
def test_a_group_has_a_largest_size(settings: GroupSettings, room: int) -> None:
    world = ConsumerWorld(msgspec.structs.replace(settings, consumer_assignment_interval_ms=10**9))
    world.enter("a")
    for number in range(room - 2):
        world.group.members[str(number)] = ModernMember(str(number))
    assert world.beat("b", 0, **JOIN).error == NONE
    assert len(world.group.members) == room
    assert world.beat("c", 0, **JOIN).error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.beat("a", 2).error == NONE


def test_a_static_member_that_starts_again_under_its_own_id_has_its_partitions(world: ConsumerWorld) -> None:
    world.enter("a", instance_id="one")
    count = world.end_offset
    again = world.enter("a", instance_id="one")
    assert (again.member_epoch, world.assigned(again), world.end_offset) == (2, {world.ids(): {0, 1, 2, 3}}, count)
    world.beat("a", -2, instance_id="one")
    again = world.enter("a", instance_id="one")
    assert (again.member_epoch, world.assigned(again)) == (2, {world.ids(): {0, 1, 2, 3}})
    assert list(world.group.members) == ["a"]
    world.check_reload()


def test_a_static_member_of_the_classic_protocol_need_not_leave_before_it_joins_with_the_new_one(
    world: ConsumerWorld,
) -> None:
    world.enter("new")
    classic = (("cooperative-sticky", subscription("t")),)
    World.join(world, version=3, protocols=classic, instance_id="one")
    assert world.enter("b", instance_id="one").error_code == NONE
    assert set(world.group.members) == {"new", "b"}
    assert isinstance(world.groups.by_id[GROUP], ConsumerGroup)


def test_a_dynamic_member_takes_an_instance_id_when_it_joins_again(world: ConsumerWorld) -> None:
    world.enter("a")
    world.enter("a", instance_id="one")
    assert (list(world.group.members), world.group.static_members) == (["a"], {"one": "a"})


def test_an_instance_id_is_needed_to_leave_for_a_while_only(world: ConsumerWorld) -> None:
    world.enter("a")
    assert world.beat("a", -2).error == INVALID
    assert world.beat("a", -3).error == INVALID
    assert world.beat("a", -1).error == NONE


@pytest.mark.parametrize(
    ("epoch", "owned", "error"),
    [
        (5, {}, NONE),
        (5, None, NONE),
        (4, {0}, NONE),
        (4, {}, NONE),
        (4, {0, 1}, FENCED),
        (4, None, FENCED),
        (3, {}, FENCED),
        (6, {}, FENCED),
    ],
)
def test_a_member_may_be_one_answer_behind_while_it_has_no_more_than_it_may(
    world: ConsumerWorld, epoch: int, owned: set[int] | None, error: ErrorCode
) -> None:
    world.enter("a")
    member, topic = world.group.members["a"], world.ids()
    world.group.group_epoch = world.group.target_epoch = 5
    world.group.targets["a"] = {topic: frozenset({0})}
    world.group.members["a"] = msgspec.structs.replace(
        member, member_epoch=5, previous_epoch=4, assigned={topic: frozenset({0})}
    )
    assert world.beat("a", epoch, owned=None if owned is None else {"t": owned}).error == error


def test_a_previous_epoch_that_is_not_older_is_none(world: ConsumerWorld) -> None:
    """A member that joined again may have had a higher epoch before."""
    world.enter("a")
    member = world.group.members["a"]
    world.group.members["a"] = msgspec.structs.replace(member, previous_epoch=7)
    assert world.beat("a", 7, owned={}).error == FENCED


# ------------------------------------------------------------------ what it says of itself
def test_what_a_heartbeat_does_not_say_stays(world: ConsumerWorld) -> None:
    said = {"rack_id": "r", "server_assignor": "range", "instance_id": "one", "subscribed_topic_regex": "u.*"}
    world.beat("a", 0, **JOIN, **said)
    first = world.group.members["a"]
    assert (first.rack_id, first.server_assignor, first.instance_id, first.topic_regex) == ("r", "range", "one", "u.*")
    assert (first.rebalance_timeout_ms, first.topic_names) == (1_000, {"t"})
    world.beat("a", first.member_epoch, instance_id="one")
    assert world.group.members["a"].has_same_subscription(first)
    changed = {"rack_id": "s", "server_assignor": "uniform", "subscribed_topic_regex": "", "rebalance_timeout_ms": 5}
    world.beat(
        "a", world.group.members["a"].member_epoch, instance_id="one", subscribed_topic_names=["t", "u"], **changed
    )
    last = world.group.members["a"]
    assert (last.rack_id, last.server_assignor, last.instance_id, last.topic_regex) == ("s", "uniform", "one", "")
    assert (last.rebalance_timeout_ms, last.topic_names) == (5, {"t", "u"})


@pytest.mark.parametrize("names", [["u"], ["t", "u"], []])
def test_a_member_may_consume_other_topics(world: ConsumerWorld, names: list[str]) -> None:
    world.enter("a")
    world.beat("a", 2, subscribed_topic_names=names)
    assert world.group.members["a"].topic_names == set(names)


def test_topics_that_are_named_twice_are_named_once(world: ConsumerWorld) -> None:
    world.enter("a")
    count = world.end_offset
    world.beat("a", 2, subscribed_topic_names=["t", "t"])
    assert (world.group.members["a"].topic_names, world.end_offset) == ({"t"}, count)
