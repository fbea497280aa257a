"""Rebalances of classic groups: who is waited for, for how long, and what happens when a member is late."""

from __future__ import annotations

import pytest

from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.leave_group import MemberIdentity
from tests.unit.broker.coordinator.group_world import GROUP, REBALANCE_MS, SESSION_MS, World

UNKNOWN, REBALANCES = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS
BEAT_MS = SESSION_MS // 2


@pytest.fixture
def world() -> World:
    return World()


def world_with_delay(delay_ms: int) -> World:
    return World(GroupSettings(initial_rebalance_delay_ms=delay_ms))


def deadline(world: World, kind: str, member_id: str = "") -> int | None:
    return world.groups.timers.deadline_of((kind, GROUP, member_id))


def beat(world: World, milliseconds: int, *members: str) -> None:
    """Lets time pass in which these members send heartbeats."""
    for _ in range(milliseconds // BEAT_MS):
        world.pass_time(BEAT_MS)
        for member_id in members:
            world.heartbeat(member_id, world.classic_group.generation_id)


# ------------------------------------------------------------------ the first delay
def test_a_member_that_is_alone_waits_for_one_delay() -> None:
    world = world_with_delay(3_000)
    _, joining = world.new_member()
    world.pass_time(2_999)
    assert joining.response is None
    world.pass_time(1)
    assert joining.error == ErrorCode.NONE


def test_delays_follow_each_other_while_members_come_up_to_the_time_of_a_rebalance() -> None:
    world = world_with_delay(3_000)
    joined = [world.join(version=3)]
    for _ in range(10):
        world.pass_time(2_999)
        assert all(answer.response is None for answer in joined)
        joined.append(world.join(version=3))
        world.pass_time(1)
    assert world.now_ms == REBALANCE_MS
    assert {answer.response.generation_id for answer in joined} == {1}


@pytest.mark.parametrize(
    ("delay_ms", "end_ms"), [(40_000, 40_000), (30_000, 30_000), (29_999, 30_000), (29_000, 30_000)]
)
def test_a_long_delay_is_extended_by_what_is_left_of_the_time_of_a_rebalance(delay_ms: int, end_ms: int) -> None:
    world = world_with_delay(delay_ms)
    first = world.join(version=3)
    world.pass_time(1_000)
    second = world.join(version=3)
    world.pass_time(end_ms - 1_001)
    assert (first.response, second.response) == (None, None)
    world.pass_time(1)
    assert first.response.generation_id == second.response.generation_id == 1


def test_late_members_of_one_first_rebalance_extend_no_other_one() -> None:
    world = world_with_delay(20_000)
    first = world.join(version=3)
    world.pass_time(19_000)
    second = world.join(version=3)
    world.pass_time(10_000)
    third = world.join(version=3)
    world.pass_time(1_000)
    members = [answer.response.member_id for answer in (first, second, third)]
    fourth = world.join(version=3)
    world.join(members[0])
    beat(world, REBALANCE_MS, *members[1:])
    assert list(world.classic_group.members) == [members[0], fourth.response.member_id]
    world.leave(MemberIdentity(member_id=members[0]), MemberIdentity(member_id=fourth.response.member_id))
    assert world.classic_group.state is GroupState.EMPTY
    last = world.join(version=3)
    world.pass_time(20_000)
    assert last.error == ErrorCode.NONE


# ------------------------------------------------------------------ members that are late to join
def test_a_member_that_lives_but_does_not_join_again_is_out(world: World) -> None:
    [first], generation_id = world.stable()
    second, joining = world.new_member()
    beat(world, REBALANCE_MS - BEAT_MS, first)
    assert joining.response is None
    beat(world, BEAT_MS, first)
    assert (joining.response.generation_id, joining.response.leader) == (generation_id + 1, second)  # type: ignore[attr-defined]
    assert list(world.classic_group.members) == [second]
    assert (deadline(world, "heartbeat", first), deadline(world, "join")) == (None, None)


@pytest.mark.parametrize("lives", [False, True])
def test_a_rebalance_ends_when_the_last_member_that_is_awaited_is_silent(world: World, lives: bool) -> None:
    [first, second, third], generation_id = world.stable(3)
    if not lives:
        world.leave(MemberIdentity(member_id=third))
    _, joining = world.new_member()
    again = world.join(first)
    beat(world, SESSION_MS, *([third] if lives else []))
    assert second not in world.classic_group.members
    assert (again.response is None, joining.response is None) == (lives, lives)
    if not lives:
        assert again.response.generation_id == generation_id + 1


@pytest.mark.parametrize("rejoins", [False, True])
def test_a_rebalance_that_waits_for_an_unused_id_only_ends_with_it(world: World, rejoins: bool) -> None:
    [first], generation_id = world.stable()
    world.join()
    joining = world.join(version=3)
    again = world.join(first) if rejoins else None
    beat(world, SESSION_MS - BEAT_MS, first)
    assert joining.response is None
    beat(world, BEAT_MS, first)
    assert world.classic_group.pending_join == {}
    assert (joining.response is not None) == rejoins
    assert again is None or again.response.generation_id == generation_id + 1


def test_members_that_wait_for_others_need_no_heartbeats(world: World) -> None:
    [first, second], generation_id = world.stable(2, rebalance_ms=600_000)
    world.new_member(rebalance_ms=600_000)
    again = world.join(first, rebalance_ms=600_000)
    beat(world, 2 * SESSION_MS, second)
    assert again.response is None
    world.join(second, rebalance_ms=600_000)
    assert again.response.generation_id == generation_id + 1  # type: ignore[attr-defined]
    assert deadline(world, "heartbeat", first) == world.now_ms + SESSION_MS


def test_static_members_alone_keep_their_places_until_their_sessions_end(world: World) -> None:
    static = world.join(instance_id="i").response.member_id
    world.sync(static, 1, {static: b""})
    second, _ = world.new_member()
    world.leave(MemberIdentity(member_id=second))
    beat(world, REBALANCE_MS, static)
    assert (world.classic_group.state, world.classic_group.generation_id) == (GroupState.PREPARING_REBALANCE, 1)
    assert deadline(world, "join") == 2 * REBALANCE_MS
    world.pass_time(SESSION_MS)
    assert (world.classic_group.state, world.classic_group.generation_id) == (GroupState.EMPTY, 2)


def test_a_group_that_becomes_empty_is_recorded_and_waits_for_nothing(world: World) -> None:
    [member], _ = world.stable()
    world.leave(MemberIdentity(member_id=member))
    assert [deadline(world, kind) for kind in ("join", "sync")] == [None, None]
    loaded = world.reload().classic_group
    assert (loaded.state, loaded.generation_id, loaded.leader_id, loaded.protocol_name) == (
        GroupState.EMPTY,
        2,
        None,
        None,
    )


# ------------------------------------------------------------------ assignments
def completing(world: World) -> tuple[str, str]:
    """A group in whose second generation two members await their assignments: the leader, and the other one."""
    [first], _ = world.stable()
    second, _ = world.new_member()
    world.join(first)
    assert (world.classic_group.state, world.classic_group.leader_id) == (GroupState.COMPLETING_REBALANCE, first)
    return first, second


def test_the_wait_for_syncs_ends_with_the_last_of_them(world: World) -> None:
    first, second = completing(world)
    assert deadline(world, "sync") == REBALANCE_MS
    world.sync(second, 2)
    assert deadline(world, "sync") == REBALANCE_MS
    world.sync(first, 2, {})
    assert deadline(world, "sync") is None


def test_a_rebalance_ends_the_wait_for_syncs(world: World) -> None:
    completing(world)
    world.new_member()
    assert (world.classic_group.state, deadline(world, "sync")) == (GroupState.PREPARING_REBALANCE, None)


def test_a_member_that_waits_for_its_assignment_needs_no_heartbeats(world: World) -> None:
    first, second = completing(world)
    waiting = world.sync(second, 2)
    beat(world, SESSION_MS + BEAT_MS, first)
    assert waiting.response is None
    world.sync(first, 2, {second: b"part"})
    assert waiting.response.assignment == b"part"  # type: ignore[attr-defined]
    assert deadline(world, "heartbeat", second) == world.now_ms + SESSION_MS
    beat(world, SESSION_MS, first)
    assert world.heartbeat(second, 2) == UNKNOWN


def test_a_member_that_does_not_sync_in_time_is_out(world: World) -> None:
    first, second = completing(world)
    waiting = world.sync(second, 2)
    beat(world, REBALANCE_MS, first)
    assert waiting.error == REBALANCES
    assert (list(world.classic_group.members), world.classic_group.leader_id) == ([second], second)
    assert deadline(world, "heartbeat", first) is None


def test_members_that_wait_for_assignments_are_answered_when_another_rebalance_begins(world: World) -> None:
    _, second = completing(world)
    waiting = world.sync(second, 2)
    world.new_member()
    assert waiting.error == REBALANCES, "although the leader before it doesn't wait"


def test_assignments_of_one_generation_are_none_of_the_next(world: World) -> None:
    [first], _ = world.stable()
    world.holds_commits = True
    world.join(first)
    world.sync(first, 2, {first: b"of the second"})
    second, _ = world.new_member()
    world.join(first)
    waiting = world.sync(second, 3)
    world.commit()
    assert (world.classic_group.state, world.classic_group.generation_id, waiting.response) == (
        GroupState.COMPLETING_REBALANCE,
        3,
        None,
    )


def test_members_of_a_generation_that_is_given_up_have_no_assignments(world: World) -> None:
    first, _ = completing(world)
    member = world.classic_group.members[first]
    assert member.assignment == first.encode()
    held_bytes = member.held_bytes
    world.join(version=3)
    assert (member.assignment, member.held_bytes) == (b"", held_bytes - len(first))
