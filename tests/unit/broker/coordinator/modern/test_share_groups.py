"""Share groups: members join and leave, partitions are assigned once they have a state, and the log has it all."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.groups_by_id import Group
from lowtide.broker.coordinator.modern.share_group import ShareGroup
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.offset_commit import OffsetCommitRequest
from tests.unit.broker.coordinator.share_group_world import ShareGroupWorld

NONE = ErrorCode.NONE


def test_a_member_has_its_partitions_when_their_states_have_begun() -> None:
    world = ShareGroupWorld()
    world.begins = False
    first = world.enter("a")
    assert (first.member_id, first.member_epoch, first.heartbeat_interval_ms, first.assignment.topic_partitions) == (
        "a",
        2,
        5_000,
        [],
    )
    assert world.asked == [("g", 2, {world.ids(): [0, 1, 2, 3]})]
    assert world.beat("a", 2).response.assignment is None, "nothing is new"
    assert len(world.asked) == 1, "it isn't asked for twice"
    world.begin()
    after = world.beat("a", 2).response
    assert (after.member_epoch, [row.partitions for row in after.assignment.topic_partitions]) == (3, [[0, 1, 2, 3]])
    assert world.beat("a", 3).response.assignment is None
    world.check_reload()


def test_what_did_not_begin_is_asked_for_again() -> None:
    world = ShareGroupWorld(GroupSettings(share_assignment_interval_ms=0, share_initialize_retry_ms=10_000))
    world.begins = False
    world.enter("a")
    world.pass_time(5_000)
    world.beat("a", 2)
    assert len(world.asked) == 1
    world.pass_time(5_001)
    world.beat("a", 2)
    assert len(world.asked) == 2
    other = world.reload()
    other.pass_time(10_001)
    assert isinstance(other, ShareGroupWorld)
    other.beat("a", 2)
    assert len(world.asked) == 3, "also after a move of the coordinator"


def test_more_partitions_are_begun_and_assigned() -> None:
    world = ShareGroupWorld()
    world.enter("a")
    world.settle()
    world.cluster.set_topic("t", 6)
    world.settle()
    assert world.asked[-1][2] == {world.ids(): [4, 5]}
    assert world.assigned("a") == set(range(6))
    world.check_reload()


def test_members_share_what_there_is() -> None:
    world = ShareGroupWorld(topics={"t": 2, "u": 1})
    for name in "abcd":
        world.enter(name, "t")
    world.settle()
    assert [len(world.assigned(name)) for name in "abcd"] == [1, 1, 1, 1]
    assert set().union(*(world.assigned(name) for name in "abcd")) == {0, 1}
    world.beat("a", world.group.members["a"].member_epoch, "t", "u")
    world.settle()
    assert world.assigned("a", "u") == {0}
    for name in "abc":
        assert world.beat(name, -1).error == NONE
    world.settle()
    assert world.assigned("d") == {0, 1}
    assert world.beat("d", -1).response.member_epoch == -1
    assert world.group.state.value == "Empty"
    world.check_reload()


def test_a_topic_that_comes_later_and_one_that_goes() -> None:
    world = ShareGroupWorld()
    world.enter("a", "t", "later")
    world.settle()
    world.cluster.set_topic("later", 2)
    world.settle()
    assert world.assigned("a", "later") == {0, 1}
    gone = world.ids("later")
    world.cluster.set_topic("later", 0)
    effects = world.effects()
    world.groups.shares.states.forget_topics([gone], effects)
    world.carry_out(effects)
    world.settle()
    assert set(world.group.members["a"].assigned) == {world.ids()}
    assert gone not in world.group.states.initialized
    world.check_reload()


def test_a_late_member_is_out() -> None:
    world = ShareGroupWorld()
    world.enter("a")
    world.enter("b")
    world.settle()
    for _ in range(3):
        world.pass_time(20_000)
        world.beat("b", world.group.members["b"].member_epoch)
    assert list(world.group.members) == ["b"]
    assert world.beat("a", 3).error == ErrorCode.UNKNOWN_MEMBER_ID
    world.settle()
    assert world.assigned("b") == {0, 1, 2, 3}
    world.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    world.pass_time(46_000)
    assert list(world.group.members) == ["b"]
    world.append_fails = None
    world.pass_time(1_000)
    assert not world.group.members, "what could not be kept was tried again"


def test_epochs() -> None:
    world = ShareGroupWorld()
    world.enter("a")
    world.settle()
    epoch = world.group.members["a"].member_epoch
    assert world.beat("a", epoch + 1).error == ErrorCode.FENCED_MEMBER_EPOCH
    assert world.beat("a", epoch - 1).error == NONE, "the last answer may have been lost"
    assert world.beat("a", 0, "t").error == NONE, "it begins again"
    assert world.beat("b", 1).error == world.beat("b", -1).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert (
        world.beat("b", 1, group="other").error
        == world.beat("b", -1, group="other").error
        == ErrorCode.GROUP_ID_NOT_FOUND
    )


@pytest.mark.parametrize(
    ("member_id", "epoch", "names", "more"),
    [
        ("", 0, ["t"], {}),
        ("a", 0, [], {}),
        ("a", -2, ["t"], {}),
        ("a", 0, ["t"], {"group": ""}),
        ("a", 0, ["t"], {"rack_id": " "}),
    ],
)
def test_what_a_heartbeat_must_say(member_id, epoch, names, more) -> None:
    assert ShareGroupWorld().beat(member_id, epoch, *names, **more).error == ErrorCode.INVALID_REQUEST


def test_a_group_has_no_more_members_than_it_may() -> None:
    world = ShareGroupWorld(GroupSettings(share_max_size=2, share_assignment_interval_ms=0))
    world.enter("a")
    world.enter("b")
    assert world.beat("c", 0, "t").error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.beat("a", 0, "t").error == NONE


def slow_world() -> ShareGroupWorld:
    """A group that has just got a target, and gets the next one in a while; `a` has all partitions of `t` and `u`."""
    world = ShareGroupWorld(GroupSettings(share_assignment_interval_ms=5_000), topics={"t": 2, "u": 2})
    world.pass_time(1)
    world.enter("a", "t", "u")
    world.pass_time(5_000)
    world.settle()
    assert (world.assigned("a"), world.assigned("a", "u")) == ({0, 1}, {0, 1})
    return world


def test_topics_that_a_member_does_not_subscribe_to_any_more_are_dropped_at_once() -> None:
    world = slow_world()
    epoch, target_epoch = world.group.group_epoch, world.group.target_epoch
    response = world.beat("a", world.group.members["a"].member_epoch, "u").response
    assert [row.topic_id for row in response.assignment.topic_partitions] == [world.ids("u")]
    assert (world.group.group_epoch, world.group.target_epoch) == (epoch + 1, target_epoch), (
        "the target is still the old one"
    )
    assert world.beat("a", response.member_epoch).response.assignment is None
    world.check_reload()
    other = world.reload()
    assert isinstance(other, ShareGroupWorld)
    assert other.beat("a", response.member_epoch).response.assignment is None
    assert other.assigned("a") == set(), "also after a move of the coordinator"
    world.pass_time(5_000)
    world.settle()
    assert (world.assigned("a"), world.assigned("a", "u")) == (set(), {0, 1})


def test_a_member_that_subscribes_again_gets_back_what_it_had() -> None:
    world = slow_world()
    for names, assigned in ((("u",), set()), (("t", "u"), {0, 1}), (("t",), {0, 1})):
        assert world.beat("a", world.group.members["a"].member_epoch, *names).error == NONE
        assert world.assigned("a") == assigned
    assert world.assigned("a", "u") == set()


def test_a_topic_that_is_deleted_is_dropped_at_once() -> None:
    world = slow_world()
    world.cluster.set_topic("t", 0)
    response = world.beat("a", world.group.members["a"].member_epoch).response
    assert [row.topic_id for row in response.assignment.topic_partitions] == [world.ids("u")]


def test_a_group_without_members_is_at_its_target() -> None:
    """An empty group has nothing to assign."""
    world = slow_world()
    world.enter("b", "t")
    assert world.beat("a", -1).error == NONE
    assert world.group.target_epoch < world.group.group_epoch
    assert world.beat("b", -1).error == NONE
    assert world.group.target_epoch == world.group.group_epoch
    world.check_reload()
    assert begin_again(world, 0) == world.group.group_epoch == world.group.target_epoch
    world.groups.shares.states.unlock("g")
    world.pass_time(5_000)
    world.enter("c", "t")
    world.settle()
    assert world.assigned("c") == {0, 1}


def test_an_answer_waits_for_its_records() -> None:
    world = ShareGroupWorld()
    world.holds_commits = True
    answer = world.beat("a", 0, "t")
    assert answer.response is None
    assert world.asked == [], "what isn't committed is asked for of no one"
    world.commit()
    assert answer.error == NONE
    assert len(world.asked) == 1


def test_groups_of_other_types_keep_their_members() -> None:
    world = ShareGroupWorld()
    world.enter("a")
    assert world.join().error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    groups = world.groups
    assert groups.heartbeat("g", "a", None, 1, 0) == ErrorCode.UNKNOWN_MEMBER_ID
    commit = OffsetCommitRequest(group_id="g", member_id="a", generation_id_or_member_epoch=2, topics=[])
    assert groups.admit_commit(commit, 9, world.effects()) == ErrorCode.GROUP_ID_NOT_FOUND
    assert groups.check_fetch("g", None, -1) == ErrorCode.GROUP_ID_NOT_FOUND
    refusal = groups.consumers.open("g", creates=True)
    assert getattr(refusal, "error", None) == ErrorCode.GROUP_ID_NOT_FOUND
    world.join(group="classic")
    assert world.beat("a", 0, "t", group="classic").error == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_empty_group_stays_until_it_is_deleted() -> None:
    world = ShareGroupWorld()
    world.enter("a")
    effects = world.effects()
    assert world.groups.delete_group("g", effects) == ErrorCode.NON_EMPTY_GROUP
    world.beat("a", -1)
    world.pass_time(10 * 24 * 3_600_000)
    assert world.group.state.value == "Empty"
    assert [place.partition for place in world.group.places(lambda _: 4)] == [0, 1, 2, 3]
    effects = world.effects()
    assert world.groups.delete_group("g", effects) == NONE
    world.carry_out(effects)
    assert world.groups.by_id == {}
    assert world.groups.memory.held_bytes == 0
    assert world.reload().groups.by_id == {}


def test_while_its_states_end_a_group_takes_no_member() -> None:
    world = ShareGroupWorld()
    world.enter("a")
    world.beat("a", -1)
    answer = type("Reply", (), {"response": None})()
    effects = world.effects()
    world.groups.shares.states.begin_deletion("g", answer, effects)
    world.carry_out(effects)
    assert answer.response == 3
    assert world.beat("b", 0, "t").error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert [place.partition for place in world.group.places(lambda _: 4)] == [0, 1, 2, 3]
    world.check_reload()
    world.groups.shares.states.unlock("g")
    world.enter("b")
    world.settle()
    assert world.assigned("b") == {0, 1, 2, 3}, "they have begun again"


def begin_again(world: ShareGroupWorld, *numbers: int, group: str = "g") -> Any:
    """What AlterShareGroupOffsets has kept first: the epoch, or an error."""
    answer = type("Reply", (), {"response": None})()
    effects = world.effects()
    world.groups.shares.states.initialize_again(
        group, {world.ids(): ("t", numbers)} if numbers else {}, answer, effects
    )
    world.carry_out(effects)
    return answer.response


def test_a_group_is_created_with_where_it_starts() -> None:
    world = ShareGroupWorld()
    assert begin_again(world) == 1
    assert world.groups.by_id == {}, "no topic is known, so there is nothing to keep"
    assert begin_again(world, 2) == 2
    assert begin_again(world, 2) == world.beat("a", 0, "t").error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert [place.partition for place in world.group.places(lambda _: 4)] == [2]
    world.check_reload()
    world.groups.shares.states.unlock("g")
    world.enter("a")
    assert begin_again(world, 2) == ErrorCode.NON_EMPTY_GROUP


def test_a_group_that_could_not_be_kept_is_not_there() -> None:
    world = ShareGroupWorld()
    world.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    assert begin_again(world, 2) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.groups.by_id == {}
    world.append_fails = None
    world.enter("a")
    world.beat("a", -1)
    world.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    assert begin_again(world, 2) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert list(world.groups.by_id) == ["g"], "it was there before"


def test_what_gets_no_starts() -> None:
    world = ShareGroupWorld(GroupSettings(groups_max=1))
    world.join(group="classic")
    assert begin_again(world, 0, group="classic") == ErrorCode.GROUP_ID_NOT_FOUND
    world.groups.admission.count_groups = lambda: 1
    assert begin_again(world, 0) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert list(world.groups.by_id) == ["classic"]


def test_the_questions_of_a_shard_to_a_share_group() -> None:
    group: Group = ShareGroup("g")
    assert (group.group_type, group.protocol_type, group.state.value) == (GroupType.SHARE, "share", "Empty")
    assert (group.is_unused, group.since_empty_ms, group.may_expire_offsets) == (False, None, True)
    assert group.living_subscriptions() == frozenset()
    assert not group.is_subscribed_to("t")
    assert (group.check_delete(), group.check_offset_delete()) == (NONE, ErrorCode.GROUP_ID_NOT_FOUND)
