"""Joins to a classic group: which members are let in, what a known member's join starts, returning static members."""

from __future__ import annotations

import uuid

import pytest

from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.member_memory import BROKER_BYTES_MAX, MEMBER_BYTES, bytes_of_member
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.leave_group import MemberIdentity
from tests.unit.broker.coordinator.consumer_world import subscription
from tests.unit.broker.coordinator.group_world import GROUP, REBALANCE_MS, SESSION_MS, World

NONE, FENCED, UNKNOWN, TOO_LARGE = (
    ErrorCode.NONE,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
)
OTHER = (("range", b"other topics"),)


@pytest.fixture
def world() -> World:
    return World()


def world_with_static(instance_id: str = "i") -> tuple[World, str, str]:
    """A stable group of a dynamic leader and a static follower; their ids."""
    world = World()
    [leader], _ = world.stable()
    joining = world.join(instance_id=instance_id)
    world.join(leader)
    static = joining.response.member_id
    world.sync(leader, 2, {leader: b"1", static: b"2"})
    world.sync(static, 2)
    assert world.classic_group.state is GroupState.STABLE
    return world, leader, static


# ------------------------------------------------------------------ ids
def test_a_member_id_names_the_client_or_its_instance(world: World) -> None:
    for instance_id, name in ((None, "client"), ("i", "i")):
        member_id = world.join(instance_id=instance_id).response.member_id
        assert member_id.startswith(f"{name}-")
        assert uuid.UUID(member_id.removeprefix(f"{name}-")).version == 4


@pytest.mark.parametrize(
    ("version", "error"), [(3, NONE), (4, ErrorCode.MEMBER_ID_REQUIRED), (9, ErrorCode.MEMBER_ID_REQUIRED)]
)
def test_an_id_is_required_since_version_4(world: World, version: int, error: ErrorCode) -> None:
    assert world.join(version=version).error == error


def test_an_id_that_was_given_to_a_dynamic_member_is_none_of_a_static_one(world: World) -> None:
    member_id = world.join().response.member_id
    assert world.join(member_id, instance_id="i").error == UNKNOWN
    assert world.join(member_id).error == NONE


@pytest.mark.parametrize(("asked", "kept"), [(REBALANCE_MS, REBALANCE_MS), (0, 0), (-1, SESSION_MS)])
def test_a_member_without_a_time_for_rebalances_takes_that_of_its_session(world: World, asked: int, kept: int) -> None:
    world.join(version=3, rebalance_ms=asked)
    assert world.classic_group.rebalance_timeout_ms == kept


# ------------------------------------------------------------------ limits
def test_an_id_that_finds_the_group_full_is_forgotten() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0, max_size=1))
    unused = world.join().response.member_id
    member = world.join(version=3).response.member_id
    held_bytes = world.classic_group.memory.held_bytes
    assert list(world.classic_group.pending_join) == [unused]
    assert world.join(unused).error == TOO_LARGE
    assert world.classic_group.pending_join == {}
    assert world.classic_group.memory.held_bytes == held_bytes - MEMBER_BYTES
    assert world.groups.timers.deadline_of(("heartbeat", GROUP, unused)) is None
    assert world.join(member).error == NONE, "a member of a full group may join again"


def test_a_loaded_group_shrinks_to_the_largest_size() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=0))
    members, generation_id = world.stable(3)
    world.settings = GroupSettings(initial_rebalance_delay_ms=0, max_size=2)
    world = world.reload()
    first = world.join(members[0])
    second = world.join(members[1])
    again = world.join(members[0])
    assert first.error == UNKNOWN, "its client has given that request up"
    assert (again.response, second.response) == (None, None)
    assert world.join(members[2]).error == TOO_LARGE
    assert world.heartbeat(members[2], generation_id) == UNKNOWN
    world.pass_time(REBALANCE_MS)
    assert again.response.generation_id == second.response.generation_id == generation_id + 1


