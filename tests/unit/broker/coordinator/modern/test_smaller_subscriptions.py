"""Subscriptions that become smaller: the epoch rises, and each subscribed partition has an owner (G6; KAFKA-19899)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroupState
from lowtide.broker.coordinator.modern.pattern_topics import REFRESH_MIN_MS
from lowtide.protocol.consumer_group_records import ConsumerGroupChange, PatternTopics, RecordType
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.leave_group import MemberIdentity
from tests.unit.broker.coordinator.consumer_world import ConsumerWorld, subscription
from tests.unit.broker.coordinator.group_world import GROUP, REBALANCE_MS

SESSION_MS = 45_000
SHARED, OTHER, NOTHING = "t.*", "u.*", "nothing.*"

NAMES: dict[str, Any] = {"subscribed_topic_names": ["t1", "t2"]}
PATTERN: dict[str, Any] = {"subscribed_topic_names": [], "subscribed_topic_regex": SHARED}
FEWER_NAMES: dict[str, Any] = {"subscribed_topic_names": ["u1"], "subscribed_topic_regex": ""}
EMPTY_PATTERN: dict[str, Any] = {"subscribed_topic_names": [], "subscribed_topic_regex": NOTHING}


def joined(world: ConsumerWorld, member_id: str, subscribed: dict[str, Any], **more: Any) -> None:
    answer = world.beat(member_id, 0, owned={}, rebalance_timeout_ms=REBALANCE_MS, **subscribed, **more)
    assert answer.error == ErrorCode.NONE, answer.response


def pair(
    subscribed: dict[str, Any], *, age_ms: int = REFRESH_MIN_MS + 1, other: dict[str, Any] | None = None, **more: Any
) -> ConsumerWorld:
    """A group of `a` and `b` that share `t1` and `t2` at their targets; its patterns were matched `age_ms` ago."""
    world = ConsumerWorld(topics={"t1": 3, "t2": 3, "u1": 2})
    joined(world, "a", subscribed, **more)
    joined(world, "b", other or subscribed)
    world.settle("a", "b")
    world.pass_time(age_ms)
    assert owned(world) == every(world, "t1", "t2")
    assert world.group.members["a"].assigned
    assert world.group.members["b"].assigned
    return world


def every(world: ConsumerWorld, *topics: str) -> set[tuple[str, int]]:
    image = world.cluster.image
    return {(name, number) for name in topics for number in range(len(image.topics[name].partitions))}


def owned(world: ConsumerWorld, *member_ids: str) -> set[tuple[str, int]]:
    """What members have, with each partition once."""
    names = world.cluster.image.topic_names
    found = [
        (names[topic], number)
        for member_id, member in world.group.members.items()
        if not member_ids or member_id in member_ids
        for topic, numbers in member.held.items()
        for number in numbers
    ]
    assert len(found) == len(set(found)), "a partition has one owner"
    return set(found)


def changes(world: ConsumerWorld, member_id: str, **said: Any) -> None:
    """A member says that it subscribes to something else."""
    member = world.group.members[member_id]
    answer = world.beat(member_id, member.member_epoch, owned=dict(member.assigned), **said)
    assert answer.error == ErrorCode.NONE, answer.response


def check_settles(world: ConsumerWorld, *topics: str, members: tuple[str, ...] = ("a", "b"), epoch: int) -> None:
    """Without waiting, all partitions are assigned, and all epochs are equal and above `epoch`."""
    world.settle(*members)
    assert owned(world) == every(world, *topics)
    assert world.group.state is ConsumerGroupState.STABLE
    assert world.group.group_epoch == world.group.target_epoch > epoch
    world.check_reload()


# ------------------------------------------------------------------ patterns
@pytest.mark.parametrize("age_ms", [0, REFRESH_MIN_MS, REFRESH_MIN_MS + 1])
@pytest.mark.parametrize(
    ("said", "topics"),
    [
        ({"subscribed_topic_regex": ""}, ()),
        ({"subscribed_topic_regex": "", "subscribed_topic_names": ["u1"]}, ("u1",)),
        ({"subscribed_topic_regex": NOTHING}, ()),
        ({"subscribed_topic_regex": "t1"}, ()),
    ],
    ids=["removed", "names instead", "matches nothing", "matches less"],
)
@pytest.mark.parametrize("of_other", [PATTERN, NAMES], ids=["the same pattern", "names"])
def test_a_pattern_is_taken_back_or_matches_less(
    said: dict[str, Any], topics: tuple[str, ...], age_ms: int, of_other: dict[str, Any]
) -> None:
    world = pair(PATTERN, age_ms=age_ms, other=of_other)
    epoch = world.group.group_epoch
    changes(world, "a", **said)
    check_settles(world, "t1", "t2", *topics, epoch=epoch)
    a = owned(world, "a")
    assert a == every(world, *topics) or said == {"subscribed_topic_regex": "t1"}
    assert a <= every(world, "t1", *topics)


def test_a_pattern_is_taken_back_where_nobody_names_its_topics() -> None:
    world = pair(PATTERN)
    for member_id in ("a", "b"):
        epoch = world.group.group_epoch
        changes(world, member_id, subscribed_topic_regex="")
        assert world.group.group_epoch > epoch
    world.settle("a", "b")
    assert owned(world) == set()
    assert not world.group.subscriptions.patterns
    world.check_reload()


@pytest.mark.parametrize("is_matched_meanwhile", [False, True])
def test_a_pattern_is_taken_back_before_its_topics_are_known(is_matched_meanwhile: bool) -> None:
    """The first change removes all topics. After the second, the member still has none."""
    world = pair(PATTERN)
    epoch, world.holds_jobs = world.group.group_epoch, True
    changes(world, "a", subscribed_topic_regex=NOTHING)
    if is_matched_meanwhile:
        world.do_jobs()
    changes(world, "a", subscribed_topic_regex="")
    world.holds_jobs = False
    world.do_jobs()
    check_settles(world, "t1", "t2", epoch=epoch)


def test_another_coordinator_takes_over_before_the_topics_of_a_pattern_are_known() -> None:
    world = pair(PATTERN)
    epoch, world.holds_jobs = world.group.group_epoch, True
    changes(world, "a", subscribed_topic_regex=NOTHING)
    later: ConsumerWorld = world.reload()  # a copy of itself
    later.holds_jobs = False
    later.pass_time(REFRESH_MIN_MS + 1)
    check_settles(later, "t1", "t2", epoch=epoch)


def test_the_topics_of_a_pattern_can_not_be_kept_at_first() -> None:
    world = pair(PATTERN)
    epoch, world.holds_jobs = world.group.group_epoch, True
    changes(world, "a", subscribed_topic_regex=NOTHING)
    world.holds_jobs, world.append_fails = False, ErrorCode.NOT_ENOUGH_REPLICAS
    world.do_jobs()
    world.append_fails = None
    world.pass_time(REFRESH_MIN_MS + 1)
    check_settles(world, "t1", "t2", epoch=epoch)


def test_a_member_takes_a_pattern_that_is_being_matched_already() -> None:
    """Its topics are about to be known: one epoch is enough for both."""
    world = pair(PATTERN)
    epoch, world.holds_jobs = world.group.group_epoch, True
    for member_id in ("a", "b"):
        changes(world, member_id, subscribed_topic_regex=OTHER)
    assert world.group.group_epoch == epoch
    world.holds_jobs = False
    world.do_jobs()
    assert world.group.group_epoch == epoch + 1
    check_settles(world, "u1", epoch=epoch)


def test_a_pattern_that_can_not_be_compiled_here_matches_nothing() -> None:
    """Another broker's record may have one. The patterns of other members are still matched."""
    world = pair(PATTERN)
    epoch = world.group.group_epoch
    said = world.group.members["a"].subscription_record()
    said.subscribed_topic_regex = "("
    world.append(ConsumerGroupChange(RecordType.MEMBER, GROUP, "a", said))
    world.append(
        ConsumerGroupChange(RecordType.PATTERN, GROUP, SHARED, PatternTopics(topics=["t1"], version=0, timestamp=0))
    )
    check_settles(world, "t1", "t2", epoch=epoch)


