"""Bugs planted on purpose in coordinators of consumer groups: each must be found.

Each was found within 40 seeds from the first one on; PLANT_SEEDS=n searches that many.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.modern import migration, reconciliation
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.modern.consumer_groups import ConsumerGroups
from lowtide.broker.coordinator.modern.consumer_heartbeats import ConsumerHeartbeats
from lowtide.broker.coordinator.modern.group_decision import GroupDecision
from lowtide.broker.coordinator.modern.group_times import MemberTimers
from lowtide.broker.coordinator.modern.partition_owners import PartitionOwners
from lowtide.broker.coordinator.modern.pattern_topics import PatternMatching
from lowtide.broker.coordinator.modern.topic_view import TopicView
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.protocol.consumer_group_records import MemberCurrent, MemberTarget, RecordType
from lowtide.protocol.errors import ErrorCode
from lowtide.simulation.cluster_simulation import simulate_cluster

from .planting import find

MAXIMUM_SEEDS = int(os.environ.get("PLANT_SEEDS", "300"))

Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.slowest


def given_before_it_is_free(patch: Patch) -> None:
    """A member receives partitions that another still has."""
    patch.setattr(PartitionOwners, "is_owned", lambda *_: False)


def revocation_is_not_waited_for(patch: Patch) -> None:
    """Partitions that a member must revoke count as revoked."""
    patch.setattr(reconciliation, "_owns_any", lambda *_: False)


def the_epoch_stays(patch: Patch) -> None:
    """A member that is reconciled keeps its previous epoch."""
    original = reconciliation._moved

    def moved(member: Any, epoch: int, *others: Any) -> Any:
        return original(member, member.member_epoch or epoch, *others)

    patch.setattr(reconciliation, "_moved", moved)


def leaving_changes_nothing(patch: Patch) -> None:
    """The group's epoch does not rise when a member leaves: its partitions have no owner."""
    original = GroupDecision.keep_epoch

    def keep_epoch(self: Any, epoch: int, metadata_hash: int) -> None:
        if not any(change.kind is RecordType.MEMBER and change.value is None for change in self.changes):
            original(self, epoch, metadata_hash)

    patch.setattr(GroupDecision, "keep_epoch", keep_epoch)


def any_epoch_commits(patch: Patch) -> None:
    """A fenced member may commit."""
    patch.setattr(ConsumerGroup, "check_commit", lambda *_, **__: ErrorCode.NONE)


def a_load_forgets(patch: Patch, kind: type) -> None:
    original = Groups.apply

    def apply(self: Any, change: Any, offset: int) -> None:
        if not isinstance(getattr(change, "value", None), kind):
            original(self, change, offset)

    patch.setattr(Groups, "apply", apply)


def what_members_have_is_forgotten(patch: Patch) -> None:
    """A new coordinator does not have the members' partitions."""
    a_load_forgets(patch, MemberCurrent)


def what_members_are_to_have_is_forgotten(patch: Patch) -> None:
    """A new coordinator does not have the target."""
    a_load_forgets(patch, MemberTarget)


def members_come_back(patch: Patch) -> None:
    """The removal of a member is not written: a new coordinator restores it."""
    original = GroupDecision.carry_out

    def carry_out(self: Any, effects: Any) -> None:
        gone = [change for change in self.changes if change.kind is RecordType.MEMBER and change.value is None]
        for change in gone:
            self.changes.remove(change)
            self.group._remove(change.name)
        original(self, effects)

    patch.setattr(GroupDecision, "carry_out", carry_out)


def silence_is_borne_after_a_load(patch: Patch) -> None:
    """A new coordinator waits for members that never return."""
    patch.setattr(ConsumerGroups, "on_loaded", lambda *_: None)


def heartbeats_extend_nothing(patch: Patch) -> None:
    """A member is removed when its first session is over, though it sends heartbeats."""
    original = MemberTimers.extend_session

    def extend(self: Any, group: Any, member: Any, now_ms: int) -> None:
        if self.deadlines.deadline_of(("heartbeat", group.group_id, member.member_id)) is None:
            original(self, group, member, now_ms)

    patch.setattr(MemberTimers, "extend_session", extend)


def new_partitions_are_not_noticed(patch: Patch) -> None:
    """New partitions of a topic change no group's epoch."""
    patch.setattr(TopicView, "hash_of", lambda *_: 1)


def patterns_match_nothing(patch: Patch) -> None:
    """The topics of a pattern are not searched."""
    patch.setattr(PatternMatching, "begin", lambda *_: None)


def answered_before_it_is_kept(patch: Patch) -> None:
    """A member receives its partitions before another coordinator would have them."""

    def heartbeat(self: Any, request: Any, client: Any, reply: Any, effects: Any) -> None:
        patch.setattr(
            type(effects),
            "answer_when_committed",
            lambda effects, reply, response, _failed: effects.answer(reply, response),
        )
        try:
            original(self, request, client, reply, effects)
        finally:
            patch.setattr(type(effects), "answer_when_committed", waits)

    waits = Effects.answer_when_committed
    original = ConsumerHeartbeats.heartbeat
    patch.setattr(ConsumerHeartbeats, "heartbeat", heartbeat)


def epochs_begin_anew(patch: Patch) -> None:
    """A classic group that becomes a consumer group does not keep its generation."""
    patch.setattr(migration, "_first_epoch", lambda _classic: 1)


def a_classic_group_brings_nothing(patch: Patch) -> None:
    """The partitions of a classic group's members are lost when it becomes a consumer group."""
    original = migration.Migration._as_consumer

    def as_consumer(self: Any, classic: Any, member: Any) -> Any:
        return msgspec.structs.replace(original(self, classic, member), assigned={})

    patch.setattr(migration.Migration, "_as_consumer", as_consumer)


PLANTS: Final = [
    (given_before_it_is_free, "G1:", 1),
    (revocation_is_not_waited_for, "G1:", 1),
    (the_epoch_stays, "L1: .* all members of group", 0),
    (leaving_changes_nothing, "L1: .* all members of group", 0),
    (any_epoch_commits, "G4:", 0),
    (what_members_have_is_forgotten, "G1:", 54),
    (what_members_are_to_have_is_forgotten, "L1: .* all members of group", 0),
    (members_come_back, "G2:", 705),
    (silence_is_borne_after_a_load, "L1: .* all members of group", 0),
    (heartbeats_extend_nothing, "G1:", 101),
    (new_partitions_are_not_noticed, "L1: .* all members of group", 16),
    (patterns_match_nothing, "L1: .* all members of group", 2),
    (answered_before_it_is_kept, "G1:", 450),
    (epochs_begin_anew, "G2:", 3),
    (a_classic_group_brings_nothing, "G1:", 5),
]
"""Each with what it violates, and the seed to begin with: one that finds it soon."""


@pytest.mark.parametrize(
    ("plant", "expected", "first_seed"), PLANTS, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_is_found(plant: Callable[[Patch], None], expected: str, first_seed: int, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    find(
        expected,
        lambda seed: simulate_cluster(seed, kinds=("consumers",)),
        range(first_seed, first_seed + MAXIMUM_SEEDS),
    )