def test_a_new_member_may_take_all_the_room_that_is_left_and_no_more(world: World) -> None:
    needed = bytes_of_member(("client", None), OTHER)
    world.groups.memory.held_bytes = BROKER_BYTES_MAX - needed + 1
    assert world.join(version=3, protocols=OTHER).error == TOO_LARGE
    world.groups.memory.held_bytes = BROKER_BYTES_MAX - needed
    assert world.join(version=3, protocols=OTHER).error == NONE
    assert world.groups.memory.held_bytes == BROKER_BYTES_MAX


def test_a_member_that_says_no_more_than_before_needs_no_room(world: World) -> None:
    [member], generation_id = world.stable()
    world.sync(member, generation_id, {member: bytes(500)})
    world.groups.memory.held_bytes = BROKER_BYTES_MAX + 1
    assert world.join(member, protocols=(("range", b"1"),)).error == TOO_LARGE, (
        "its assignment is no room for what it says"
    )
    assert world.join(member).error == NONE
    world.groups.memory.held_bytes = 0
    assert world.join(member, protocols=(("range", b"11"),)).error == NONE
    world.groups.memory.held_bytes = BROKER_BYTES_MAX + 1
    assert world.join(member, protocols=(("range", b"22"),)).error == NONE


# ------------------------------------------------------------------ members that join again
def test_a_leader_that_joins_again_starts_a_rebalance(world: World) -> None:
    [first, second], generation_id = world.stable(2)
    leader = world.classic_group.leader_id
    follower = second if leader == first else first
    assert world.join(follower).response.members == []
    again = world.join(leader or "")
    assert (again.response, world.classic_group.state) == (None, GroupState.PREPARING_REBALANCE)
    last = world.join(follower)
    assert again.response.generation_id == last.response.generation_id == generation_id + 1


def test_a_follower_that_joins_again_in_a_rebalance_waits_for_it(world: World) -> None:
    [first, second], generation_id = world.stable(2)
    world.new_member()
    again = world.join(second)
    assert again.response is None
    world.join(first)
    assert again.response.generation_id == generation_id + 1  # type: ignore[attr-defined]


def test_a_repeated_join_while_assignments_are_awaited_is_answered_at_once(world: World) -> None:
    [first], _ = world.stable()
    second, _ = world.new_member()
    world.join(first)
    rows = [[row.member_id for row in world.join(member).response.members] for member in (first, second)]
    assert rows == [[first, second], []]
    assert world.classic_group.generation_id == 2
    changed = world.join(second, protocols=OTHER)
    assert (changed.response, world.classic_group.state) == (None, GroupState.PREPARING_REBALANCE)


def test_a_new_member_may_wait_for_its_first_generation_for_five_minutes(world: World) -> None:
    [first], generation_id = world.stable(rebalance_ms=600_000)
    second, joining = world.new_member(rebalance_ms=600_000)
    for _ in range(60):
        assert joining.response is None
        world.pass_time(5_000)
        world.heartbeat(first, generation_id)
    assert joining.error == UNKNOWN
    assert world.classic_group.state is GroupState.PREPARING_REBALANCE, "the first member has not joined"
    assert second not in world.classic_group.members


# ------------------------------------------------------------------ static members
def test_a_static_follower_that_returns_keeps_its_assignment() -> None:
    world, leader, static = world_with_static()
    back = world.join(instance_id="i").response
    assert (back.error_code, back.leader, back.members, back.skip_assignment) == (NONE, leader, [], False)
    assert world.sync(back.member_id, 2).response.assignment == b"2"
    assert world.groups.timers.deadline_of(("heartbeat", GROUP, static)) is None


