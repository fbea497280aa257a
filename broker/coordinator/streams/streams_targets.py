"""The targets of streams groups: the topology with its topics as they are now, and the tasks that members are to have.

A target is computed for all members at once and takes the group's epoch. A new group waits for its first members;
between two targets there is the assignment interval. A large target is computed in a worker thread.

Source: Kafka's `TargetAssignmentBuilder`, `GroupMetadataManager.maybeUpdateStreamsTargetAssignment`; KIP-1071.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from lowtide.broker.coordinator.classic.rebalancing import TimerKey
from lowtide.broker.coordinator.modern.groups_by_id import GroupsById
from lowtide.broker.coordinator.modern.topic_view import TopicView
from lowtide.broker.coordinator.runtime.effects import Effects, WorkerCall
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.broker.coordinator.streams.sticky_assignor import GroupSpec, MemberSpec, assign
from lowtide.broker.coordinator.streams.streams_decision import StreamsDecision
from lowtide.broker.coordinator.streams.streams_group import NO_OFFSETS, StreamsGroup
from lowtide.broker.coordinator.streams.streams_member import StreamsThreadMember, target_record
from lowtide.broker.coordinator.streams.streams_settings import (
    RACK_AWARE_TAGS,
    STANDBY_REPLICAS,
    StreamsSettings,
    tags_in,
)
from lowtide.broker.coordinator.streams.tasks import EMPTY_TASKS, Tasks
from lowtide.broker.coordinator.streams.topology import ConfiguredTopology, Topology, configure, required_topics
from lowtide.protocol.consumer_group_records import TargetAssignmentEpoch
from lowtide.protocol.streams_group_records import StreamsRecordType

HEAVY: Final = 500
"""Members plus copies of tasks: about five milliseconds of work."""


class NextTarget(NamedTuple):
    """The epoch of the target, a member's part of it, and why there is no newer one, if so."""

    epoch: int
    tasks: Tasks
    delay: str = ""


