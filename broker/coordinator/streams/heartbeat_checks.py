"""Checks of StreamsGroupHeartbeat: what needs no group, and what a member reports about its tasks.

Guards: nothing in a request makes the broker keep more than `TASK_OFFSETS_MAX` offsets of a member, or a topology of
more than `SUBTOPOLOGIES_MAX` and `TOPICS_MAX`.

Source: Kafka's `GroupCoordinatorService.throwIfStreamsGroupHeartbeatRequestIsInvalid`, `KafkaApis`, in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from lowtide.broker.coordinator.modern.group_decision import GroupRefusal
from lowtide.broker.coordinator.streams.streams_group import NO_OFFSETS, MemberOffsets
from lowtide.broker.coordinator.streams.streams_member import StreamsThreadMember, replica_tasks
from lowtide.broker.coordinator.streams.tasks import TaskId, Tasks
from lowtide.broker.coordinator.streams.topology import ConfiguredTopology
from lowtide.broker.coordinator.streams.topology_records import topic_names
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.streams_group_heartbeat import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    HeartbeatSubtopology,
    HeartbeatTopology,
    StreamsGroupHeartbeatRequest,
    StreamsTaskIds,
    StreamsTaskOffset,
)
from lowtide.replication.topic_names import INTERNAL_TOPICS, check_topic_name

TASK_OFFSETS_MAX: Final = 10_000
SUBTOPOLOGIES_MAX: Final = 1_000
TOPICS_MAX: Final = 10_000
"""Kafka has none of these limits."""


def check_heartbeat(request: StreamsGroupHeartbeatRequest) -> GroupRefusal | None:
    """Checks the fields of a heartbeat. Errors: INVALID_REQUEST, STREAMS_INVALID_TOPOLOGY."""
    topology = request.topology
    refusal = check_topics(request)
    if refusal is not None:
        return refusal
    message = _check_fields(request)
    if not message and request.member_epoch == JOIN_EPOCH:
        message = _check_join(request)
        refusal = None if message or topology is None else _check_topology(topology)
    if refusal is not None:
        return refusal
    message = message or _check_tasks_fields(request)
    return _invalid(message) if message else None


def _check_fields(request: StreamsGroupHeartbeatRequest) -> str:
    if request.topology is not None and any(row.source_topic_regex for row in request.topology.subtopologies):
        return "Regular expressions for source topics are not supported yet."
    for name, text in (
        ("MemberId", request.member_id),
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if text is not None and not text.strip():
            return f"{name} can't be empty."
    if request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        return "InstanceId can't be null."
    if request.member_epoch < STATIC_LEAVE_EPOCH:
        return f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -2."
    return ""


def _check_join(request: StreamsGroupHeartbeatRequest) -> str:
    if request.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    for name, tasks in (
        ("ActiveTasks", request.active_tasks),
        ("StandbyTasks", request.standby_tasks),
        ("WarmupTasks", request.warmup_tasks),
    ):
        if tasks is None or tasks:
            return f"{name} must be empty when (re-)joining."
    return "" if request.topology is not None else "Topology must be non-null when (re-)joining."


def _check_tasks_fields(request: StreamsGroupHeartbeatRequest) -> str:
    given = [tasks is not None for tasks in (request.active_tasks, request.standby_tasks, request.warmup_tasks)]
    if any(given) and not all(given):
        return "If one task-type is non-null, all must be non-null."
    if request.member_epoch != JOIN_EPOCH and request.topology is not None:
        return "Topology can only be provided when (re-)joining."
    return ""


def _check_topology(topology: HeartbeatTopology) -> GroupRefusal | None:
    rows = topology.subtopologies
    for row in rows:
        for topic in row.state_changelog_topics:
            if topic.partitions != 0:
                return _bad_topology(
                    f"Changelog topic {topic.name} must have an undefined partition count, but it is set to"
                    f" {topic.partitions}."
                )
        if not all(map(_is_within, *_places(row))):
            return _bad_topology(f"A copartition group of subtopology {row.subtopology_id} names no topic of it.")
    if topology.epoch < 0:
        return _bad_topology("Topology epoch must be non-negative.")
    if len({row.subtopology_id for row in rows}) < len(rows):
        return _bad_topology("A subtopology is listed twice.")
    if len(rows) > SUBTOPOLOGIES_MAX or len(topic_names(topology)) > TOPICS_MAX:
        return _bad_topology(f"A topology has {SUBTOPOLOGIES_MAX} subtopologies and {TOPICS_MAX} topics at most.")
    return None


def _places(row: HeartbeatSubtopology) -> tuple[list[int], list[int]]:
    """Returns the positions in a subtopology's copartition groups, and the length of the list that each is in."""
    places, lengths = [], []
    for group in row.copartition_groups:
        for numbers, count in (
            (group.source_topics, len(row.source_topics)),
            (group.source_topic_regex, len(row.source_topic_regex)),
            (group.repartition_source_topics, len(row.repartition_source_topics)),
        ):
            places += numbers
            lengths += [count] * len(numbers)
    return places, lengths


