"""What counts as consumed by all groups (KIP-68), the coordinator's answer, and every doubt that keeps records."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.authorizer.authorizer import ALLOW_ALL
from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.groups.consumed import (
    NOT_CONSUMED,
    ROWS_PER_STEP,
    ConsumedEnd,
    ConsumedOffsets,
    Release,
)
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.groups.survey import survey
from lowtide.broker.coordinator.modern.modern_member import ModernMember
from lowtide.broker.coordinator.modern.share_group import InitializingTopic, KnownStates, ShareGroup
from lowtide.broker.turns import Turns
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import OffsetCommitKey, OffsetCommitValue
from lowtide.protocol.messages.describe_consumed_offsets import ConsumedOffsetsTopic, DescribeConsumedOffsetsResponse
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicPartition
from tests.unit.broker.coordinator.streams_world import StreamsWorld, internal, subtopology, topology

ONE_SLICE: Any = Turns(None, SimpleNamespace(monotonic_ms=lambda: 0))
"""No time passes: each response is there at once."""

NOTHING = NOT_CONSUMED.offset, NOT_CONSUMED.group_id
OLD, NEW = bytes(15) + b"\1", bytes(15) + b"\2"


def by(group_id: str, offset: int) -> ConsumedEnd:
    """What a group that may delete has consumed."""
    return ConsumedEnd(offset, group_id, Release(offset, group_id, None))


def groups_of(**committed: int) -> Groups:
    """Groups without members, with their committed offsets for partition 0 of t."""
    groups = Groups(GroupSettings(), random.Random(1))
    for group_id, offset in committed.items():
        commit(groups, group_id, offset)
    return groups


def commit(
    groups: Groups,
    group_id: str,
    offset: int,
    *,
    topic: str = "t",
    number: int = 0,
    topic_id: bytes = ZERO_TOPIC_ID,
    committer: str | None = None,
    may_delete: bool = False,
) -> None:
    value = OffsetCommitValue(
        offset=offset, metadata="", commit_timestamp=0, topic_id=topic_id, committer=committer, may_delete=may_delete
    )
    groups.committed.apply(OffsetCommitKey(group=group_id, topic=topic, partition=number), value)


def add_pending(
    groups: Groups, group_id: str, offset: int, *, topic: str = "t", number: int = 0, topic_id: bytes = ZERO_TOPIC_ID
) -> None:
    """Adds an offset of an open transaction."""
    value = OffsetCommitValue(
        offset=offset, leader_epoch=-1, metadata="", commit_timestamp=0, expire_timestamp=-1, topic_id=topic_id
    )
    groups.committed.apply_pending(4, OffsetCommitKey(group=group_id, topic=topic, partition=number), value, 100)


def add_live(
    groups: Groups,
    group_id: str,
    subscribed: frozenset[str] | None,
    protocol_type: str = "consumer",
    state: GroupState = GroupState.STABLE,
) -> None:
    """A group with a member."""
    group = groups.by_id[group_id] = ClassicGroup(group_id, wall_ms=0)
    group.protocol_type, group.subscribed, group.state = protocol_type, subscribed, state
    group.members["m"] = SimpleNamespace()


def consumed(*coordinators: Groups) -> tuple[int, str | None]:
    """The offset up to which the groups of these coordinators have consumed partition 0 of t."""
    told = NOT_CONSUMED
    for groups in coordinators:
        found = ConsumedOffsets([ConsumedOffsetsTopic(name="t", topic_id=NEW, partitions=[0])])
        for group_id in dict.fromkeys((*groups.committed.group_ids(), *groups.by_id)):
            for _ in found.take_in(groups, group_id):
                pass
        told &= found.found["t"][0]
    return told.offset, told.group_id


def authorized(groups: Groups, *names: str, start: int | None = None) -> ConsumedEnd:
    """As above, with an authorizer; `names` are the topic's named groups, `start` is a share group's start offset."""
    found = ConsumedOffsets(
        [ConsumedOffsetsTopic(name="t", topic_id=NEW, partitions=[0], groups=list(names))], every_commit_deletes=False
    )
    for group_id in dict.fromkeys((*groups.committed.group_ids(), *groups.by_id, *found.named_groups)):
        for _ in found.take_in(groups, group_id):
            pass
    for place in found.shares:
        found.take_start(place, start)
    return found.found["t"][0]


# Who may delete by committing


def test_a_group_without_the_right_to_delete_keeps_and_does_not_release() -> None:
    groups = groups_of(reader=9)
    assert authorized(groups) == ConsumedEnd(9, "reader")
    assert not authorized(groups).is_known
    commit(groups, "owner", 7, committer="User:owner", may_delete=True)
    assert authorized(groups) == ConsumedEnd(7, "owner", Release(7, "owner", "User:owner"))
    commit(groups, "reader", 4, committer="User:reader")
    assert authorized(groups) == ConsumedEnd(4, "reader", Release(7, "owner", "User:owner")), "its unread records stay"
    assert authorized(groups).is_known


def test_the_last_commit_of_a_group_decides_whether_it_may_delete() -> None:
    groups = groups_of()
    commit(groups, "a", 9, committer="User:owner", may_delete=True)
    assert authorized(groups).is_known
    commit(groups, "a", 12, committer="User:reader")
    assert authorized(groups) == ConsumedEnd(12, "a")


def test_of_several_groups_that_may_delete_the_slowest_releases() -> None:
    groups = groups_of(reader=5)
    for group_id, offset in {"b": 8, "a": 8, "c": 20}.items():
        commit(groups, group_id, offset, committer=f"User:{group_id}", may_delete=True)
    assert authorized(groups) == ConsumedEnd(5, "reader", Release(8, "a", "User:a"))


def test_only_groups_that_the_topic_names_count() -> None:
    """No other group keeps or deletes records, whatever its rights."""
    groups = groups_of(reader=2, etl=9)
    commit(groups, "other", 1, committer="User:owner", may_delete=True)
    add_live(groups, "live", None)
    add_pending(groups, "pending", 3)
    assert authorized(groups, "etl") == by("etl", 9)
    assert authorized(groups, "e*") == by("etl", 9)
    assert authorized(groups, "etl", "read*") == ConsumedEnd(2, "reader", Release(2, "reader", None))
    assert authorized(groups, "*") == ConsumedEnd(-1, "live", Release(1, "other", "User:owner"))
    assert authorized(groups, "no*") == NOT_CONSUMED


def test_a_group_that_is_named_by_its_id_is_waited_for() -> None:
    """Even before it exists. A group that matches a pattern counts once it exists."""
    groups = groups_of(etl=9)
    assert authorized(groups, "etl", "audit") == ConsumedEnd(-1, "audit", Release(9, "etl", None))
    assert authorized(groups, "etl", "audit*") == by("etl", 9)
    commit(groups, "audit", 4)
    assert authorized(groups, "etl", "audit") == ConsumedEnd(4, "audit", Release(4, "audit", None))


def test_a_share_group_keeps_and_releases_only_where_it_is_named() -> None:
    """Many principals acknowledge, and its state has no committer."""
    groups = groups_of()
    share_group(groups, 0)
    assert authorized(groups, start=7) == ConsumedEnd(7, "g")
    assert authorized(groups, "g", start=7) == by("g", 7)
    assert authorized(groups, "x", start=7) == ConsumedEnd(-1, "x"), "the group that is named has not begun"
    share_group(groups)
    assert authorized(groups, "g", start=7) == ConsumedEnd(-1, "g"), "it has not begun"


def test_a_transaction_carries_who_committed() -> None:
    groups = groups_of(reader=9)
    key = OffsetCommitKey(group="a", topic="t", partition=0)
    value = OffsetCommitValue(offset=6, metadata="", commit_timestamp=0, committer="User:a", may_delete=True)
    groups.committed.apply_pending(4, key, value, 100)
    assert not authorized(groups).is_known
    groups.committed.end_transaction(4, is_commit=True)
    assert authorized(groups) == ConsumedEnd(6, "a", Release(6, "a", "User:a"))


# What counts as consumed


def test_the_slowest_group_of_all_coordinators_counts() -> None:
    assert consumed(groups_of(a=7, b=5), groups_of(c=6)) == (5, "b")
    assert consumed(groups_of(c=6), groups_of(), groups_of(a=7, b=5)) == (5, "b")


def test_where_no_group_has_committed_nothing_counts() -> None:
    assert consumed(groups_of(), groups_of()) == NOTHING
    assert not NOT_CONSUMED.is_known


def test_a_live_group_that_has_not_committed_yet_keeps_what_it_subscribes_to() -> None:
    groups = groups_of(a=7)
    add_live(groups, "b", frozenset({"u"}))
    assert consumed(groups) == (7, "a")
    add_live(groups, "b", frozenset({"t", "u"}))
    assert consumed(groups) == (-1, "b")
    assert consumed(groups_of(c=3), groups) == (-1, "b"), "for any offsets of other groups"
    commit(groups, "b", 3)
    assert consumed(groups) == (3, "b")


def test_a_live_group_whose_subscription_is_not_known_keeps_what_it_has_not_committed() -> None:
    groups = groups_of(a=7)
    add_live(groups, "b", None, "connect")
    assert consumed(groups) == (7, "a"), "it is no group of consumers"
    add_live(groups, "b", None)
    assert consumed(groups) == (-1, "b")
    commit(groups, "b", 8)
    assert consumed(groups) == (7, "a"), "its other topics do not affect this partition"


def test_a_joining_member_may_subscribe_to_any_topic() -> None:
    """The subscription is that of the last generation, which has no new member."""
    groups = groups_of(a=7)
    add_live(groups, "b", frozenset({"u"}), state=GroupState.PREPARING_REBALANCE)
    assert consumed(groups) == (-1, "b")
    add_live(groups, "b", frozenset({"u"}), state=GroupState.COMPLETING_REBALANCE)
    assert consumed(groups) == (7, "a")


def test_what_was_committed_for_an_older_topic_of_the_name_does_not_count() -> None:
    groups = groups_of()
    commit(groups, "a", 9, topic_id=OLD)
    assert consumed(groups) == NOTHING
    commit(groups, "b", 4, topic_id=NEW)
    assert consumed(groups) == (4, "b")
    add_live(groups, "a", frozenset({"t"}))
    assert consumed(groups) == (-1, "a")


def test_a_group_that_is_deleted_or_expired_does_not_count() -> None:
    groups = groups_of(a=7, b=2)
    groups.committed.apply(OffsetCommitKey(group="b", topic="t", partition=0), None)
    assert consumed(groups) == (7, "a")


def test_what_is_pending_in_a_transaction_does_not_count_and_without_another_offset_keeps_all() -> None:
    """If the transaction aborts, the group starts again without an offset, even if it has no members."""
    groups = groups_of(a=7, b=5)
    add_pending(groups, "a", 9)
    add_pending(groups, "c", 9, topic="u")
    add_pending(groups, "c", 9, number=1)
    add_pending(groups, "c", 9, topic_id=OLD)
    assert consumed(groups) == (5, "b")
    add_pending(groups, "c", 9)
    assert consumed(groups) == (-1, "c")
    groups.committed.end_transaction(4, is_commit=True)
    assert consumed(groups) == (5, "b")


@pytest.mark.parametrize(("asked", "committed"), [(3, 2000), (2000, 3), (0, 5)])
def test_only_requested_partitions_are_returned(asked: int, committed: int) -> None:
    groups = groups_of()
    for number in range(committed):
        commit(groups, "a", number + 1, number=number)
        commit(groups, "a", number + 1, number=number, topic="u")
    found = ConsumedOffsets([ConsumedOffsetsTopic(name="t", topic_id=NEW, partitions=list(range(asked)))])
    steps = sum(1 for _ in found.take_in(groups, "a"))
    assert found.found == {
        "t": {number: by("a", number + 1) if number < committed else NOT_CONSUMED for number in range(asked)}
    }
    assert steps <= 1 + min(asked, committed) // ROWS_PER_STEP + 1


# Responses of a coordinator


class Coordinator:
    """Shards of groups, whose logs are committed when the test calls for it."""

    def __init__(self, *shards: Groups) -> None:
        self.error: ErrorCode | None = None
        self.uncommitted: list[Any] = []
        self.survey_turn = asyncio.Lock()
        self.broker = SimpleNamespace(turns=ONE_SLICE, authorizer=ALLOW_ALL)
        self.shards = [
            SimpleNamespace(
                number=number,
                partition=SimpleNamespace(leader_epoch=10 + number),
                state=groups,
                unloaded=False,
                leads=True,
            )
            for number, groups in enumerate(shards)
        ]

    def loaded(self) -> Any:
        return self.shards if self.error is None else self.error

    def partition_of(self, group_id: str) -> TopicPartition:
        return TopicPartition("__consumer_offsets", ord(group_id[-1]) % len(self.shards))

    def when_all_committed(self, shard: Any, then: Any) -> None:
        if shard in self.uncommitted:
            asyncio.get_running_loop().call_later(0.01, then, ErrorCode.REQUEST_TIMED_OUT)
        else:
            then(ErrorCode.NONE)


def told(coordinator: Coordinator) -> DescribeConsumedOffsetsResponse:
    asked = [ConsumedOffsetsTopic(name="t", topic_id=NEW, partitions=[0])]
    return asyncio.run(survey(coordinator, asked))


def epochs(answer: DescribeConsumedOffsetsResponse) -> dict[int, int]:
    return {row.partition_index: row.leader_epoch for row in answer.coordinators}


def test_a_group_with_only_pending_offsets_is_included() -> None:
    groups = groups_of(a=7)
    add_pending(groups, "c", 9)
    assert [(row.consumed_offset, row.group_id) for row in told(Coordinator(groups)).topics[0].partitions] == [
        (-1, "c")
    ]


def test_an_answer_names_the_partitions_that_it_covers() -> None:
    answer = told(Coordinator(groups_of(a=7), groups_of(b=5)))
    assert epochs(answer) == {0: 10, 1: 11}
    assert [(row.consumed_offset, row.group_id) for row in answer.topics[0].partitions] == [(5, "b")]


def test_it_does_not_cover_partitions_that_may_be_lost_or_are_led_by_another_broker() -> None:
    """Its rows about them can only have a smaller offset, which keeps more records."""
    coordinator = Coordinator(groups_of(a=7), groups_of(b=5), groups_of(c=3), groups_of())
    coordinator.uncommitted = [coordinator.shards[1]]
    coordinator.shards[2].leads = False
    coordinator.shards[3].unloaded = True
    assert epochs(told(coordinator)) == {0: 10}


def test_a_group_that_is_named_is_waited_for_by_its_coordinator_alone() -> None:
    """Only by the coordinator of its id's partition: `a` by the second, and `b` by the first."""
    coordinator = Coordinator(groups_of(b=5), groups_of())
    asked = [ConsumedOffsetsTopic(name="t", topic_id=NEW, partitions=[0], groups=["a", "b"])]

    def rows() -> list[tuple[int, str | None, int, str | None]]:
        answer = asyncio.run(survey(coordinator, asked))
        return [
            (row.consumed_offset, row.group_id, row.releasing_offset, row.releasing_group_id)
            for row in answer.topics[0].partitions
        ]

    assert rows() == [(-1, "a", 5, "b")]
    del coordinator.shards[1]
    coordinator.partition_of = lambda group_id: TopicPartition("__consumer_offsets", ord(group_id) % 2)
    assert rows() == [(5, "b", 5, "b")], "another broker has the other partition"


