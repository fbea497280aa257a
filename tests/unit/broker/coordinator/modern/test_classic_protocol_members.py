"""Members of the classic protocol in a consumer group: joins, syncs, heartbeats, leaves, returning static members."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.member_memory import BROKER_BYTES_MAX
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.modern.member_state import MemberState
from lowtide.protocol.consumer_group_records import ConsumerGroupChange, GroupEpoch, RecordType
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from lowtide.protocol.messages.leave_group import MemberIdentity
from lowtide.protocol.messages.sync_group import SyncGroupRequest
from tests.unit.broker.coordinator.consumer_world import ConsumerWorld, subscription
from tests.unit.broker.coordinator.group_world import GROUP, REBALANCE_MS, SESSION_MS, Answer

NAME = "cooperative-sticky"
NONE, FENCED, UNKNOWN, REBALANCES = (
    ErrorCode.NONE,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
)


def speaks(*topics: str, owned: dict[str, list[int]] | None = None) -> tuple[tuple[str, bytes], ...]:
    return ((NAME, subscription(*(topics or ("t",)), owned=owned)),)


def world_with(**settings: Any) -> ConsumerWorld:
    """A group of `new`, which speaks the new protocol."""
    world = ConsumerWorld(GroupSettings(initial_rebalance_delay_ms=0, consumer_assignment_interval_ms=0, **settings))
    world.enter("new")
    return world


@pytest.fixture
def world() -> ConsumerWorld:
    return world_with()


def join(world: ConsumerWorld, **more: Any) -> str:
    """Join with a request that needs no id before; returns the member's id."""
    response = world.join(version=3, **({"protocols": speaks()} | more)).response
    assert response.error_code == NONE, response.error_code
    member_id: str = response.member_id
    return member_id


def join_and_get(world: ConsumerWorld, giver: str) -> str:
    """Join, and get what `giver` gives back, which is in the group with the new protocol; returns the member's id."""
    member_id = join(world)
    world.settle(giver)
    world.join(member_id, protocols=speaks())
    return member_id


def enter_static(world: ConsumerWorld) -> None:
    """A static member joins with the new protocol. Like one of the classic protocol it has an empty pattern."""
    more: dict[str, Any] = {
        "rebalance_timeout_ms": REBALANCE_MS,
        "subscribed_topic_names": ["t"],
        "subscribed_topic_regex": "",
    }
    assert world.beat("static", 0, owned={}, instance_id="i", **more).error == NONE


def deadline(world: ConsumerWorld, kind: str, member_id: str) -> int | None:
    return world.groups.timers.deadline_of((kind, GROUP, member_id))


def change(world: ConsumerWorld, member_id: str, **fields: Any) -> None:
    """A record of what a member has says this now."""
    value = world.group.members[member_id].current_record()
    for name, given in fields.items():
        setattr(value, name, given)
    world.append(ConsumerGroupChange(RecordType.CURRENT, GROUP, member_id, value))


# ------------------------------------------------------------------ joining
@pytest.mark.parametrize(
    ("version", "error"), [(3, NONE), (4, ErrorCode.MEMBER_ID_REQUIRED), (9, ErrorCode.MEMBER_ID_REQUIRED)]
)
def test_an_id_is_required_since_version_4(world: ConsumerWorld, version: int, error: ErrorCode) -> None:
    answer = world.join(version=version, protocols=speaks())
    assert (answer.error, uuid.UUID(answer.response.member_id).version) == (error, 4)


@pytest.mark.parametrize(("count", "is_full"), [(3, False), (2, True)])
def test_a_full_group_accepts_its_own_members_only(count: int, is_full: bool) -> None:
    world = world_with(consumer_max_size=count)
    member_id = join(world)
    assert world.join(version=3, protocols=speaks()).error == (ErrorCode.GROUP_MAX_SIZE_REACHED if is_full else NONE)
    assert world.join(member_id, protocols=speaks("t", "u")).error == NONE
    assert len(world.group.members) == count


def test_a_member_that_says_too_much_is_refused_and_changes_nothing(world: ConsumerWorld) -> None:
    world.groups.memory.held_bytes = BROKER_BYTES_MAX
    assert world.join(version=3, protocols=speaks()).error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert list(world.group.members) == ["new"]


