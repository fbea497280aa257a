"""Offsets of streams groups, their end, and groups of other types with the same id."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.streams.streams_group import StreamsGroup, StreamsGroupState
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.group_records import OffsetCommit, OffsetCommitKey, OffsetCommitValue
from lowtide.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from lowtide.protocol.messages.leave_group import MemberIdentity
from lowtide.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from lowtide.protocol.streams_group_records import StreamsGroupChange, StreamsGroupEpoch, StreamsRecordType
from tests.unit.broker.coordinator.consumer_world import HOST
from tests.unit.broker.coordinator.group_world import GROUP, Answer
from tests.unit.broker.coordinator.streams_world import StreamsWorld, tasks

NONE, STALE, UNKNOWN = ErrorCode.NONE, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID


@pytest.fixture
def world() -> StreamsWorld:
    return StreamsWorld()


def commit(world: StreamsWorld) -> None:
    """The group has an offset in `t`."""
    value = OffsetCommitValue(offset=7, metadata="", commit_timestamp=1)
    world.append(OffsetCommit(OffsetCommitKey(group=GROUP, topic="t", partition=0), value))


def shared(world: StreamsWorld) -> tuple[int, int, list[int]]:
    """Two members share the tasks. Returns their epoch, the one before, and what the first has kept."""
    world.enter("a")
    world.enter("b")
    world.settle()
    return 3, 2, sorted(world.active("a"))


# ------------------------------------------------------------------ offsets
def test_a_member_commits_in_its_epoch_and_for_tasks_that_it_kept(world: StreamsWorld) -> None:
    epoch, before, kept = shared(world)
    lost = next(number for number in range(4) if number not in kept)
    check = world.group.check_commit
    rows = [
        ("a", epoch, 9, [("t", lost)], NONE),
        ("a", before, 9, [("t", kept[0])], NONE),
        ("a", before, 9, [("t", kept[0]), ("t", lost)], STALE),
        ("a", before, 9, [("other", 0)], STALE),
        ("a", epoch + 1, 9, [("t", kept[0])], STALE),
        ("a", epoch, 8, [("t", kept[0])], ErrorCode.UNSUPPORTED_VERSION),
        ("b", before, 9, [("t", lost)], STALE),
        ("c", epoch, 9, [], UNKNOWN),
        ("", -1, 9, [], UNKNOWN),
    ]
    assert [check(member, at, version, places) for member, at, version, places, _ in rows] == [row[-1] for row in rows]


def test_a_commit_in_a_transaction_may_name_no_member(world: StreamsWorld) -> None:
    """An old epoch becomes ILLEGAL_GENERATION, after which producers abort and go on."""
    epoch, _, kept = shared(world)
    topic = TxnOffsetCommitRequestTopic(
        name="t",
        partitions=[
            TxnOffsetCommitRequestPartition(
                partition_index=kept[0], committed_offset=1, committed_leader_epoch=-1, committed_metadata=None
            )
        ],
    )

    def check(member_id: str, at: int) -> ErrorCode:
        request = TxnOffsetCommitRequest(
            transactional_id="x",
            group_id=GROUP,
            producer_id=1,
            producer_epoch=0,
            generation_id_or_member_epoch=at,
            member_id=member_id,
            topics=[topic],
        )
        return world.groups.check_transactional_commit(request, 0)

    assert (check("", -1), check("a", epoch), check("a", epoch + 1), check("c", epoch)) == (
        NONE,
        NONE,
        ErrorCode.ILLEGAL_GENERATION,
        UNKNOWN,
    )


def test_offsets_are_fetched_in_the_member_s_epoch(world: StreamsWorld) -> None:
    world.enter("a")
    check = world.groups.check_fetch
    assert [check(GROUP, *who) for who in ((None, -1), ("a", 2), ("a", 1), ("b", 2))] == [NONE, NONE, STALE, UNKNOWN]


def test_offsets_of_source_topics_stay_while_there_are_members(world: StreamsWorld) -> None:
    """They do not expire and can't be deleted; those of an empty group expire, and then the group goes."""
    world.enter("a")
    commit(world)
    assert world.group.living_subscriptions() == {"t"}
    assert world.group.is_subscribed_to("t")
    world.pass_time(1)
    effects = world.effects()
    assert not world.groups.committed.expire(world.group, effects)
    assert not effects.records
    world.beat("a", -1)
    assert not world.group.is_subscribed_to("t")
    world.pass_time(world.groups.settings.offsets_retention_ms + world.groups.settings.retention_check_interval_ms)
    assert (GROUP in world.groups.by_id, world.groups.committed.offsets) == (False, {})
    assert not world.reload().groups.by_id