def test_with_an_authorizer_only_commits_that_may_delete_release() -> None:
    groups = groups_of(a=7)
    coordinator = Coordinator(groups)
    coordinator.broker.authorizer = SimpleNamespace(allows_all=False)
    assert told(coordinator).topics[0].partitions[0].releasing_group_id is None
    commit(groups, "b", 9, committer="User:b", may_delete=True)
    row = told(coordinator).topics[0].partitions[0]
    assert (row.consumed_offset, row.group_id) == (7, "a")
    assert (row.releasing_offset, row.releasing_group_id, row.committer) == (9, "b", "User:b")


def test_a_coordinator_that_is_loading_reports_it() -> None:
    coordinator = Coordinator(groups_of(a=7))
    coordinator.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert told(coordinator).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_surveys_take_turns() -> None:
    """However many requests are concurrent, the groups are visited in slices, and the loop serves others in between."""
    coordinator = Coordinator(groups_of(a=7))
    asked = [ConsumedOffsetsTopic(name="t", topic_id=NEW, partitions=[0])]

    async def scenario() -> None:
        async with coordinator.survey_turn:
            waiting = asyncio.ensure_future(survey(coordinator, asked))
            for _ in range(5):
                await asyncio.sleep(0)
            assert not waiting.done()
        assert epochs(await waiting) == {0: 10}

    asyncio.run(scenario())


