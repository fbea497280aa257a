"""Committed offsets: which requests may commit, what is kept, and when offsets expire."""

from __future__ import annotations

import pytest

from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.groups.committers import NO_COMMITTER, OffsetCommitter
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.protocol.messages.offset_delete import OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from tests.unit.broker.coordinator.group_world import GROUP, SESSION_MS, World

TOPIC_ID = bytes([7]) * 16
RETENTION_MS = 60_000
SUBSCRIBED_TO_T = bytes.fromhex("0000 00000001 0001 74 ffffffff")


@pytest.fixture
def world() -> World:
    settings = GroupSettings(
        initial_rebalance_delay_ms=0, offsets_retention_ms=RETENTION_MS, retention_check_interval_ms=1_000
    )
    return World(settings)


def commit(
    world: World,
    offset: int,
    *,
    topic: str = "t",
    member_id: str = "",
    generation_id: int = -1,
    version: int = 9,
    by: OffsetCommitter = NO_COMMITTER,
    **more: object,
) -> int:
    """Commit one offset; the error code of the request, or of its partition."""
    row = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=str(more.pop("metadata", ""))
    )
    request = OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name=topic, topic_id=TOPIC_ID, partitions=[row])],
        **more,
    )
    effects = world.effects()
    error = world.groups.admit_commit(request, version, effects)
    if error == ErrorCode.NONE:
        [answer] = world.groups.committed.commit(request, request.topics, effects, {topic: by})
        error = ErrorCode(answer.partitions[0].error_code)
    world.carry_out(effects)
    return error


def committed(world: World, topic: str = "t", topic_id: bytes = TOPIC_ID) -> int | None:
    value = world.groups.committed.find(GROUP, topic, 0, topic_id)
    return None if value is None else value.offset


def test_any_client_commits_to_a_group_without_members(world: World):
    assert commit(world, 5) == ErrorCode.NONE
    assert commit(world, 3) == ErrorCode.NONE
    assert committed(world) == committed(world.reload()) == 3
    group = world.reload().groups.by_id.find_classic(GROUP)
    assert group is not None
    assert group.is_simple


def test_who_commits_is_known_to_the_next_coordinator_too(world: World):
    """The last committer counts.

    The record of an offset with a time to be kept has no room for it: such a commit deletes nothing.
    """

    def known(groups: World) -> tuple[str | None, bool]:
        value = groups.groups.committed.find(GROUP, "t", 0, TOPIC_ID)
        assert value is not None
        return value.committer, value.may_delete

    for by in (OffsetCommitter("User:a", may_delete=True), OffsetCommitter("User:b"), NO_COMMITTER):
        assert commit(world, 5, by=by) == ErrorCode.NONE
        assert known(world) == known(world.reload()) == by
    assert (
        commit(world, 5, version=4, retention_time_ms=1000, by=OffsetCommitter("User:a", may_delete=True))
        == ErrorCode.NONE
    )
    assert known(world) == known(world.reload()) == NO_COMMITTER


def test_members_commit_with_their_generation(world: World):
    [member], generation_id = world.stable()
    assert commit(world, 5) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(world, 5, member_id="stranger", generation_id=generation_id) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(world, 5, member_id=member, generation_id=generation_id + 1) == ErrorCode.ILLEGAL_GENERATION
    assert commit(world, 5, member_id=member, generation_id=generation_id) == ErrorCode.NONE
    world.new_member()
    assert commit(world, 6, member_id=member, generation_id=generation_id) == ErrorCode.NONE
    generation_id = world.join(member).response.generation_id
    assert commit(world, 7, member_id=member, generation_id=generation_id) == ErrorCode.REBALANCE_IN_PROGRESS
    assert committed(world) == 6


def test_a_commit_is_a_sign_of_life(world: World):
    [member], generation_id = world.stable()
    for offset in range(4):
        world.pass_time(SESSION_MS - 1)
        assert commit(world, offset, member_id=member, generation_id=generation_id) == ErrorCode.NONE


