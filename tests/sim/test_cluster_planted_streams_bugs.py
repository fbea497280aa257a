"""Bugs planted on purpose in coordinators of streams groups: each must be found.

Each was found within 10 seeds from the first one on; PLANT_SEEDS=n searches that many.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import pytest

from lowtide.broker.coordinator.modern.topic_view import TopicView
from lowtide.broker.coordinator.streams import streams_targets, task_reconciliation
from lowtide.broker.coordinator.streams.streams_group import StreamsGroup
from lowtide.broker.coordinator.streams.streams_groups import StreamsDecision, StreamsGroups
from lowtide.broker.coordinator.streams.task_owners import TaskOwners
from lowtide.broker.coordinator.streams.tasks import EMPTY_TASKS
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.streams_group_records import StreamsRecordType
from lowtide.simulation.cluster_simulation import simulate_cluster

from .planting import find

MAXIMUM_SEEDS = int(os.environ.get("PLANT_SEEDS", "300"))

Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.slowest


def tasks_given_before_they_are_free(patch: Patch) -> None:
    """A member receives active tasks that another still has."""
    patch.setattr(TaskOwners, "active_process", lambda *_: None)


def tasks_are_not_waited_for(patch: Patch) -> None:
    """Tasks that a member must revoke count as revoked."""
    patch.setattr(task_reconciliation, "_may_have", lambda *_: False)


def a_task_is_left_out(patch: Patch) -> None:
    """The assignor gives one member nothing, and its tasks to nobody."""
    original = streams_targets.assign

    def assign(*arguments: Any) -> Any:
        made = original(*arguments)
        return made | {min(made): EMPTY_TASKS} if len(made) > 1 else made

    patch.setattr(streams_targets, "assign", assign)


def a_leaving_thread_changes_nothing(patch: Patch) -> None:
    """The group's epoch does not rise when a member leaves: its tasks have no owner."""
    original = StreamsDecision.carry_out

    def carry_out(self: Any, effects: Any) -> None:
        if any(change.kind is StreamsRecordType.MEMBER and change.value is None for change in self.changes):
            self.changes[:] = [change for change in self.changes if change.kind is not StreamsRecordType.GROUP]
        original(self, effects)

    patch.setattr(StreamsDecision, "carry_out", carry_out)


def any_thread_commits(patch: Patch) -> None:
    """A fenced member may commit."""
    patch.setattr(StreamsGroup, "check_commit", lambda *_, **__: ErrorCode.NONE)


def silent_threads_are_kept_after_a_load(patch: Patch) -> None:
    """A new coordinator waits for members that never return."""
    patch.setattr(StreamsGroups, "on_loaded", lambda *_: None)


def heartbeats_of_threads_extend_nothing(patch: Patch) -> None:
    """A member is removed when its first session is over, though it sends heartbeats."""
    original = StreamsGroups.extend_session

    def extend(self: Any, group: Any, member: Any, now_ms: int) -> None:
        if self.deadlines.deadline_of(("heartbeat", group.group_id, member.member_id)) is None:
            original(self, group, member, now_ms)

    patch.setattr(StreamsGroups, "extend_session", extend)


def new_tasks_are_not_noticed(patch: Patch) -> None:
    """New partitions of a source topic change no group's epoch."""
    patch.setattr(TopicView, "hash_of", lambda *_: 1)


STABLE = "L1: .* all members of group"
PLANTS: Final = [
    (tasks_given_before_they_are_free, "G1:", 4),
    (tasks_are_not_waited_for, "G4:", 11),
    (a_task_is_left_out, STABLE, 0),
    (a_leaving_thread_changes_nothing, STABLE, 0),
    (any_thread_commits, "G4:", 0),
    (silent_threads_are_kept_after_a_load, STABLE, 0),
    (heartbeats_of_threads_extend_nothing, "G1:", 2),
    (new_tasks_are_not_noticed, STABLE, 0),
]
"""Each with what it violates, and the seed to begin with: one that finds it soon."""


@pytest.mark.parametrize(
    ("plant", "expected", "first_seed"), PLANTS, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_is_found(plant: Callable[[Patch], None], expected: str, first_seed: int, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    find(
        expected,
        lambda seed: simulate_cluster(seed, kinds=("streams",)),
        range(first_seed, first_seed + MAXIMUM_SEEDS),
    )
