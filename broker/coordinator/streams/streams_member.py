"""A member of a streams group: a value that each of its records replaces.

Source: Kafka's `StreamsGroupMember`, `TasksTupleWithEpochs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

from lowtide.broker.coordinator.member_memory import bytes_of_member
from lowtide.broker.coordinator.modern.member_state import MemberEvent, MemberState, next_state
from lowtide.broker.coordinator.streams.tasks import Tasks
from lowtide.protocol.messages.streams_group_heartbeat import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    StreamsEndpoint,
    StreamsKeyValue,
    StreamsTaskIds,
)
from lowtide.protocol.streams_group_records import (
    NO_TOPOLOGY_EPOCH,
    CurrentTaskIds,
    StreamsMemberCurrent,
    StreamsMemberMetadata,
    StreamsMemberTarget,
)

ActiveTasks: TypeAlias = Mapping[str, Mapping[int, int]]
"""Subtopology → partition → the member epoch in which the member got the task. Without empty rows."""

ReplicaTasks: TypeAlias = Mapping[str, frozenset[int]]
"""Subtopology → partitions. Without empty rows."""

_NUMBERS: Final = {
    MemberState.STABLE: 1,
    MemberState.UNREVOKED_PARTITIONS: 2,
    MemberState.UNRELEASED_PARTITIONS: 3,
    MemberState.UNKNOWN: 127,
}
"""The numbers of the states in records. Source: Kafka's streams `MemberState`."""
_STATES: Final = {number: state for state, number in _NUMBERS.items()}

OFFSET_BYTES: Final = 100
"""The memory of one reported task offset."""


class AssignedTasks(msgspec.Struct, frozen=True):
    """The tasks that a member has, or has to revoke."""

    active: ActiveTasks = {}
    standby: ReplicaTasks = {}
    warmup: ReplicaTasks = {}

    @property
    def is_empty(self) -> bool:
        """Whether there are no tasks."""
        return not (self.active or self.standby or self.warmup)

    @property
    def tasks(self) -> Tasks:
        """The tasks without epochs."""
        active = {subtopology: frozenset(epochs) for subtopology, epochs in self.active.items()}
        return Tasks(active=active, standby=self.standby, warmup=self.warmup)

    def with_epochs_reset(self) -> AssignedTasks:
        """Returns the tasks with all epochs 0."""
        active = {subtopology: dict.fromkeys(epochs, 0) for subtopology, epochs in self.active.items()}
        return AssignedTasks(active, self.standby, self.warmup)


NO_TASKS: Final = AssignedTasks()


