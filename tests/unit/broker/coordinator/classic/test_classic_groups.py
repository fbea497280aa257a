"""Classic groups: members and generations, waits, and the responses to late members."""

from __future__ import annotations

import pytest

from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.classic.joining import PENDING_MEMBERS_MAX
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.member_memory import BROKER_BYTES_MAX, GROUP_BYTES_MAX, RESERVED_BYTES
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.leave_group import MemberIdentity
from lowtide.protocol.messages.sync_group import SyncGroupRequest
from tests.unit.broker.coordinator.group_world import GROUP, REBALANCE_MS, SESSION_MS, Answer, World

NOW = GroupSettings(initial_rebalance_delay_ms=0)


@pytest.fixture
def world() -> World:
    return World()


def state(world: World) -> GroupState:
    return world.groups.by_id[GROUP].state  # type: ignore[return-value]


def test_the_first_member_gets_an_id_then_leads_and_shares_the_work(world: World):
    asked = world.join().response
    assert (asked.error_code, asked.members) == (ErrorCode.MEMBER_ID_REQUIRED, [])
    answer = world.join(asked.member_id).response
    assert (answer.error_code, answer.generation_id, answer.leader, answer.protocol_name) == (
        0,
        1,
        asked.member_id,
        "range",
    )
    assert [row.member_id for row in answer.members] == [asked.member_id]
    synced = world.sync(asked.member_id, 1, {asked.member_id: b"all"}).response
    assert (synced.error_code, synced.assignment, synced.protocol_type) == (0, b"all", "consumer")
    assert state(world) is GroupState.STABLE


def test_before_version_4_a_member_joins_with_its_first_request(world: World):
    assert world.join(version=3).error == ErrorCode.NONE


def test_a_second_member_waits_until_the_first_has_joined_again(world: World):
    [first], generation_id = world.stable()
    second, joining = world.new_member()
    assert joining.response is None
    assert world.heartbeat(first, generation_id) == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.sync(first, generation_id).error == ErrorCode.REBALANCE_IN_PROGRESS
    again = world.join(first)
    assert again.response.generation_id == joining.response.generation_id == generation_id + 1  # type: ignore[attr-defined]
    assert (again.response.leader, joining.response.leader) == (first, first)  # type: ignore[attr-defined]
    assert (len(again.response.members), joining.response.members) == (2, [])  # type: ignore[attr-defined]
    waiting = world.sync(second, generation_id + 1)
    assert waiting.response is None
    assert world.sync(first, generation_id + 1, {first: b"1", second: b"2"}).response.assignment == b"1"
    assert waiting.response.assignment == b"2"  # type: ignore[attr-defined]