# ------------------------------------------------------------------ what a pattern stands for
def test_a_right_to_describe_a_topic_is_taken_away() -> None:
    """Permissions are checked again after `group.consumer.regex.refresh.interval.ms`, as in Kafka."""
    world = pair(PATTERN)
    epoch = world.group.group_epoch
    for _ in range(world.settings.consumer_regex_refresh_interval_ms // 20_000):
        world.settle("a", "b", rounds=1)
        world.pass_time(20_000)
    assert world.group.group_epoch == epoch
    for member_id in ("a", "b"):
        member = world.group.members[member_id]
        world.beat(member_id, member.member_epoch, owned=dict(member.assigned), may_see=lambda name: name != "t2")
    check_settles(world, "t1", epoch=epoch)


@pytest.mark.parametrize("subscribed", [NAMES, PATTERN], ids=["names", "pattern"])
def test_a_topic_is_deleted_and_created_again(subscribed: dict[str, Any]) -> None:
    world = pair(subscribed)
    for count, topics in ((0, ("t1",)), (4, ("t1", "t2"))):
        epoch = world.group.group_epoch
        world.cluster.set_topic("t2", count)
        check_settles(world, *topics, epoch=epoch)


@pytest.mark.parametrize("subscribed", [NAMES, PATTERN], ids=["names", "pattern"])
def test_a_topic_is_created_again_before_members_know_that_it_was_deleted(subscribed: dict[str, Any]) -> None:
    world = pair(subscribed)
    epoch = world.group.group_epoch
    world.cluster.set_topic("t2", 0)
    world.cluster.set_topic("t2", 3)
    check_settles(world, "t1", "t2", epoch=epoch)


# ------------------------------------------------------------------ names
@pytest.mark.parametrize(("names", "topics"), [([], ()), (["t1"], ()), (["u1"], ("u1",)), (["gone"], ())])
@pytest.mark.parametrize("of_other", [PATTERN, NAMES], ids=["pattern", "the same names"])
def test_names_are_taken_back(names: list[str], topics: tuple[str, ...], of_other: dict[str, Any]) -> None:
    world = pair(NAMES, other=of_other)
    epoch = world.group.group_epoch
    changes(world, "a", subscribed_topic_names=names)
    check_settles(world, "t1", "t2", *topics, epoch=epoch)


# ------------------------------------------------------------------ members
def leaves(world: ConsumerWorld) -> None:
    assert world.beat("a", -1, instance_id=world.group.members["a"].instance_id).error == ErrorCode.NONE


def is_silent(world: ConsumerWorld) -> None:
    world.pass_time(SESSION_MS // 2)
    world.settle("b")
    world.pass_time(SESSION_MS // 2 + 1)


def leaves_by_an_administrator(world: ConsumerWorld) -> None:
    assert world.leave(MemberIdentity(member_id="a")) == [ErrorCode.NONE]


def returns_with_less(world: ConsumerWorld) -> None:
    """A member that has lost its state joins under the same id."""
    joined(world, "a", FEWER_NAMES)


@pytest.mark.parametrize("subscribed", [NAMES, PATTERN], ids=["names", "pattern"])
@pytest.mark.parametrize(
    ("goes", "topics", "members"),
    [
        (leaves, (), ("b",)),
        (is_silent, (), ("b",)),
        (leaves_by_an_administrator, (), ("b",)),
        (returns_with_less, ("u1",), ("a", "b")),
    ],
)
def test_a_member_goes(
    goes: Callable[[ConsumerWorld], None], topics: tuple[str, ...], members: tuple[str, ...], subscribed: dict[str, Any]
) -> None:
    world = pair(subscribed)
    epoch = world.group.group_epoch
    goes(world)
    check_settles(world, "t1", "t2", *topics, members=members, epoch=epoch)


@pytest.mark.parametrize("less", [FEWER_NAMES, EMPTY_PATTERN], ids=["names", "pattern"])
@pytest.mark.parametrize("subscribed", [NAMES, PATTERN], ids=["names", "pattern"])
def test_a_static_member_is_replaced_by_one_that_subscribes_to_less(
    subscribed: dict[str, Any], less: dict[str, Any]
) -> None:
    world = pair(subscribed, instance_id="i")
    epoch = world.group.group_epoch
    assert world.beat("a", -2, instance_id="i").error == ErrorCode.NONE
    joined(world, "new", less, instance_id="i")
    check_settles(world, "t1", "t2", *less["subscribed_topic_names"], members=("new", "b"), epoch=epoch)


def test_a_static_member_is_replaced_while_a_worker_makes_the_target() -> None:
    """The worker's target has the member that is gone, and not its successor: the target is computed again."""
    world = ConsumerWorld(topics={"t1": 4_000, "t2": 1})
    joined(world, "a", NAMES, instance_id="i")
    joined(world, "b", NAMES)
    for _ in range(3):
        world.pass_time(1)
        world.settle("a", "b", rounds=2)
    world.holds_work = True
    joined(world, "c", NAMES)
    world.pass_time(1)
    assert len(world.work) == 1
    assert world.beat("a", -2, instance_id="i").error == ErrorCode.NONE
    epoch = world.group.group_epoch
    joined(world, "new", NAMES, instance_id="i")
    assert world.group.group_epoch == epoch, "nothing has changed for the others"
    world.do_work()
    assert world.group.target_epoch < epoch
    world.holds_work = False
    for _ in range(4):
        world.pass_time(1)
        world.settle("new", "b", "c", rounds=2)
    assert owned(world) == every(world, "t1", "t2")
    assert [len(owned(world, member_id)) for member_id in ("new", "b", "c")] == [1_334, 1_334, 1_333]
    world.check_reload()


def test_a_static_member_has_its_place_in_a_full_group() -> None:
    """The group does not grow. Otherwise its partitions would have no owner until its session ends."""
    world = ConsumerWorld(GroupSettings(consumer_max_size=1, consumer_assignment_interval_ms=0))
    world.enter("a", instance_id="i")
    world.beat("a", -2, instance_id="i")
    assert world.assigned(world.enter("new", instance_id="i")) == {world.ids(): {0, 1, 2, 3}}
    refused = world.beat("b", 0, owned={}, rebalance_timeout_ms=1, subscribed_topic_names=["t"], instance_id="other")
    assert refused.error == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_group_without_members_has_one_epoch() -> None:
    """Nothing is to be assigned: the target gets the group's epoch, and the next member doesn't wait for its target."""
    world = ConsumerWorld(GroupSettings(consumer_assignment_interval_ms=60_000))
    world.enter("a")
    world.beat("a", -1)
    assert (world.group.group_epoch, world.group.target_epoch, world.group.state) == (3, 3, ConsumerGroupState.EMPTY)
    world.check_reload()
    response = world.enter("b")
    assert (response.member_epoch, world.assigned(response)) == (4, {world.ids(): {0, 1, 2, 3}})


def test_the_preferred_assignor_changes() -> None:
    """The new assignor computes the target. Source: `GroupMetadataManager.hasPreferredServerAssignorChanged`."""
    world = pair(NAMES)
    epoch = world.group.group_epoch
    changes(world, "a", server_assignor="uniform")
    assert world.group.group_epoch == epoch, "it is the default"
    changes(world, "b", server_assignor="range")
    check_settles(world, "t1", "t2", epoch=epoch)


# ------------------------------------------------------------------ members of the classic protocol
def classic_world(*topics: str, **more: Any) -> tuple[ConsumerWorld, str]:
    """A group of `new`, a consumer member, and of a classic member that has a part of `t1` and `t2`."""
    world = ConsumerWorld(
        GroupSettings(initial_rebalance_delay_ms=0, consumer_assignment_interval_ms=0, **more),
        topics={"t1": 3, "t2": 3, "u1": 2},
    )
    joined(world, "new", NAMES)
    member_id = world.join(version=3, protocols=speaks(*topics)).response.member_id
    for _ in range(3):
        world.settle("new")
        joins(world, member_id, *topics)
    assert owned(world) == every(world, "t1", "t2")
    assert owned(world, member_id)
    return world, member_id


def speaks(*topics: str, owned: dict[str, list[int]] | None = None) -> tuple[tuple[str, bytes], ...]:
    return (("cooperative-sticky", subscription(*topics, owned=owned)),)


def joins(world: ConsumerWorld, member_id: str, *topics: str) -> None:
    """The member joins as one that has given back what it was asked for, and syncs."""
    names = world.cluster.image.topic_names
    member = world.group.members[member_id]
    had = {names[topic]: sorted(numbers) for topic, numbers in member.assigned.items() if topic in names}
    response = world.join(member_id, version=3, protocols=speaks(*topics, owned=had)).response
    assert response.error_code == ErrorCode.NONE
    assert world.sync(member_id, response.generation_id).error == ErrorCode.NONE


def test_a_classic_member_subscribes_to_less() -> None:
    world, member_id = classic_world("t1", "t2")
    epoch = world.group.group_epoch
    for _ in range(2):
        joins(world, member_id, "u1")
        world.settle("new")
    assert owned(world) == every(world, "t1", "t2", "u1")
    assert owned(world, member_id) == every(world, "u1")
    assert world.group.group_epoch > epoch


def test_a_classic_member_leaves() -> None:
    world, member_id = classic_world("t1", "t2")
    world.enter("another", "t1")  # The group stays as it is.
    world.settle("new", "another")
    epoch = world.group.group_epoch
    assert world.leave(MemberIdentity(member_id=member_id)) == [ErrorCode.NONE]
    check_settles(world, "t1", "t2", members=("new", "another"), epoch=epoch)


@pytest.mark.parametrize("count", [0, 5])
def test_topics_change_in_a_group_that_has_classic_members_only(count: int) -> None:
    """If such a group stays a consumer group, only its classic members can notice the change."""
    world, member_id = classic_world("t1", "t2", consumer_migration_policy="upgrade")
    world.beat("new", -1)
    joins(world, member_id, "t1", "t2")
    epoch = world.group.members[member_id].member_epoch
    assert world.heartbeat(member_id, epoch) == ErrorCode.NONE
    world.cluster.set_topic("t2", count)
    assert world.heartbeat(member_id, epoch) == ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(2):
        joins(world, member_id, "t1", "t2")
    assert owned(world) == every(world, "t1", *(("t2",) if count else ()))
    later = world.group.members[member_id].member_epoch
    assert later > epoch
    assert world.heartbeat(member_id, later) == ErrorCode.NONE
    world.cluster.set_topic("other", 1)
    assert world.heartbeat(member_id, later) == ErrorCode.NONE, "the topic of others"


def test_a_classic_group_that_rebalances_is_taken_over_by_a_member_that_subscribes_to_nothing() -> None:
    """The remaining members keep their partitions; the rest is assigned."""
    world = ConsumerWorld(
        GroupSettings(initial_rebalance_delay_ms=0, consumer_assignment_interval_ms=0), topics={"t1": 2}
    )
    joining = {"protocols": speaks("t1")}
    first, _ = world.new_member(**joining)
    generation = world.join(first, **joining).response.generation_id
    world.sync(first, generation, {first: b"\0\0" + (0).to_bytes(4, "big") + b"\xff" * 4})
    joined(world, "new", {"subscribed_topic_names": []})
    assert world.group.group_epoch > world.group.members[first].member_epoch
    for _ in range(2):
        joins(world, first, "t1")
    assert owned(world) == every(world, "t1")