def share_group(groups: Groups, *begun: int, live: bool = False, topic_id: bytes = NEW) -> None:
    """The share group g, whose states have begun for these partitions of t."""
    group = groups.by_id["g"] = ShareGroup("g")
    group.states = KnownStates(initialized={topic_id: ("t", frozenset(begun))} if begun else {})
    if live:
        group.subscriptions.replace(None, ModernMember(member_id="m", topic_names=frozenset({"t"})))


def share_consumed(groups: Groups, start: int | None) -> tuple[int, str | None]:
    found = ConsumedOffsets([ConsumedOffsetsTopic(name="t", topic_id=NEW, partitions=[0])])
    for _ in found.take_in(groups, "g"):
        pass
    for place in found.shares:
        found.take_start(place, start)
    return found.found["t"][0][:2]


def test_a_share_group_counts_with_its_start_offset() -> None:
    """Also without members; one whose start isn't known, or that is about to begin, keeps the partition."""
    groups = groups_of()
    share_group(groups, 0)
    assert [share_consumed(groups, start) for start in (7, 0, -1, None)] == [(7, "g"), (0, "g"), (-1, "g"), (-1, "g")]
    share_group(groups, 1, live=True)
    assert share_consumed(groups, 7) == (-1, "g")
    share_group(groups, 0, topic_id=OLD)
    assert share_consumed(groups, 7) == NOTHING, "the states of an older topic of the same name"