class StreamsThreadMember(msgspec.Struct, frozen=True):
    """One member. Tags are sorted by key."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = NO_TOPOLOGY_EPOCH
    process_id: str = ""
    user_endpoint: tuple[str, int] | None = None
    client_tags: tuple[tuple[str, str], ...] = ()
    member_epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: AssignedTasks = NO_TASKS
    revoking: AssignedTasks = NO_TASKS
    """The tasks that it has to revoke and may still have."""

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Returns whether it has exactly its part of the target of this epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch

    def epoch_of(self, subtopology: str, partition: int) -> int | None:
        """Returns the epoch in which it got an active task that it has, or has to revoke; None if it has not."""
        epoch = self.assigned.active.get(subtopology, {}).get(partition)
        return epoch if epoch is not None else self.revoking.active.get(subtopology, {}).get(partition)

    def is_assigned_like(self, other: StreamsThreadMember) -> bool:
        """Returns whether all that an assignment depends on is equal."""
        return (
            self.topology_epoch == other.topology_epoch
            and self.rack_id == other.rack_id
            and self.client_tags == other.client_tags
            and self.process_id == other.process_id
        )

    @property
    def size_bytes(self) -> int:
        """The memory that its metadata takes."""
        host = None if self.user_endpoint is None else self.user_endpoint[0]
        tags = (word for pair in self.client_tags for word in pair)
        return bytes_of_member((self.client_id, self.instance_id, self.rack_id, self.process_id, host, *tags), ())

    def metadata_record(self) -> StreamsMemberMetadata:
        """Returns the record of its metadata."""
        endpoint = self.user_endpoint
        return StreamsMemberMetadata(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            topology_epoch=self.topology_epoch,
            process_id=self.process_id,
            user_endpoint=None if endpoint is None else StreamsEndpoint(host=endpoint[0], port=endpoint[1]),
            client_tags=[StreamsKeyValue(key=key, value=value) for key, value in self.client_tags],
        )

    def current_record(self) -> StreamsMemberCurrent:
        """Returns the record of its current assignment."""
        return StreamsMemberCurrent(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_epoch,
            state=_NUMBERS[self.state],
            active_tasks=_active_rows(self.assigned.active),
            standby_tasks=_current_rows(self.assigned.standby),
            warmup_tasks=_current_rows(self.assigned.warmup),
            active_tasks_pending_revocation=_active_rows(self.revoking.active),
            standby_tasks_pending_revocation=_current_rows(self.revoking.standby),
            warmup_tasks_pending_revocation=_current_rows(self.revoking.warmup),
        )

    def with_metadata(self, value: StreamsMemberMetadata) -> StreamsThreadMember:
        """Returns the member after a record of its metadata."""
        endpoint = value.user_endpoint
        return msgspec.structs.replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topology_epoch=value.topology_epoch,
            process_id=value.process_id,
            user_endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
            client_tags=tags_of(value.client_tags),
        )

    def with_current(self, value: StreamsMemberCurrent | None) -> StreamsThreadMember:
        """Returns the member after a record of its current assignment; None is the tombstone."""
        if value is None:
            return msgspec.structs.replace(
                self,
                member_epoch=LEAVE_EPOCH,
                previous_epoch=LEAVE_EPOCH,
                state=next_state(self.state, MemberEvent.CLEARED),
                assigned=NO_TASKS,
                revoking=NO_TASKS,
            )
        epoch = max(value.member_epoch, 0)
        return msgspec.structs.replace(
            self,
            member_epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=_STATES.get(value.state, MemberState.UNKNOWN),
            assigned=AssignedTasks(
                _active_tasks(value.active_tasks, epoch),
                replica_tasks(value.standby_tasks),
                replica_tasks(value.warmup_tasks),
            ),
            revoking=AssignedTasks(
                _active_tasks(value.active_tasks_pending_revocation, epoch),
                replica_tasks(value.standby_tasks_pending_revocation),
                replica_tasks(value.warmup_tasks_pending_revocation),
            ),
        )


def tags_of(rows: Iterable[StreamsKeyValue]) -> tuple[tuple[str, str], ...]:
    """Returns client tags. If a key is listed twice, the last entry wins."""
    return tuple(sorted({row.key: row.value for row in rows}.items()))


def replica_tasks(rows: Iterable[StreamsTaskIds] | Iterable[CurrentTaskIds]) -> ReplicaTasks:
    """Returns the tasks in rows of a record or a request."""
    found: dict[str, frozenset[int]] = {}
    for row in rows:
        if row.partitions:
            found[row.subtopology_id] = found.get(row.subtopology_id, frozenset()) | frozenset(row.partitions)
    return found


def tasks_of(value: StreamsMemberTarget) -> Tasks:
    """Returns the tasks that a target record assigns to its member."""
    return Tasks(
        active=replica_tasks(value.active_tasks),
        standby=replica_tasks(value.standby_tasks),
        warmup=replica_tasks(value.warmup_tasks),
    )


def task_rows(tasks: Mapping[str, Iterable[int]]) -> list[StreamsTaskIds]:
    """Returns the rows of tasks in a record or a response, sorted."""
    return [StreamsTaskIds(subtopology_id=name, partitions=sorted(tasks[name])) for name in sorted(tasks)]


def target_record(tasks: Tasks) -> StreamsMemberTarget:
    """Returns the record of a member's part of the target."""
    return StreamsMemberTarget(
        active_tasks=task_rows(tasks.active),
        standby_tasks=task_rows(tasks.standby),
        warmup_tasks=task_rows(tasks.warmup),
    )


def _current_rows(tasks: ReplicaTasks) -> list[CurrentTaskIds]:
    return [CurrentTaskIds(subtopology_id=name, partitions=sorted(tasks[name])) for name in sorted(tasks)]


def _active_rows(tasks: ActiveTasks) -> list[CurrentTaskIds]:
    rows = []
    for name in sorted(tasks):
        numbers, epochs = zip(*sorted(tasks[name].items()), strict=True)
        rows.append(CurrentTaskIds(subtopology_id=name, partitions=list(numbers), assignment_epochs=list(epochs)))
    return rows


def _active_tasks(rows: Iterable[CurrentTaskIds], default: int) -> ActiveTasks:
    """Returns the active tasks in a record. Records of older coordinators have no epochs, and get `default`."""
    found: dict[str, dict[int, int]] = {}
    for row in rows:
        epochs = row.assignment_epochs
        if epochs is None or len(epochs) != len(row.partitions):
            epochs = [default] * len(row.partitions)
        if row.partitions:
            found.setdefault(row.subtopology_id, {}).update(zip(row.partitions, epochs, strict=True))
    return found


def config_rows(configs: Mapping[str, str]) -> list[StreamsKeyValue]:
    """Returns settings as rows of a record, sorted."""
    return [StreamsKeyValue(key=key, value=configs[key]) for key in sorted(configs)]
