"""Members of classic groups that leave, and groups that are deleted, loaded, or have another coordinator."""

from __future__ import annotations

import random

import pytest

from lowtide.broker.coordinator.classic.classic_groups import ClassicGroups
from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.member_memory import MemberMemory
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import GroupMetadata, OffsetCommit, OffsetCommitKey, OffsetCommitValue
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from lowtide.protocol.messages.leave_group import MemberIdentity
from lowtide.protocol.messages.sync_group import SyncGroupRequest
from tests.unit.broker.coordinator.group_world import GROUP, SESSION_MS, World

COMMIT = OffsetCommit(
    OffsetCommitKey(group=GROUP, topic="t", partition=0), OffsetCommitValue(offset=1, metadata="", commit_timestamp=1)
)


@pytest.fixture
def world() -> World:
    return World()


def has_timer(world: World, kind: str, member_id: str = "") -> bool:
    return world.groups.timers.deadline_of((kind, GROUP, member_id)) is not None


# ------------------------------------------------------------------ leaving
def test_members_that_have_joined_do_not_wait_for_one_that_leaves(world: World) -> None:
    [first, second], generation_id = world.stable(2)
    _, joining = world.new_member()
    again = world.join(first)
    assert again.response is None
    world.leave(MemberIdentity(member_id=second))
    assert again.response.generation_id == joining.response.generation_id == generation_id + 1  # type: ignore[attr-defined]


def test_a_member_that_leaves_while_it_waits_for_its_assignment_is_answered(world: World) -> None:
    [first], _ = world.stable()
    second, _ = world.new_member()
    world.join(first)
    waiting = world.sync(second, 2)
    world.leave(MemberIdentity(member_id=second))
    assert waiting.error == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.classic_group.state is GroupState.PREPARING_REBALANCE


def test_the_heartbeats_of_a_member_that_left_are_not_awaited(world: World) -> None:
    [first, second], _ = world.stable(2)
    world.leave(MemberIdentity(member_id=second))
    assert (has_timer(world, "heartbeat", first), has_timer(world, "heartbeat", second)) == (True, False)


def test_an_id_that_is_given_back_is_forgotten_and_its_group_too(world: World) -> None:
    member_id = world.join().response.member_id
    assert world.leave(MemberIdentity(member_id=member_id)) == [ErrorCode.NONE]
    assert world.groups.by_id == {}
    assert not has_timer(world, "heartbeat", member_id)
    assert world.groups.memory.held_bytes == 0


def test_a_group_with_offsets_stays_when_an_id_is_never_used(world: World) -> None:
    world.append(COMMIT)
    world.join()
    world.pass_time(SESSION_MS)
    assert world.classic_group.is_simple


def test_a_group_stays_when_its_first_generation_leaves_before_it_is_recorded(world: World) -> None:
    member_id, _ = world.new_member()
    assert world.classic_group.last_record_offset == -1
    group = world.classic_group
    world.leave(MemberIdentity(member_id=member_id))
    assert world.classic_group is group
    assert (group.state, group.generation_id, group.last_record_offset) == (GroupState.EMPTY, 2, 0)


# ------------------------------------------------------------------ syncs
def test_a_sync_that_is_repeated_replaces_the_one_that_waits(world: World) -> None:
    [first], _ = world.stable()
    second, _ = world.new_member()
    world.join(first)
    one, two = world.sync(second, 2), world.sync(second, 2)
    assert (one.error, two.response) == (ErrorCode.REBALANCE_IN_PROGRESS, None)
    world.sync(first, 2, {second: b"part"})
    assert two.response.assignment == b"part"


def test_a_sync_may_say_which_protocol_it_expects(world: World) -> None:
    [member], _ = world.stable()
    asked = (("consumer", "range"), (None, "range"), ("consumer", None), ("connect", "range"), ("consumer", "other"))
    errors = [world.sync(member, 1, protocol_type=kind, protocol_name=name).error for kind, name in asked]
    assert errors == [0, 0, 0, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorCode.INCONSISTENT_GROUP_PROTOCOL]


# ------------------------------------------------------------------ groups that end
def test_a_group_that_is_deleted_leaves_nothing_behind(world: World) -> None:
    [member], _ = world.stable()
    world.leave(MemberIdentity(member_id=member))
    unused = world.join().response.member_id
    group, effects = world.classic_group, world.effects()
    assert world.groups.delete_group(GROUP, effects) == ErrorCode.NONE
    world.carry_out(effects)
    assert world.groups.by_id == {}
    assert world.log[-1][1] == GroupMetadata(GROUP, None)
    assert group.state is GroupState.DEAD
    assert not has_timer(world, "heartbeat", unused)
    assert world.groups.memory.held_bytes == 0


@pytest.mark.parametrize("rejoins", [False, True])
def test_nothing_is_awaited_of_a_group_that_is_taken_back(world: World, rejoins: bool) -> None:
    """A group that becomes another type may be in the middle of a rebalance."""
    [first], _ = world.stable()
    second, _ = world.new_member()
    if rejoins:
        world.join(first)
    assert (has_timer(world, "join"), has_timer(world, "sync")) == (not rejoins, rejoins)
    world.append(GroupMetadata(GROUP, None))
    kept = [has_timer(world, kind) for kind in ("join", "sync")] + [
        has_timer(world, "heartbeat", name) for name in (first, second)
    ]
    assert kept == [False] * 4


def test_a_loaded_group_that_is_too_large_rebalances(world: World) -> None:
    world.stable(2)
    world.settings = GroupSettings(initial_rebalance_delay_ms=0, max_size=2)
    assert world.reload().classic_group.state is GroupState.STABLE
    world.settings = GroupSettings(initial_rebalance_delay_ms=0, max_size=1)
    assert world.reload().classic_group.state is GroupState.PREPARING_REBALANCE


def test_assignments_that_are_awaited_at_a_deposed_coordinator_are_refused(world: World) -> None:
    [first], _ = world.stable()
    second, _ = world.new_member()
    world.join(first)
    waiting = world.sync(second, 2)
    world.holds_commits = True
    leader = world.sync(first, 2, {first: b"1", second: b"2"})
    group, effects = world.classic_group, world.effects()
    world.groups.on_unloaded(effects)
    world.carry_out(effects)
    assert leader.error == waiting.error == ErrorCode.NOT_COORDINATOR
    world.commit(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert (group.state, world.groups.memory.held_bytes) == (GroupState.DEAD, 0)


def test_a_group_that_is_gone_answers_no_member() -> None:
    """A decision may still refer to a group that was removed."""
    groups = ClassicGroups({}, GroupSettings(), Timers(), MemberMemory(), random.Random(1))
    group = groups.create(GROUP, 0)
    group.close()
    effects = Effects(0, 0)
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    join = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=SESSION_MS,
        member_id="m",
        protocol_type="consumer",
        protocols=[protocol],
        rebalance_timeout_ms=1,
    )
    groups.join(group, join, MemberClient("client", "/host", 9), "join", effects)
    groups.sync(
        group, SyncGroupRequest(group_id=GROUP, generation_id=0, member_id="m", assignments=[]), "sync", effects
    )
    answers = [(reply, answer.error_code) for reply, answer in effects.answers]
    assert answers == [("join", ErrorCode.COORDINATOR_NOT_AVAILABLE), ("sync", ErrorCode.COORDINATOR_NOT_AVAILABLE)]
    assert groups.heartbeat(group, "m", None, 0, 0) == ErrorCode.COORDINATOR_NOT_AVAILABLE
