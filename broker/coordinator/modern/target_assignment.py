"""The target assignment: which partitions each member of a group is to have.

A target is computed for all members at once and takes the group's epoch. Between two targets there is the group's
assignment interval, so that many members who join together cost one or two.

Source: Kafka's `TargetAssignmentBuilder`; KIP-1263 (the interval).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, TypeAlias

from lowtide.broker.coordinator.modern.assignors import ASSIGNORS, AssignedMember
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.modern.group_decision import GroupDecision
from lowtide.broker.coordinator.modern.group_times import MemberTimers
from lowtide.broker.coordinator.modern.groups_by_id import GroupsById
from lowtide.broker.coordinator.modern.modern_group import ModernGroup
from lowtide.broker.coordinator.modern.modern_member import NOTHING, Assignment, ModernMember, target_record
from lowtide.broker.coordinator.modern.topic_view import TopicView
from lowtide.broker.coordinator.runtime.effects import Effects, Job, WorkerCall
from lowtide.protocol.consumer_group_records import ConsumerGroupChange, RecordType, encode_change
from lowtide.protocol.coordinator_records import CoordinatorRecord
from lowtide.protocol.types import TopicId

HEAVY: Final = 3_000
"""Members plus partitions, times the number of different subscriptions: five to ten milliseconds of work."""

DIFFERENT_MAX: Final = 50
"""The number of different subscriptions that is assumed if those of a group are not all the same, at most."""

TargetAssignment: TypeAlias = Mapping[str, Mapping[TopicId, Iterable[int]]]
"""The partitions of each member, by member id and topic."""

EncodedChanges: TypeAlias = list[tuple[ConsumerGroupChange, CoordinatorRecord]]


class ConsumerTargets:
    """Computes the targets of one coordinator's consumer groups, the large ones in a worker."""

    def __init__(self, topics: TopicView, timers: MemberTimers, by_id: GroupsById) -> None:
        self._topics = topics
        self._timers = timers
        self._by_id = by_id
        self._computing: set[str] = set()
        """The groups whose targets a worker computes now."""

    def is_computing(self, group: ConsumerGroup) -> bool:
        """Returns whether a worker computes the group's target now."""
        return group.group_id in self._computing

    def is_heavy(self, group: ConsumerGroup) -> bool:
        """Returns whether computing a target could block the event loop for more than a few milliseconds."""
        subscriptions = group.subscriptions
        names = subscriptions.names()
        partitions = sum(self._topics.partition_counts(self._topics.ids_of(names)).values())
        count = len(group.members)
        is_alike = not subscriptions.patterns and all(subscriptions.topic_counts[name] == count for name in names)
        return (count + partitions) * (1 if is_alike else min(count, DIFFERENT_MAX)) > HEAVY

    def prepare(
        self, group: ConsumerGroup, members: Mapping[str, ModernMember], assignor: str
    ) -> Callable[[], TargetAssignment]:
        """Returns a function that computes a target for these members and no longer needs the group."""
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
        return partial(ASSIGNORS[assignor], rows, self._topics.partition_counts(sorted(every)))

    def compute(self, group: ConsumerGroup, make: Callable[[], TargetAssignment], effects: Effects) -> None:
        """Lets a worker compute a target, and then asks for its records."""
        self._computing.add(group.group_id)
        effects.work.append(WorkerCall(make, partial(self._on_computed, group, group.group_epoch)))

    def _on_computed(
        self, group: ConsumerGroup, epoch: int, made: TargetAssignment | BaseException, effects: Effects
    ) -> None:
        if isinstance(made, BaseException):
            self._computing.discard(group.group_id)
            return
        records: EncodedChanges = []
        steps = encode_in_steps(group, made, records)
        effects.jobs.append(Job(steps, partial(self._on_encoded, group, epoch, frozenset(made), records)))

    def _on_encoded(
        self, group: ConsumerGroup, epoch: int, members: frozenset[str], records: EncodedChanges, effects: Effects
    ) -> None:
        """Requests the records of a target for these members, without those that have left since."""
        self._computing.discard(group.group_id)
        if self._by_id.get(group.group_id) is not group or epoch <= group.target_epoch:
            return
        if group.group_epoch == epoch and not members <= group.members.keys():
            # A static member was replaced, which raises no epoch: its part of this target would be nobody's.
            self._timers.schedule_assignment(group.group_id, effects.now_ms)
            return
        for change, record in records:
            if change.name in group.members:
                effects.keep_encoded(change, record)
        decision = GroupDecision(group)
        decision.keep_target_epoch(epoch, effects.wall_ms)
        decision.carry_out(effects)
        if group.group_epoch > epoch:
            interval_ms = self._timers.times.assignment_interval_ms(group.group_id)
            self._timers.schedule_assignment(group.group_id, effects.now_ms + interval_ms)


def new_target(group: ModernGroup, member_id: str, topics: Mapping[TopicId, Iterable[int]]) -> Assignment | None:
    """Returns a member's part of a new target; None if it equals that of the last target."""
    target: Assignment = {topic_id: frozenset(numbers) for topic_id, numbers in topics.items() if numbers}
    return target if target != group.targets.get(member_id) else None


def encode_in_steps(group: ConsumerGroup, made: TargetAssignment, records: EncodedChanges) -> Iterator[None]:
    """Adds the records of the parts of a target that are new, one member a step."""
    for member_id, topics in made.items():
        target = new_target(group, member_id, topics)
        if target is not None:
            change = ConsumerGroupChange(RecordType.TARGET, group.group_id, member_id, target_record(target))
            records.append((change, encode_change(change)))
        yield