def test_a_member_whose_state_is_not_known_must_give_back_all_that_it_has(world: ConsumerWorld) -> None:
    member_id = join(world)
    change(world, member_id, state=99)
    refused = world.join(member_id, protocols=speaks(owned={"t": [0]}))
    assert (refused.error, refused.response.member_id) == (ErrorCode.FENCED_MEMBER_EPOCH, member_id)
    assert world.join(member_id, protocols=speaks(owned={})).error == NONE


def test_topics_that_are_not_there_are_owned_by_no_member(world: ConsumerWorld) -> None:
    member_id = join(world)
    change(world, member_id, state=99)
    assert world.join(member_id, protocols=speaks(owned={"missing": [0]})).error == NONE


def test_a_member_says_where_it_is_and_how_long_it_takes(world: ConsumerWorld) -> None:
    in_rack = subscription("t")[:-2] + b"\0\4rack"
    member_id = join(world, protocols=((NAME, in_rack),), instance_id="i", rebalance_ms=-1)
    member = world.group.members[member_id]
    assert (member.rack_id, member.instance_id, member.rebalance_timeout_ms) == ("rack", "i", SESSION_MS)
    world.join(member_id, instance_id="i", protocols=speaks(), rebalance_ms=7)
    member = world.group.members[member_id]
    assert (member.rack_id, member.instance_id, member.rebalance_timeout_ms) == ("rack", "i", 7), "its rack stays"
    world.join(member_id, protocols=speaks(), rebalance_ms=7)
    assert world.group.members[member_id].instance_id == "i"


def test_topics_that_a_client_may_not_see_do_not_match_when_it_joins(world: ConsumerWorld) -> None:
    world.beat("other", 0, owned={}, rebalance_timeout_ms=1, subscribed_topic_regex="t.*")
    assert world.group.subscriptions.patterns["t.*"].topics == {"t"}
    world.pass_time(20_000)
    world.cluster.set_topic("two", 1)
    world.cluster.set_topic("three", 1)
    request = JoinGroupRequest(
        group_id=GROUP, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=1, member_id="", protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name=NAME, metadata=subscription("t"))],
    )  # fmt: skip
    effects = world.effects()
    world.groups.join(request, MemberClient("client", "/host", 3, lambda name: name != "two"), Answer(), effects)
    world.carry_out(effects)
    assert world.group.subscriptions.patterns["t.*"].topics == {"t", "three"}


# ------------------------------------------------------------------ a group without members
def test_a_group_without_members_becomes_classic_for_a_new_member_only(world: ConsumerWorld) -> None:
    world.beat("new", -1)
    assert world.join("gone", protocols=speaks()).error == UNKNOWN
    assert isinstance(world.groups.by_id[GROUP], ConsumerGroup)
    assert world.join(protocols=speaks()).error == ErrorCode.MEMBER_ID_REQUIRED
    assert isinstance(world.groups.by_id[GROUP], ClassicGroup)
    assert GROUP not in world.reload().groups.by_id, "the records of the other group are taken back"


# ------------------------------------------------------------------ static members
def test_a_static_member_returns_under_another_id(world: ConsumerWorld) -> None:
    old = join(world, instance_id="i")
    assert world.group.static_members == {"i": old}
    new = join(world, instance_id="i")
    assert (list(world.group.members), world.group.static_members) == (["new", new], {"i": new})
    assert world.join(old, instance_id="i", protocols=speaks()).error == FENCED
    world.check_reload()


def test_a_static_member_that_changes_its_protocol_makes_no_group_classic_in_which_others_speak_the_new_one(
    world: ConsumerWorld,
) -> None:
    world.enter("static", instance_id="i")
    join(world, instance_id="i")
    assert isinstance(world.groups.by_id[GROUP], ConsumerGroup)
    assert "new" in world.group.members


def test_a_static_member_that_has_spoken_the_classic_protocol_before_makes_no_group_classic(
    world: ConsumerWorld,
) -> None:
    """Only the last member of the new protocol does, when it comes or goes."""
    join(world, instance_id="i")
    consumers = world.groups.consumers.migration
    allowed, consumers._settings = consumers._settings, GroupSettings(consumer_migration_policy="disabled")
    world.beat("new", -1)
    consumers._settings = allowed
    join(world, instance_id="i")
    assert isinstance(world.groups.by_id[GROUP], ConsumerGroup)


