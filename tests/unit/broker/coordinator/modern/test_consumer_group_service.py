"""The service of consumer groups: records of other types, epochs, targets in time, timers, and failed writes."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.member_state import MemberState
from lowtide.broker.coordinator.modern.share_group import ShareGroup
from lowtide.protocol.consumer_group_records import ConsumerGroupChange, GroupEpoch, RecordType
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.group_records import OffsetCommit, OffsetCommitKey, OffsetCommitValue
from lowtide.protocol.messages.leave_group import MemberIdentity
from lowtide.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from tests.unit.broker.coordinator.consumer_world import ConsumerWorld, subscription
from tests.unit.broker.coordinator.group_world import GROUP, REBALANCE_MS, World
from tests.unit.broker.coordinator.group_world import SESSION_MS as CLASSIC_SESSION_MS

NONE, TOO_LARGE = ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED
COMMIT = OffsetCommit(
    OffsetCommitKey(group=GROUP, topic="t", partition=0), OffsetCommitValue(offset=1, metadata="", commit_timestamp=1)
)
EPOCH = ConsumerGroupChange(RecordType.GROUP, GROUP, "", GroupEpoch(epoch=3, metadata_hash=0))
INTERVAL_MS = 1_000
SESSION_MS = GroupSettings().consumer_session_timeout_ms
CLASSIC = (("cooperative-sticky", subscription("t")),)


@pytest.fixture
def world() -> ConsumerWorld:
    return ConsumerWorld()


def slow_world(**topics: int) -> ConsumerWorld:
    """A world in which a second lies between two targets."""
    settings = GroupSettings(initial_rebalance_delay_ms=0, consumer_assignment_interval_ms=INTERVAL_MS)
    return ConsumerWorld(settings, topics=topics or {"t": 4})


def deadline(world: ConsumerWorld, kind: str, member_id: str = "") -> int | None:
    return world.groups.timers.deadline_of((kind, GROUP, member_id))


def delete_group(world: ConsumerWorld) -> None:
    effects = world.effects()
    assert world.groups.delete_group(GROUP, effects) == NONE
    world.carry_out(effects)


# ------------------------------------------------------------------ records
def test_a_record_of_a_group_of_another_type_is_refused(world: ConsumerWorld) -> None:
    world.groups.by_id[GROUP] = ShareGroup(GROUP)
    with pytest.raises(ProtocolError, match="which is a share group"):
        world.groups.consumers.note(EPOCH)
    del world.groups.by_id[GROUP]
    world.stable(1)
    with pytest.raises(ProtocolError, match="which is a classic group"):
        world.groups.consumers.note(EPOCH)


def test_a_group_that_only_keeps_offsets_becomes_one_of_consumers(world: ConsumerWorld) -> None:
    world.append(COMMIT)
    world.groups.consumers.note(EPOCH)
    assert world.group.group_epoch == 3


def test_a_group_that_only_keeps_offsets_is_taken_over_by_a_consumer() -> None:
    world = ConsumerWorld(GroupSettings(consumer_migration_policy="disabled"))
    world.append(COMMIT)
    world.enter("a")
    assert list(world.group.members) == ["a"]


def unrevoked(world: ConsumerWorld) -> None:
    """`a` is asked to give two partitions back, for `b`."""
    world.enter("a")
    world.enter("b")
    world.beat("a", 2, owned={"t": {0, 1, 2, 3}})
    assert world.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS


def test_a_coordinator_that_takes_over_awaits_what_members_are_to_give_back(world: ConsumerWorld) -> None:
    unrevoked(world)
    other = world.reload()
    assert isinstance(other, ConsumerWorld)
    assert [deadline(other, "heartbeat", name) for name in "ab"] == [SESSION_MS] * 2
    assert [deadline(other, "revocation", name) for name in "ab"] == [REBALANCE_MS, None]


def test_what_members_of_the_classic_protocol_are_to_give_back_is_awaited_by_their_joins(world: ConsumerWorld) -> None:
    world.enter("new")
    world.settle("new")
    member_id = world.join(version=3, protocols=CLASSIC).response.member_id
    value = world.group.members[member_id].current_record()
    value.state = int(MemberState.UNREVOKED_PARTITIONS)
    world.append(ConsumerGroupChange(RecordType.CURRENT, GROUP, member_id, value))
    other = world.reload()
    assert isinstance(other, ConsumerWorld)
    assert deadline(other, "revocation", member_id) is None


def test_a_member_of_the_classic_protocol_that_must_give_back_has_no_time_for_that_of_its_own(
    world: ConsumerWorld,
) -> None:
    world.enter("new")
    member_id = world.join(version=3, protocols=CLASSIC).response.member_id
    world.settle("new")
    world.join(member_id, protocols=CLASSIC)
    world.enter("third")
    world.enter("fourth")
    owned = {"t": sorted(world.group.members[member_id].assigned[world.ids()])}
    world.join(member_id, protocols=(("cooperative-sticky", subscription("t", owned=owned)),))
    assert world.group.members[member_id].state is MemberState.UNREVOKED_PARTITIONS
    assert deadline(world, "revocation", member_id) is None


# ------------------------------------------------------------------ commits, room
@pytest.mark.parametrize(
    ("who", "epoch", "error"),
    [
        ("a", 2, NONE),
        ("a", 1, ErrorCode.ILLEGAL_GENERATION),
        ("", -1, NONE),
        ("stranger", 2, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_producer_has_one_code_for_an_old_epoch(world: ConsumerWorld, who: str, epoch: int, error: ErrorCode) -> None:
    world.enter("a")
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id=GROUP,
        producer_id=1,
        producer_epoch=0,
        generation_id_or_member_epoch=epoch,
        member_id=who,
        topics=[],
    )
    assert world.groups.check_transactional_commit(request, 0) == error


# ------------------------------------------------------------------ epochs
def test_a_heartbeat_without_news_writes_nothing(world: ConsumerWorld) -> None:
    world.enter("a")
    count = world.end_offset
    for _ in range(2):
        world.beat("a", 2, owned={"t": {0, 1, 2, 3}})
    assert world.end_offset == count


def test_a_member_that_joins_with_a_known_pattern_raises_the_epoch_at_once(world: ConsumerWorld) -> None:
    world.enter("a", subscribed_topic_regex="t.*")
    epoch = world.group.group_epoch
    world.enter("b", subscribed_topic_regex="t.*")
    assert world.group.group_epoch == epoch + 1


@pytest.mark.parametrize("by", ["names", "pattern"])
def test_what_a_member_no_longer_consumes_is_taken_away_before_the_next_target(by: str) -> None:
    world = slow_world(t=2, u=2)
    if by == "names":
        world.enter("a", "t", "u")
    else:
        world.beat("a", 0, owned={}, rebalance_timeout_ms=1, subscribed_topic_names=["t"], subscribed_topic_regex="u.*")
        world.pass_time(INTERVAL_MS)
        world.settle("a", rounds=2)
    assert set(world.group.members["a"].assigned) == {world.ids("t"), world.ids("u")}
    world.enter("b", "t")
    epoch = world.group.members["a"].member_epoch
    change: dict[str, Any] = {"subscribed_topic_names": ["t"]} if by == "names" else {"subscribed_topic_regex": ""}
    answer = world.beat("a", epoch, owned={"t": {0, 1}, "u": {0, 1}}, **change)
    assert world.group.target_epoch == epoch
    assert world.assigned(answer.response) == {world.ids("t"): {0, 1}}
    assert world.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS


def test_a_topic_that_goes_is_taken_away_by_the_next_target_only() -> None:
    world = slow_world()
    world.enter("a")
    topic = world.ids()
    world.cluster.set_topic("t", 0)
    world.beat("a", 2, owned={topic: {0, 1, 2, 3}})
    assert set(world.group.members["a"].assigned) == {topic}


def test_a_static_member_that_returns_counts_once_in_the_next_target(world: ConsumerWorld) -> None:
    world.enter("a", instance_id="one")
    world.beat("a", -2, instance_id="one")
    world.cluster.set_topic("t", 6)
    back = world.enter("b", instance_id="one")
    assert world.assigned(back) == {world.ids(): {0, 1, 2, 3, 4, 5}}


# ------------------------------------------------------------------ targets in time
def test_the_next_target_is_due_when_the_time_since_the_last_one_is_over() -> None:
    world = slow_world()
    world.enter("a")
    world.now_ms = 400
    world.enter("b")
    assert deadline(world, "assignment") == INTERVAL_MS
    world.now_ms = 500
    world.enter("c")
    assert deadline(world, "assignment") == INTERVAL_MS
    world.pass_time(INTERVAL_MS)
    assert (world.group.target_epoch, deadline(world, "assignment")) == (world.group.group_epoch, None)


def heavy_world(*members: str, interval_ms: int = 0) -> ConsumerWorld:
    """A group whose first heavy target a worker makes."""
    settings = GroupSettings(initial_rebalance_delay_ms=0, consumer_assignment_interval_ms=interval_ms)
    world = ConsumerWorld(settings, topics={"t": 4_000})
    world.holds_work = True
    for name in members:
        world.enter(name)
    world.pass_time(interval_ms)
    assert len(world.work) == 1
    return world


def test_while_a_worker_makes_a_target_no_heartbeat_makes_one() -> None:
    world = heavy_world("a", "b")
    epoch = world.group.target_epoch
    world.cluster.set_topic("t", 0)
    world.beat("a", world.group.members["a"].member_epoch)
    assert (world.group.target_epoch, deadline(world, "assignment") is None) == (epoch, False)


def test_after_a_target_that_a_worker_made_the_next_one_has_its_time() -> None:
    world = heavy_world("a", "b", interval_ms=INTERVAL_MS)
    assert deadline(world, "assignment") is None
    world.do_work()
    assert deadline(world, "assignment") is None, "the group has not changed since"
    world = heavy_world("a", "b", interval_ms=INTERVAL_MS)
    world.enter("c")
    world.groups.timers.cancel(("assignment", GROUP, ""))
    world.now_ms += 300
    world.do_work()
    assert deadline(world, "assignment") == world.now_ms + INTERVAL_MS


def test_a_worker_that_fails_may_try_again() -> None:
    world = heavy_world("a", "b")
    [work] = world.work
    world.work = []
    effects = world.effects()
    work.on_done(MemoryError(), effects)
    assert (effects.jobs, effects.records) == ([], [])
    world.beat("a", 2)
    world.pass_time(0)
    assert len(world.work) == 1


# ------------------------------------------------------------------ members that are late
@pytest.mark.parametrize("rebalance_ms", [0, 7])
def test_a_member_has_its_time_to_give_back_and_no_longer(world: ConsumerWorld, rebalance_ms: int) -> None:
    world.beat("a", 0, owned={}, rebalance_timeout_ms=rebalance_ms, subscribed_topic_names=["t"])
    world.enter("b")
    world.now_ms = 100
    world.beat("a", 2, owned={"t": {0, 1, 2, 3}})
    assert [deadline(world, "revocation", name) for name in "ab"] == [100 + rebalance_ms, None]
    member = world.group.members["a"]
    world.beat("a", 2, owned=dict(member.assigned))
    assert (deadline(world, "revocation", "a"), world.group.members["a"].state) == (None, MemberState.STABLE)


def test_a_member_that_was_not_asked_after_all_is_not_removed(world: ConsumerWorld) -> None:
    """The record that asks it to give back could not be written."""
    world.enter("a")
    world.enter("b")
    world.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    world.beat("a", 2, owned={"t": {0, 1, 2, 3}})
    world.append_fails = None
    assert deadline(world, "revocation", "a") == REBALANCE_MS
    world.pass_time(REBALANCE_MS)
    assert (deadline(world, "revocation", "a"), "a" in world.group.members) == (None, True)


def test_members_that_leave_take_their_topics_with_them() -> None:
    world = ConsumerWorld(topics={"t": 1, "u": 1, "v": 1})
    world.enter("a", "t")
    world.enter("b", "u")
    world.enter("c", subscribed_topic_regex="v")
    world.enter("d", subscribed_topic_regex="v")
    epoch = world.group.group_epoch
    world.beat("b", -1)
    assert (world.group.group_epoch, world.group.metadata_hash) == (epoch + 1, world.cluster.view.hash_of("tv"))
    world.beat("c", -1)
    assert world.group.metadata_hash == world.cluster.view.hash_of("tv")
    world.beat("d", -1)
    assert world.group.metadata_hash == world.cluster.view.hash_of("t")
    assert dict(world.group.subscriptions.patterns) == {}


def test_an_answer_that_no_member_has_left_relies_on_the_records_of_the_group(world: ConsumerWorld) -> None:
    world.enter("a")
    effects = world.effects()
    world.groups.leave(GROUP, [MemberIdentity(member_id="stranger")], effects)
    assert (effects.records, effects.barrier) == ([], world.end_offset - 1)


def test_members_of_a_classic_group_that_is_taken_over_have_their_sessions(world: ConsumerWorld) -> None:
    classic = World.join(world, version=3, protocols=CLASSIC).response
    world.sync(classic.member_id, classic.generation_id, {classic.member_id: b""})
    world.now_ms = 3_000
    world.holds_commits = True
    world.beat("new", 0, owned={}, rebalance_timeout_ms=1, subscribed_topic_names=["t"])
    assert deadline(world, "heartbeat", classic.member_id) is None
    world.now_ms = 4_000
    world.commit()
    assert deadline(world, "heartbeat", classic.member_id) == 4_000 + CLASSIC_SESSION_MS
    assert deadline(world, "heartbeat", "new") == 3_000 + SESSION_MS, "a session that runs is not extended"
