"""A group changes its type while its members work: from classic to consumer, and back."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup, ConsumerGroupState
from lowtide.protocol.consumer_protocol import encode_assignment, parse_assignment
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.leave_group import MemberIdentity
from tests.unit.broker.coordinator.consumer_world import ConsumerWorld, subscription
from tests.unit.broker.coordinator.group_world import GROUP, REBALANCE_MS, SESSION_MS

PROTOCOLS = (("cooperative-sticky", subscription("t")),)


def classic_group(
    world: ConsumerWorld, *, assignments: tuple[list[int], ...] = ([0, 1], [2, 3])
) -> tuple[list[str], int]:
    """A stable classic group of consumers with these partitions: the members' ids, and the generation."""
    members: list[str] = []
    for _ in assignments:
        member_id, last = world.new_member(protocols=PROTOCOLS)
        others = [world.join(known, protocols=PROTOCOLS) for known in members]
        members.append(member_id)
    responses = [answer.response for answer in (*others, last)]
    generation_id, leader = responses[0].generation_id, responses[0].leader
    given = {
        member_id: encode_assignment(1, [("t", numbers)])
        for member_id, numbers in zip(members, assignments, strict=True)
    }
    for member_id in sorted(members, key=lambda each: each == leader):
        world.sync(member_id, generation_id, given)
    return members, generation_id


def assigned_by_sync(world: ConsumerWorld, member_id: str, generation_id: int) -> set[int]:
    answer = world.sync(member_id, generation_id)
    assert answer.error == ErrorCode.NONE, answer.error
    rows = dict(parse_assignment(answer.response.assignment).topics)
    return set(rows.get("t", ()))


def go_on(world: ConsumerWorld, member_id: str, owned: set[int]) -> tuple[int, set[int]]:
    """A classic member joins with its partitions and syncs. Returns its generation and its new partitions."""
    said = (("cooperative-sticky", subscription("t", owned={"t": sorted(owned)} if owned else {})),)
    answer = world.join(member_id, protocols=said)
    assert answer.error == ErrorCode.NONE, answer.error
    generation_id = answer.response.generation_id
    return generation_id, assigned_by_sync(world, member_id, generation_id)


def converge(world: ConsumerWorld, classic: dict[str, set[int]], *consumers: str) -> dict[str, int]:
    """All members apply their assignments until the group is stable: the generations of the classic ones."""
    generations = {member_id: world.group.members[member_id].member_epoch for member_id in classic}
    for _ in range(10):
        for member_id in consumers:
            member = world.group.members[member_id]
            assert world.beat(member_id, member.member_epoch, owned=dict(member.assigned)).error == ErrorCode.NONE
        for member_id, owned in classic.items():
            error = world.heartbeat(member_id, generations[member_id])
            if error == ErrorCode.REBALANCE_IN_PROGRESS:
                generations[member_id], classic[member_id] = go_on(world, member_id, owned)
            else:
                assert error == ErrorCode.NONE, error
    assert world.group.state is ConsumerGroupState.STABLE
    return generations


def upgraded(world: ConsumerWorld) -> tuple[dict[str, set[int]], dict[str, int]]:
    """A group of two members of the classic protocol and `new`: the partitions of the two, and their generations."""
    members, _ = classic_group(world)
    world.enter("new")
    classic = dict(zip(members, ({0, 1}, {2, 3}), strict=True))
    return classic, converge(world, classic, "new")


def test_a_classic_group_becomes_a_consumer_group_and_no_member_loses_its_partitions():
    world = ConsumerWorld()
    members, generation_id = classic_group(world)
    response = world.enter("new")
    assert isinstance(world.groups.by_id[GROUP], ConsumerGroup)
    assert (response.member_epoch, world.assigned(response)) == (generation_id + 1, {})
    assert {world.group.members[each].member_epoch for each in members} == {generation_id}
    assert world.heartbeat(members[0], generation_id) == ErrorCode.REBALANCE_IN_PROGRESS
    classic = dict(zip(members, ({0, 1}, {2, 3}), strict=True))
    converge(world, classic, "new")
    parts = [*classic.values(), set(world.group.members["new"].assigned[world.ids()])]
    assert sorted(len(part) for part in parts) == [1, 1, 2]
    assert set().union(*parts) == {0, 1, 2, 3}
    world.check_reload()


