"""The groups of one partition: records of the log, answers without a group, and the end of a coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.modern.share_group import ShareGroup
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.runtime.in_transaction import InTransaction
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import (
    GroupMetadata,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommit,
    OffsetCommitKey,
    OffsetCommits,
    OffsetCommitValue,
)
from lowtide.protocol.messages.leave_group import MemberIdentity
from lowtide.protocol.messages.offset_commit import OffsetCommitRequest
from lowtide.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from lowtide.protocol.share_group_records import ShareGroupChange, ShareGroupEpoch, ShareRecordType
from tests.unit.broker.coordinator.group_world import GROUP, SESSION_MS, World

NONE, UNKNOWN, INVALID = ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.INVALID_GROUP_ID
PRODUCER = 7


def metadata(*members: str, size: int = 10) -> GroupMetadata:
    """A stable group, in which each member says so many bytes."""
    rows = [
        MemberMetadata(
            member_id=name,
            group_instance_id=None,
            client_id="c",
            client_host="/h",
            rebalance_timeout=30_000,
            session_timeout=SESSION_MS,
            subscription=b"s" * size,
            assignment=b"a",
        )
        for name in members
    ]
    return GroupMetadata(
        GROUP,
        GroupMetadataValue(
            protocol_type="consumer",
            generation=3,
            protocol="range",
            leader=members[0] if members else None,
            members=rows,
        ),
    )


def offset(value: int | None = 5, group: str = GROUP) -> OffsetCommit:
    committed = None if value is None else OffsetCommitValue(offset=value, metadata="", commit_timestamp=1)
    return OffsetCommit(OffsetCommitKey(group=group, topic="t", partition=0), committed)


# ---------------------------------------------------------------------- what the log says
def test_the_last_record_of_a_group_counts_and_what_it_takes() -> None:
    world, other = World(), World()
    world.groups.apply(metadata("a", "b", size=1_000), 0)
    world.groups.apply(metadata("b"), 1)
    other.groups.apply(metadata("b"), 0)
    group = world.groups.by_id.find_classic(GROUP)
    assert group is not None
    assert (list(group.members), group.generation_id, group.last_record_offset) == (["b"], 3, 1)
    assert world.groups.memory.held_bytes == other.groups.memory.held_bytes > 0


def test_answers_rely_on_what_was_taken_back_too() -> None:
    world = World()
    assert world.groups.read_barrier(GROUP) == -1
    world.groups.apply(offset(), 4)
    world.groups.apply(offset(group="other"), 5)
    assert [world.groups.read_barrier(name) for name in (GROUP, "other", "unknown")] == [4, 5, -1]
    world.groups.apply(offset(None, "other"), 6)
    assert [world.groups.read_barrier(name) for name in (GROUP, "unknown")] == [6, 6]
    world.groups.apply(GroupMetadata(GROUP, None), 7)
    assert GROUP not in world.groups.by_id
    assert world.groups.read_barrier(GROUP) == 7


def test_answers_rely_on_the_last_of_several_offsets() -> None:
    world = World()
    value = OffsetCommitValue(offset=1, metadata="", commit_timestamp=1)
    world.groups.note(OffsetCommits(GROUP, "t", {0: value, 1: value}, 0), 4)
    assert list(world.groups.committed.offsets[GROUP]["t"]) == [0, 1]
    assert world.groups.read_barrier(GROUP) == 5


def test_a_record_of_a_share_group_is_of_its_service() -> None:
    world = World()
    world.groups.apply(ShareGroupChange(ShareRecordType.GROUP, GROUP, "", ShareGroupEpoch(epoch=4, metadata_hash=1)), 2)
    group = world.groups.by_id.find_share(GROUP)
    assert isinstance(group, ShareGroup)
    assert (group.group_epoch, group.last_record_offset) == (4, 2)


def test_an_offset_is_taken_back_at_once_in_a_transaction_too() -> None:
    world = World()
    world.groups.apply(offset(), 0)
    world.groups.apply(InTransaction(PRODUCER, offset(None)), 1)
    assert not world.groups.committed.has_any(GROUP)


def test_a_commit_leaves_the_members_of_its_group() -> None:
    world = World()
    world.groups.apply(metadata("a"), 0)
    world.groups.apply(offset(), 1)
    world.groups.apply(InTransaction(PRODUCER, offset()), 2)
    group = world.groups.by_id.find_classic(GROUP)
    assert group is not None
    assert (list(group.members), group.last_record_offset) == (["a"], 2)


def test_the_record_of_a_group_that_becomes_classic_puts_the_prepared_one_in_its_place() -> None:
    world = World()
    prepared = ClassicGroup(GROUP, wall_ms=1)
    world.groups.consumers.migration._prepared[GROUP] = prepared
    world.groups.note(metadata(), 8)
    assert world.groups.by_id[GROUP] is prepared
    assert prepared.last_record_offset == 8


# ---------------------------------------------------------------------- loads
def test_offsets_without_a_group_have_one_after_a_load_and_other_groups_stay() -> None:
    """A group of another type was there, and its place is still free."""
    world = World()
    world.groups.apply(metadata("a"), 0)
    world.groups.apply(offset(), 1)
    world.groups.committed.apply(OffsetCommitKey(group="other", topic="t", partition=0), offset().value)
    world.carry_out(world._loaded())
    other, known = world.groups.by_id.find_classic("other"), world.groups.by_id.find_classic(GROUP)
    assert other is not None
    assert other.is_simple
    assert known is not None
    assert list(known.members) == ["a"]


def test_members_of_a_loaded_group_have_to_show_that_they_live() -> None:
    world = World()
    world.stable()
    other = world.reload()
    other.pass_time(SESSION_MS - 1)
    group = other.groups.by_id.find_classic(GROUP)
    assert group is not None
    assert len(group.members) == 1
    other.pass_time(1)
    assert not group.members


def test_a_coordinator_that_goes_sends_waiting_clients_elsewhere_and_forgets_all() -> None:
    world = World()
    [member], _ = world.stable()
    newer, _ = world.new_member()
    response = world.join(member).response
    waiting = world.sync(newer if response.leader == member else member, response.generation_id)
    assert waiting.response is None
    world.groups.apply(offset(), 99)
    effects = world.effects()
    world.groups.on_unloaded(effects)
    world.carry_out(effects)
    assert waiting.error == ErrorCode.NOT_COORDINATOR
    assert (world.groups.count, world.groups.memory.held_bytes, world.groups.admission.offset_count) == (0, 0, 0)


# ---------------------------------------------------------------------- requests about groups that are not here
def test_an_empty_group_id_is_invalid_and_another_one_has_no_members() -> None:
    world = World()
    assert world.join(group="").error == INVALID
    assert world.join("m", group="other").error == UNKNOWN
    assert world.groups.heartbeat("", "m", None, 1, 0) == INVALID
    assert world.groups.heartbeat("other", "m", None, 1, 0) == UNKNOWN
    assert world.sync("m", 1).error == UNKNOWN
    assert [
        (row.member_id, row.error_code)
        for row in world.groups.leave("other", [MemberIdentity(member_id="m")], world.effects())
    ] == [("m", UNKNOWN)]
    assert world.groups.check_fetch("other", "m", 3) == NONE
    assert world.groups.count == 0


def test_a_group_without_an_id_has_no_members_to_sync() -> None:
    world = World()
    world.append(offset(group=""))
    effects, answers = world.effects(), list[Any]()
    request: Any = type("Request", (), {"group_id": "", "member_id": "m", "generation_id": 1, "assignments": []})()
    world.groups.sync(request, "reply", effects)
    answers = [response.error_code for _, response in effects.answers]
    assert answers == [INVALID]


@pytest.mark.parametrize(
    ("session_ms", "is_valid"), [(5_999, False), (6_000, True), (1_800_000, True), (1_800_001, False)]
)
def test_a_session_is_as_long_as_the_configuration_allows(session_ms: int, *, is_valid: bool) -> None:
    answer = World().join(session_ms=session_ms)
    assert (answer.error == ErrorCode.INVALID_SESSION_TIMEOUT) == (not is_valid)


@pytest.mark.parametrize(("generation", "version", "error"), [
    (-1, 9, NONE), (0, 9, ErrorCode.GROUP_ID_NOT_FOUND), (0, 8, ErrorCode.ILLEGAL_GENERATION),
    (1, 9, ErrorCode.GROUP_ID_NOT_FOUND),
])  # fmt: skip
def test_only_a_commit_without_a_generation_begins_a_group(generation: int, version: int, error: ErrorCode) -> None:
    world = World()
    request = OffsetCommitRequest(group_id=GROUP, member_id="", generation_id_or_member_epoch=generation, topics=[])
    assert world.groups.admit_commit(request, version, Effects(0, 0)) == error
    asked = TxnOffsetCommitRequest(
        transactional_id="",
        group_id=GROUP,
        producer_id=1,
        producer_epoch=0,
        generation_id_or_member_epoch=generation,
        topics=[],
    )
    assert world.groups.check_transactional_commit(asked, 0) == (
        NONE if error == NONE else ErrorCode.ILLEGAL_GENERATION
    )


def test_the_fetch_of_a_member_is_checked_by_its_group() -> None:
    world = World()
    world.groups.apply(ShareGroupChange(ShareRecordType.GROUP, GROUP, "", ShareGroupEpoch(epoch=4, metadata_hash=1)), 2)
    assert world.groups.check_fetch(GROUP, None, -1) == ErrorCode.GROUP_ID_NOT_FOUND
