"""The common part of both services of modern groups: timers, memory, epochs, targets and failed writes."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.member_memory import BROKER_BYTES_MAX, MemberMemory
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.modern.modern_group import INITIAL_EPOCH, ModernGroup
from lowtide.broker.coordinator.modern.modern_groups import RETRY_MS
from lowtide.broker.coordinator.modern.modern_member import ModernMember
from lowtide.broker.coordinator.modern.share_group import ShareGroup
from lowtide.protocol.consumer_group_records import TargetAssignmentEpoch
from lowtide.protocol.errors import ErrorCode
from tests.unit.broker.coordinator.consumer_world import HOST, ConsumerWorld
from tests.unit.broker.coordinator.group_world import GROUP
from tests.unit.broker.coordinator.share_group_world import ShareGroupWorld

NONE, TOO_LARGE = ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED
INTERVAL_MS = 1_000
SESSION_MS = GroupSettings().share_session_timeout_ms
TYPES = ["consumer", "share"]


@pytest.fixture(params=TYPES)
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(params=[ConsumerGroup, ShareGroup])
def group_class(request: pytest.FixtureRequest) -> type[ModernGroup]:
    group_class: type[ModernGroup] = request.param
    return group_class


def world_of(kind: str, interval_ms: int = INTERVAL_MS) -> Any:
    """A world with topics `t` and `u`, and this time between two targets."""
    settings = GroupSettings(**{f"{kind}_assignment_interval_ms": interval_ms})
    topics = {"t": 4, "u": 1}
    if kind == "consumer":
        return ConsumerWorld(settings, topics=topics)
    world = ShareGroupWorld(settings, topics=topics)
    world.begins = False
    return world


def beat(world: Any, member_id: str, epoch: int, *topics: str) -> ErrorCode | None:
    if isinstance(world, ShareGroupWorld):
        return world.beat(member_id, epoch, *topics).error
    more: dict[str, Any] = {"owned": {}, "rebalance_timeout_ms": 1} if epoch == 0 else {}
    error: ErrorCode = world.beat(member_id, epoch, subscribed_topic_names=list(topics) or None, **more).error
    return error


def change(group: ModernGroup, kind: str, name: str = "", value: Any = None) -> Any:
    """A record of a group; without a value its tombstone."""
    return group.change_type(getattr(group.record_types, kind), GROUP, name, value)


def deadline(world: Any, timer: str, member_id: str = "") -> int | None:
    found: int | None = world.groups.timers.deadline_of((timer, GROUP, member_id))
    return found


def epoch_of(world: Any, member_id: str) -> int:
    epoch: int = world.group.members[member_id].member_epoch
    return epoch


# ------------------------------------------------------------------ records
def test_a_new_group_has_nothing(group_class: type[ModernGroup]) -> None:
    group = group_class("g")
    assert (group.group_epoch, group.target_epoch) == (INITIAL_EPOCH, INITIAL_EPOCH)
    assert (group.metadata_hash, group.assigned_wall_ms, group.memory.held_bytes) == (0, 0, 0)
    assert (group.last_record_offset, group.checked_image, group.has_topics_record) == (-1, 0, False)
    assert group_class("g").memory is not group.memory


@pytest.mark.parametrize(("known", "expected"), [(4, 7), (7, 7), (9, 9)])
def test_a_group_s_epoch_is_not_below_that_of_its_target(
    group_class: type[ModernGroup], known: int, expected: int
) -> None:
    """The record of its last epoch may be lost. With a lower epoch, members would get nothing until it is reached."""
    group = group_class("g")
    group.apply(change(group, "GROUP", value=group.epoch_type(epoch=known, metadata_hash=1)))
    group.apply(change(group, "TARGET_EPOCH", value=TargetAssignmentEpoch(assignment_epoch=7, assignment_timestamp=9)))
    assert (group.group_epoch, group.target_epoch) == (expected, 7)


def test_the_memory_of_members_counts_until_they_or_the_group_are_gone(group_class: type[ModernGroup]) -> None:
    memory = MemberMemory()
    memory.held_bytes = 1_000_000
    group = group_class("g", memory)
    one, other = (ModernMember(name, client_id="client", topic_names=frozenset({"t"})) for name in "ab")
    longer = ModernMember("a", client_id="client", topic_names=frozenset({"t", "another"}))
    for member, expected in ((one, [one]), (other, [one, other]), (longer, [longer, other])):
        group.apply(change(group, "MEMBER", member.member_id, group.subscription_record(member)))
        assert group.memory.held_bytes == memory.held_bytes - 1_000_000 == sum(each.size_bytes for each in expected)
    group.apply(change(group, "MEMBER", "a"))
    assert group.memory.held_bytes == memory.held_bytes - 1_000_000 == other.size_bytes
    group.close()
    assert (memory.held_bytes, group.check_delete()) == (1_000_000, ErrorCode.GROUP_ID_NOT_FOUND)
    group.apply(change(group, "MEMBER", "b"))
    assert memory.held_bytes == 1_000_000, "changes of a group that is gone have no effect"


def test_a_group_that_is_deleted_leaves_no_timer_and_holds_nothing(kind: str) -> None:
    world = world_of(kind)
    world.enter("a")
    world.enter("b")
    assert None not in (deadline(world, "assignment"), deadline(world, "heartbeat", "a"))
    group = world.group
    world.append(change(group, "GROUP"))
    assert (group.state.value, world.groups.memory.held_bytes) == ("Dead", 0)
    assert [deadline(world, "assignment"), *(deadline(world, "heartbeat", name) for name in "ab")] == [None] * 3


def test_a_member_keeps_its_session_until_its_subscription_is_deleted(kind: str) -> None:
    """A member that can't be removed keeps its timers."""
    world = world_of(kind)
    world.enter("a")
    world.enter("b")
    for each in ("CURRENT", "TARGET"):
        world.append(change(world.group, each, "b"))
        assert deadline(world, "heartbeat", "b") is not None
    world.append(change(world.group, "MEMBER", "b"))
    assert deadline(world, "heartbeat", "b") is None
    assert deadline(world, "assignment") is not None, "the next target is still due"


