"""A streams group (KIP-1071): members, epochs, a topology and a target assignment of tasks.

The three epochs follow each other as in other modern groups (`modern_group`). The topology is that of the first member;
a group whose topics are not as the topology needs them is not ready and assigns nothing.

Guards: only records change a group (`apply`), except for `reports` and the configured topology. An instance id belongs
to one member.

Source: Kafka's `StreamsGroup`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final

import msgspec

from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.member_memory import GroupMemory, MemberMemory
from lowtide.broker.coordinator.modern.static_members import StaticMembers
from lowtide.broker.coordinator.streams.streams_member import OFFSET_BYTES, StreamsThreadMember, config_rows, tasks_of
from lowtide.broker.coordinator.streams.task_owners import TaskOwners
from lowtide.broker.coordinator.streams.tasks import EMPTY_TASKS, TaskId, Tasks
from lowtide.broker.coordinator.streams.topology_records import GroupTopology, group_topology
from lowtide.protocol.consumer_group_records import TargetAssignmentEpoch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.streams_group_records import (
    NO_TOPOLOGY_EPOCH,
    StreamsGroupChange,
    StreamsGroupEpoch,
    StreamsGroupTopology,
    StreamsMemberCurrent,
    StreamsMemberMetadata,
    StreamsMemberTarget,
    StreamsRecordType,
)
from lowtide.protocol.types import UNKNOWN_OFFSET

INITIAL_EPOCH: Final = 1
"""The epoch of a new group and of its empty target."""

MEMBER_EPOCHS_SINCE: Final = 9
"""The first version of OffsetCommit with which a member may commit."""


class StreamsGroupState(Enum):
    """What a group is doing. Values are the names that clients see. All but DEAD follow from its members and epochs."""

    EMPTY = "Empty"
    """No members. action: commits without a member are kept, a classic group may take over the id.
    transition: a member joins → NOT_READY or ASSIGNING."""
    NOT_READY = "NotReady"
    """Topics of the topology are missing or wrong. action: heartbeats say which.
    transition: the topics are as needed → ASSIGNING."""
    ASSIGNING = "Assigning"
    """The target is older than the group's epoch. action: members keep their tasks.
    transition: the target is computed → RECONCILING."""
    RECONCILING = "Reconciling"
    """Members revoke and receive tasks. transition: all are at the target → STABLE; the group's epoch rises →
    ASSIGNING."""
    STABLE = "Stable"
    """Each member has its target. transition: the group's epoch rises → ASSIGNING; a topic is gone → NOT_READY; the
    last member is gone, from any state → EMPTY."""
    DEAD = "Dead"
    """Gone from this coordinator. transition: none."""


class MemberOffsets(msgspec.Struct, frozen=True):
    """The changelog offsets that a member has reported last, by task."""

    offsets: Mapping[TaskId, int] = {}
    end_offsets: Mapping[TaskId, int] = {}

    @property
    def size_bytes(self) -> int:
        """The memory that they take."""
        return OFFSET_BYTES * (len(self.offsets) + len(self.end_offsets))


NO_OFFSETS: Final = MemberOffsets()


class MemberReports(msgspec.Struct):
    """What members report and no record keeps: another coordinator does not know it."""

    endpoint_epoch: int = 0
    """Rises when an endpoint or its tasks change."""
    shutdown_by: str | None = None
    """The member that requested the shutdown of the application."""
    task_offsets: dict[str, MemberOffsets] = {}
    """By member id."""


class StreamsGroup:
    """One streams group. Members are kept in the order in which they joined."""

    group_type = GroupType.STREAMS
    protocol_type = "streams"

    __slots__ = (
        "assigned_wall_ms",
        "assignment_configs",
        "checked_image",
        "description_epochs",
        "group_epoch",
        "group_id",
        "is_dead",
        "last_record_offset",
        "members",
        "memory",
        "metadata_hash",
        "owners",
        "reports",
        "static_members",
        "target_epoch",
        "targets",
        "topology",
        "validated_epoch",
    )

    def __init__(self, group_id: str, memory: MemberMemory | None = None) -> None:
        """`memory` is shared by a broker's groups."""
        self.group_id = group_id
        self.memory = GroupMemory(memory)
        self.group_epoch = INITIAL_EPOCH
        self.metadata_hash = 0
        self.validated_epoch = NO_TOPOLOGY_EPOCH
        """The epoch of the topology whose topics were as needed; -1 if they were not."""
        self.assignment_configs: dict[str, str] = {}
        """The settings of the last assignment."""
        self.description_epochs = (NO_TOPOLOGY_EPOCH, NO_TOPOLOGY_EPOCH)
        """The topology epochs whose description another coordinator's plugin has stored, and has refused."""
        self.target_epoch = INITIAL_EPOCH
        self.assigned_wall_ms = 0
        """When the target was computed; 0 if unknown."""
        self.targets: dict[str, Tasks] = {}
        self.members: dict[str, StreamsThreadMember] = {}
        self.static_members = StaticMembers()
        self.owners = TaskOwners()
        self.topology = GroupTopology()
        self.last_record_offset = UNKNOWN_OFFSET
        self.is_dead = False
        self.checked_image = 0
        """The number of the image that the group's hash was last compared with; 0 for none. Not in records."""
        self.reports = MemberReports()

    # ------------------------------------------------------------------ what it is
    @property
    def state(self) -> StreamsGroupState:
        """What the group is doing."""
        if self.is_dead:
            return StreamsGroupState.DEAD
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology.record is None or self.topology.epoch != self.validated_epoch:
            return StreamsGroupState.NOT_READY
        if self.group_epoch > self.target_epoch:
            return StreamsGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    @property
    def is_unused(self) -> bool:
        """Whether the group is alive and has no members."""
        return not self.members and not self.is_dead

    @property
    def since_empty_ms(self) -> int | None:
        """Always None: each offset expires by the time of its own commit, since no record keeps the time."""
        return None

    @property
    def may_expire_offsets(self) -> bool:
        """Whether offsets may expire now: always, because the source topics are always known."""
        return True

    def is_subscribed_to(self, topic: str) -> bool:
        """Returns whether members consume a topic."""
        return bool(self.members) and topic in self.topology.sources

    def living_subscriptions(self) -> frozenset[str]:
        """Returns the topics that members consume."""
        return frozenset(self.topology.sources) if self.members else frozenset()

    def target_of(self, member: StreamsThreadMember) -> Tasks:
        """Returns a member's part of the target. A returning static member gets that of the member it replaces."""
        known = self.static_members.predecessor_of(member)
        return EMPTY_TASKS if known is None else self.targets.get(known, EMPTY_TASKS)

    def members_with(self, member: StreamsThreadMember) -> dict[str, StreamsThreadMember]:
        """Returns the members after one has joined or changed, without the one whose instance id it takes over."""
        return self.static_members.members_with(self.members, member)

    def find_member(self, member_id: str, instance_id: str | None) -> StreamsThreadMember | ErrorCode:
        """Returns a member.

        Errors: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID if another member has taken over the instance id.
        """
        return self.static_members.find(self.members, member_id, instance_id)

    # ------------------------------------------------------------------ checks
    def check_commit(
        self,
        member_id: str,
        member_epoch: int,
        api_version: int,
        places: Iterable[tuple[str, int]],
        *,
        is_transaction: bool = False,
    ) -> ErrorCode:
        """Checks whether a client may commit for `places` (topic name, partition).

        A commit without a member has a negative epoch and is allowed while the group has no members. A member with an
        older epoch may commit for the active tasks that it got in that epoch or before, and still has. `is_transaction`
        is TxnOffsetCommit, which may omit the member. Errors: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH,
        UNSUPPORTED_VERSION. Source: `StreamsGroup.validateOffsetCommit`; KIP-1251.
        """
        if member_epoch < 0 and (not self.members or (is_transaction and not member_id)):
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not is_transaction and api_version < MEMBER_EPOCHS_SINCE:
            return ErrorCode.UNSUPPORTED_VERSION
        if member_epoch == member.member_epoch:
            return ErrorCode.NONE
        sources = self.topology.sources
        epochs = (member.epoch_of(sources.get(topic, ""), partition) for topic, partition in places)
        is_current = member_epoch < member.member_epoch and all(
            epoch is not None and epoch <= member_epoch for epoch in epochs
        )
        return ErrorCode.NONE if is_current else ErrorCode.STALE_MEMBER_EPOCH

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Checks whether offsets may be returned. A client that names no member always gets them.

        Errors: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH.
        """
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_epoch == member.member_epoch else ErrorCode.STALE_MEMBER_EPOCH

    def check_offset_delete(self) -> ErrorCode:
        """Checks whether single offsets may be deleted. Errors: GROUP_ID_NOT_FOUND."""
        return ErrorCode.GROUP_ID_NOT_FOUND if self.is_dead else ErrorCode.NONE

    def check_delete(self) -> ErrorCode:
        """Checks whether the group may be deleted. Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        if self.is_dead:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NON_EMPTY_GROUP if self.members else ErrorCode.NONE

    # ------------------------------------------------------------------ records
    def tombstones(self) -> Iterator[tuple[StreamsRecordType, str]]:
        """Yields the keys of the group's records, in Kafka's order."""
        kinds = StreamsRecordType
        for kind in (kinds.CURRENT, kinds.TARGET):
            for member_id in dict.fromkeys((*self.members, *self.targets)):
                yield kind, member_id
        yield kinds.TARGET_EPOCH, ""
        for member_id in self.members:
            yield kinds.MEMBER, member_id
        yield kinds.GROUP, ""
        yield kinds.TOPOLOGY, ""

    def epoch_record(self, epoch: int) -> StreamsGroupEpoch:
        """Returns the record of another epoch, with everything else as it is."""
        stored, failed = self.description_epochs
        return StreamsGroupEpoch(
            epoch=epoch,
            metadata_hash=self.metadata_hash,
            validated_topology_epoch=self.validated_epoch,
            last_assignment_configs=config_rows(self.assignment_configs),
            stored_description_topology_epoch=stored,
            failed_description_topology_epoch=failed,
        )

    def apply(self, change: StreamsGroupChange) -> None:
        """Applies a record. Its owner removes the group when the record of its epoch is a tombstone."""
        value, name = change.value, change.name
        if isinstance(value, StreamsMemberCurrent):
            self._put(self._member(name).with_current(value))
        elif isinstance(value, StreamsMemberMetadata):
            self._put(self._member(name).with_metadata(value))
        elif isinstance(value, StreamsMemberTarget):
            self.targets[name] = tasks_of(value)
        elif isinstance(value, StreamsGroupEpoch):
            self._apply_epoch(value)
        elif isinstance(value, TargetAssignmentEpoch):
            self.target_epoch, self.assigned_wall_ms = value.assignment_epoch, value.assignment_timestamp
            # A compacted log that lost its end may lack the last epoch of the group.
            self.group_epoch = max(self.group_epoch, self.target_epoch)
        elif isinstance(value, StreamsGroupTopology):
            self._set_topology(value)
        else:
            self._apply_tombstone(change)

    def _apply_epoch(self, value: StreamsGroupEpoch) -> None:
        self.group_epoch, self.metadata_hash = value.epoch, value.metadata_hash
        self.validated_epoch = value.validated_topology_epoch
        self.assignment_configs = {row.key: row.value for row in value.last_assignment_configs or ()}
        self.description_epochs = value.stored_description_topology_epoch, value.failed_description_topology_epoch

    def _set_topology(self, record: StreamsGroupTopology | None) -> None:
        old, self.topology, self.checked_image = self.topology, group_topology(record), 0
        self.memory.hold(self.topology.size_bytes - old.size_bytes)

    def _apply_tombstone(self, change: StreamsGroupChange) -> None:
        kind, name = change.kind, change.name
        if kind is StreamsRecordType.MEMBER:
            self._remove(name)
        elif kind is StreamsRecordType.CURRENT:
            member = self.members.get(name)
            if member is not None:
                self._put(member.with_current(None))
        elif kind is StreamsRecordType.TARGET:
            self.targets.pop(name, None)
        elif kind is StreamsRecordType.TARGET_EPOCH:
            self.target_epoch = INITIAL_EPOCH
        elif kind is StreamsRecordType.TOPOLOGY:
            self._set_topology(None)

    def _member(self, member_id: str) -> StreamsThreadMember:
        known = self.members.get(member_id)
        return known if known is not None else StreamsThreadMember(member_id=member_id)

    def _put(self, member: StreamsThreadMember) -> None:
        old = self.members.get(member.member_id)
        self.members[member.member_id] = member
        self._on_member_changed(old, member)

    def _remove(self, member_id: str) -> None:
        old = self.members.pop(member_id, None)
        if old is not None:
            self._on_member_changed(old, None)
            self.note_offsets(member_id, NO_OFFSETS)
        if not self.members:
            self.reports.shutdown_by = None

    def _on_member_changed(self, old: StreamsThreadMember | None, new: StreamsThreadMember | None) -> None:
        self.owners.on_changed(old, new)
        self.memory.hold((new.size_bytes if new is not None else 0) - (old.size_bytes if old is not None else 0))
        self.static_members.on_changed(old, new)

    def note_offsets(self, member_id: str, offsets: MemberOffsets) -> None:
        """Keeps the task offsets that a member has reported."""
        known = self.reports.task_offsets.pop(member_id, NO_OFFSETS)
        self.memory.hold(offsets.size_bytes - known.size_bytes)
        if offsets is not NO_OFFSETS:
            self.reports.task_offsets[member_id] = offsets

    # ------------------------------------------------------------------ memory
    def close(self) -> None:
        """Marks the group as dead and releases its memory."""
        self.is_dead = True
        self.release()

    def release(self) -> None:
        """Gives the group's memory back to the broker. Later changes of the group no longer count."""
        self.memory.release()
