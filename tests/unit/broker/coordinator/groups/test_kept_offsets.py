"""Which offsets of a commit are kept, with what, and which are removed with their topic, by a request, or by age."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.coordinator.group_admission import GroupAdmission
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.groups.committed_offsets import CommittedOffsets
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import OffsetCommitKey, OffsetCommits, OffsetCommitValue
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.protocol.messages.offset_delete import OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from lowtide.protocol.types import NO_TIMESTAMP, ZERO_TOPIC_ID, TopicId

GROUP, PRODUCER = "g", 7
OLD, NEW = bytes([1]) * 16, bytes([2]) * 16
WALL_MS = 100_000
NONE, TOO_LARGE, TOO_MANY = ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE


class World:
    """The offsets of groups, with what all groups of a broker have in common."""

    def __init__(self, **limits: int) -> None:
        settings = GroupSettings(**limits)
        self.admission = GroupAdmission(settings)
        self.committed = CommittedOffsets(settings, self.admission)

    def commit(self, *rows: tuple[int, str], retention_ms: int = -1, leader_epoch: int = 4) -> list[ErrorCode]:
        """Commit for partitions of `t`, each with metadata; the error code of each."""
        partitions = [
            OffsetCommitRequestPartition(
                partition_index=number, committed_offset=5, committed_leader_epoch=leader_epoch, committed_metadata=text
            )
            for number, text in rows
        ]
        topics = [OffsetCommitRequestTopic(name="t", topic_id=NEW, partitions=partitions)]
        request = OffsetCommitRequest(group_id=GROUP, member_id="", retention_time_ms=retention_ms, topics=topics)
        effects = Effects(0, WALL_MS)
        (answer,) = self.committed.commit(request, topics, effects)
        for change in effects.changes:
            assert isinstance(change, OffsetCommits)
            self.committed.apply_commits(change)
        assert [row.partition_index for row in answer.partitions] == [number for number, _ in rows]
        return [ErrorCode(row.error_code) for row in answer.partitions]

    def put(self, name: str = "t", number: int = 0, topic_id: TopicId = ZERO_TOPIC_ID, **fields: Any) -> None:
        """A committed offset."""
        value = OffsetCommitValue(
            **({"offset": 5, "metadata": "", "commit_timestamp": 1, "topic_id": topic_id} | fields)
        )
        self.committed.apply(OffsetCommitKey(group=GROUP, topic=name, partition=number), value)

    def put_pending(self, name: str = "t", number: int = 0, topic_id: TopicId = ZERO_TOPIC_ID) -> None:
        """One of an open transaction."""
        value = OffsetCommitValue(offset=9, metadata="", commit_timestamp=1, topic_id=topic_id)
        self.committed.apply_pending(PRODUCER, OffsetCommitKey(group=GROUP, topic=name, partition=number), value, 50)

    def forget(self, name: str = "t", number: int = 0) -> None:
        self.committed.apply(OffsetCommitKey(group=GROUP, topic=name, partition=number), None)

    def kept(self, number: int = 0) -> OffsetCommitValue:
        found = self.committed.find(GROUP, "t", number, ZERO_TOPIC_ID)
        assert found is not None
        return found

    def expire(self, **group: Any) -> tuple[bool, list[tuple[str, int]]]:
        """Whether none is left, and which offsets are to be forgotten. `group` is what is special about it."""
        given: dict[str, Any] = {
            "may_expire_offsets": True,
            "since_empty_ms": 0,
            "is_subscribed_to": lambda _name: False,
        }
        effects = Effects(0, WALL_MS)
        none_left = self.committed.expire(SimpleNamespace(group_id=GROUP, **given | group), effects)
        return none_left, forgotten(effects)


def forgotten(effects: Effects) -> list[tuple[str, int]]:
    assert all(change.value is None for change in effects.changes)
    return [(change.key.topic, change.key.partition) for change in effects.changes]


# ---------------------------------------------------------------------- what is kept
def test_an_offset_is_kept_with_all_that_its_commit_says() -> None:
    world = World()
    assert world.commit((0, "text"), (256, "")) == [NONE, NONE]
    assert world.kept() == OffsetCommitValue(
        offset=5, leader_epoch=4, metadata="text", commit_timestamp=WALL_MS, expire_timestamp=NO_TIMESTAMP, topic_id=NEW
    )
    assert world.kept(256).metadata == ""


def test_an_offset_with_a_time_to_live_has_neither_epoch_nor_id() -> None:
    """The version of its record has no room for them."""
    world = World()
    assert world.commit((0, ""), retention_ms=30) == [NONE]
    value = world.kept()
    assert (value.leader_epoch, value.expire_timestamp, value.topic_id) == (-1, WALL_MS + 30, ZERO_TOPIC_ID)


def test_an_offset_with_too_much_metadata_leaves_the_others() -> None:
    assert World(offset_metadata_max_bytes=3).commit((0, "abcd"), (1, "abc"), (2, "abcd"), (3, "")) == [
        TOO_LARGE,
        NONE,
        TOO_LARGE,
        NONE,
    ]


def test_the_metadata_of_all_offsets_has_a_limit_which_those_of_one_request_share() -> None:
    world = World(offsets_metadata_bytes_max=10)
    assert world.commit((0, "x" * 6), (1, "x" * 5), (2, ""), (3, "x" * 4), (4, "x")) == [
        NONE,
        TOO_LARGE,
        NONE,
        NONE,
        TOO_LARGE,
    ]
    assert (world.admission.metadata_bytes, world.admission.refused_count) == (10, 2)
    assert World(offsets_metadata_bytes_max=10).commit((0, "x" * 10)) == [NONE]


def test_an_offset_may_take_the_place_of_one_that_takes_as_much() -> None:
    world = World(offsets_metadata_bytes_max=10, offsets_max=2)
    assert world.commit((0, "x" * 10), (1, ""), (2, ""), (0, "y" * 10)) == [NONE, NONE, TOO_MANY, TOO_MANY]
    assert world.commit((0, "y" * 10), (2, ""), (1, ""), (1, "x")) == [NONE, TOO_MANY, NONE, TOO_MANY]
    assert world.kept().metadata == "y" * 10


def test_of_a_partition_that_is_named_twice_the_last_offset_is_kept_and_counted_once() -> None:
    world = World()
    world.put(metadata="xy")
    assert world.commit((0, "abc"), (0, "d"), (1, "")) == [NONE] * 3
    assert world.kept().metadata == "d"
    assert (world.admission.offset_count, world.admission.metadata_bytes) == (2, 1)


def test_a_limit_that_was_lowered_is_for_offsets_with_metadata() -> None:
    world = World(offsets_metadata_bytes_max=10)
    world.put(metadata="x" * 11)
    assert world.commit((1, ""), (2, "x")) == [NONE, TOO_LARGE]
    assert world.kept(1).offset == 5


def test_a_commit_takes_its_worth_from_what_is_pending_before_it() -> None:
    world = World()
    world.put_pending()
    world.put(offset=6)
    assert world.committed.end_transaction(PRODUCER, is_commit=True) == [GROUP]
    assert world.kept().offset == 6
    world.put_pending()
    assert world.committed.end_transaction(PRODUCER, is_commit=True) == [GROUP]
    assert world.kept().offset == 9


# ---------------------------------------------------------------------- what is forgotten
def test_an_offset_that_is_taken_back_is_forgotten_with_its_group() -> None:
    world = World()
    world.forget()
    world.put(metadata="abc")
    world.put("u")
    world.forget("v")
    world.forget(number=1)
    assert (world.admission.offset_count, world.admission.metadata_bytes) == (2, 3)
    world.forget()
    assert world.committed.offsets == {GROUP: {"u": world.committed.offsets[GROUP]["u"]}}
    world.forget("u")
    assert (world.committed.offsets, world.admission.offset_count, world.admission.metadata_bytes) == ({}, 0, 0)


def test_an_offset_that_is_taken_back_is_not_pending_any_more() -> None:
    world = World()
    world.put_pending()
    world.put_pending(number=1)
    world.forget()
    assert list(world.committed.pending.by_producer[PRODUCER]) == [(GROUP, "t", 1)]
    world.forget(number=1)
    assert world.committed.pending.by_producer == {}
    assert not world.committed.has_any(GROUP)


def test_a_request_forgets_what_is_committed_or_pending_and_nothing_else() -> None:
    world = World()
    world.put()
    world.put_pending(number=1)
    world.put("u")
    asked = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=number) for number in (0, 1, 2, 0)]
        )
        for name in "tuv"
    ]
    group: Any = SimpleNamespace(group_id=GROUP, is_subscribed_to=lambda name: name == "u")
    effects = Effects(0, WALL_MS)
    rows = world.committed.delete(group, asked, effects)
    assert forgotten(effects) == [("t", 0), ("t", 1)]
    assert [(row.name, [(each.partition_index, each.error_code) for each in row.partitions]) for row in rows] == [
        ("t", [(0, NONE), (1, NONE), (2, NONE)]),
        ("u", [(number, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC) for number in range(3)]),
        ("v", [(0, NONE), (1, NONE), (2, NONE)]),
    ]


def delete_topic(world: World, name: str = "t", topic_id: TopicId = OLD) -> list[tuple[str, int]]:
    effects = Effects(0, WALL_MS)
    world.committed.delete_topics(GROUP, [(name, topic_id)], effects)
    return forgotten(effects)


def test_offsets_are_forgotten_with_their_topic() -> None:
    world = World()
    for number, topic_id in enumerate((OLD, NEW, ZERO_TOPIC_ID)):
        world.put(number=number, topic_id=topic_id)
        world.put_pending(number=number + 3, topic_id=topic_id)
    world.put("u", topic_id=OLD)
    world.put_pending("u", 1, topic_id=NEW)
    assert delete_topic(world) == [("t", 0), ("t", 2), ("t", 3), ("t", 5)]
    assert delete_topic(world, "v") == []


def test_a_pending_offset_does_not_take_a_committed_one_of_the_newer_topic_with_it() -> None:
    world = World()
    world.put(topic_id=NEW)
    world.put_pending(topic_id=OLD)
    assert delete_topic(world) == []
    world.put(topic_id=OLD)
    assert delete_topic(world) == [("t", 0)], "one record is enough"


# ---------------------------------------------------------------------- what is old
@pytest.mark.parametrize(("since_empty_ms", "is_old"), [(WALL_MS - 1_000, True), (WALL_MS - 999, False)])
def test_offsets_expire_so_long_after_the_group_is_empty(since_empty_ms: int, *, is_old: bool) -> None:
    world = World(offsets_retention_ms=1_000)
    world.put(commit_timestamp=1)
    assert world.expire(since_empty_ms=since_empty_ms) == (is_old, [("t", 0)] if is_old else [])


@pytest.mark.parametrize(("committed_ms", "is_old"), [(WALL_MS - 1_000, True), (WALL_MS - 999, False)])
def test_offsets_of_a_group_with_members_expire_so_long_after_their_commit(committed_ms: int, *, is_old: bool) -> None:
    world = World(offsets_retention_ms=1_000)
    world.put(commit_timestamp=committed_ms)
    assert world.expire(since_empty_ms=None) == (is_old, [("t", 0)] if is_old else [])


@pytest.mark.parametrize(("expires_ms", "is_old"), [(WALL_MS, True), (WALL_MS + 1, False)])
def test_an_offset_with_a_time_to_live_expires_then(expires_ms: int, *, is_old: bool) -> None:
    world = World(offsets_retention_ms=1_000)
    world.put(expire_timestamp=expires_ms)
    assert world.expire(since_empty_ms=0) == (is_old, [("t", 0)] if is_old else [])


def test_offsets_that_are_still_needed_do_not_expire() -> None:
    world = World(offsets_retention_ms=1_000)
    world.put()
    assert world.expire(may_expire_offsets=False) == (False, [])
    assert world.expire(is_subscribed_to=lambda name: name == "t") == (False, [])
    world.put_pending()
    assert world.expire() == (False, [])
    world.forget()
    world.put_pending(number=1)
    assert world.expire() == (False, []), "a transaction may commit"


def test_nothing_is_left_of_a_group_without_offsets() -> None:
    assert World().expire() == (True, [])
    assert World().expire(may_expire_offsets=False) == (True, [])
