"""Bugs planted on purpose in what coordinators do for groups whose partitions they assign: each must be found.

Each was found within 40 seeds from the first one on; PLANT_SEEDS=n searches so far.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from lowtide.broker.coordinator.consumer import migration, reconciliation
from lowtide.broker.coordinator.consumer.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.consumer.consumer_groups import ConsumerGroups
from lowtide.broker.coordinator.consumer.consumer_heartbeats import ConsumerHeartbeats
from lowtide.broker.coordinator.consumer.decision import Decision
from lowtide.broker.coordinator.consumer.pattern_topics import PatternMatching
from lowtide.broker.coordinator.consumer.topic_view import TopicView
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.protocol.consumer_group_records import MemberCurrent, MemberTarget, RecordType
from lowtide.protocol.errors import ErrorCode
from lowtide.simulation.cluster_simulation import simulate_cluster

MAXIMUM_SEEDS = int(os.environ.get("PLANT_SEEDS", "300"))

Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.skipif("PYTHONASYNCIODEBUG" in os.environ, reason="the other pass searches them")


def given_before_it_is_free(patch: Patch) -> None:
    """A member gets what another still has."""
    patch.setattr(ConsumerGroup, "is_owned", lambda *_: False)


def revocation_is_not_waited_for(patch: Patch) -> None:
    """What a member is asked to give back counts as given back."""
    patch.setattr(reconciliation, "_owns_any", lambda *_: False)


def the_epoch_stays(patch: Patch) -> None:
    """A member that is reconciled keeps the epoch that it had."""
    original = reconciliation._moved

    def moved(member: Any, epoch: int, *others: Any) -> Any:
        return original(member, member.member_epoch or epoch, *others)

    patch.setattr(reconciliation, "_moved", moved)


def leaving_changes_nothing(patch: Patch) -> None:
    """The group's epoch doesn't rise when a member goes: what it had is nobody's."""
    original = Decision.keep_epoch

    def keep_epoch(self: Any, epoch: int, metadata_hash: int) -> None:
        if not any(change.kind is RecordType.MEMBER and change.value is None for change in self.changes):
            original(self, epoch, metadata_hash)

    patch.setattr(Decision, "keep_epoch", keep_epoch)


def any_epoch_commits(patch: Patch) -> None:
    """Who was fenced may commit."""
    patch.setattr(ConsumerGroup, "check_commit", lambda *_, **__: ErrorCode.NONE)


def a_load_forgets(patch: Patch, kind: type) -> None:
    original = Groups.apply

    def apply(self: Any, change: Any, offset: int) -> None:
        if not isinstance(getattr(change, "value", None), kind):
            original(self, change, offset)

    patch.setattr(Groups, "apply", apply)


def what_members_have_is_forgotten(patch: Patch) -> None:
    """A new coordinator doesn't know who has what."""
    a_load_forgets(patch, MemberCurrent)


def what_members_are_to_have_is_forgotten(patch: Patch) -> None:
    """A new coordinator doesn't know the target."""
    a_load_forgets(patch, MemberTarget)


def members_come_back(patch: Patch) -> None:
    """That a member is gone isn't kept: a new coordinator knows it again."""
    original = Decision.carry_out

    def carry_out(self: Any, effects: Any) -> None:
        gone = [change for change in self.changes if change.kind is RecordType.MEMBER and change.value is None]
        for change in gone:
            self.changes.remove(change)
            self.group._remove(change.name)
        original(self, effects)

    patch.setattr(Decision, "carry_out", carry_out)


def silence_is_borne_after_a_load(patch: Patch) -> None:
    """A new coordinator waits for members that will never come again."""
    patch.setattr(ConsumerGroups, "on_loaded", lambda *_: None)


def heartbeats_extend_nothing(patch: Patch) -> None:
    """A member is out when its first session is over, though it lives."""
    original = ConsumerGroups.extend_session

    def extend(self: Any, group: Any, member: Any, now_ms: int) -> None:
        if self.timers.deadline_of(("heartbeat", group.group_id, member.member_id)) is None:
            original(self, group, member, now_ms)

    patch.setattr(ConsumerGroups, "extend_session", extend)


def new_partitions_are_not_noticed(patch: Patch) -> None:
    """That a topic has more partitions changes no group's epoch."""
    patch.setattr(TopicView, "hash_of", lambda *_: 1)


def patterns_match_nothing(patch: Patch) -> None:
    """Nobody looks for the topics of a pattern."""
    patch.setattr(PatternMatching, "begin", lambda *_: None)


def answered_before_it_is_kept(patch: Patch) -> None:
    """A member hears what it has before another coordinator would know."""

    def heartbeat(self: Any, request: Any, client: Any, reply: Any, effects: Any) -> None:
        patch.setattr(type(effects), "answer_when_committed", lambda effects, reply, response, _failed: effects.answer(reply, response))
        try:
            original(self, request, client, reply, effects)
        finally:
            patch.setattr(type(effects), "answer_when_committed", waits)

    waits = Effects.answer_when_committed
    original = ConsumerHeartbeats.heartbeat
    patch.setattr(ConsumerHeartbeats, "heartbeat", heartbeat)


def epochs_begin_anew(patch: Patch) -> None:
    """A classic group that becomes one of these doesn't bring its generation."""
    patch.setattr(migration, "_first_epoch", lambda _classic: 1)


def a_classic_group_brings_nothing(patch: Patch) -> None:
    """What the members of a classic group have is forgotten when it becomes one of these."""
    original = migration.Migration._as_consumer

    def as_consumer(self: Any, classic: Any, member: Any) -> Any:
        return msgspec.structs.replace(original(self, classic, member), assigned={})

    patch.setattr(migration.Migration, "_as_consumer", as_consumer)


PLANTS: Final = [
    (given_before_it_is_free, 1),
    (revocation_is_not_waited_for, 1),
    (the_epoch_stays, 0),
    (leaving_changes_nothing, 0),
    (any_epoch_commits, 0),
    (what_members_have_is_forgotten, 54),
    (what_members_are_to_have_is_forgotten, 0),
    (members_come_back, 8),
    (silence_is_borne_after_a_load, 0),
    (heartbeats_extend_nothing, 0),
    (new_partitions_are_not_noticed, 16),
    (patterns_match_nothing, 2),
    (answered_before_it_is_kept, 11),
    (epochs_begin_anew, 3),
    (a_classic_group_brings_nothing, 5),
]
"""Each with the seed to begin with: one that finds it soon."""


@pytest.mark.parametrize(("plant", "first_seed"), PLANTS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_is_found(plant: Callable[[Patch], None], first_seed: int, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    for seed in range(first_seed, first_seed + MAXIMUM_SEEDS):
        try:
            simulate_cluster(seed, kinds=("consumers",))
        except Exception as error:
            print(f"{plant.__name__}: seed {seed}: {str(error)[:200]}")
            return
    pytest.fail(f"{MAXIMUM_SEEDS} seeds found nothing")