def _is_within(place: int, length: int) -> bool:
    return 0 <= place < length


def check_topics(request: StreamsGroupHeartbeatRequest) -> GroupRefusal | None:
    """Checks the names of a topology's topics, before permissions on them. Errors: STREAMS_INVALID_TOPOLOGY."""
    if request.topology is None:
        return None
    names = topic_names(request.topology)
    internal = [name for name in names if name in INTERNAL_TOPICS]
    if internal:
        return _bad_topology(
            f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited."
        )
    invalid = [name for name in names if check_topic_name(name) is not None]
    return _bad_topology(f"Topic names {','.join(invalid)} are not valid topic names.") if invalid else None


def _invalid(message: str) -> GroupRefusal:
    return GroupRefusal(ErrorCode.INVALID_REQUEST, message)


def _bad_topology(message: str) -> GroupRefusal:
    return GroupRefusal(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)


# ---------------------------------------------------------------------- tasks
def owned_of(request: StreamsGroupHeartbeatRequest) -> Tasks | None:
    """Returns the tasks that a member reports; None if it reports none."""
    if request.active_tasks is None or request.standby_tasks is None or request.warmup_tasks is None:
        return None
    return Tasks(
        active=replica_tasks(request.active_tasks),
        standby=replica_tasks(request.standby_tasks),
        warmup=replica_tasks(request.warmup_tasks),
    )


def check_epoch(member: StreamsThreadMember, request: StreamsGroupHeartbeatRequest) -> GroupRefusal | None:
    """Checks a member's epoch. A member may use its previous epoch: it may have missed the last response.

    Errors: FENCED_MEMBER_EPOCH.
    """
    epoch, known = request.member_epoch, member.member_epoch
    if epoch == known:
        return None
    owned = owned_of(request)
    if epoch < known and epoch == member.previous_epoch and owned is not None and _has_all(member, owned):
        return None
    word = "greater" if epoch > known else "smaller"
    message = (
        f"The streams group member has a {word} member epoch ({epoch}) than the one known by the group coordinator"
        f" ({known}). The member must abandon all its partitions and rejoin."
    )
    return GroupRefusal(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _has_all(member: StreamsThreadMember, owned: Tasks) -> bool:
    assigned = member.assigned
    return (
        _covers(assigned.active, owned.active)
        and _covers(assigned.standby, owned.standby)
        and _covers(assigned.warmup, owned.warmup)
    )


def _covers(assigned: Mapping[str, Iterable[int]], owned: Mapping[str, frozenset[int]]) -> bool:
    return all(numbers <= set(assigned.get(name, ())) for name, numbers in owned.items())


def check_tasks(configured: ConfiguredTopology, request: StreamsGroupHeartbeatRequest) -> GroupRefusal | None:
    """Checks that the tasks which a member reports are in its topology, if that is ready. Errors: INVALID_REQUEST."""
    if configured.refusal is not None or configured.subtopologies is None:
        return None
    rows: list[StreamsTaskIds] = [
        *(request.active_tasks or ()),
        *(request.standby_tasks or ()),
        *(request.warmup_tasks or ()),
    ]
    for row in rows:
        subtopology = configured.subtopologies.get(row.subtopology_id)
        if subtopology is None:
            return _invalid(f"Subtopology {row.subtopology_id} does not exist in the topology.")
        count = subtopology.number_of_tasks
        for number in row.partitions:
            if not 0 <= number < count:
                return _invalid(
                    f"Task {number} for subtopology {row.subtopology_id} is invalid. Number of tasks for this"
                    f" subtopology: {count}"
                )
    return None


def offsets_after(
    known: MemberOffsets | None, request: StreamsGroupHeartbeatRequest
) -> MemberOffsets | GroupRefusal | None:
    """Returns a member's task offsets after a heartbeat; None if it reports none. Errors: INVALID_REQUEST."""
    if request.task_offsets is None and request.task_end_offsets is None:
        return None
    before = NO_OFFSETS if known is None else known
    offsets = before.offsets if request.task_offsets is None else _by_task(request.task_offsets)
    ends = before.end_offsets if request.task_end_offsets is None else _by_task(request.task_end_offsets)
    if isinstance(offsets, GroupRefusal):
        return offsets
    return ends if isinstance(ends, GroupRefusal) else MemberOffsets(offsets, ends)


def _by_task(rows: list[StreamsTaskOffset]) -> dict[TaskId, int] | GroupRefusal:
    if len(rows) > TASK_OFFSETS_MAX:
        return _invalid(f"Task offsets contain {len(rows)} entries; allowed are {TASK_OFFSETS_MAX}.")
    found: dict[TaskId, int] = {}
    for row in rows:
        task = row.subtopology_id, row.partition
        if task in found:
            return _invalid(
                f"Task offsets contain a duplicate entry for subtopology {row.subtopology_id} and partition"
                f" {row.partition}."
            )
        found[task] = row.offset
    return found