def test_an_unloaded_group_holds_nothing(kind: str) -> None:
    world = world_of(kind)
    world.enter("a")
    group = world.group
    world.groups.on_unloaded(world.effects())
    assert (group.state.value, world.groups.memory.held_bytes) == ("Dead", 0)


# ------------------------------------------------------------------ heartbeats
def test_the_memory_of_members_is_limited(kind: str) -> None:
    world = world_of(kind, 0)
    needed = ModernMember("a", client_id="client", client_host=HOST, topic_names=frozenset({"t"})).size_bytes
    world.groups.memory.held_bytes = BROKER_BYTES_MAX - needed + 1
    assert beat(world, "a", 0, "t") == TOO_LARGE
    assert (world.groups.memory.refused_count, world.log) == (1, [])
    world.groups.memory.held_bytes -= 1
    assert beat(world, "a", 0, "t") == NONE
    assert world.groups.memory.held_bytes == BROKER_BYTES_MAX
    assert beat(world, "a", epoch_of(world, "a")) == NONE
    assert beat(world, "a", epoch_of(world, "a"), "u") == NONE, "it takes as much as before"
    assert beat(world, "a", epoch_of(world, "a"), "uu") == TOO_LARGE
    assert world.groups.memory.refused_count == 2


def test_a_new_subscription_raises_the_epoch_of_a_group_at_rest(kind: str) -> None:
    world = world_of(kind, 0)
    world.enter("a")
    beat(world, "a", 2)
    assert beat(world, "a", 2, "u") == NONE
    assert world.group.group_epoch == 3
    assert world.group.metadata_hash == world.cluster.view.hash_of("u")
    assert world.group.members["a"].topic_names == {"u"}


# ------------------------------------------------------------------ targets
@pytest.mark.parametrize(("age_ms", "wait_ms"), [(0, 1_000), (999, 1), (1_000, None), (-1, None)])
def test_targets_have_time_between_them_unless_the_clock_was_set_back(
    kind: str, age_ms: int, wait_ms: int | None
) -> None:
    world = world_of(kind)
    world.now_ms = 5_000
    world.enter("a")
    world.now_ms += age_ms
    world.enter("b")
    assert deadline(world, "assignment") == (None if wait_ms is None else world.now_ms + wait_ms)
    assert (world.group.target_epoch == world.group.group_epoch) == (wait_ms is None)


def test_a_target_that_a_heartbeat_has_made_is_not_made_again(kind: str) -> None:
    world = world_of(kind)
    world.enter("a")
    world.enter("b")
    world.now_ms = INTERVAL_MS
    beat(world, "a", 2)
    assert (world.group.target_epoch, deadline(world, "assignment")) == (3, INTERVAL_MS)
    count = world.end_offset
    world.pass_time(0)
    assert (deadline(world, "assignment"), world.end_offset) == (None, count)


def test_a_group_whose_members_have_left_needs_no_target(kind: str) -> None:
    world = world_of(kind)
    for name in "ab":
        world.enter(name)
    for name in "ab":
        world.beat(name, -1)
    count = world.end_offset
    world.pass_time(INTERVAL_MS)
    assert (deadline(world, "assignment"), world.end_offset) == (None, count)


# ------------------------------------------------------------------ writes that fail
@pytest.mark.parametrize("fails", ["append", "commit"])
def test_a_target_that_could_not_be_written_is_made_again(kind: str, fails: str) -> None:
    """A target that was appended is valid, even if its commit takes too long."""
    world = world_of(kind)
    world.enter("a")
    world.enter("b")
    world.holds_commits = fails == "commit"
    world.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS if fails == "append" else None
    world.pass_time(INTERVAL_MS)
    world.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert deadline(world, "assignment") == (INTERVAL_MS + RETRY_MS if fails == "append" else None)


def test_a_removal_that_fails_after_the_group_is_gone_is_not_tried_again(kind: str) -> None:
    world = world_of(kind)
    world.enter("a")
    world.holds_commits = True
    world.pass_time(SESSION_MS)
    world.append(change(world.group, "GROUP"))
    world.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert deadline(world, "heartbeat", "a") is None
