"""How far share groups are: described, set and forgotten, with an outcome for each partition or topic."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from lowtide.broker.coordinator.groups.share_offsets import UNKNOWN_LAG, ShareOffsets, why_not
from lowtide.broker.coordinator.modern.modern_member import ModernMember
from lowtide.broker.coordinator.modern.share_group import ShareGroup
from lowtide.broker.pending import Pending
from lowtide.metadata.image import TopicImage
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_share_group_offsets import (
    DescribedShareOffset,
    DescribedShareOffsetsGroup,
    DescribeShareOffsetsGroup,
    DescribeShareOffsetsTopic,
)
from lowtide.protocol.messages.read_share_group_state_summary import SummaryStatePartitionResult
from lowtide.protocol.share_state_records import UNKNOWN_COUNT, UNKNOWN_START, SharePlace
from lowtide.protocol.types import ZERO_TOPIC_ID, Offset, TopicPartition

from . import coordinator_world
from .coordinator_world import GROUP, HERE, NONE, THERE, topic

COORDINATORS = topic("__consumer_offsets", HERE)
T, U = topic("t", HERE, HERE, THERE), topic("u", HERE)
UNAVAILABLE, NOT_COORDINATOR, NOT_FOUND = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.GROUP_ID_NOT_FOUND,
)


class World(coordinator_world.World):
    """Topic `t`, of which two partitions are led here, and `u`."""

    def __init__(self) -> None:
        super().__init__(HERE)
        self.set_topics(T, U, COORDINATORS)
        for number, end_offset in ((0, 100), (1, 50)):
            key = TopicPartition("t", number)
            self.partitions[key] = self.led(key, end_offset=end_offset)
        persister: Any = self.persister
        self.offsets = ShareOffsets(self.coordinator, persister)

    @property
    def group(self) -> ShareGroup:
        group = self.shard().state.by_id.find_share(GROUP)
        assert group is not None
        return group

    def summary(
        self, number: int, start: Offset, complete: int = 0, *, of: TopicImage = T, error: ErrorCode = NONE
    ) -> None:
        """What the share coordinator says of a partition."""
        self.persister.starts[SharePlace(GROUP, of.topic_id, number)] = SummaryStatePartitionResult(
            partition=number,
            start_offset=start,
            leader_epoch=6,
            delivery_complete_count=complete,
            error_code=error,
            error_message="why" if error else None,
        )

    def describe(
        self, topics: Mapping[str, list[int]] | None = None, group_id: str = GROUP
    ) -> DescribedShareOffsetsGroup:
        rows = (
            None
            if topics is None
            else [DescribeShareOffsetsTopic(topic_name=name, partitions=numbers) for name, numbers in topics.items()]
        )
        return asyncio.run(self.offsets.describe(DescribeShareOffsetsGroup(group_id=group_id, topics=rows)))

    def lags(self, *numbers: int) -> list[int]:
        ((row),) = self.describe({"t": list(numbers)}).topics
        return [partition.lag for partition in row.partitions]

    def alter(self, starts: Mapping[int, Offset], of: TopicImage = T) -> Any:
        return asyncio.run(self.offsets.alter(GROUP, {of.topic_id: (of.name, starts)}))

    def delete(self, *topics: TopicImage) -> Any:
        return asyncio.run(self.offsets.delete(GROUP, {each.topic_id: each for each in topics}))

    def refuse(self) -> None:
        self.refuses = ErrorCode.NOT_ENOUGH_REPLICAS


# ---------------------------------------------------------------------- describe
def test_the_partitions_that_are_named_are_described_once_and_in_order() -> None:
    world = World()
    world.begin_share_group(0, 1)
    world.summary(0, 40, 3)
    world.summary(1, 50)
    answer = world.describe({"t": [1, 0, 1]})
    (row,) = answer.topics
    assert (answer.group_id, answer.error_code, row.topic_name, row.topic_id) == (GROUP, NONE, "t", T.topic_id)
    assert row.partitions == [
        DescribedShareOffset(partition_index=1, start_offset=50, leader_epoch=6, lag=0),
        DescribedShareOffset(partition_index=0, start_offset=40, leader_epoch=6, lag=57),
    ]
    assert world.persister.asked == [("summarize", GROUP, [SharePlace(GROUP, T.topic_id, number) for number in (0, 1)])]


def test_all_that_have_a_state_are_described_where_none_are_named() -> None:
    world = World()
    world.begin_share_group(1, 0)
    world.begin_share_group(0, name="u")
    answer = world.describe()
    assert [
        (row.topic_name, row.topic_id, [each.partition_index for each in row.partitions]) for row in answer.topics
    ] == [("t", T.topic_id, [0, 1]), ("u", U.topic_id, [0])]


def test_a_topic_that_is_not_there_has_no_offsets() -> None:
    world = World()
    world.begin_share_group(0)
    (row,) = world.describe({"v": [0]}).topics
    assert (row.topic_id, row.partitions) == (ZERO_TOPIC_ID, [DescribedShareOffset(partition_index=0)])
    assert world.persister.asked == []


def test_what_the_share_coordinator_cannot_say_is_an_error_of_the_partition() -> None:
    world = World()
    world.begin_share_group(0)
    world.summary(0, 40, error=ErrorCode.NOT_COORDINATOR)
    (row,) = world.describe({"t": [0, 1]}).topics
    assert row.partitions == [
        DescribedShareOffset(partition_index=0, error_code=NOT_COORDINATOR, error_message="why"),
        DescribedShareOffset(partition_index=1),
    ]


def test_the_lag_is_of_records_that_are_not_delivered_for_good_where_it_is_known() -> None:
    world = World()
    world.begin_share_group(0, 1, 2)
    for number, start, complete in ((0, 40, 0), (1, 49, 1), (2, 5, 0)):
        world.summary(number, start, complete)
    assert world.lags(0, 1, 2) == [60, 0, UNKNOWN_LAG], "another broker leads the last one"
    world.summary(0, UNKNOWN_START)
    world.summary(1, 10, UNKNOWN_COUNT)
    assert world.lags(0, 1) == [UNKNOWN_LAG, UNKNOWN_LAG]
    world.summary(0, 120)
    assert world.lags(0) == [0], "the start is ahead of what is committed"
    world.partitions[TopicPartition("t", 0)].is_leader = False
    assert world.lags(0) == [UNKNOWN_LAG]


def test_a_group_that_does_not_exist_yet_has_no_offsets() -> None:
    """As in Kafka. The share coordinator is not asked: that would create its topic."""
    world = World()
    assert world.describe(group_id="new") == DescribedShareOffsetsGroup(group_id="new")
    answer = world.describe({"t": [0, 9], "v": [0]}, group_id="new")
    assert (answer.error_code, answer.error_message) == (NONE, None)
    assert [(row.topic_name, row.topic_id) for row in answer.topics] == [("t", T.topic_id), ("v", ZERO_TOPIC_ID)]
    assert [row.partitions for row in answer.topics] == [
        [DescribedShareOffset(partition_index=0), DescribedShareOffset(partition_index=9)],
        [DescribedShareOffset(partition_index=0)],
    ]
    assert world.persister.asked == []
    assert not world.shard().state.by_id


def test_a_group_that_is_not_a_share_group_or_not_coordinated_here_is_an_error() -> None:
    world = World()
    world.commit_offset("other")
    answer = world.describe(group_id="other")
    assert (answer.error_code, answer.error_message) == (NOT_FOUND, "Group other is not a share group.")
    world.partitions.clear()
    assert world.describe().error_code == NOT_COORDINATOR


# ---------------------------------------------------------------------- alter
def test_a_group_begins_again_where_it_is_set_in_a_later_epoch() -> None:
    world = World()
    world.begin_share_group(0)
    epoch = world.group.group_epoch
    seen: list[bool] = []
    world.persister.meanwhile = lambda: seen.append(world.group.is_deleting)
    assert world.alter({0: 7, 1: 9}) == {SharePlace(GROUP, T.topic_id, number): NONE for number in (0, 1)}
    starts = {SharePlace(GROUP, T.topic_id, number): start for number, start in ((0, 7), (1, 9))}
    assert world.persister.asked == [("initialize", GROUP, epoch + 1, starts)]
    assert (world.group.group_epoch, seen, world.group.is_deleting) == (epoch + 1, [True], False)
    assert world.group.states.initialized == {T.topic_id: ("t", frozenset({0, 1}))}


def test_a_new_group_begins_where_it_is_set() -> None:
    world = World()
    assert world.alter({0: 7}) == {SharePlace(GROUP, T.topic_id, 0): NONE}
    assert world.group.states.initialized == {T.topic_id: ("t", frozenset({0}))}


def test_partitions_that_could_not_begin_again_have_their_own_error() -> None:
    world = World()
    world.persister.errors = {1: ErrorCode.FENCED_STATE_EPOCH}
    assert world.alter({0: 7, 1: 9}) == {
        SharePlace(GROUP, T.topic_id, 0): NONE,
        SharePlace(GROUP, T.topic_id, 1): ErrorCode.FENCED_STATE_EPOCH,
    }
    assert world.group.states.initialized == {T.topic_id: ("t", frozenset({0}))}
    assert world.group.states.initializing[T.topic_id].partitions == {1}


@pytest.mark.parametrize("what", ["alter", "delete"])
def test_nothing_is_tried_where_that_could_not_be_begun(what: str) -> None:
    world = World()
    world.begin_share_group(0)

    def outcome() -> Any:
        return world.alter({0: 7}) if what == "alter" else world.delete(T)

    world.refuse()
    assert outcome() == UNAVAILABLE
    world.refuses = None
    world.group.members["m"] = ModernMember(member_id="m")
    assert outcome() == ErrorCode.NON_EMPTY_GROUP
    world.partitions.clear()
    assert outcome() == NOT_COORDINATOR
    assert world.persister.asked == []


@pytest.mark.parametrize("what", ["alter", "delete"])
def test_what_was_done_and_could_not_be_kept_is_an_error(what: str) -> None:
    world = World()
    world.begin_share_group(0)
    world.persister.meanwhile = world.refuse
    assert (world.alter({0: 7}) if what == "alter" else world.delete(T)) == UNAVAILABLE
    assert not world.group.is_deleting


@pytest.mark.parametrize("what", ["alter", "delete"])
def test_the_next_coordinator_keeps_what_was_done(what: str) -> None:
    world = World()
    shard = world.begin_share_group(0)
    world.persister.meanwhile = lambda: world.coordinator._runtime._unload(shard)
    kept = len(world.appended)
    assert (world.alter({0: 7}) if what == "alter" else world.delete(T)) == NOT_COORDINATOR
    assert len(world.appended) <= kept + 2, "no more than what it began with"


def test_a_beginning_that_gets_no_answer_is_an_unknown_error(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    def decide(*_: Any) -> Pending[Any]:
        pending: Pending[Any] = Pending()
        pending.fail()
        return pending

    monkeypatch.setattr(world.coordinator, "decide", decide)
    assert world.alter({0: 7}) == ErrorCode.UNKNOWN_SERVER_ERROR


# ---------------------------------------------------------------------- delete
def test_a_group_forgets_topics_and_others_are_unknown() -> None:
    world = World()
    world.begin_share_group(0, 1)
    world.begin_share_group(0, name="u")
    outcomes = world.delete(T, topic("v", HERE))
    assert outcomes == {T.topic_id: NONE, topic("v", HERE).topic_id: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    places = [SharePlace(GROUP, T.topic_id, number) for number in range(3)]
    assert world.persister.asked == [("delete", GROUP, places)], "of all partitions: some may be about to begin"
    states = world.group.states
    assert (set(states.initialized), states.deleting, world.group.is_deleting) == ({U.topic_id}, {}, False)


def test_a_topic_with_a_state_that_could_not_end_is_still_being_deleted() -> None:
    world = World()
    world.begin_share_group(0, 1)
    world.begin_share_group(0, name="u")
    world.persister.errors = {2: ErrorCode.NETWORK_EXCEPTION}
    assert world.delete(T, U) == {T.topic_id: UNAVAILABLE, U.topic_id: NONE}
    assert world.group.states.deleting == {T.topic_id: "t"}
    world.persister.errors.clear()
    assert world.delete(T) == {T.topic_id: NONE}
    assert world.group.states.deleting == {}


def test_a_group_that_is_not_there_forgets_nothing() -> None:
    world = World()
    assert world.delete(T) == NOT_FOUND
    assert not world.shard().state.by_id


# ---------------------------------------------------------------------- why not
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ErrorCode.NON_EMPTY_GROUP, "Share group g has members. All of them have to leave first."),
        (NOT_FOUND, "Group g is not a share group."),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "Share group g, or where it continues, is being changed."),
        (NOT_COORDINATOR, None),
    ],
)
def test_what_is_refused_says_why(error: ErrorCode, message: str | None) -> None:
    assert why_not(error, "g") == message