def test_a_member_that_waits_in_a_rebalance_joins_again():
    world = ConsumerWorld()
    members, _ = classic_group(world)
    waiting = world.join(members[0], protocols=(("cooperative-sticky", subscription("t", "u")),))
    assert waiting.response is None
    world.enter("new")
    assert waiting.error == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_classic_group_in_its_first_rebalance_becomes_a_consumer_group():
    world = ConsumerWorld(GroupSettings(initial_rebalance_delay_ms=3_000))
    waiting = world.join("", protocols=PROTOCOLS, version=3)
    assert waiting.response is None
    response = world.enter("new", subscribed_topic_regex="t.*")
    assert response.member_epoch > 0  # Epoch 0 is for joining: a member that receives epoch 0 cannot continue.
    assert waiting.error == ErrorCode.REBALANCE_IN_PROGRESS
    assert all(member.member_epoch > 0 for member in world.group.members.values())
    world.check_reload()


def test_the_last_member_of_the_new_protocol_leaves_and_the_group_is_classic_again():
    world = ConsumerWorld()
    classic, generations = upgraded(world)
    assert world.beat("new", -1).error == ErrorCode.NONE
    group = world.groups.by_id[GROUP]
    assert isinstance(group, ClassicGroup)
    assert group.state is GroupState.PREPARING_REBALANCE
    assert list(group.members) == list(classic)
    for member_id, generation_id in generations.items():
        assert world.heartbeat(member_id, generation_id) == ErrorCode.REBALANCE_IN_PROGRESS
    answers = [world.join(member_id, protocols=PROTOCOLS) for member_id in classic]
    assert {answer.error for answer in answers} == {ErrorCode.NONE}
    assert answers[0].response.generation_id > max(generations.values())
    loaded = world.reload().groups.by_id[GROUP]
    assert isinstance(loaded, ClassicGroup)
    assert set(loaded.members) == set(classic)


def test_a_silent_member_of_the_new_protocol_makes_the_group_classic_too():
    world = ConsumerWorld()
    classic, generations = upgraded(world)
    for _ in range(10):
        world.pass_time(SESSION_MS // 2)
        for member_id in classic:
            if isinstance(world.groups.by_id[GROUP], ConsumerGroup):
                world.heartbeat(member_id, generations[member_id])
            else:
                world.join(member_id, protocols=PROTOCOLS)
    assert isinstance(world.groups.by_id[GROUP], ClassicGroup)
    assert set(world.groups.by_id[GROUP].members) == set(classic)


def test_members_of_the_classic_protocol_leave_and_are_late():
    world = ConsumerWorld()
    classic, generations = upgraded(world)
    first, second = classic
    assert world.leave(MemberIdentity(member_id=first)) == [ErrorCode.NONE]
    assert world.leave(MemberIdentity(member_id=first)) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.heartbeat(second, generations[second]) == ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(REBALANCE_MS // 5_000):
        world.pass_time(5_000)
        world.settle("new", rounds=1)
        world.heartbeat(second, generations[second])
    assert list(world.group.members) == ["new"], "the other one did not rejoin in time"
    assert world.assigned(world.enter("new")) == {world.ids(): {0, 1, 2, 3}}


def test_a_member_of_the_classic_protocol_joins_such_a_group():
    world = ConsumerWorld()
    world.enter("new")
    member_id, answer = world.new_member(protocols=PROTOCOLS)
    response = answer.response
    assert (response.error_code, response.protocol_name, response.leader, response.generation_id) == (
        ErrorCode.NONE,
        "cooperative-sticky",
        "",
        3,
    )
    classic = {member_id: assigned_by_sync(world, member_id, 3)}
    assert classic == {member_id: set()}
    converge(world, classic, "new")
    assert len(classic[member_id]) == 2
    world.check_reload()


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"protocols": (("range", subscription("t")),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("cooperative-sticky", b"?"),), "member_id": "x"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"instance_id": "one", "member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({}, ErrorCode.MEMBER_ID_REQUIRED),
    ],
    ids=["protocol", "type", "not a subscription", "unknown", "id"],
)
def test_members_that_are_refused(more: dict[str, Any], error: ErrorCode):
    world = ConsumerWorld()
    upgraded(world)
    answer = world.join(more.pop("member_id", ""), **{"protocols": PROTOCOLS, **more})
    assert answer.error == error


