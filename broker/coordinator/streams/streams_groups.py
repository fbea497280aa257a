"""The service of streams groups: records, epochs, topologies, targets, sessions and fencing.

Guards: the group's epoch rises with every change of its members, its topics and the settings of assignments; every
change of a group is a record; a member without heartbeats is removed, and this is retried if its record can't be
appended.

Source: Kafka's `GroupMetadataManager`; KIP-1071.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.classic.rebalancing import TimerKey
from lowtide.broker.coordinator.modern.group_decision import GroupRefusal
from lowtide.broker.coordinator.modern.groups_by_id import GroupsById
from lowtide.broker.coordinator.modern.member_state import MemberState
from lowtide.broker.coordinator.modern.modern_groups import RETRY_MS, GroupResources
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.broker.coordinator.streams.endpoints import EndpointPartitions, TopicPartitions, endpoint_partitions
from lowtide.broker.coordinator.streams.streams_decision import StreamsDecision
from lowtide.broker.coordinator.streams.streams_group import StreamsGroup
from lowtide.broker.coordinator.streams.streams_member import StreamsThreadMember
from lowtide.broker.coordinator.streams.streams_settings import (
    StreamsSettings,
)
from lowtide.broker.coordinator.streams.streams_targets import NextTarget, StreamsTargets
from lowtide.broker.coordinator.streams.task_reconciliation import TaskReconciliation, reconcile_tasks
from lowtide.broker.coordinator.streams.tasks import Tasks
from lowtide.protocol.consumer_group_records import TargetAssignmentEpoch
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.offset_commit import OffsetCommitRequest
from lowtide.protocol.messages.streams_group_heartbeat import (
    EndpointToPartitions,
    HeartbeatTopicPartition,
    StreamsEndpoint,
)
from lowtide.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from lowtide.protocol.streams_group_records import StreamsGroupChange, StreamsRecordType
from lowtide.protocol.types import ZERO_TOPIC_ID

MEMBER_TIMERS: Final = ("heartbeat", "revocation")

NO_PARTITIONS: Final = EndpointPartitions([], [])


class StreamsGroups:
    """The service of one coordinator's streams groups."""

    def __init__(self, by_id: GroupsById, timers: Timers[TimerKey], resources: GroupResources) -> None:
        """`by_id` has groups of all types."""
        self.by_id = by_id
        self.deadlines = timers
        self.resources = resources
        self.topics = resources.topics
        self.settings = StreamsSettings(resources.settings, self.topics)
        self.targets = StreamsTargets(self.topics, self.settings, timers, by_id)

    def find(self, group_id: str) -> StreamsGroup | None:
        """Returns the streams group of this id; None if there is none, or one of another type."""
        group = self.by_id.get(group_id)
        return group if isinstance(group, StreamsGroup) else None

    def open(self, group_id: str, effects: Effects, *, creates: bool) -> StreamsDecision | GroupRefusal:
        """Begins a decision about a group, about a new one, or one that replaces an empty classic one.

        Errors: GROUP_ID_NOT_FOUND, those of `GroupResources.check_new_group`.
        """
        group = self.find(group_id)
        if group is not None:
            return StreamsDecision(group)
        other = self.by_id.get(group_id)
        if other is None and creates:
            refusal = self.resources.check_new_group(effects.now_ms)
            return refusal or StreamsDecision(StreamsGroup(group_id), is_new=True)
        classic = self.by_id.find_classic(group_id)
        if creates and classic is not None and classic.state is GroupState.EMPTY:
            return StreamsDecision(StreamsGroup(group_id), is_new=True, takes_over=classic)
        message = (
            f"Streams group {group_id} not found." if other is None else f"Group {group_id} is not a streams group."
        )
        return GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND, message)

    # ------------------------------------------------------------------ records
    def note(self, change: StreamsGroupChange) -> None:
        """Applies a record. Errors: ProtocolError if a group of another type has the id."""
        is_tombstone = change.value is None
        group = self.find(change.group)
        if group is None:
            if is_tombstone:
                return
            group = self._create(change)
        if is_tombstone and change.kind is StreamsRecordType.GROUP:
            del self.by_id[change.group]
            group.close()
            self._cancel(group, group.members)
            return
        group.apply(change)
        if is_tombstone and change.kind is StreamsRecordType.MEMBER:
            # Not before: a member whose removal can't be appended keeps its timers.
            self._cancel(group, [change.name])

    def _create(self, change: StreamsGroupChange) -> StreamsGroup:
        other = self.by_id.get(change.group)
        if other is not None:
            classic = self.by_id.find_classic(change.group)
            if classic is None or not classic.is_simple:
                message = (
                    f"a record of {change.kind.name} for {change.group}, which is a {other.group_type.value} group"
                )
                raise ProtocolError(message)
            other.release()
        group = self.by_id[change.group] = StreamsGroup(change.group, self.resources.memory)
        return group

    def on_loaded(self, group: StreamsGroup, effects: Effects) -> None:
        """Starts the sessions of all members, and the timeouts of those that are to revoke tasks."""
        for member in group.members.values():
            self.extend_session(group, member, effects.now_ms)
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                self._expect_revocation(group, member, effects.now_ms)

    @staticmethod
    def on_unloaded(group: StreamsGroup, _effects: Effects) -> None:
        """Closes a group that another broker coordinates now. No request waits in it."""
        group.close()

    @staticmethod
    def remove(group: StreamsGroup, effects: Effects) -> None:
        """Requests the tombstones of a group."""
        decision = StreamsDecision(group)
        for kind, name in group.tombstones():
            decision.keep(kind, name, None)
        decision.carry_out(effects)

    # ------------------------------------------------------------------ commits
    @staticmethod
    def admit_commit(group: StreamsGroup, request: OffsetCommitRequest, api_version: int, _now_ms: int) -> ErrorCode:
        """Checks whether a commit is allowed. Errors: those of `StreamsGroup.check_commit`."""
        places = ((topic.name, row.partition_index) for topic in request.topics for row in topic.partitions)
        return group.check_commit(request.member_id, request.generation_id_or_member_epoch, api_version, places)

    def check_transactional_commit(self, group: StreamsGroup, request: TxnOffsetCommitRequest) -> ErrorCode:
        """Checks whether a commit in a transaction is allowed. Errors: those of `StreamsGroup.check_commit`.

        An old member epoch is ILLEGAL_GENERATION, the only error after which producers abort and continue.
        """
        names = self.topics.image.topic_names
        places = (
            (topic.name if topic.topic_id == ZERO_TOPIC_ID else names.get(topic.topic_id, ""), row.partition_index)
            for topic in request.topics
            for row in topic.partitions
        )
        epoch = request.generation_id_or_member_epoch
        error = group.check_commit(request.member_id, epoch, 0, places, is_transaction=True)
        return ErrorCode.ILLEGAL_GENERATION if error == ErrorCode.STALE_MEMBER_EPOCH else error

    # ------------------------------------------------------------------ a member
    def reconcile_member(
        self,
        decision: StreamsDecision,
        member: StreamsThreadMember,
        target: NextTarget,
        owned: Tasks | None,
        now_ms: int,
    ) -> StreamsThreadMember | GroupRefusal:
        """Moves a member a step closer to a target. Errors: FENCED_MEMBER_EPOCH."""
        if member.is_reconciled_to(target.epoch):
            return member
        group = decision.group
        moved = reconcile_tasks(member, TaskReconciliation(target.epoch, target.tasks, owned, group.owners))
        if moved is None:
            message = (
                "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin."
            )
            return GroupRefusal(ErrorCode.FENCED_MEMBER_EPOCH, message)
        if moved != member:
            decision.keep(StreamsRecordType.CURRENT, moved.member_id, moved.current_record())
            if moved.state is MemberState.UNREVOKED_PARTITIONS:
                self._expect_revocation(group, moved, now_ms)
            else:
                self.deadlines.cancel(("revocation", group.group_id, moved.member_id))
        return moved

    def endpoints(self, group: StreamsGroup, members: Iterable[StreamsThreadMember]) -> list[EndpointToPartitions]:
        """Returns the topic partitions of each member that has an endpoint."""
        configured, rows = group.topology.configured, []
        for member in members:
            if member.user_endpoint is None:
                continue
            host, port = member.user_endpoint
            found = NO_PARTITIONS
            if configured is not None:
                found = endpoint_partitions(member.assigned.tasks, configured, self.targets.partitions_of)
            rows.append(
                EndpointToPartitions(
                    user_endpoint=StreamsEndpoint(host=host, port=port),
                    active_partitions=_partition_rows(found.active),
                    standby_partitions=_partition_rows(found.standby),
                )
            )
        return rows

    def extend_session(self, group: StreamsGroup, member: StreamsThreadMember, now_ms: int) -> None:
        """Starts a member's session timeout again."""
        timeout_ms = self.settings.session_timeout_ms(group.group_id)
        self.deadlines.schedule(("heartbeat", group.group_id, member.member_id), now_ms + timeout_ms)

    def _expect_revocation(self, group: StreamsGroup, member: StreamsThreadMember, now_ms: int) -> None:
        due_ms = now_ms + max(member.rebalance_timeout_ms, 0)
        self.deadlines.schedule(("revocation", group.group_id, member.member_id), due_ms)

    def _cancel(self, group: StreamsGroup, members: Iterable[str]) -> None:
        for member_id in members:
            for kind in MEMBER_TIMERS:
                self.deadlines.cancel((kind, group.group_id, member_id))
        if group.is_dead:
            self.deadlines.cancel(("assignment", group.group_id, ""))
            self.deadlines.cancel(("initial", group.group_id, ""))

    # ------------------------------------------------------------------ fencing
    @staticmethod
    def fence(group: StreamsGroup, member: StreamsThreadMember, effects: Effects) -> None:
        """Removes a member that left or was silent for too long."""
        decision = StreamsDecision(group)
        decision.remove(member.member_id)
        epoch = group.group_epoch + 1
        decision.keep(StreamsRecordType.GROUP, "", group.epoch_record(epoch))
        if len(group.members) == 1:
            value = TargetAssignmentEpoch(assignment_epoch=epoch)
            decision.keep(StreamsRecordType.TARGET_EPOCH, "", value)
        decision.carry_out(effects)

    # ------------------------------------------------------------------ time
    def on_timer(self, group: StreamsGroup, key: TimerKey, effects: Effects) -> None:
        """Removes a member that is late, or computes a target that is due."""
        kind, _, member_id = key
        if kind in ("assignment", "initial"):
            self.targets.make(group, effects)
        else:
            member = group.members.get(member_id)
            if member is None or (kind == "revocation" and member.state is not MemberState.UNREVOKED_PARTITIONS):
                return
            self.fence(group, member, effects)
        effects.then.append(partial(self._retry, key))

    def _retry(self, key: TimerKey, error: ErrorCode, effects: Effects) -> None:
        group = self.find(key[1])
        if error == ErrorCode.NONE or group is None:
            return
        if key[2] in group.members if key[2] else group.group_epoch > group.target_epoch:
            self.deadlines.schedule(key, effects.now_ms + RETRY_MS)


def _partition_rows(rows: TopicPartitions) -> list[HeartbeatTopicPartition]:
    return [HeartbeatTopicPartition(topic=topic, partitions=numbers) for topic, numbers in rows]
