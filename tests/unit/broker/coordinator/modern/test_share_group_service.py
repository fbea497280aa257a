"""The service of share groups: records of other groups, room, epochs, targets in time, timers, and writes that fail."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.modern_member import target_record
from lowtide.broker.coordinator.modern.share_group import KnownStates
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
    return world.groups.timers.deadline_of((kind, GROUP, member_id))


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


def test_a_coordinator_that_takes_over_awaits_the_members(world: ShareGroupWorld) -> None:
    world.enter("a")
    world.now_ms = 500
    other = world.reload()
    assert isinstance(other, ShareGroupWorld)
    assert deadline(other, "heartbeat", "a") == 500 + SESSION_MS


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
def test_a_member_that_is_back_before_its_removal_is_committed_has_its_session(world: ShareGroupWorld) -> None:
    world.enter("a")
    world.holds_commits = True
    world.pass_time(SESSION_MS)
    assert not world.group.members
    world.beat("a", 0, "t")
    world.commit()
    assert deadline(world, "heartbeat", "a") == 2 * SESSION_MS