@pytest.mark.parametrize(
    ("topics", "state"), [(("t",), GroupState.STABLE), (("t", "u"), GroupState.PREPARING_REBALANCE)]
)
def test_the_last_member_of_the_new_protocol_returns_with_the_classic_one(
    topics: tuple[str, ...], state: GroupState
) -> None:
    """All members have their targets. The group rebalances only if the member consumes something else."""
    world = ConsumerWorld(topics={"t": 4, "u": 1})
    enter_static(world)
    other = join_and_get(world, "static")
    answer = world.join(instance_id="i", protocols=speaks(*topics))
    group = world.groups.by_id[GROUP]
    assert isinstance(group, ClassicGroup)
    assert (answer.error, group.state, set(group.members)) == (NONE, state, {other, answer.response.member_id})
    if state is GroupState.STABLE:
        assert world.heartbeat(answer.response.member_id, answer.response.generation_id, "i") == NONE


@pytest.mark.parametrize("lacks", ["what another has", "what has no owner", "a target"])
def test_the_last_member_of_the_new_protocol_returns_before_all_have_what_they_are_to_have(
    world: ConsumerWorld, lacks: str
) -> None:
    """A classic group's heartbeats cannot announce more partitions, so it rebalances."""
    world.beat("new", -1)
    enter_static(world)
    other, owned = join(world), {"t": [0, 1, 2, 3]} if lacks == "what another has" else {}
    if lacks != "what another has":
        world.settle("static")
    if lacks == "a target":
        world.join(other, protocols=speaks())
        value = GroupEpoch(epoch=world.group.group_epoch + 1, metadata_hash=world.group.metadata_hash)
        world.append(ConsumerGroupChange(RecordType.GROUP, GROUP, "", value))
    world.join(instance_id="i", protocols=speaks(owned=owned))
    group = world.groups.by_id[GROUP]
    assert isinstance(group, ClassicGroup)
    assert group.state is GroupState.PREPARING_REBALANCE


def test_a_member_without_a_pattern_that_returns_with_the_classic_protocol_moves_nothing(world: ConsumerWorld) -> None:
    """No pattern equals an empty one, which members of the classic protocol have: the group needs no rebalance."""
    world.beat("new", -1)
    world.enter("static", instance_id="i")
    join_and_get(world, "static")
    world.join(instance_id="i", protocols=speaks())
    group = world.groups.by_id[GROUP]
    assert isinstance(group, ClassicGroup)
    assert group.state is GroupState.STABLE


def test_the_last_member_of_the_new_protocol_whose_state_is_not_known_is_fenced(world: ConsumerWorld) -> None:
    world.beat("new", -1)
    enter_static(world)
    join(world)
    change(world, "static", state=99)
    answer = world.join(instance_id="i", protocols=speaks(owned={"t": [0]}))
    assert answer.error == ErrorCode.FENCED_MEMBER_EPOCH
    assert isinstance(world.groups.by_id[GROUP], ConsumerGroup)


# ------------------------------------------------------------------ waits
@pytest.mark.parametrize(("rebalance_ms", "wait_ms"), [(REBALANCE_MS, REBALANCE_MS), (0, 0), (-5, 0)])
def test_a_member_that_has_joined_has_its_time_to_sync(world: ConsumerWorld, rebalance_ms: int, wait_ms: int) -> None:
    world.holds_commits = True
    answer = world.join(version=3, protocols=speaks(), rebalance_ms=rebalance_ms)
    world.now_ms = 1_000
    world.commit()
    member_id = answer.response.member_id
    assert deadline(world, "resync", member_id) == 1_000 + wait_ms
    assert deadline(world, "heartbeat", member_id) == 1_000 + SESSION_MS


def test_a_member_that_left_before_its_join_was_committed_is_not_awaited(world: ConsumerWorld) -> None:
    world.holds_commits = True
    answer = world.join(version=3, protocols=speaks())
    [member_id] = [name for name in world.group.members if name != "new"]
    world.leave(MemberIdentity(member_id=member_id))
    world.commit()
    assert answer.error == NONE
    assert [deadline(world, kind, member_id) for kind in ("heartbeat", "resync")] == [None, None]


