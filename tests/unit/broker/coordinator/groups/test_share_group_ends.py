"""States of share partitions that begin and end with their group, and the deletion of groups of all types."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lowtide.broker.coordinator.groups.share_offsets import ShareOffsets
from lowtide.broker.coordinator.modern.modern_member import ModernMember
from lowtide.broker.coordinator.modern.share_group import ShareGroup
from lowtide.broker.pending import Pending
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.read_share_group_state_summary import SummaryStatePartitionResult
from lowtide.protocol.share_state_records import UNKNOWN_START, SharePlace
from lowtide.protocol.types import TopicId

from .coordinator_world import GROUP, HERE, NONE, World, topic

T: TopicId = topic("t", HERE).topic_id
U: TopicId = topic("u", HERE).topic_id
UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE


def group_of(world: World) -> ShareGroup:
    group = world.shard().state.by_id.find_share(GROUP)
    assert group is not None
    return group


def offsets_of(world: World) -> ShareOffsets:
    assert world.coordinator._share_offsets is not None
    return world.coordinator._share_offsets


def delete(world: World, group_id: str = GROUP) -> ErrorCode | None:
    """The outcome of a deletion, with all that it has to wait for."""

    async def run() -> ErrorCode | None:
        pending: Pending[ErrorCode] = world.coordinator.delete(world.shard(group_id), group_id)
        await world.do_tasks()
        return pending.response

    return asyncio.run(run())


def delete_states(world: World, *numbers: int) -> ErrorCode:
    """What follows where a group may be deleted."""
    places = [SharePlace(GROUP, T, number) for number in numbers]
    return asyncio.run(offsets_of(world).delete_group(world.shard(), GROUP, places))


def with_member(world: World) -> None:
    group_of(world).members["m"] = ModernMember(member_id="m")


# ---------------------------------------------------------------------- begin
def initialize(world: World, wanted: dict[TopicId, list[int]]) -> None:
    starts = {
        topic_id: {number: UNKNOWN_START if number < 2 else 0 for number in numbers}
        for topic_id, numbers in wanted.items()
    }
    offsets_of(world).initialize(GROUP, 7, starts)
    asyncio.run(world.do_tasks())


def about_to_begin(*numbers: int) -> World:
    """A share group whose states are about to begin."""
    world = World(HERE)
    shard = world.shard()
    states = shard.state.shares.states
    assert world.decide(
        shard, lambda reply, effects: states.initialize_again(GROUP, {T: ("t", numbers)}, reply, effects)
    )
    return world


def test_states_that_have_begun_are_noted_for_the_group() -> None:
    world = about_to_begin(0, 1, 2)
    world.persister.errors = {1: ErrorCode.NETWORK_EXCEPTION, 2: ErrorCode.FENCED_STATE_EPOCH}
    initialize(world, {T: [0, 1, 2]})
    places = {SharePlace(GROUP, T, number): start for number, start in enumerate((UNKNOWN_START, UNKNOWN_START, 0))}
    assert world.persister.asked == [("initialize", GROUP, 7, places)]
    states = group_of(world).states
    assert states.initialized == {T: ("t", frozenset({0, 2}))}, "there is a state where a later epoch has begun"
    assert states.initializing[T].partitions == {1}
    ((level, _, values),) = world.lines
    assert (level, values["error"]) == ("warning", "NETWORK_EXCEPTION")


def test_nothing_is_noted_where_no_state_has_begun() -> None:
    world = about_to_begin(0)
    kept = len(world.appended)
    world.persister.errors = {0: UNAVAILABLE}
    initialize(world, {T: [0]})
    assert len(world.appended) == kept


def test_the_next_coordinator_has_states_begin_again() -> None:
    world = about_to_begin(0)
    kept = len(world.appended)
    world.persister.meanwhile = lambda: world.partitions.clear()
    initialize(world, {T: [0]})
    assert len(world.appended) == kept


# ---------------------------------------------------------------------- how far they are
def test_the_starts_of_share_partitions_are_asked_for_by_group() -> None:
    world = World(HERE)
    places = [SharePlace(*place) for place in (("a", T, 0), ("b", T, 1), ("a", T, 2), ("b", T, 3))]
    errors = [NONE, NONE, NONE, ErrorCode.NETWORK_EXCEPTION]
    rows = [
        SummaryStatePartitionResult(partition=place.partition, start_offset=10 + place.partition) for place in places
    ]
    for place, row, error in zip(places, rows, errors, strict=True):
        row.error_code = error
        world.persister.starts[place] = row
    found = asyncio.run(world.coordinator.share_starts(places))
    assert found == {places[0]: 10, places[1]: 11, places[2]: 12}
    assert [(name, group_id, len(asked)) for name, group_id, asked in world.persister.asked] == [
        ("summarize", "a", 2),
        ("summarize", "b", 2),
    ]


def test_nothing_is_known_of_share_partitions_that_are_not_served() -> None:
    assert asyncio.run(World(HERE, shares=False).coordinator.share_starts([SharePlace(GROUP, T, 0)])) == {}


# ---------------------------------------------------------------------- deletion
@pytest.mark.parametrize("shares", [True, False])
def test_a_group_of_another_type_is_deleted_at_once(*, shares: bool) -> None:
    world = World(HERE, shares=shares)
    shard = world.commit_offset()
    pending: Pending[ErrorCode] = world.coordinator.delete(shard, GROUP)
    assert (pending.response, world.tasks) == (NONE, [])
    assert GROUP not in shard.state.by_id
    assert world.coordinator.delete(shard, GROUP).response == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_deletion_that_could_not_be_kept_fails() -> None:
    world = World(HERE)
    world.commit_offset()
    world.refuses = ErrorCode.NOT_ENOUGH_REPLICAS
    assert delete(world) == UNAVAILABLE


def test_the_states_of_a_share_group_end_before_the_group_does() -> None:
    world = World(HERE)
    world.begin_share_group(1, 0)
    seen: list[bool] = []
    world.persister.meanwhile = lambda: seen.append(group_of(world).is_deleting)
    assert delete(world) == NONE
    assert world.persister.asked == [("delete", GROUP, [SharePlace(GROUP, T, 0), SharePlace(GROUP, T, 1)])]
    assert seen == [True], "no member joins meanwhile"
    assert GROUP not in world.shard().state.by_id


def test_a_share_group_without_states_is_deleted_at_once() -> None:
    world = World(HERE)
    shard = world.begin_share_group()
    assert world.coordinator.delete(shard, GROUP).response == NONE
    assert world.tasks == []


def test_a_share_group_with_members_is_not_deleted() -> None:
    world = World(HERE)
    world.begin_share_group(0)
    with_member(world)
    assert world.coordinator.delete(world.shard(), GROUP).response == ErrorCode.NON_EMPTY_GROUP
    assert delete_states(world, 0) == ErrorCode.NON_EMPTY_GROUP
    assert world.persister.asked == []


def test_a_share_group_is_deleted_where_share_groups_are_not_served_any_more() -> None:
    world = World(HERE, shares=False)
    shard = world.begin_share_group(0)
    assert world.coordinator.delete(shard, GROUP).response == NONE


def test_no_state_is_asked_about_in_a_topic_that_is_gone() -> None:
    world = World(HERE)
    world.set_topics(world.metadata.image.topics["t"], topic("u", HERE, HERE), topic("__consumer_offsets", HERE))
    world.begin_share_group(0)
    world.begin_share_group(0, name="u")
    world.persister.errors = {0: UNAVAILABLE}
    assert delete(world) == UNAVAILABLE, "now both topics are being deleted"
    world.set_topics(topic("u", HERE, HERE), topic("__consumer_offsets", HERE))
    world.persister.errors.clear()
    world.persister.asked.clear()
    assert delete(world) == NONE
    assert world.persister.asked == [("delete", GROUP, [SharePlace(GROUP, U, 0), SharePlace(GROUP, U, 1)])]


def test_a_group_whose_states_could_not_end_takes_members_again() -> None:
    world = World(HERE)
    world.begin_share_group(0, 1)
    world.persister.errors = {1: ErrorCode.NETWORK_EXCEPTION}
    assert delete(world) == UNAVAILABLE
    assert not group_of(world).is_deleting
    world.persister.errors.clear()
    assert delete(world) == NONE


def test_a_group_that_another_broker_coordinates_meanwhile_is_not_deleted_here() -> None:
    world = World(HERE)
    shard = world.begin_share_group(0)
    world.persister.meanwhile = lambda: world.coordinator._runtime._unload(shard)
    assert delete_states(world, 0) == ErrorCode.NOT_COORDINATOR


def test_a_group_whose_states_have_ended_is_there_until_that_is_kept() -> None:
    world = World(HERE)
    world.begin_share_group(0)

    def refuse() -> None:
        world.refuses = ErrorCode.NOT_ENOUGH_REPLICAS

    world.persister.meanwhile = refuse
    assert delete_states(world, 0) == UNAVAILABLE
    assert not group_of(world).is_deleting


def test_a_deletion_that_gets_no_answer_is_an_unknown_error(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(HERE)
    world.begin_share_group(0)

    def decide(*_: Any) -> Pending[Any]:
        pending: Pending[Any] = Pending()
        pending.fail()
        return pending

    monkeypatch.setattr(world.coordinator, "decide", decide)
    assert delete_states(world, 0) == ErrorCode.UNKNOWN_SERVER_ERROR