def test_a_streams_group_keeps_its_source_topics_until_it_commits() -> None:
    """Repartition topics that it reads too; not its changelogs, which it doesn't commit. Without members, nothing."""
    world = StreamsWorld(topics={"t": 1, "r": 1, "c": 1})
    row = subtopology("0", "t", changelogs=("c",))
    row.repartition_source_topics = [internal("r", 1)]
    world.enter("a", topology=topology(row))
    assert world.group.living_subscriptions() == {"t", "r"}
    assert consumed(world.groups) == (-1, "g")
    commit(world.groups, "g", 5)
    assert consumed(world.groups) == (5, "g")
    world.beat("a", -1)
    assert consumed(world.groups) == (5, "g")
    world.groups.committed.release()
    assert consumed(world.groups) == NOTHING


def test_an_offset_of_zero_counts_and_one_below_does_not() -> None:
    """A consumer may have committed that it has none."""
    assert consumed(groups_of(a=7, b=0)) == (0, "b")
    assert by("b", 0).is_known
    assert consumed(groups_of(a=7, b=-1)) == (7, "a")
    assert consumed(groups_of(b=-1)) == NOTHING


def test_a_group_of_few_topics_counts_among_many_that_are_asked_for() -> None:
    groups = groups_of(a=7)
    add_live(groups, "b", frozenset({"x3", "other"}))
    found = ConsumedOffsets(
        [ConsumedOffsetsTopic(name=name, topic_id=NEW, partitions=[0]) for name in ("t", *(f"x{n}" for n in range(9)))]
    )
    for group_id in "ab":
        for _ in found.take_in(groups, group_id):
            pass
    assert {name: rows[0][:2] for name, rows in found.found.items() if rows[0] != NOT_CONSUMED} == {
        "t": (7, "a"),
        "x3": (-1, "b"),
    }


