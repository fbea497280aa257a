"""What counts as consumed by all groups (KIP-68), and every doubt that keeps records."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.coordinator.classic_group import ClassicGroup
from lowtide.broker.coordinator.consumed import ConsumedOffsets, survey
from lowtide.broker.coordinator.groups import Groups
from lowtide.broker.coordinator.settings import GroupSettings
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import OffsetCommitKey, OffsetCommitValue
from lowtide.protocol.types import ZERO_TOPIC_ID

OLD, NEW = bytes(15) + b"\1", bytes(15) + b"\2"


def groups_of(**committed: int) -> Groups:
    """Groups without members, with what they committed for partition 0 of t."""
    groups = Groups(GroupSettings(), random.Random(1))
    for group_id, offset in committed.items():
        commit(groups, group_id, offset)
    return groups


def commit(groups: Groups, group_id: str, offset: int, *, topic: str = "t", topic_id: bytes = ZERO_TOPIC_ID) -> None:
    value = OffsetCommitValue(offset=offset, leader_epoch=-1, metadata="", commit_timestamp=0, expire_timestamp=-1, topic_id=topic_id)
    groups.committed.apply(OffsetCommitKey(group=group_id, topic=topic, partition=0), value)


def add_live(groups: Groups, group_id: str, subscribed: frozenset[str] | None, protocol_type: str = "consumer") -> None:
    """A group with a member."""
    group = groups.groups[group_id] = ClassicGroup(group_id, wall_ms=0)
    group.protocol_type, group.subscribed = protocol_type, subscribed
    group.members["m"] = SimpleNamespace()  # type: ignore[assignment]


def coordinator_of(*shards: Groups | ErrorCode, partition_count: int = 1, end: int = 5, committed: int = 5, leads: bool = True) -> Any:
    log = SimpleNamespace(high_watermark=committed, log_end_offset=end)
    loaded = [SimpleNamespace(groups=groups, unloaded=False, leads=leads, partition=SimpleNamespace(log=log)) for groups in shards]
    missing = next((shard for shard in shards if isinstance(shard, ErrorCode)), None)
    topic = SimpleNamespace(exists=bool(shards), partition_count=partition_count)
    return SimpleNamespace(topic=topic, loaded=lambda: loaded if missing is None else missing)


def consumed(coordinator: Any, topic_id: bytes = NEW) -> int | None:
    found = ConsumedOffsets()
    for _ in survey(coordinator, found):
        pass
    return found.of("t", 0, topic_id)


def test_the_slowest_group_of_all_coordinators_counts() -> None:
    assert consumed(coordinator_of(groups_of(a=7, b=5), groups_of(c=6), partition_count=2)) == 5


@pytest.mark.parametrize(
    "coordinator",
    [
        coordinator_of(),
        coordinator_of(groups_of()),
        coordinator_of(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        coordinator_of(groups_of(a=7), partition_count=2),
        coordinator_of(groups_of(a=7), end=6),
        coordinator_of(groups_of(a=7), leads=False),
    ],
    ids=["no topic", "no group", "loading", "another broker", "may be lost", "not led any more"],
)
def test_doubts_about_the_coordinators(coordinator: Any) -> None:
    assert consumed(coordinator) is None


def test_a_live_group_that_has_not_committed_yet_keeps_what_it_subscribes_to() -> None:
    groups = groups_of(a=7)
    add_live(groups, "b", frozenset({"u"}))
    assert consumed(coordinator_of(groups)) == 7
    add_live(groups, "b", frozenset({"t", "u"}))
    assert consumed(coordinator_of(groups)) is None
    commit(groups, "b", 3)
    assert consumed(coordinator_of(groups)) == 3


def test_a_live_group_whose_subscription_is_not_known_keeps_all() -> None:
    groups = groups_of(a=7)
    add_live(groups, "b", None, "connect")
    assert consumed(coordinator_of(groups)) == 7, "it isn't one of consumers"
    add_live(groups, "b", None)
    assert consumed(coordinator_of(groups)) is None


def test_what_was_committed_for_an_older_topic_of_the_name_does_not_count() -> None:
    groups = groups_of()
    commit(groups, "a", 9, topic_id=OLD)
    assert consumed(coordinator_of(groups)) is None
    commit(groups, "b", 4, topic_id=NEW)
    assert consumed(coordinator_of(groups)) == 4
    add_live(groups, "a", frozenset({"t"}))
    assert consumed(coordinator_of(groups)) is None


def test_a_group_that_is_deleted_or_expired_counts_no_more() -> None:
    groups = groups_of(a=7, b=2)
    groups.committed.apply(OffsetCommitKey(group="b", topic="t", partition=0), None)
    assert consumed(coordinator_of(groups)) == 7
