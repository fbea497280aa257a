"""Limits of groups and offsets: above them requests are refused with Kafka's codes, and existing groups continue."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lowtide.broker.coordinator.counted_ids import CHARACTERS_PER_ID, CountedIds
from lowtide.broker.coordinator.group_admission import GroupAdmission
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.token_bucket import BURST_S
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.unit.broker.coordinator.consumer_world import ConsumerWorld
from tests.unit.broker.coordinator.group_world import REBALANCE_MS, World

TOPIC_ID = bytes([7]) * 16


def world_of(**limits: int) -> World:
    world = World(GroupSettings(initial_rebalance_delay_ms=0, **limits))
    count(world)
    return world


def count(world: World) -> None:
    world.groups.admission.count_groups = lambda: world.groups.by_id.weight


def commit(world: World, group: str, *partitions: int, metadata: str = "") -> list[ErrorCode]:
    """Commit offsets of partitions of a topic; the error code of each, or of the request."""
    rows = [
        OffsetCommitRequestPartition(partition_index=number, committed_offset=1, committed_metadata=metadata)
        for number in partitions
    ]
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name="t", topic_id=TOPIC_ID, partitions=rows)],
    )
    effects = world.effects()
    error = world.groups.admit_commit(request, 9, effects)
    if error != ErrorCode.NONE:
        return [error]
    [answer] = world.groups.committed.commit(request, request.topics, effects)
    world.carry_out(effects)
    return [ErrorCode(row.error_code) for row in answer.partitions]


def held(world: World) -> tuple[int, int]:
    """The offsets in memory and the bytes of their metadata, counted again."""
    values = [
        value
        for topics in world.groups.committed.offsets.values()
        for rows in topics.values()
        for value in rows.values()
    ]
    return len(values), sum(len(value.metadata) for value in values)


def counted(world: World) -> tuple[int, int]:
    return world.groups.admission.offset_count, world.groups.admission.metadata_bytes


def test_a_group_above_the_limit_is_refused_and_the_others_continue():
    world = world_of(groups_max=2)
    assert commit(world, "a", 0) == commit(world, "b", 0) == [ErrorCode.NONE]
    assert commit(world, "c", 0) == [ErrorCode.POLICY_VIOLATION]
    assert world.join(group="c").error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert commit(world, "a", 1) == [ErrorCode.NONE]
    effects = world.effects()
    assert world.groups.delete_group("a", effects) == ErrorCode.NONE
    world.carry_out(effects)
    assert commit(world, "c", 0) == [ErrorCode.NONE]
    assert world.groups.admission.refused_count == 2


def test_a_consumer_group_above_the_limit_is_refused_and_members_continue():
    world = ConsumerWorld(GroupSettings(groups_max=1))
    count(world)
    response = world.enter("m1", "t")
    refused = world.beat(
        "m2", 0, group="other", owned={}, rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=["t"]
    )
    assert refused.error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "as many groups as it may have" in refused.response.error_message
    assert world.beat("m1", response.member_epoch).error == ErrorCode.NONE
    world.enter("m2", "t")


def test_groups_that_begin_too_fast_get_a_retriable_error():
    world = world_of(groups_created_per_second=1)
    codes = [commit(world, f"g{number}", 0)[0] for number in range(BURST_S + 5)]
    assert codes == [ErrorCode.NONE] * BURST_S + [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 5
    assert commit(world, "g0", 1) == [ErrorCode.NONE], "an existing group is never delayed"
    world.now_ms += 2_000
    assert commit(world, "late", 0) == [ErrorCode.NONE]


def test_twenty_thousand_groups_may_begin_at_once():
    world = world_of()
    assert {world.groups.admission.check_new_group(0) for _ in range(20_000)} == {ErrorCode.NONE}


def test_metadata_above_the_limit_is_refused_and_offsets_without_it_are_not():
    world = world_of(offsets_metadata_bytes_max=100)
    assert commit(world, "a", 0, 1, metadata="x" * 40) == [ErrorCode.NONE] * 2
    assert commit(world, "a", 2, metadata="x" * 40) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert commit(world, "b", 0) == [ErrorCode.NONE]
    assert commit(world, "a", 0, metadata="y" * 40) == [ErrorCode.NONE], "it replaces the same amount"
    assert commit(world, "a", 0, metadata="y" * 61) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert commit(world, "a", 0) == [ErrorCode.NONE]
    assert commit(world, "a", 2, metadata="x" * 40) == [ErrorCode.NONE]
    assert counted(world) == held(world) == (4, 80)


def test_offsets_above_the_limit_are_refused_and_those_there_are_committed_again():
    world = world_of(offsets_max=3)
    assert commit(world, "a", 0, 1, 2, 3) == [ErrorCode.NONE] * 3 + [ErrorCode.INVALID_COMMIT_OFFSET_SIZE]
    assert commit(world, "a", 0, 1, 2) == [ErrorCode.NONE] * 3
    assert commit(world, "b", 0) == [ErrorCode.INVALID_COMMIT_OFFSET_SIZE]
    assert counted(world) == held(world) == (3, 0)


def test_removed_offsets_do_not_count():
    world = world_of()
    commit(world, "a", 0, 1, metadata="abc")
    commit(world, "b", 0, metadata="de")
    assert counted(world) == held(world) == (3, 8)
    effects = world.effects()
    world.groups.delete_group("a", effects)
    world.carry_out(effects)
    assert counted(world) == held(world) == (1, 2)
    world.groups.on_unloaded(world.effects())
    assert counted(world) == held(world) == (0, 0)


def test_what_is_loaded_counts_and_is_never_refused():
    world = world_of()
    commit(world, "a", 0, 1, metadata="abc")
    commit(world, "a", 1, metadata="x")
    again = world.reload()
    assert counted(again) == held(again) == (2, 4)


def test_that_most_groups_have_gone_is_said_once() -> None:
    """The hashes of their ids are dropped then: they would keep freed memory from the system."""
    admission, count = GroupAdmission(GroupSettings()), 0
    admission.count_groups = lambda: count
    assert not admission.have_most_gone()
    count = 10_000
    assert not admission.have_most_gone()
    count = 5_001
    assert not admission.have_most_gone()
    count = 5_000
    assert admission.have_most_gone()
    assert not admission.have_most_gone()
    count = 3_000
    assert not admission.have_most_gone()
    count = 0
    assert admission.have_most_gone()


def test_few_groups_that_go_are_not_worth_it() -> None:
    admission, count = GroupAdmission(GroupSettings()), 999
    admission.count_groups = lambda: count
    assert not admission.have_most_gone()
    count = 0
    assert not admission.have_most_gone()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["set", "del", "discard", "clear"]),
            st.sampled_from(["", "a", "b" * 256, "c" * 257, "d" * 900]),
        )
    )
)
def test_ids_count_by_their_length(changes: list[tuple[str, str]]) -> None:
    """Protects memory: an id may have 32 KiB, so a limit of the number of ids is not enough."""
    ids: CountedIds[int] = CountedIds()
    for change, name in changes:
        if change == "set":
            ids[name] = 1
        elif change == "clear":
            ids.clear()
        elif change == "discard":
            ids.discard(name)
        elif name in ids:
            del ids[name]
        assert ids.weight == sum({256: 1, 257: 2, 900: 4}.get(len(each), 1) for each in ids)


def test_a_group_with_a_long_id_counts_as_several() -> None:
    world = world_of(groups_max=4)
    assert commit(world, "g" * (3 * CHARACTERS_PER_ID), 0) == [ErrorCode.NONE]
    assert commit(world, "another", 0) == [ErrorCode.NONE]
    assert commit(world, "more", 0) == [ErrorCode.POLICY_VIOLATION]