def test_a_sync_ends_the_wait_for_it_and_is_a_sign_of_life(world: ConsumerWorld) -> None:
    member_id = join(world)
    epoch = world.group.members[member_id].member_epoch
    world.now_ms = 500
    assert world.sync(member_id, epoch).error == NONE
    assert deadline(world, "resync", member_id) is None
    assert deadline(world, "heartbeat", member_id) == 500 + SESSION_MS


def test_an_assignment_is_answered_when_it_is_committed(world: ConsumerWorld) -> None:
    member_id = join(world)
    effects = world.effects()
    request = SyncGroupRequest(
        group_id=GROUP, generation_id=world.group.members[member_id].member_epoch, member_id=member_id, assignments=[]
    )
    world.groups.sync(request, Answer(), effects)
    assert (effects.barrier, effects.answers, len(effects.then)) == (world.end_offset - 1, [], 1)


@pytest.mark.parametrize(("rebalance_ms", "wait_ms"), [(REBALANCE_MS, REBALANCE_MS), (0, 0), (-5, 0)])
@pytest.mark.parametrize("asked", ["sync", "heartbeat"])
def test_a_member_that_is_behind_is_asked_to_join_again(
    world: ConsumerWorld, asked: str, rebalance_ms: int, wait_ms: int
) -> None:
    member_id = join(world, rebalance_ms=rebalance_ms)
    epoch = world.group.members[member_id].member_epoch
    world.enter("another")
    world.now_ms = 1_000
    for _ in range(2):
        error = world.sync(member_id, epoch).error if asked == "sync" else world.heartbeat(member_id, epoch)
        assert error == REBALANCES
        assert deadline(world, "rejoin", member_id) == 1_000 + wait_ms, "from the first time on"
        world.now_ms += 1


@pytest.mark.parametrize(("kind", "name"), [("connect", NAME), ("consumer", "other")])
def test_a_sync_that_expects_another_protocol_is_refused(world: ConsumerWorld, kind: str, name: str) -> None:
    member_id = join(world)
    epoch = world.group.members[member_id].member_epoch
    assert (
        world.sync(member_id, epoch, protocol_type=kind, protocol_name=name).error
        == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    assert deadline(world, "rejoin", member_id) is None
    assert world.sync(member_id, epoch, protocol_type="consumer", protocol_name=NAME).error == NONE


def test_a_member_that_waits_for_others_is_asked_to_join_when_they_are_done(world: ConsumerWorld) -> None:
    member_id = join(world)
    member = world.group.members[member_id]
    assert member.state is MemberState.UNRELEASED_PARTITIONS
    assert world.heartbeat(member_id, member.member_epoch) == NONE
    world.settle("new")
    assert world.heartbeat(member_id, member.member_epoch) == REBALANCES


def test_a_member_that_is_giving_back_is_asked_to_join(world: ConsumerWorld) -> None:
    member_id = join(world)
    world.settle("new")
    world.join(member_id, protocols=speaks(owned={}))
    epoch = world.group.members[member_id].member_epoch
    assert (epoch, world.heartbeat(member_id, epoch)) == (world.group.group_epoch, NONE)
    change(world, member_id, state=int(MemberState.UNREVOKED_PARTITIONS))
    assert world.heartbeat(member_id, epoch) == REBALANCES


# ------------------------------------------------------------------ leaving
def test_members_leave_by_their_ids_or_instances(world: ConsumerWorld) -> None:
    static, dynamic = join(world, instance_id="i"), join(world)
    identities = [
        MemberIdentity(member_id="", group_instance_id="j"),
        MemberIdentity(member_id=dynamic, group_instance_id="i"),
        MemberIdentity(member_id=""),
        MemberIdentity(member_id=static, group_instance_id="j"),
    ]
    assert world.leave(*identities) == [UNKNOWN, FENCED, UNKNOWN, UNKNOWN]
    assert set(world.group.members) == {"new", static, dynamic}
    assert world.leave(MemberIdentity(member_id="", group_instance_id="i"), MemberIdentity(member_id=dynamic)) == [
        NONE,
        NONE,
    ]
    assert list(world.group.members) == ["new"]
    again = join(world, instance_id="i")
    assert world.leave(MemberIdentity(member_id=again, group_instance_id="i")) == [NONE]
