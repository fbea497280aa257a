"""What each member of a group is to have: asked of an assignor, and kept as what has changed.

Guards: a target is computed for all members at once, and takes the group's epoch; between two there is
`group.consumer.assignment.interval.ms`, so that many members who come together cost one or two.

Source: Kafka's `TargetAssignmentBuilder`; KIP-1263 (the interval).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, TypeAlias

from lowtide.broker.coordinator.consumer.assignors import ASSIGNORS, AssignedMember, Target
from lowtide.broker.coordinator.consumer.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.consumer.consumer_member import NOTHING, Assignment, ConsumerMember, target_record
from lowtide.broker.coordinator.consumer.group_times import GroupTimes
from lowtide.broker.coordinator.consumer.topic_view import TopicView
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.protocol.consumer_group_records import (
    ConsumerGroupChange,
    RecordType,
    TargetAssignmentEpoch,
    encode_change,
)
from lowtide.protocol.coordinator_records import CoordinatorRecord
from lowtide.protocol.types import TopicId

HEAVY: Final = 3_000
"""Members and partitions, times the number of different subscriptions: some five to ten milliseconds."""

DIFFERENT_MAX: Final = 50
"""As how many different subscriptions those of a group count at most that aren't all the same."""


Kept: TypeAlias = list[tuple[ConsumerGroupChange, CoordinatorRecord]]
"""Changes with their records."""


class TargetAssigner:
    """Makes the targets of one coordinator's groups."""

    def __init__(self, settings: GroupSettings, topics: TopicView, times: GroupTimes) -> None:
        self._settings = settings
        self._topics = topics
        self._times = times

    def wait_ms(self, group: ConsumerGroup, wall_ms: int) -> int:
        """How long a group has to wait for its next target; 0 if it hasn't."""
        since_ms = wall_ms - group.assigned_wall_ms
        return max(self._times.assignment_interval_ms(group.group_id) - since_ms, 0) if since_ms >= 0 else 0

    def is_heavy(self, group: ConsumerGroup) -> bool:
        """Whether a worker should make a group's target: it could hold the loop for longer than some milliseconds."""
        subscriptions = group.subscriptions
        names = subscriptions.names()
        partitions = sum(self._topics.partition_counts(self._topics.ids_of(names)).values())
        count = len(group.members)
        is_alike = not subscriptions.patterns and all(subscriptions.topic_counts[name] == count for name in names)
        return (count + partitions) * (1 if is_alike else min(count, DIFFERENT_MAX)) > HEAVY

    def assign(
        self, group: ConsumerGroup, epoch: int, members: Mapping[str, ConsumerMember], assignor: str, wall_ms: int
    ) -> tuple[list[ConsumerGroupChange], dict[str, Assignment]]:
        """The records that make a target of `epoch` for these members, and what those get for whom it is new."""
        return self.keep(group, epoch, self.prepare(group, members, assignor)(), wall_ms)

    def prepare(
        self, group: ConsumerGroup, members: Mapping[str, ConsumerMember], assignor: str
    ) -> Callable[[], Target]:
        """What makes a target for these members: it needs nothing of the group any more."""
        return partial(ASSIGNORS[assignor], *self._facts(group, members))

    @staticmethod
    def keep(
        group: ConsumerGroup, epoch: int, made: Target, wall_ms: int
    ) -> tuple[list[ConsumerGroupChange], dict[str, Assignment]]:
        """The records of a computed target, and the new assignments of members for which it differs."""
        changed = {
            member_id: target
            for member_id, topics in made.items()
            if (target := _new_target(group, member_id, topics)) is not None
        }
        changes = [_target_change(group, member_id, target) for member_id, target in changed.items()]
        return [*changes, epoch_change(group, epoch, wall_ms)], changed

    @staticmethod
    def keep_in_steps(group: ConsumerGroup, made: Target, kept: Kept) -> Iterator[None]:
        """As `keep`, into `kept`, encoded, a member at a time; without the epoch, which makes it hold."""
        for member_id, topics in made.items():
            target = _new_target(group, member_id, topics)
            if target is not None:
                change = _target_change(group, member_id, target)
                kept.append((change, encode_change(change)))
            yield

    def _facts(
        self, group: ConsumerGroup, members: Mapping[str, ConsumerMember]
    ) -> tuple[dict[str, AssignedMember], dict[TopicId, int]]:
        ids: dict[frozenset[str], frozenset[TopicId]] = {}
        every: set[TopicId] = set()
        rows: dict[str, AssignedMember] = {}
        for member_id, member in members.items():
            names = group.subscriptions.names_of(member)
            topics = ids.get(names)
            if topics is None:
                topics = ids[names] = self._topics.ids_of(names)
                every |= topics
            known = group.targets.get(member_id)
            target = (
                known if known is not None else group.target_of(member) if member.instance_id is not None else NOTHING
            )
            rows[member_id] = AssignedMember(member.instance_id, member.rack_id, topics, target)
        return rows, self._topics.partition_counts(sorted(every))

    def default_assignor(self) -> str:
        """The assignor for groups whose members don't ask for one."""
        return self._settings.consumer_assignors[0]


def epoch_change(group: ConsumerGroup, epoch: int, wall_ms: int) -> ConsumerGroupChange:
    """The record that makes a target hold."""
    value = TargetAssignmentEpoch(assignment_epoch=epoch, assignment_timestamp=wall_ms)
    return ConsumerGroupChange(RecordType.TARGET_EPOCH, group.group_id, "", value)


def _new_target(group: ConsumerGroup, member_id: str, topics: Mapping[TopicId, Iterable[int]]) -> Assignment | None:
    """What a member gets, if that is new."""
    target: Assignment = {topic_id: frozenset(numbers) for topic_id, numbers in topics.items() if numbers}
    return target if target != group.targets.get(member_id) else None


def _target_change(group: ConsumerGroup, member_id: str, target: Assignment) -> ConsumerGroupChange:
    return ConsumerGroupChange(RecordType.TARGET, group.group_id, member_id, target_record(target))