def test_a_group_with_members_can_not_be_deleted(world: StreamsWorld) -> None:
    world.enter("a")
    commit(world)
    effects = world.effects()
    assert world.groups.delete_group(GROUP, effects) == ErrorCode.NON_EMPTY_GROUP
    world.beat("a", -1)
    assert world.groups.delete_group(GROUP, effects) == NONE
    world.carry_out(effects)
    assert not world.groups.by_id
    assert not world.reload().groups.by_id
    assert world.groups.memory.held_bytes == 0


# ------------------------------------------------------------------ groups of other types
def test_an_empty_classic_group_becomes_a_streams_group_and_back(world: StreamsWorld) -> None:
    """Its offsets stay."""
    [member], _ = world.stable()
    assert world.joining("a").error == ErrorCode.GROUP_ID_NOT_FOUND, "a group with members is left alone"
    commit(world)
    assert world.leave(MemberIdentity(member_id=member)) == [NONE]
    world.enter("a")
    world.check_reload()
    assert world.groups.committed.find(GROUP, "t", 0, bytes(16)) is not None
    answer = world.join()
    assert answer.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    world.beat("a", -1)
    world.stable()
    assert world.groups.by_id.find_classic(GROUP) is not None
    assert world.reload().groups.by_id.find_classic(GROUP) is not None


def test_a_group_of_offsets_alone_becomes_a_streams_group(world: StreamsWorld) -> None:
    commit(world)
    assert world.groups.by_id.find_classic(GROUP) is not None
    world.enter("a")
    assert isinstance(world.groups.by_id[GROUP], StreamsGroup)
    world.check_reload()


def test_members_of_other_protocols_do_not_join(world: StreamsWorld) -> None:
    world.enter("a")
    answer, effects = Answer(), world.effects()
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id="x",
        member_epoch=0,
        rebalance_timeout_ms=1,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    world.groups.heartbeats.heartbeat(request, MemberClient("client", HOST, 1, None), answer, effects)
    world.carry_out(effects)
    assert answer.error == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.heartbeat("a", 2) == UNKNOWN
    assert world.leave(MemberIdentity(member_id="a")) == [UNKNOWN]
    assert world.sync("a", 2).error == UNKNOWN
    assert set(world.group.members) == {"a"}


def test_a_record_for_a_group_of_another_type_is_an_error(world: StreamsWorld) -> None:
    world.stable()
    change = StreamsGroupChange(StreamsRecordType.GROUP, GROUP, "", StreamsGroupEpoch(epoch=2, metadata_hash=0))
    with pytest.raises(ProtocolError, match="which is a classic group"):
        world.groups.streams.note(change)


# ------------------------------------------------------------------ records
@pytest.mark.parametrize("kind", list(StreamsRecordType))
def test_a_tombstone_without_a_group_creates_none(world: StreamsWorld, kind: StreamsRecordType) -> None:
    world.groups.streams.note(StreamsGroupChange(kind, GROUP, "a", None))
    assert not world.groups.by_id


def test_a_coordinator_that_takes_over_starts_sessions_and_revocations_again(world: StreamsWorld) -> None:
    world.enter("a", rebalance_timeout_ms=10_000)
    world.enter("b")
    world.beat("a", 2)
    other: Any = world.reload()
    deadlines = other.groups.timers
    assert deadlines.deadline_of(("heartbeat", GROUP, "b")) is not None
    assert deadlines.deadline_of(("revocation", GROUP, "a")) is not None
    assert deadlines.deadline_of(("revocation", GROUP, "b")) is None


def test_a_dead_group_answers_as_one_that_is_not_there() -> None:
    group = StreamsGroup("g")
    group.close()
    assert (group.check_delete(), group.check_offset_delete()) == (ErrorCode.GROUP_ID_NOT_FOUND,) * 2
    assert (group.state, group.is_unused) == (StreamsGroupState.DEAD, False)


def test_a_member_that_lost_its_topology_joins_again(world: StreamsWorld) -> None:
    """A log that lost the record of the topology: members send it when they join."""
    world.enter("a")
    world.append(StreamsGroupChange(StreamsRecordType.TOPOLOGY, GROUP, "", None))
    assert world.beat("a", 2).error == ErrorCode.FENCED_MEMBER_EPOCH
    assert world.enter("a").active_tasks == tasks({"0": [0, 1, 2, 3]})