def test_a_member_that_does_not_rejoin_in_time_is_removed(world: World):
    [first], _ = world.stable()
    second, joining = world.new_member()
    world.pass_time(REBALANCE_MS)
    assert joining.response.leader == second
    assert [row.member_id for row in joining.response.members] == [second]
    assert world.heartbeat(first, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed_after_its_session(world: World):
    [first, second], generation_id = world.stable(2)
    world.pass_time(SESSION_MS - 1)
    assert world.heartbeat(first, generation_id) == ErrorCode.NONE
    world.pass_time(1)
    assert state(world) is GroupState.PREPARING_REBALANCE
    assert world.heartbeat(second, generation_id) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(first, generation_id) == ErrorCode.REBALANCE_IN_PROGRESS


def test_an_id_that_is_never_used_is_forgotten_and_its_group_too(world: World):
    world.join()
    world.pass_time(SESSION_MS)
    assert world.groups.by_id == {}


def test_a_member_that_never_asks_for_its_assignment_is_removed(world: World):
    [first], _ = world.stable()
    second, joining = world.new_member()
    world.join(first)
    assert joining.response is not None
    leader = world.sync(first, 2, {first: b"1", second: b"2"})
    assert leader.error == ErrorCode.NONE
    for _ in range(REBALANCE_MS // SESSION_MS * 2):
        world.pass_time(SESSION_MS // 2)
        world.heartbeat(first, 2)
        world.heartbeat(second, 2)
    assert world.heartbeat(second, 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert state(world) is GroupState.PREPARING_REBALANCE


def test_an_empty_group_waits_for_more_members_and_longer_while_they_come():
    world = World(GroupSettings(initial_rebalance_delay_ms=3_000))
    _, first = world.new_member()
    world.pass_time(2_000)
    _, second = world.new_member()
    world.pass_time(1_000)
    assert first.response is None
    world.pass_time(2_999)
    assert first.response is None
    world.pass_time(1)
    assert first.response.generation_id == second.response.generation_id == 1  # type: ignore[attr-defined]


def test_the_first_delay_never_takes_longer_than_a_rebalance_may():
    world = World(GroupSettings(initial_rebalance_delay_ms=20_000))
    _, first = world.new_member()
    world.pass_time(19_000)
    world.new_member()
    world.pass_time(1_000)
    assert first.response is None
    world.pass_time(10_000)
    assert first.response is not None


def test_members_that_leave_start_a_rebalance(world: World):
    [first, second], generation_id = world.stable(2)
    assert world.leave(MemberIdentity(member_id=second), MemberIdentity(member_id="nobody")) == [
        0,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert world.heartbeat(first, generation_id) == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.join(first).response.generation_id == generation_id + 1
    assert world.leave(MemberIdentity(member_id=first)) == [0]
    group = world.groups.by_id.find_classic(GROUP)
    assert group is not None
    assert (group.state, group.generation_id) == (GroupState.EMPTY, generation_id + 2)


def test_a_member_that_leaves_while_it_waits_is_answered(world: World):
    [_], _ = world.stable()
    second, joining = world.new_member()
    world.leave(MemberIdentity(member_id=second))
    assert joining.error == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_repeated_join_without_change_starts_no_rebalance(world: World):
    [first, second], generation_id = world.stable(2)
    assert world.join(second).response.generation_id == generation_id
    assert state(world) is GroupState.STABLE
    changed = world.join(second, protocols=(("range", b"other topics"),))
    assert changed.response is None
    assert world.join(first).response.generation_id == generation_id + 1


def test_the_protocol_is_supported_by_all_and_preferred_by_most(world: World):
    _, first = world.new_member(protocols=(("a", b""), ("b", b""), ("c", b"")))
    member = first.response.member_id
    _, joining = world.new_member(protocols=(("b", b""), ("c", b"")))
    world.join(member, protocols=(("a", b""), ("b", b""), ("c", b"")))
    assert joining.response.protocol_name == "b"
    refused = world.join(protocols=(("a", b""),))
    assert refused.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join(protocol_type="connect").error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_sessions_have_limits(world: World, session_ms: int):
    assert world.join(session_ms=session_ms).error == ErrorCode.INVALID_SESSION_TIMEOUT
    assert world.groups.by_id == {}


def test_what_is_refused_leaves_no_group_behind(world: World):
    assert world.join(group="").error == ErrorCode.INVALID_GROUP_ID
    assert world.join("stranger").error == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join(protocols=()).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.groups.by_id == {}


def test_a_group_has_a_largest_size():
    world = World(GroupSettings(initial_rebalance_delay_ms=0, max_size=1))
    world.stable()
    member_id = world.join().response.member_id
    assert world.join(member_id).error == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_unused_ids_have_a_limit(world: World):
    for _ in range(PENDING_MEMBERS_MAX):
        world.join()
    assert world.join().error == ErrorCode.GROUP_MAX_SIZE_REACHED
    world.pass_time(SESSION_MS)
    assert world.join().error == ErrorCode.MEMBER_ID_REQUIRED


def test_a_static_member_returns_under_a_new_id_without_a_rebalance(world: World):
    old = world.join(instance_id="i").response.member_id
    world.sync(old, 1, {old: b"part"})
    back = world.join(instance_id="i").response
    assert back.member_id != old
    assert (back.generation_id, back.leader, back.skip_assignment, len(back.members)) == (1, back.member_id, True, 1)
    assert world.sync(back.member_id, 1).response.assignment == b"part"
    assert world.heartbeat(old, 1, "i") == ErrorCode.FENCED_INSTANCE_ID
    assert world.heartbeat(old, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join(old, instance_id="i").error == ErrorCode.FENCED_INSTANCE_ID


def test_before_version_9_a_static_leader_receives_its_old_id_as_leader(world: World):
    """Otherwise it would compute a new assignment that no member receives."""
    old = world.join(instance_id="i").response.member_id
    world.sync(old, 1, {old: b"part"})
    back = world.join(instance_id="i", version=8).response
    assert (back.leader, back.members, back.skip_assignment) == (old, [], False)


def test_two_with_one_instance_id_fence_each_other_while_they_wait(world: World):
    [first], _ = world.stable()
    one = world.join(instance_id="i")
    two = world.join(instance_id="i")
    assert one.error == ErrorCode.FENCED_INSTANCE_ID
    assert two.response is None
    world.join(first)
    assert two.error == ErrorCode.NONE


def test_a_static_member_whose_return_took_long_to_commit_has_a_session(world: World):
    """The commit took longer than its session; without a session its failure would not be detected."""
    old = world.join(instance_id="i").response
    world.sync(old.member_id, old.generation_id, {old.member_id: b"all"}, group_instance_id="i")
    world.holds_commits = True
    back = world.join(instance_id="i")
    world.pass_time(SESSION_MS)
    world.commit()
    assert back.response.error_code == ErrorCode.NONE
    assert world.groups.timers.deadline_of(("heartbeat", GROUP, back.response.member_id)) is not None


def test_a_static_member_keeps_its_place_in_a_rebalance_that_it_misses(world: World):
    static = world.join(instance_id="i").response.member_id
    world.sync(static, 1, {static: b""})
    _, joining = world.new_member()
    for _ in range(REBALANCE_MS // 5_000):
        world.heartbeat(static, 1, "i")
        world.pass_time(5_000)
    assert [row.member_id for row in joining.response.members] == [static, joining.response.member_id]


def test_a_static_member_leaves_by_its_instance_id(world: World):
    static = world.join(instance_id="i").response.member_id
    world.sync(static, 1, {static: b""})
    assert world.leave(MemberIdentity(member_id="", group_instance_id="j")) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.leave(MemberIdentity(member_id="", group_instance_id="i")) == [ErrorCode.NONE]
    assert state(world) is GroupState.EMPTY


def test_assignments_are_given_out_when_they_are_committed(world: World):
    member, joining = world.new_member()
    world.holds_commits = True
    synced = world.sync(member, joining.response.generation_id, {member: b"1"})
    assert synced.response is None
    assert state(world) is GroupState.COMPLETING_REBALANCE
    world.commit()
    assert synced.response.assignment == b"1"  # type: ignore[attr-defined]


def test_assignments_that_cannot_be_written_restart_the_rebalance(world: World):
    member, joining = world.new_member()
    world.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    synced = world.sync(member, joining.response.generation_id, {member: b"1"})
    assert synced.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert state(world) is GroupState.PREPARING_REBALANCE
    world.append_fails = ErrorCode.MESSAGE_TOO_LARGE
    joining = world.join(member)
    assert world.sync(member, joining.response.generation_id, {member: b"1"}).error == ErrorCode.MESSAGE_TOO_LARGE


def test_assignments_of_an_older_generation_are_not_given_out(world: World):
    """A member joins between the append and its commit."""
    member, joining = world.new_member()
    world.holds_commits = True
    synced = world.sync(member, 1, {member: b"1"})
    world.new_member()
    assert synced.error == ErrorCode.REBALANCE_IN_PROGRESS
    world.commit()
    assert state(world) is GroupState.PREPARING_REBALANCE
    assert joining.response.generation_id == 1


def test_a_coordinator_that_takes_over_has_the_last_generation(world: World):
    [first, second], generation_id = world.stable(2)
    other = world.reload()
    assert state(other) is GroupState.STABLE
    assert other.heartbeat(first, generation_id) == ErrorCode.NONE
    assert other.sync(second, generation_id).response.assignment == second.encode()
    other.pass_time(SESSION_MS)
    assert other.heartbeat(second, generation_id) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_loaded_generation_is_answered_only_when_its_record_is_committed(world: World):
    """The new coordinator may fail too, and lose its record: then the next one has an older generation."""
    [_, second], generation_id = world.stable(2)
    other = world.reload()
    answer, effects = Answer(), other.effects()
    request = SyncGroupRequest(group_id=GROUP, generation_id=generation_id, member_id=second, assignments=[])
    other.groups.sync(request, answer, effects)
    assert effects.answers == []
    assert effects.barrier == other.end_offset - 1
    [waiting] = effects.then
    assert waiting.outcome(ErrorCode.NONE).assignment == second.encode()  # type: ignore[attr-defined]
    assert waiting.outcome(ErrorCode.NOT_LEADER_OR_FOLLOWER).error_code == ErrorCode.NOT_COORDINATOR  # type: ignore[attr-defined]


def test_requests_that_wait_at_a_deposed_coordinator_end(world: World):
    [first], _ = world.stable()
    _, joining = world.new_member()
    effects = world.effects()
    world.groups.on_unloaded(effects)
    world.carry_out(effects)
    assert joining.error == ErrorCode.NOT_COORDINATOR
    assert world.heartbeat(first, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_accepts_no_more_metadata_than_its_leader_could_receive(world: World):
    large = (("range", bytes(GROUP_BYTES_MAX // 3)),)
    first, _ = world.new_member(protocols=large)
    second = world.join(version=3, protocols=large)
    assert second.response is None
    assert world.join(version=3, protocols=large).error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.groups.memory.refused_count == 1
    again = world.join(first, protocols=large)
    assert again.error == second.error == ErrorCode.NONE, "a member whose metadata does not grow stays in the group"
    assert world.join(first, protocols=(("range", bytes(GROUP_BYTES_MAX)),)).error == ErrorCode.GROUP_MAX_SIZE_REACHED
    world.leave(MemberIdentity(member_id=first))
    assert world.join(version=3, protocols=large).error is None


def test_all_groups_of_a_broker_have_one_limit(world: World):
    large = (("range", bytes(GROUP_BYTES_MAX - 64 * 1024)),)
    outcomes = [world.join(group=f"g{number}", version=3, protocols=large).error for number in range(6)]
    count = (BROKER_BYTES_MAX - RESERVED_BYTES) // GROUP_BYTES_MAX
    assert outcomes == [ErrorCode.NONE] * count + [ErrorCode.GROUP_MAX_SIZE_REACHED] * (6 - count)
    world.pass_time(SESSION_MS)
    assert world.groups.memory.held_bytes == 0
    assert world.join(version=3, protocols=large).error == ErrorCode.NONE
