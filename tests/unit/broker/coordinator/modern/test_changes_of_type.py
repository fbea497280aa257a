"""What a group keeps when its type changes, what its log says then, and a change that can't be written."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.modern.group_decision import GroupDecision
from lowtide.broker.coordinator.modern.modern_member import ModernMember
from lowtide.protocol.consumer_group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupChange,
    RecordType,
)
from lowtide.protocol.consumer_protocol import encode_assignment, parse_assignment
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.leave_group import MemberIdentity
from tests.unit.broker.coordinator.consumer_world import ConsumerWorld, subscription
from tests.unit.broker.coordinator.group_world import GROUP, SESSION_MS, World

NAME = "cooperative-sticky"
SPEAKS = ((NAME, subscription("t")),)
JOIN: dict[str, Any] = {"owned": {}, "rebalance_timeout_ms": 1_000, "subscribed_topic_names": ["t"]}
REBALANCES = ErrorCode.REBALANCE_IN_PROGRESS


@pytest.fixture
def world() -> ConsumerWorld:
    return ConsumerWorld()


def classic_member(world: ConsumerWorld, **more: Any) -> str:
    """A classic group of one member, which has all partitions; its id."""
    answer = World.join(world, version=3, **({"protocols": SPEAKS} | more)).response
    everything = encode_assignment(1, [("t", [0, 1, 2, 3])])
    world.sync(answer.member_id, answer.generation_id, {answer.member_id: everything})
    member_id: str = answer.member_id
    return member_id


def classic_in(world: ConsumerWorld) -> ClassicGroup:
    group = world.groups.by_id[GROUP]
    assert isinstance(group, ClassicGroup)
    return group


def deadline(world: ConsumerWorld, kind: str, member_id: str = "") -> int | None:
    return world.groups.timers.deadline_of((kind, GROUP, member_id))


# ------------------------------------------------------------------ to the new type
def test_a_group_that_becomes_one_of_consumers_begins_at_its_generation(world: ConsumerWorld) -> None:
    member_id = classic_member(world)
    classic_in(world).generation_id = 7
    decision = world.groups.consumers.migration.upgrade(classic_in(world))
    assert isinstance(decision, GroupDecision)
    group = decision.group
    assert (group.group_epoch, group.target_epoch, group.members[member_id].member_epoch) == (7, 7, 7)
    assert group.metadata_hash == world.cluster.view.hash_of("t")
    assert group.targets == {member_id: {world.ids(): frozenset({0, 1, 2, 3})}}
    assert group.members[member_id].assigned == group.targets[member_id]


def test_a_member_in_a_rack_without_a_name_is_in_none(world: ConsumerWorld) -> None:
    member_id = classic_member(world, protocols=((NAME, subscription("t")[:-2] + b"\0\0"),))
    decision = world.groups.consumers.migration.upgrade(classic_in(world))
    assert isinstance(decision, GroupDecision)
    assert decision.group.members[member_id].rack_id is None


def test_the_protocol_of_the_group_says_what_a_member_consumes(world: ConsumerWorld) -> None:
    """It may not be the one that the member likes best."""
    in_rack = subscription("u")[:-2] + b"\0\4rack"
    first = classic_member(world, protocols=(("a", subscription("t")), ("b", in_rack)))
    second = World.join(world, version=3, protocols=(("b", subscription("u")),))
    World.join(world, first, protocols=(("a", subscription("t")), ("b", in_rack)))
    assert second.response.protocol_name == "b"
    decision = world.groups.consumers.migration.upgrade(classic_in(world))
    assert isinstance(decision, GroupDecision)
    members = decision.group.members
    assert [members[name].topic_names for name in (first, second.response.member_id)] == [{"u"}, {"u"}]
    assert [members[name].rack_id for name in (first, second.response.member_id)] == ["rack", None]


@pytest.mark.parametrize(("room", "error"), [(1, ErrorCode.GROUP_MAX_SIZE_REACHED), (0, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_group_with_more_members_than_one_of_consumers_may_have_stays_classic(room: int, error: ErrorCode) -> None:
    world = ConsumerWorld(GroupSettings(initial_rebalance_delay_ms=0, consumer_max_size=room))
    classic_member(world)
    assert world.beat("new", 0, **JOIN).error == error


def test_members_that_wait_for_assignments_join_again(world: ConsumerWorld) -> None:
    first = classic_member(world)
    second = World.join(world, version=3, protocols=SPEAKS)
    World.join(world, first, protocols=SPEAKS)
    waiting = world.sync(second.response.member_id, second.response.generation_id)
    assert waiting.response is None
    world.enter("new")
    assert waiting.error == REBALANCES


# ------------------------------------------------------------------ to the classic type
def consumer_group(*classic: str, **others: None) -> ConsumerGroup:
    """A group of members of the classic protocol, and of others."""
    group = ConsumerGroup(GROUP)
    said = ClassicMemberMetadata(session_timeout_ms=1, supported_protocols=[ClassicProtocol(name=NAME, metadata=b"")])
    for name in (*classic, *others):
        group.members[name] = ModernMember(name, classic=said if name in classic else None)
        group.subscriptions.replace(None, group.members[name])
    return group


@pytest.mark.parametrize(
    ("gone", "may"), [(("new",), True), (("new", "a"), True), (("a",), False), (("new", "a", "b"), False), ((), False)]
)
def test_a_group_becomes_classic_when_only_members_of_that_protocol_are_left(gone: tuple[str, ...], may: bool) -> None:
    world, group = ConsumerWorld(), consumer_group("a", "b", new=None)
    assert world.groups.consumers.migration.may_downgrade(group, {name: group.members[name] for name in gone}) is may


@pytest.mark.parametrize(("room", "leaves", "returns"), [(3, True, True), (2, True, False), (1, False, False)])
def test_a_group_that_is_larger_than_a_classic_one_may_be_stays_as_it_is(
    room: int, leaves: bool, returns: bool
) -> None:
    world, group = ConsumerWorld(GroupSettings(max_size=room)), consumer_group("a", "b", new=None)
    gone = {"new": group.members["new"]}
    assert world.groups.consumers.migration.may_downgrade(group, gone) is leaves
    assert world.groups.consumers.migration.may_downgrade(group, gone, group.members["a"]) is returns


def mixed(world: ConsumerWorld) -> str:
    """A group of `new` and of a member of the classic protocol; its id."""
    world.enter("new")
    member_id: str = World.join(world, version=3, protocols=SPEAKS).response.member_id
    world.settle("new")
    World.join(world, member_id, protocols=SPEAKS)
    return member_id


def test_a_group_that_becomes_classic_has_taken_its_other_records_back(world: ConsumerWorld) -> None:
    member_id = mixed(world)
    world.now_ms, start, epoch = 500, world.end_offset, world.group.group_epoch
    world.beat("new", -1)
    classic = classic_in(world)
    assert (classic.state, classic.subscribed, classic.protocol_name) == (GroupState.PREPARING_REBALANCE, {"t"}, NAME)
    assert classic.generation_id == epoch
    assert deadline(world, "heartbeat", member_id) == 500 + SESSION_MS
    gone = {
        (change.kind, change.name)
        for offset, change in world.log
        if offset >= start and isinstance(change, ConsumerGroupChange)
    }
    members = {
        (kind, name)
        for kind in (RecordType.CURRENT, RecordType.TARGET, RecordType.MEMBER)
        for name in ("new", member_id)
    }
    assert gone == members | {(RecordType.GROUP, ""), (RecordType.TOPICS, ""), (RecordType.TARGET_EPOCH, "")}


def test_a_group_that_changes_back_before_it_has_rebalanced_gives_out_nothing_that_a_member_still_has() -> None:
    """`late` is to get a partition of `first`, which does not know yet, when the group is classic for a moment."""
    world = ConsumerWorld(topics={"t": 6})
    first = mixed(world)
    had = world.group.members[first].assigned
    late: str = World.join(world, version=3, protocols=SPEAKS).response.member_id
    wanted = world.group.targets[late].get(world.ids(), frozenset()) & had[world.ids()]
    assert wanted, "a partition moves from one to the other"
    world.beat("new", -1)
    assert parse_assignment(classic_in(world).members[first].assignment).topics == (
        ("t", tuple(sorted(had[world.ids()]))),
    )
    world.enter("again")
    assert world.group.members[first].assigned == had
    World.join(world, late, protocols=SPEAKS)
    assert world.group.members[late].assigned.get(world.ids(), frozenset()).isdisjoint(had[world.ids()])
    world.check_reload()


def test_what_a_member_is_asked_to_give_back_is_its_own_in_the_classic_group() -> None:
    world = ConsumerWorld(topics={"t": 6})
    first = mixed(world)
    World.join(world, version=3, protocols=SPEAKS)
    World.join(world, first, protocols=((NAME, subscription("t", owned={"t": [0, 1, 2, 3, 4, 5]})),))
    member = world.group.members[first]
    assert member.revoking
    world.beat("new", -1)
    assert parse_assignment(classic_in(world).members[first].assignment).topics == (
        ("t", tuple(sorted(member.held[world.ids()]))),
    )


def test_a_group_that_could_not_be_made_classic_is_as_it_was(world: ConsumerWorld) -> None:
    mixed(world)
    held_bytes, group = world.groups.memory.held_bytes, world.group
    world.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.beat("new", -1).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (world.groups.by_id[GROUP], world.groups.memory.held_bytes) == (group, held_bytes)
    assert deadline(world, "join") is None
    assert world.groups.consumers.migration.take_prepared(GROUP) is None


def test_a_rebalance_that_has_begun_before_the_group_is_recorded_as_classic_goes_on(world: ConsumerWorld) -> None:
    mixed(world)
    world.holds_commits = True
    world.beat("new", -1)
    assert classic_in(world).state is GroupState.STABLE
    joining = World.join(world, version=3, protocols=SPEAKS)
    world.commit()
    assert (classic_in(world).state, joining.response) == (GroupState.PREPARING_REBALANCE, None)


def test_a_group_that_has_ended_before_it_is_recorded_as_classic_stays_so(world: ConsumerWorld) -> None:
    member_id = mixed(world)
    world.holds_commits = True
    world.beat("new", -1)
    world.leave(MemberIdentity(member_id=member_id))
    effects = world.effects()
    world.groups.delete_group(GROUP, effects)
    world.carry_out(effects)
    world.commit()
    assert GROUP not in world.groups.by_id
    assert (world.groups.memory.held_bytes, deadline(world, "heartbeat", member_id)) == (0, None)


def test_an_assignment_is_encoded_in_the_version_of_the_members_subscription(world: ConsumerWorld) -> None:
    """The lowest one for a member whose subscription can't be read; topics that are gone have no name."""
    encode = world.groups.consumers.migration.encode
    given = {world.ids(): frozenset({2, 1}), bytes(16): frozenset({0})}
    for metadata, version in ((subscription("t", version=2), 2), (subscription("t", version=0), 0), (b"?", 0)):
        assert encode(given, metadata) == encode_assignment(version, [("t", [1, 2])])