def test_the_topics_of_a_static_member_that_returns_are_known(world: World) -> None:
    world.join(instance_id="i", protocols=(("range", subscription("t")),))
    world.sync(world.classic_group.leader_id or "", 1, {})
    assert world.classic_group.subscribed == {"t"}
    world.join(instance_id="i", protocols=(("range", subscription("u")),))
    assert (world.classic_group.state, world.classic_group.subscribed) == (GroupState.STABLE, {"u"})


def test_a_static_member_that_returns_with_another_protocol_starts_a_rebalance(world: World) -> None:
    both = (("a", b""), ("b", b""))
    old = world.join(instance_id="i", protocols=both).response.member_id
    world.sync(old, 1, {})
    assert world.classic_group.protocol_name == "a"
    back = world.join(instance_id="i", protocols=(("b", b""),))
    assert (back.response.generation_id, back.response.protocol_name) == (2, "b")


def test_a_static_member_that_returns_while_assignments_are_awaited_starts_a_rebalance(world: World) -> None:
    [first], _ = world.stable()
    joining = world.join(instance_id="i")
    world.join(first)
    waiting = world.sync(joining.response.member_id, 2)
    back = world.join(instance_id="i")
    assert (waiting.error, back.response, world.classic_group.state) == (FENCED, None, GroupState.PREPARING_REBALANCE)
    world.join(first)
    assert back.response.generation_id == 3


def test_a_static_member_that_returns_may_complete_a_rebalance() -> None:
    world, leader, _ = world_with_static()
    again = world.join(leader)
    assert again.response is None
    back = world.join(instance_id="i")
    assert again.response.generation_id == back.response.generation_id == 3  # type: ignore[attr-defined]


def test_a_static_member_that_returns_twice_is_answered_once() -> None:
    world, _, _ = world_with_static()
    world.holds_commits = True
    one = world.join(instance_id="i")
    two = world.join(instance_id="i")
    assert (one.error, two.response) == (FENCED, None)
    world.commit()
    assert two.error == NONE


def test_a_static_member_that_returned_waits_for_a_rebalance_that_has_begun_since() -> None:
    world, leader, _ = world_with_static()
    world.holds_commits = True
    back = world.join(instance_id="i")
    world.new_member()
    world.commit()
    assert (back.response, world.classic_group.state) == (None, GroupState.PREPARING_REBALANCE)
    world.join(leader)
    assert back.response.generation_id == 3


def test_a_return_that_fails_after_a_rebalance_changes_nothing() -> None:
    world, leader, _ = world_with_static()
    world.holds_commits = True
    back = world.join(instance_id="i")
    world.join(leader)
    member_id = back.response.member_id
    world.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert world.classic_group.static_members == {"i": member_id}
    assert world.heartbeat(member_id, 3, "i") == NONE


@pytest.mark.parametrize("waits", [False, True])
def test_a_static_member_whose_return_cannot_be_recorded_keeps_its_old_id(waits: bool) -> None:
    world, leader, static = world_with_static()
    world.holds_commits = waits
    world.append_fails = None if waits else ErrorCode.NOT_ENOUGH_REPLICAS
    back = world.join(instance_id="i", protocols=OTHER)
    world.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.append_fails = None
    assert back.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert list(world.classic_group.members) == [leader, static]
    assert world.classic_group.members[static].protocols == (("range", b""),)
    assert world.heartbeat(static, 2, "i") == NONE
    heartbeats = [key[2] for key in world.groups.timers._deadlines if key[0] == "heartbeat"]
    assert sorted(heartbeats) == sorted([leader, static])
    world.leave(MemberIdentity(member_id=leader))
    assert world.join(static, instance_id="i").response.generation_id == 3


def test_a_static_member_that_fails_to_return_has_a_whole_session() -> None:
    world, leader, static = world_with_static()
    world.holds_commits = True
    world.join(instance_id="i")
    world.pass_time(SESSION_MS - 1)
    world.heartbeat(leader, 2)
    world.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert world.groups.timers.deadline_of(("heartbeat", GROUP, static)) == 2 * SESSION_MS - 1