def test_generations_of_members_of_the_classic_protocol():
    world = ConsumerWorld()
    classic, generations = upgraded(world)
    member_id = next(iter(classic))
    generation_id = generations[member_id]
    assert world.heartbeat(member_id, generation_id - 1) == ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat("new", 3) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(member_id, generation_id, "one") == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.sync(member_id, generation_id - 1).error == ErrorCode.ILLEGAL_GENERATION
    assert world.sync(member_id, generation_id, protocol_name="range").error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.group.check_commit(member_id, generation_id - 1, 8) == ErrorCode.ILLEGAL_GENERATION
    assert world.group.check_commit(member_id, generation_id, 8) == ErrorCode.NONE


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_a_policy_keeps_a_group_classic(policy):
    world = ConsumerWorld(GroupSettings(initial_rebalance_delay_ms=0, consumer_migration_policy=policy))
    classic_group(world)
    answer = world.beat("new", 0, owned={}, rebalance_timeout_ms=1, subscribed_topic_names=["t"])
    assert answer.error == ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(world.groups.by_id[GROUP], ClassicGroup)


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_a_policy_keeps_a_group_of_the_new_kind(policy):
    settings = GroupSettings(initial_rebalance_delay_ms=0, consumer_assignment_interval_ms=0)
    world = ConsumerWorld(settings)
    upgraded(world)
    world.groups.consumers.migration._settings = GroupSettings(consumer_migration_policy=policy)
    world.beat("new", -1)
    assert isinstance(world.groups.by_id[GROUP], ConsumerGroup)


def test_a_group_with_an_assignor_of_its_own_stays_classic():
    world = ConsumerWorld()
    member_id, joined = world.new_member(protocols=PROTOCOLS)
    assignment = encode_assignment(1, [("t", [0])])[:-4] + b"\0\0\0\2ab"
    world.sync(member_id, joined.response.generation_id, {member_id: assignment})
    answer = world.beat("new", 0, owned={}, rebalance_timeout_ms=1, subscribed_topic_names=["t"])
    assert answer.error == ErrorCode.GROUP_ID_NOT_FOUND
    assert "assignor" in answer.response.error_message


def test_a_group_that_is_not_of_consumers_stays_classic():
    world = ConsumerWorld()
    world.stable(1, protocol_type="connect")
    answer = world.beat("new", 0, owned={}, rebalance_timeout_ms=1, subscribed_topic_names=["t"])
    assert answer.error == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_upgrade_that_cannot_be_written_leaves_the_group_unchanged():
    world = ConsumerWorld()
    members, generation_id = classic_group(world)
    world.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    answer = world.beat("new", 0, owned={}, rebalance_timeout_ms=1, subscribed_topic_names=["t"])
    assert answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.append_fails = None
    assert isinstance(world.groups.by_id[GROUP], ClassicGroup)
    assert world.heartbeat(members[0], generation_id) == ErrorCode.NONE


def test_an_empty_group_is_taken_over_by_either_kind():
    world = ConsumerWorld()
    member_id, _ = world.new_member(protocols=PROTOCOLS)
    world.leave(MemberIdentity(member_id=member_id))
    world.enter("new")
    assert isinstance(world.groups.by_id[GROUP], ConsumerGroup)
    world.beat("new", -1)
    assert world.join("gone", protocols=PROTOCOLS).error == ErrorCode.UNKNOWN_MEMBER_ID
    member_id, answer = world.new_member(protocols=PROTOCOLS)
    assert isinstance(world.groups.by_id[GROUP], ClassicGroup)
    assert answer.error == ErrorCode.NONE
    world.sync(member_id, answer.response.generation_id, {member_id: b""})
    assert isinstance(world.reload().groups.by_id[GROUP], ClassicGroup)


def test_a_static_member_goes_to_the_new_protocol_and_back():
    """It is the only member, so the whole group changes its type, and no partition moves to another member."""
    world = ConsumerWorld()
    joined = world.join(protocols=PROTOCOLS, instance_id="one").response
    world.sync(
        joined.member_id,
        joined.generation_id,
        {joined.member_id: encode_assignment(1, [("t", [0, 1, 2, 3])])},
        group_instance_id="one",
    )
    back = world.enter("new", instance_id="one")
    assert list(world.group.members) == ["new"]
    assert world.assigned(back) == {world.ids(): {0, 1, 2, 3}}
    world.beat("new", -2, instance_id="one")
    again = world.join(protocols=PROTOCOLS, instance_id="one")
    assert again.error == ErrorCode.NONE
    group = world.groups.by_id[GROUP]
    assert isinstance(group, ClassicGroup)
    assert list(group.members) == [again.response.member_id]
    assert set(parse_assignment(group.members[again.response.member_id].assignment).topics[0][1]) == {0, 1, 2, 3}
