"""The service of share groups: records of other groups, room, epochs, targets in time, timers, and writes that fail."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.member_memory import BROKER_BYTES_MAX
from lowtide.broker.coordinator.modern.modern_groups import RETRY_MS
from lowtide.broker.coordinator.modern.modern_member import ModernMember, target_record
from lowtide.broker.coordinator.modern.share_group import KnownStates, ShareGroupState
from lowtide.broker.coordinator.modern.share_heartbeats import heartbeat_failed
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from lowtide.protocol.share_group_records import ShareGroupChange, ShareGroupEpoch, ShareMemberCurrent, ShareRecordType
from tests.unit.broker.coordinator.consumer_world import HOST
from tests.unit.broker.coordinator.group_world import GROUP, Answer
from tests.unit.broker.coordinator.share_group_world import ShareGroupWorld

NONE, TOO_LARGE = ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED
MEMBER, CURRENT, TARGET = ShareRecordType.MEMBER, ShareRecordType.CURRENT, ShareRecordType.TARGET
INTERVAL_MS = 1_000
SESSION_MS = GroupSettings().share_session_timeout_ms


@pytest.fixture
def world() -> ShareGroupWorld:
    return ShareGroupWorld()


def slow_world(**topics: int) -> ShareGroupWorld:
    """A world in which a second lies between two targets."""
    world = ShareGroupWorld(GroupSettings(share_assignment_interval_ms=INTERVAL_MS), topics=topics or {"t": 4})
    world.begins = False
    return world


def note(world: ShareGroupWorld, kind: ShareRecordType, name: str, value: Any) -> None:
    world.append(ShareGroupChange(kind, GROUP, name, value))


def deadline(world: ShareGroupWorld, kind: str, member_id: str = "") -> int | None:
    return world.groups.timers.deadline_of((kind, GROUP, member_id))  # type: ignore[arg-type]


def epoch_of(world: ShareGroupWorld, member_id: str) -> int:
    return world.group.members[member_id].member_epoch


# ------------------------------------------------------------------ records
def test_a_record_of_a_group_of_another_type_is_refused(world: ShareGroupWorld) -> None:
    world.join()
    with pytest.raises(ProtocolError, match="which is a classic group"):
        world.groups.shares.note(
            ShareGroupChange(ShareRecordType.GROUP, GROUP, "", ShareGroupEpoch(epoch=1, metadata_hash=0))
        )
    world.groups.shares.note(ShareGroupChange(MEMBER, GROUP, "a", None))


def test_a_group_that_is_deleted_leaves_no_timer_and_holds_nothing() -> None:
    world = slow_world()
    world.enter("a")
    world.enter("b")
    assert None not in (deadline(world, "assignment"), deadline(world, "heartbeat", "a"))
    group = world.group
    note(world, ShareRecordType.GROUP, "", None)
    assert (group.state, world.groups.memory.held_bytes) == (ShareGroupState.DEAD, 0)
    assert [deadline(world, "assignment"), *(deadline(world, "heartbeat", name) for name in "ab")] == [None] * 3


def test_a_member_is_awaited_until_the_record_of_what_it_says_is_taken_back() -> None:
    world = slow_world()
    world.enter("a")
    world.enter("b")
    for kind in (CURRENT, TARGET):
        note(world, kind, "b", None)
        assert deadline(world, "heartbeat", "b") is not None
    note(world, MEMBER, "b", None)
    assert deadline(world, "heartbeat", "b") is None
    assert deadline(world, "assignment") is not None, "the next target is still due"
    world.beat("a", epoch_of(world, "a"), "t", "u")
    assert deadline(world, "heartbeat", "a") is not None


def test_a_coordinator_that_takes_over_awaits_the_members(world: ShareGroupWorld) -> None:
    world.enter("a")
    world.now_ms = 500
    other = world.reload()
    assert isinstance(other, ShareGroupWorld)
    assert deadline(other, "heartbeat", "a") == 500 + SESSION_MS


def test_an_unloaded_group_holds_nothing(world: ShareGroupWorld) -> None:
    world.enter("a")
    group = world.group
    world.groups.on_unloaded(world.effects())
    assert (group.state, world.groups.memory.held_bytes) == (ShareGroupState.DEAD, 0)


def test_a_group_is_taken_back_with_all_its_records(world: ShareGroupWorld) -> None:
    world.enter("a")
    world.group.targets["gone"] = {}
    effects = world.effects()
    world.groups.shares.remove(world.group, effects)
    rows = [
        (CURRENT, "a"),
        (CURRENT, "gone"),
        (TARGET, "a"),
        (TARGET, "gone"),
        (ShareRecordType.TARGET_EPOCH, ""),
        (MEMBER, "a"),
    ]
    rows += [(ShareRecordType.STATES, ""), (ShareRecordType.GROUP, "")]
    assert effects.changes == [ShareGroupChange(kind, GROUP, name, None) for kind, name in rows]


# ------------------------------------------------------------------ heartbeats
def test_members_may_hold_so_much_and_no_more(world: ShareGroupWorld) -> None:
    needed = ModernMember("a", client_id="client", client_host=HOST, topic_names=frozenset({"t"})).size_bytes
    world.groups.memory.held_bytes = BROKER_BYTES_MAX - needed + 1
    assert world.beat("a", 0, "t").error == TOO_LARGE
    assert (world.groups.memory.refused_count, world.log) == (1, [])
    world.groups.memory.held_bytes -= 1
    assert world.beat("a", 0, "t").error == NONE
    assert world.beat("a", epoch_of(world, "a"), "u").error == NONE, "it holds as much as before"
    assert world.beat("a", epoch_of(world, "a"), "uu").error == TOO_LARGE
    assert world.groups.memory.refused_count == 2


def test_a_heartbeat_without_news_writes_nothing_and_relies_on_what_was_written(world: ShareGroupWorld) -> None:
    world.enter("a")
    world.settle()
    count = world.end_offset
    assert world.beat("a", epoch_of(world, "a"), "t").response.assignment is not None, "it says all, and gets all"
    assert world.beat("a", epoch_of(world, "a")).response.assignment is None
    assert world.end_offset == count
    effects = world.effects()
    request = ShareGroupHeartbeatRequest(group_id=GROUP, member_id="a", member_epoch=epoch_of(world, "a"))
    world.groups.share_heartbeats.heartbeat(request, MemberClient("client", HOST, 1), Answer(), effects)
    assert (effects.changes, effects.barrier) == ([], count - 1)


def test_a_subscription_that_changes_raises_the_epoch_of_a_group_at_rest() -> None:
    world = ShareGroupWorld(topics={"t": 1, "u": 1})
    world.enter("a")
    world.settle()
    epoch = world.group.group_epoch
    world.beat("a", epoch, "u")
    assert world.group.group_epoch == epoch + 1
    assert world.group.members["a"].topic_names == {"u"}


def test_a_member_that_lacks_something_of_its_target_gets_it(world: ShareGroupWorld) -> None:
    """The record of what it has may be older than that of its target."""
    world.enter("a")
    world.settle()
    epoch = epoch_of(world, "a")
    note(
        world, CURRENT, "a", ShareMemberCurrent(member_epoch=epoch, previous_member_epoch=epoch, assigned_partitions=[])
    )
    assert world.assigned("a") == set()
    world.beat("a", epoch)
    assert world.assigned("a") == {0, 1, 2, 3}


def test_what_a_heartbeat_does_not_say_stays(world: ShareGroupWorld) -> None:
    world.beat("a", 0, "t", rack_id="r")
    world.beat("a", 2)
    assert world.group.members["a"].rack_id == "r"
    world.beat("a", epoch_of(world, "a"), rack_id="s")
    assert (world.group.members["a"].rack_id, world.group.members["a"].topic_names) == ("s", {"t"})


def test_a_failure_without_words_has_no_message() -> None:
    assert [heartbeat_failed(TOO_LARGE, message).error_message for message in (None, "", "why")] == [None, None, "why"]


def test_members_of_the_classic_protocol_get_no_assignment(world: ShareGroupWorld) -> None:
    world.enter("a")
    assert world.sync("a", 2).error == ErrorCode.UNKNOWN_MEMBER_ID


# ------------------------------------------------------------------ targets
@pytest.mark.parametrize(("age_ms", "wait_ms"), [(0, 1_000), (999, 1), (1_000, None), (-1, None)])
def test_targets_have_time_between_them_unless_the_clock_was_set_back(age_ms: int, wait_ms: int | None) -> None:
    world = slow_world()
    world.now_ms = 5_000
    world.enter("a")
    world.now_ms += age_ms
    world.enter("b")
    assert deadline(world, "assignment") == (None if wait_ms is None else world.now_ms + wait_ms)
    assert (world.group.target_epoch == world.group.group_epoch) == (wait_ms is None)


def test_a_target_that_a_heartbeat_has_made_is_not_made_again() -> None:
    world = slow_world()
    world.enter("a")
    world.enter("b")
    world.now_ms = INTERVAL_MS
    world.beat("a", epoch_of(world, "a"))
    assert (world.group.target_epoch, deadline(world, "assignment")) == (world.group.group_epoch, INTERVAL_MS)
    count = world.end_offset
    world.pass_time(0)
    assert (deadline(world, "assignment"), world.end_offset) == (None, count)


def test_a_group_whose_members_have_left_needs_no_target() -> None:
    world = slow_world()
    for name in "ab":
        world.enter(name)
    for name in "ab":
        world.beat(name, -1)
    count = world.end_offset
    world.pass_time(INTERVAL_MS)
    assert (deadline(world, "assignment"), world.end_offset) == (None, count)


def test_partitions_that_a_topic_no_longer_has_are_not_assigned(world: ShareGroupWorld) -> None:
    world.enter("a")
    states = KnownStates(initialized={world.ids(): ("t", frozenset(range(6)))})
    note(world, ShareRecordType.STATES, "", states.record())
    world.settle()
    assert world.assigned("a") == {0, 1, 2, 3}
    assert world.group.targets["a"] == {world.ids(): frozenset({0, 1, 2, 3})}
    assert target_record(world.group.targets["a"]).topic_partitions[0].partitions == [0, 1, 2, 3]


def test_members_that_leave_take_their_topics_with_them() -> None:
    world = ShareGroupWorld(topics={"t": 1, "u": 1})
    world.enter("a", "t")
    world.enter("b", "u")
    world.settle()
    epoch = world.group.group_epoch
    world.beat("b", -1)
    hashed = world.cluster.view.hash_of("t") ^ world.group.states.hash_of([world.ids("t")])
    assert (world.group.group_epoch, world.group.metadata_hash) == (epoch + 1, hashed)


# ------------------------------------------------------------------ writes that fail
@pytest.mark.parametrize("fails", ["append", "commit"])
def test_a_target_that_could_not_be_written_is_made_again(fails: str) -> None:
    """One that was appended holds, whether or not it is committed in time."""
    world = slow_world()
    world.enter("a")
    world.enter("b")
    world.holds_commits = fails == "commit"
    world.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS if fails == "append" else None
    world.pass_time(INTERVAL_MS)
    world.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert deadline(world, "assignment") == (INTERVAL_MS + RETRY_MS if fails == "append" else None)


def test_a_removal_that_fails_after_the_group_is_gone_is_not_tried_again(world: ShareGroupWorld) -> None:
    world.enter("a")
    world.holds_commits = True
    world.pass_time(SESSION_MS)
    note(world, ShareRecordType.GROUP, "", None)
    world.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert deadline(world, "heartbeat", "a") is None


def test_a_member_that_is_back_before_its_removal_is_committed_has_its_session(world: ShareGroupWorld) -> None:
    world.enter("a")
    world.holds_commits = True
    world.pass_time(SESSION_MS)
    assert not world.group.members
    world.beat("a", 0, "t")
    world.commit()
    assert deadline(world, "heartbeat", "a") == 2 * SESSION_MS
