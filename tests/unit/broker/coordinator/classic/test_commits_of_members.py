"""Which commits a classic group accepts in each of its states, and that they extend sessions."""

from __future__ import annotations

import pytest

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.classic.classic_groups import check_commit
from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.leave_group import MemberIdentity
from lowtide.protocol.messages.offset_commit import OffsetCommitRequest
from lowtide.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from tests.unit.broker.coordinator.group_world import GROUP, SESSION_MS, World


@pytest.fixture
def world() -> World:
    return World()


def commit(world: World, member_id: str, generation_id: int, instance_id: str | None = None) -> ErrorCode:
    request = OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[],
    )
    return world.groups.admit_commit(request, 9, world.effects())


def commit_in_transaction(
    world: World, member_id: str, generation_id: int, instance_id: str | None = None
) -> ErrorCode:
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id=GROUP,
        producer_id=1,
        producer_epoch=0,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[],
    )
    return world.groups.check_transactional_commit(request, world.now_ms)


def state(world: World) -> GroupState:
    return world.groups.by_id[GROUP].state  # type: ignore[return-value]


def test_a_group_without_members_accepts_commits_from_outside_only(world: World) -> None:
    [member], generation_id = world.stable()
    world.leave(MemberIdentity(member_id=member))
    assert state(world) is GroupState.EMPTY
    for asked in (commit, commit_in_transaction):
        assert asked(world, "", -1) == asked(world, "stranger", -1) == ErrorCode.NONE
        assert asked(world, "", 0) == asked(world, member, generation_id) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_with_members_accepts_commits_of_its_members(world: World) -> None:
    [member], generation_id = world.stable()
    for asked in (commit, commit_in_transaction):
        assert asked(world, member, generation_id) == ErrorCode.NONE
        assert asked(world, member, generation_id - 1) == asked(world, member, -1) == ErrorCode.ILLEGAL_GENERATION
        assert asked(world, "stranger", generation_id) == asked(world, "stranger", -1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert asked(world, "", generation_id) == asked(world, "", 0) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(world, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_in_transaction(world, "", -1) == ErrorCode.NONE, "old clients don't say who commits"


def test_a_static_member_commits_under_its_present_id_only(world: World) -> None:
    member = world.join(instance_id="i").response.member_id
    world.sync(member, 1, {member: b""})
    for asked in (commit, commit_in_transaction):
        assert asked(world, member, 1, "i") == ErrorCode.NONE
        assert asked(world, "older", 1, "i") == asked(world, "", -1, "i") == ErrorCode.FENCED_INSTANCE_ID
        assert asked(world, member, 1, "j") == asked(world, "", -1, "j") == ErrorCode.UNKNOWN_MEMBER_ID


def test_commits_are_accepted_while_members_join_again_but_not_while_they_wait_for_assignments(world: World) -> None:
    [member], generation_id = world.stable()
    world.new_member()
    assert state(world) is GroupState.PREPARING_REBALANCE
    assert commit(world, member, generation_id) == commit_in_transaction(world, member, generation_id) == ErrorCode.NONE
    world.join(member)
    assert state(world) is GroupState.COMPLETING_REBALANCE
    assert commit(world, member, generation_id + 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert commit_in_transaction(world, member, generation_id + 1) == ErrorCode.NONE


def test_a_commit_is_a_sign_of_life_and_one_in_a_transaction_is_none(world: World) -> None:
    [member], generation_id = world.stable()
    key = ("heartbeat", GROUP, member)
    world.pass_time(SESSION_MS - 1)
    commit_in_transaction(world, member, generation_id)
    commit(world, member, generation_id - 1)
    assert world.groups.timers.deadline_of(key) == SESSION_MS
    commit(world, member, generation_id)
    assert world.groups.timers.deadline_of(key) == 2 * SESSION_MS - 1
    world.new_member()
    world.pass_time(1)
    commit(world, member, generation_id)
    assert world.groups.timers.deadline_of(key) == 2 * SESSION_MS


@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_group_that_is_gone_accepts_no_commit(world: World, is_transactional: bool) -> None:
    [member], generation_id = world.stable()
    group = world.groups.by_id[GROUP]
    assert isinstance(group, ClassicGroup)
    group.close()
    assert (
        check_commit(group, member, None, generation_id, is_transactional=is_transactional)
        == ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