def test_what_is_pending_counts_where_the_committed_offset_is_of_an_older_topic() -> None:
    groups = groups_of(a=7)
    commit(groups, "c", 3, topic_id=OLD)
    add_pending(groups, "c", 9, topic_id=NEW)
    assert consumed(groups) == (-1, "c")


def test_a_share_group_with_members_counts_with_its_start_offset() -> None:
    groups = groups_of()
    share_group(groups, 0, live=True)
    assert share_consumed(groups, 7) == (7, "g")
    assert share_consumed(groups, -2) == (-1, "g")


def test_a_share_group_keeps_a_partition_whose_state_is_about_to_begin() -> None:
    groups = groups_of()
    share_group(groups)
    assert share_consumed(groups, 7) == NOTHING
    initializing = {NEW: InitializingTopic("t", frozenset({0}), 1)}
    group = groups.by_id.find_share("g")
    assert group is not None
    group.states = KnownStates(initializing=initializing)
    assert share_consumed(groups, 7) == (-1, "g")


@pytest.mark.parametrize("count", [ROWS_PER_STEP - 1, ROWS_PER_STEP, 2 * ROWS_PER_STEP + 1])
@pytest.mark.parametrize("pending", [True, False])
def test_a_group_is_looked_at_in_steps_of_so_many_offsets(count: int, *, pending: bool) -> None:
    groups = groups_of()
    for number in range(count):
        (add_pending if pending else commit)(groups, "a", 5, number=number)
    found = ConsumedOffsets([ConsumedOffsetsTopic(name="t", topic_id=NEW, partitions=list(range(count)))])
    steps = len(list(found.take_in(groups, "a")))
    assert steps == count // ROWS_PER_STEP + (0 if pending else 1)
    assert set(found.found["t"].values()) == {ConsumedEnd(-1, "a") if pending else by("a", 5)}