class StreamsTargets:
    """Configures topologies and computes targets of one coordinator's streams groups."""

    def __init__(
        self, topics: TopicView, settings: StreamsSettings, deadlines: Timers[TimerKey], by_id: GroupsById
    ) -> None:
        self._topics = topics
        self._settings = settings
        self._deadlines = deadlines
        self._by_id = by_id
        self._computing: set[str] = set()
        """The groups whose targets a worker computes now."""

    # ------------------------------------------------------------------ topology
    def configure(self, group: StreamsGroup, topology: Topology) -> ConfiguredTopology:
        """Returns the topology with the topics as they are now; the known one if nothing has changed."""
        image_number, known = self._topics.image_number, group.topology
        if known.configured is not None and group.checked_image == image_number:
            return known.configured
        metadata_hash = self._topics.hash_of(required_topics(topology))
        is_same = known.record is not None and metadata_hash == group.metadata_hash
        if is_same:
            group.checked_image = image_number
        if not is_same or known.configured is None:
            known.configured = configure(topology, metadata_hash, self.partitions_of)
        return known.configured

    def partitions_of(self, topic: str) -> int | None:
        found = self._topics.image.topics.get(topic)
        return None if found is None else len(found.partitions)

    # ------------------------------------------------------------------ target
    def delay_first(self, group: StreamsGroup, now_ms: int) -> None:
        """Lets a group without members wait for more of them before its first target, unless it waits already."""
        delay_ms, key = self._settings.initial_delay_ms(group.group_id), ("initial", group.group_id, "")
        if delay_ms > 0 and not group.members and self._deadlines.deadline_of(key) is None:  # type: ignore[arg-type]
            self._deadlines.schedule(key, now_ms + delay_ms)  # type: ignore[arg-type]  # the literal is one of the key's

    def next(
        self,
        decision: StreamsDecision,
        epoch: int,
        new: StreamsThreadMember,
        configured: ConfiguredTopology,
        effects: Effects,
    ) -> NextTarget:
        """Returns the target for a member. Computes a new one if that is due."""
        group = decision.group
        if self._deadlines.deadline_of(("initial", group.group_id, "")) is not None:
            reason = "Assignment delayed due to the configured initial rebalance delay."
            return NextTarget(group.target_epoch, EMPTY_TASKS, reason)
        if epoch <= group.target_epoch:
            return NextTarget(group.target_epoch, group.target_of(new))
        since_ms = effects.wall_ms - group.assigned_wall_ms
        interval_ms = self._settings.assignment_interval_ms(group.group_id)
        if 0 <= since_ms < interval_ms:
            self._schedule(group.group_id, effects.now_ms + interval_ms - since_ms)
            reason = "Assignment delayed due to the configured assignment interval."
            return NextTarget(group.target_epoch, group.target_of(new), reason)
        if self._is_heavy(group, configured):
            self._schedule(group.group_id, effects.now_ms)
            return NextTarget(group.target_epoch, group.target_of(new), "Assignment delayed: it is being computed.")
        known = {**group.targets}
        if new.member_id not in known and new.instance_id in group.static_members:
            known[new.member_id] = group.target_of(new)
        made = self._compute(group, group.members_with(new), configured)
        self._keep(decision, epoch, made, effects.wall_ms, known)
        return NextTarget(epoch, made[new.member_id])

    def make(self, group: StreamsGroup, effects: Effects) -> None:
        """Computes a target for the current members, unless there is one of the group's epoch."""
        if not group.members or group.group_epoch <= group.target_epoch or group.topology.parsed is None:
            return
        configured = self.configure(group, group.topology.parsed)
        if not self._is_heavy(group, configured):
            decision = StreamsDecision(group)
            made = self._compute(group, group.members, configured)
            self._keep(decision, group.group_epoch, made, effects.wall_ms, group.targets)
            decision.carry_out(effects)
        elif group.group_id not in self._computing:
            self._computing.add(group.group_id)
            work = partial(assign, self._spec(group, group.members), configured)
            effects.work.append(WorkerCall(work, partial(self._on_computed, group, group.group_epoch)))

    def _on_computed(
        self, group: StreamsGroup, epoch: int, made: dict[str, Tasks] | BaseException, effects: Effects
    ) -> None:
        """Adds the records of a computed target, except for members that have left. New ones wait for the next."""
        self._computing.discard(group.group_id)
        is_gone = self._by_id.get(group.group_id) is not group or epoch <= group.target_epoch
        if isinstance(made, BaseException) or is_gone:
            return
        if group.group_epoch == epoch and made.keys() != group.members.keys():
            # A static member was replaced, which raises no epoch: its part of this target would be nobody's.
            self._schedule(group.group_id, effects.now_ms)
            return
        decision = StreamsDecision(group)
        kept = {member_id: tasks for member_id, tasks in made.items() if member_id in group.members}
        self._keep(decision, epoch, kept, effects.wall_ms, group.targets)
        decision.carry_out(effects)
        if group.group_epoch > epoch:
            interval_ms = self._settings.assignment_interval_ms(group.group_id)
            self._schedule(group.group_id, effects.now_ms + interval_ms)

    def _is_heavy(self, group: StreamsGroup, configured: ConfiguredTopology) -> bool:
        """Returns whether computing a target could block the event loop for more than a few milliseconds."""
        if configured.refusal is not None or configured.subtopologies is None:
            return False
        copies = 1 + int(self._settings.assignment_configs(group.group_id)[STANDBY_REPLICAS])
        tasks = sum(each.number_of_tasks for each in configured.subtopologies.values())
        return len(group.members) + copies * tasks > HEAVY

    def _schedule(self, group_id: str, due_ms: int) -> None:
        """Sets the time of the group's next target, unless it is set or the target is being computed."""
        key: TimerKey = ("assignment", group_id, "")
        if group_id not in self._computing and self._deadlines.deadline_of(key) is None:
            self._deadlines.schedule(key, due_ms)

    def _compute(
        self, group: StreamsGroup, members: Mapping[str, StreamsThreadMember], configured: ConfiguredTopology
    ) -> dict[str, Tasks]:
        """Returns a target, by member id. A topology that isn't ready has no tasks."""
        if configured.refusal is not None:
            return dict.fromkeys(members, EMPTY_TASKS)
        return assign(self._spec(group, members), configured)

    @staticmethod
    def _keep(
        decision: StreamsDecision, epoch: int, made: Mapping[str, Tasks], wall_ms: int, known: Mapping[str, Tasks]
    ) -> None:
        """Adds the records of those members whose target differs from the known one."""
        for member_id, tasks in made.items():
            if tasks != known.get(member_id):
                decision.keep(StreamsRecordType.TARGET, member_id, target_record(tasks))
        value = TargetAssignmentEpoch(assignment_epoch=epoch, assignment_timestamp=wall_ms)
        decision.keep(StreamsRecordType.TARGET_EPOCH, "", value)

    def _spec(self, group: StreamsGroup, members: Mapping[str, StreamsThreadMember]) -> GroupSpec:
        configs = self._settings.assignment_configs(group.group_id)
        specs = {}
        for member_id, member in members.items():
            reported = group.reports.task_offsets.get(member_id, NO_OFFSETS)
            specs[member_id] = MemberSpec(
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                process_id=member.process_id,
                client_tags=dict(member.client_tags),
                # Kafka 4.3 took the last target here, 4.4 takes what the member has.
                current=member.assigned.tasks,
                task_offsets=reported.offsets,
                task_end_offsets=reported.end_offsets,
            )
        return GroupSpec(
            members=specs,
            num_standby_replicas=int(configs[STANDBY_REPLICAS]),
            rack_aware_tags=tags_in(configs.get(RACK_AWARE_TAGS, "")),
        )
