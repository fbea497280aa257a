"""Plans reassignments of replicas from a description of the cluster, before anything is moved.

A plan has only partitions whose replicas change. A new replica takes the place of the one that it replaces in the
list, so the position of the preferred leader stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from lowtide.admin.cluster_view import Broker, TopicDescription
from lowtide.protocol.types import BrokerId, TopicPartition

Replicas = tuple[BrokerId, ...]


@dataclass(slots=True, kw_only=True)
class MovePlan:
    """Replicas before and after, and the partitions that can't be moved, with a reason."""

    before: dict[TopicPartition, Replicas] = field(default_factory=dict)
    after: dict[TopicPartition, Replicas] = field(default_factory=dict)
    problems: dict[TopicPartition, str] = field(default_factory=dict)

    def move(self, key: TopicPartition, before: Replicas, after: Replicas) -> None:
        """Adds a partition, if its replicas change."""
        if before != after:
            self.before[key], self.after[key] = before, after


def assignment_of(topics: Mapping[str, TopicDescription]) -> dict[TopicPartition, Replicas]:
    """Returns the replicas of all partitions, sorted by topic and number."""
    return {
        TopicPartition(name, number): topics[name].partitions[number].replicas
        for name in sorted(topics)
        for number in sorted(topics[name].partitions)
    }


def to_replicas(assignment: Mapping[TopicPartition, Replicas], replicas: Sequence[BrokerId]) -> MovePlan:
    """Plans the same replicas for all of these partitions."""
    plan = MovePlan()
    for key, before in assignment.items():
        plan.move(key, before, tuple(replicas))
    return plan


def replaced(assignment: Mapping[TopicPartition, Replicas], old: BrokerId, new: BrokerId) -> MovePlan:
    """Plans to move the replicas of one broker to another."""
    plan = MovePlan()
    for key, before in assignment.items():
        if old in before and new in before:
            plan.problems[key] = f"broker {new} has a replica of it already"
        elif old in before:
            plan.move(key, before, _with(before, old, new))
    return plan


def drained(assignment: Mapping[TopicPartition, Replicas], leaving: BrokerId, brokers: Collection[Broker]) -> MovePlan:
    """Plans to move a broker's replicas: first to racks without a replica, then to brokers with the fewest replicas."""
    plan = MovePlan()
    loads = Counter(broker_id for replicas in assignment.values() for broker_id in replicas)
    racks = {broker.broker_id: broker.rack for broker in brokers}
    able = sorted(broker.broker_id for broker in brokers if broker.broker_id != leaving and not broker.is_fenced)
    for key, before in assignment.items():
        if leaving not in before:
            continue
        used = {racks.get(broker_id) for broker_id in before if broker_id != leaving} - {None}
        candidates = [broker_id for broker_id in able if broker_id not in before]
        if not candidates:
            plan.problems[key] = "every other broker has a replica of it, or is fenced: start another broker first"
            continue
        chosen = min(candidates, key=lambda broker_id: (racks[broker_id] in used, loads[broker_id], broker_id))
        loads[chosen] += 1
        plan.move(key, before, _with(before, leaving, chosen))
    return plan


def _with(replicas: Replicas, old: BrokerId, new: BrokerId) -> Replicas:
    return tuple(new if each == old else each for each in replicas)