@pytest.mark.parametrize(("version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_member_of_no_group(world: World, version: int, error: ErrorCode):
    assert commit(world, 5, member_id="m", generation_id=1, version=version) == error


def test_metadata_has_a_limit(world: World):
    assert commit(world, 5, metadata="x" * 4096) == ErrorCode.NONE
    assert commit(world, 6, metadata="x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert commit(world, 6, metadata="é" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert commit(world, 6, metadata="🌊" * 2049) == ErrorCode.OFFSET_METADATA_TOO_LARGE, (
        "each counts as two, as in Kafka"
    )
    assert committed(world) == 5
    assert commit(world, 7, metadata="é" * 4096) == ErrorCode.NONE
    assert commit(world, 8, metadata="🌊" * 2048) == ErrorCode.NONE


def test_what_was_committed_for_another_topic_of_the_name_is_not_returned(world: World):
    commit(world, 5)
    assert committed(world, topic_id=bytes([8]) * 16) is None
    assert committed(world, topic_id=bytes(16)) == 5


def test_offsets_of_a_group_expire_some_time_after_its_last_member(world: World):
    [member], generation_id = world.stable()
    commit(world, 5, member_id=member, generation_id=generation_id)
    for _ in range(2 * RETENTION_MS // 5_000):
        world.pass_time(5_000)
        world.heartbeat(member, generation_id)
    world.pass_time(SESSION_MS)
    assert committed(world) == 5
    world.pass_time(RETENTION_MS - SESSION_MS - 1_000)
    assert committed(world) == 5
    world.pass_time(SESSION_MS + 2_000)
    assert committed(world) is None
    assert world.groups.by_id == {}
    assert world.reload().groups.by_id == {}


def test_offsets_of_a_consuming_group_expire_except_for_its_topics(world: World):
    [member], generation_id = world.stable(protocols=(("range", SUBSCRIBED_TO_T),))
    for topic in ("t", "u"):
        commit(world, 5, topic=topic, member_id=member, generation_id=generation_id)
    for _ in range(2 * RETENTION_MS // 5_000):
        world.pass_time(5_000)
        assert world.heartbeat(member, generation_id) == ErrorCode.NONE
    assert (committed(world), committed(world, "u")) == (5, None)


@pytest.mark.parametrize("retention_ms", [2**63 - 1, 2**62, -(2**63)])
def test_a_retention_time_may_be_any_number(world: World, retention_ms: int):
    """Added to the time it may be more than a record's field holds; such offsets are kept for ever."""
    commit(world, 5, retention_time_ms=retention_ms)
    assert committed(world) == 5


def test_an_old_client_may_set_the_retention_time(world: World):
    commit(world, 5, retention_time_ms=5_000)
    world.pass_time(4_900)
    assert committed(world) == 5
    world.pass_time(1_100)
    assert committed(world) is None


def delete(world: World, *topics: str) -> dict[str, int] | ErrorCode:
    group = world.groups.find_for_offset_delete(GROUP)
    if isinstance(group, ErrorCode):
        return group
    effects = world.effects()
    wanted = [
        OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        for topic in topics
    ]
    rows = world.groups.committed.delete(group, wanted, effects)
    world.carry_out(effects)
    return {row.name: row.partitions[0].error_code for row in rows}


def test_single_offsets_are_deleted_but_not_of_topics_that_are_consumed(world: World):
    assert delete(world, "t") == ErrorCode.GROUP_ID_NOT_FOUND
    [member], generation_id = world.stable(protocols=(("range", SUBSCRIBED_TO_T),))
    for topic in ("t", "u"):
        commit(world, 5, topic=topic, member_id=member, generation_id=generation_id)
    assert delete(world, "t", "u", "v") == {"t": ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, "u": 0, "v": 0}
    assert (committed(world), committed(world, "u")) == (5, None)


def test_members_that_are_no_consumers_keep_all_offsets(world: World):
    world.stable(protocol_type="connect")
    assert delete(world, "t") == ErrorCode.NON_EMPTY_GROUP


def test_a_group_without_members_is_deleted_with_its_offsets(world: World):
    def delete_group() -> ErrorCode:
        effects = world.effects()
        error = world.groups.delete_group(GROUP, effects)
        world.carry_out(effects)
        return error

    assert delete_group() == ErrorCode.GROUP_ID_NOT_FOUND
    [member], generation_id = world.stable()
    commit(world, 5, member_id=member, generation_id=generation_id)
    assert delete_group() == ErrorCode.NON_EMPTY_GROUP
    world.pass_time(SESSION_MS)
    assert delete_group() == ErrorCode.NONE
    assert (committed(world), world.groups.by_id) == (None, {})
    assert (committed(world.reload()), world.reload().groups.by_id) == (None, {})


def test_offsets_are_deleted_with_their_topic_but_not_with_an_older_one_of_the_name(world: World):
    commit(world, 5)
    for topic_id, left in ((bytes([8]) * 16, 5), (TOPIC_ID, None)):
        effects = world.effects()
        world.groups.committed.delete_topics(GROUP, [("t", topic_id)], effects)
        world.carry_out(effects)
        assert committed(world) == left
