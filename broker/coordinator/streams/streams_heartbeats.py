"""StreamsGroupHeartbeat: a member joins with its topology, reports its tasks, gets its assignment, and leaves.

Guards: a member with an unexpected epoch or another member's place changes nothing; a group has no more members than
`group.streams.max.size`, and never more than `MEMBERS_MAX`.

Source: Kafka's `GroupMetadataManager.streamsGroupHeartbeat`, `streamsGroupLeave`; KIP-1071.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.modern.group_decision import GroupRefusal
from lowtide.broker.coordinator.modern.modern_groups import NO_ROOM_FOR_MEMBER
from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.broker.coordinator.streams.heartbeat_checks import (
    check_epoch,
    check_tasks,
    offsets_after,
    owned_of,
)
from lowtide.broker.coordinator.streams.streams_decision import StreamsDecision
from lowtide.broker.coordinator.streams.streams_group import MemberOffsets, StreamsGroup
from lowtide.broker.coordinator.streams.streams_groups import StreamsGroups
from lowtide.broker.coordinator.streams.streams_member import (
    AssignedTasks,
    StreamsThreadMember,
    config_rows,
    tags_of,
    task_rows,
)
from lowtide.broker.coordinator.streams.streams_settings import RACK_AWARE_TAGS, tags_in
from lowtide.broker.coordinator.streams.streams_targets import NextTarget
from lowtide.broker.coordinator.streams.topology import ConfiguredTopology, InternalTopicSpec, Topology
from lowtide.broker.coordinator.streams.topology_records import is_same, topology_of
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.streams_group_heartbeat import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    HeartbeatStatus,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsStatus,
)
from lowtide.protocol.streams_group_records import (
    NO_TOPOLOGY_EPOCH,
    StreamsGroupEpoch,
    StreamsGroupTopology,
    StreamsRecordType,
)
from lowtide.replication.refusal import cut_message

MEMBERS_MAX: Final = 10_000
"""The most members of a group, however large `group.streams.max.size` is: each costs an assignor time. Kafka has no
such limit."""

MISSING_TAGS_SINCE: Final = 1
"""The first version in which members learn of missing client tags."""


class StreamsHeartbeat(msgspec.Struct):
    """The response to a heartbeat, and the internal topics that are to be created for it."""

    response: StreamsGroupHeartbeatResponse
    to_create: Mapping[str, InternalTopicSpec] = {}


def heartbeat_failed(error: ErrorCode, message: str | None = None) -> StreamsGroupHeartbeatResponse:
    """Returns the response to a heartbeat that failed."""
    return StreamsGroupHeartbeatResponse(error_code=error, error_message=cut_message(message))


def _failed(error: ErrorCode, message: str | None = None) -> StreamsHeartbeat:
    return StreamsHeartbeat(heartbeat_failed(error, message))


class _Beat(msgspec.Struct):
    """What one heartbeat has found out so far."""

    decision: StreamsDecision
    known: StreamsThreadMember
    updated: StreamsThreadMember
    topology: Topology
    configured: ConfiguredTopology
    rises: bool
    tags: str = ""
    """The tag keys of rack-aware assignments."""
    statuses: list[HeartbeatStatus] = msgspec.field(default_factory=list)

    def report(self, code: int, detail: str) -> None:
        """Adds a status to the response."""
        self.statuses.append(HeartbeatStatus(status_code=code, status_detail=detail))


class StreamsHeartbeats:
    """Heartbeats of members of one coordinator's streams groups."""

    def __init__(self, groups: StreamsGroups) -> None:
        self._groups = groups

    def heartbeat(
        self, request: StreamsGroupHeartbeatRequest, client: MemberClient, reply: Reply, effects: Effects
    ) -> None:
        """Answers a heartbeat that `check_heartbeat` has passed.

        Errors: GROUP_ID_NOT_FOUND, GROUP_MAX_SIZE_REACHED, COORDINATOR_LOAD_IN_PROGRESS, UNKNOWN_MEMBER_ID,
        FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID, INVALID_REQUEST, STREAMS_INVALID_TOPOLOGY.
        """
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            answer = self._leave(request, effects)
        else:
            answer = self._update(request, client, effects)
        if isinstance(answer, GroupRefusal):
            effects.answer(reply, _failed(answer.error, answer.message))
        else:
            effects.answer_when_committed(reply, answer, _failed)

    # ------------------------------------------------------------------ a heartbeat
    def _update(
        self, request: StreamsGroupHeartbeatRequest, client: MemberClient, effects: Effects
    ) -> StreamsHeartbeat | GroupRefusal:
        groups, group_id = self._groups, request.group_id
        decision = groups.open(group_id, effects, creates=request.member_epoch == JOIN_EPOCH)
        if isinstance(decision, GroupRefusal):
            return decision
        beat = self._begin(decision, request, client)
        if isinstance(beat, GroupRefusal):
            return beat
        group = decision.group
        offsets = offsets_after(group.reports.task_offsets.get(request.member_id), request)
        if isinstance(offsets, GroupRefusal):
            return offsets
        epoch = self._next_epoch(beat)
        groups.targets.delay_first(group, effects.now_ms)
        target = groups.targets.next(decision, epoch, beat.updated, beat.configured, effects)
        after = groups.reconcile_member(decision, beat.updated, target, owned_of(request), effects.now_ms)
        if isinstance(after, GroupRefusal):
            return after
        groups.extend_session(group, after, effects.now_ms)
        self._note(group, request, offsets)
        response = self._response(beat, after, request, target, client.api_version)
        decision.carry_out(effects)
        return StreamsHeartbeat(response, beat.configured.internal_topics_to_create if beat.configured.refusal else {})

    def _begin(
        self, decision: StreamsDecision, request: StreamsGroupHeartbeatRequest, client: MemberClient
    ) -> _Beat | GroupRefusal:
        """Takes over a member's metadata and topology."""
        group = decision.group
        if request.member_epoch == JOIN_EPOCH and self._is_full(group, request):
            message = f"The streams group has reached its maximum capacity of {len(group.members)} members."
            return GroupRefusal(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
        known = _find_member(decision, request)
        if isinstance(known, GroupRefusal):
            return known
        updated = _updated(known, request, client)
        if not self._has_room(group, updated):
            return NO_ROOM_FOR_MEMBER
        rises = False
        if updated != known:
            decision.keep(StreamsRecordType.MEMBER, updated.member_id, updated.metadata_record())
            rises = request.instance_id is None or not updated.is_assigned_like(known)
        topology = _next_topology(decision, request)
        if isinstance(topology, GroupRefusal):
            return topology
        configured = self._groups.targets.configure(group, topology)
        reason = configured.refusal
        if reason is not None and reason.is_invalid:
            return GroupRefusal(ErrorCode.STREAMS_INVALID_TOPOLOGY, reason.detail)
        refusal = check_tasks(configured, request)
        return refusal or _Beat(decision, known, updated, topology, configured, rises)

    def _is_full(self, group: StreamsGroup, request: StreamsGroupHeartbeatRequest) -> bool:
        if len(group.members) < min(self._groups.settings.max_size, MEMBERS_MAX):
            return False
        return request.member_id not in group.members and request.instance_id not in group.static_members

    def _has_room(self, group: StreamsGroup, member: StreamsThreadMember) -> bool:
        memory, known = self._groups.resources.memory, group.members.get(member.member_id)
        more_bytes = member.size_bytes - (known.size_bytes if known is not None else 0)
        if memory.has_room(group.memory.held_bytes, more_bytes):
            return True
        memory.refused_count += 1
        return False

    def _next_epoch(self, beat: _Beat) -> int:
        """Returns the group's epoch after a heartbeat. It rises with members, topics, readiness and settings."""
        group, configured = beat.decision.group, beat.configured
        validated = NO_TOPOLOGY_EPOCH if configured.refusal is not None else beat.topology.epoch
        configs = self._groups.settings.assignment_configs(group.group_id)
        beat.tags = configs.get(RACK_AWARE_TAGS, "")
        if not (
            beat.rises
            or configured.metadata_hash != group.metadata_hash
            or validated != group.validated_epoch
            or configs != group.assignment_configs
        ):
            return group.group_epoch
        epoch = group.group_epoch + 1
        value = StreamsGroupEpoch(
            epoch=epoch,
            metadata_hash=configured.metadata_hash,
            validated_topology_epoch=validated,
            last_assignment_configs=config_rows(configs),
            stored_description_topology_epoch=group.description_epochs[0],
            failed_description_topology_epoch=group.description_epochs[1],
        )
        beat.decision.keep(StreamsRecordType.GROUP, "", value)
        return epoch

    @staticmethod
    def _note(group: StreamsGroup, request: StreamsGroupHeartbeatRequest, offsets: MemberOffsets | None) -> None:
        """Keeps what is in no record. The heartbeat that creates a group has no place for it yet."""
        if offsets is not None and request.member_id in group.members:
            group.note_offsets(request.member_id, offsets)
        if request.shutdown_application and group.reports.shutdown_by is None:
            group.reports.shutdown_by = request.member_id

    # ------------------------------------------------------------------ the response
    def _response(
        self,
        beat: _Beat,
        after: StreamsThreadMember,
        request: StreamsGroupHeartbeatRequest,
        target: NextTarget,
        api_version: int,
    ) -> StreamsGroupHeartbeatResponse:
        group, known, settings = beat.decision.group, beat.known, self._groups.settings
        tasks_changed = known.assigned != after.assigned
        if known.user_endpoint != after.user_endpoint or (tasks_changed and after.user_endpoint is not None):
            group.reports.endpoint_epoch += 1
        self._report(beat, target, api_version)
        response = StreamsGroupHeartbeatResponse(
            member_id=after.member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=settings.heartbeat_interval_ms(group.group_id),
            task_offset_interval_ms=settings.task_offset_interval_ms(group.group_id),
            acceptable_recovery_lag=settings.acceptable_recovery_lag(group.group_id),
            status=beat.statuses,
            endpoint_information_epoch=0 if beat.decision.is_new else group.reports.endpoint_epoch,
        )
        owned = owned_of(request)
        # Kafka does not repeat tasks whose answer was lost, and the member would never learn of them.
        may_have_missed = request.member_epoch != known.member_epoch or (
            owned is not None and owned != after.assigned.tasks
        )
        if request.member_epoch == JOIN_EPOCH or tasks_changed or may_have_missed:
            response.active_tasks = task_rows(after.assigned.active)
            response.standby_tasks = task_rows(after.assigned.standby)
            response.warmup_tasks = task_rows(after.assigned.warmup)
        if group.reports.endpoint_epoch != request.endpoint_information_epoch:
            members = group.members_with(after).values()
            response.partitions_by_user_endpoint = self._groups.endpoints(group, members)
        return response

    @staticmethod
    def _report(beat: _Beat, target: NextTarget, api_version: int) -> None:
        """Adds the statuses, in Kafka's order."""
        group, member = beat.decision.group, beat.updated
        if member.topology_epoch < group.topology.epoch:
            detail = (
                f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch"
                f" {group.topology.epoch}."
            )
            beat.report(StreamsStatus.STALE_TOPOLOGY, detail)
        if target.delay:
            beat.report(StreamsStatus.ASSIGNMENT_DELAYED, target.delay)
        if beat.configured.refusal is not None:
            beat.report(beat.configured.refusal.status, beat.configured.refusal.detail)
        if group.reports.shutdown_by is not None:
            detail = (
                f"Streams group member {group.reports.shutdown_by} encountered a fatal error and requested a"
                " shutdown for the entire application."
            )
            beat.report(StreamsStatus.SHUTDOWN_APPLICATION, detail)
        given = {key for key, _ in member.client_tags}
        wanted = tags_in(beat.tags) if api_version >= MISSING_TAGS_SINCE else ()
        missing = [tag for tag in wanted if tag not in given]
        if missing:
            detail = (
                f"Missing required client tags for rack-aware standby assignment: [{', '.join(missing)}]. Configure"
                " them via 'client.tag.<tagKey>' in your Streams config."
            )
            beat.report(StreamsStatus.MISSING_CLIENT_TAGS, detail)

    # ------------------------------------------------------------------ leaving
    def _leave(self, request: StreamsGroupHeartbeatRequest, effects: Effects) -> StreamsHeartbeat | GroupRefusal:
        group = self._groups.find(request.group_id)
        if group is None:
            is_other = request.group_id in self._groups.by_id
            reason = "is not a streams group" if is_other else "not found"
            return GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} {reason}.")
        decision = StreamsDecision(group)
        if request.shutdown_application and group.reports.shutdown_by is None:
            group.reports.shutdown_by = request.member_id
        member = group.find_member(request.member_id, request.instance_id)
        if isinstance(member, ErrorCode):
            return _no_member(member, request, group)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            left = msgspec.structs.replace(
                member,
                member_epoch=STATIC_LEAVE_EPOCH,
                assigned=member.assigned.with_epochs_reset(),
                revoking=AssignedTasks(),
            )
            decision.keep(StreamsRecordType.CURRENT, left.member_id, left.current_record())
            decision.carry_out(effects)
        else:
            self._groups.fence(group, member, effects)
        return StreamsHeartbeat(
            StreamsGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch, status=[])
        )


def _no_member(error: ErrorCode, request: StreamsGroupHeartbeatRequest, group: StreamsGroup) -> GroupRefusal:
    if error is ErrorCode.FENCED_INSTANCE_ID:
        owner = group.static_members[request.instance_id or ""]
        message = (
            f"Static member {request.member_id} with instance id {request.instance_id} was fenced by member {owner}."
        )
    elif request.instance_id is not None:
        message = f"Instance id {request.instance_id} is unknown."
    else:
        message = f"Member {request.member_id} is not a member of group {group.group_id}."
    return GroupRefusal(error, message)


def _find_member(
    decision: StreamsDecision, request: StreamsGroupHeartbeatRequest
) -> StreamsThreadMember | GroupRefusal:
    """Returns the member that sent a heartbeat, a new one, or one that takes over an instance id."""
    group, epoch, member_id = decision.group, request.member_epoch, request.member_id
    if epoch != JOIN_EPOCH:
        found = group.find_member(member_id, request.instance_id)
        if isinstance(found, ErrorCode):
            return _no_member(found, request, group)
        return check_epoch(found, request) or found
    existing_id = None if request.instance_id is None else group.static_members.get(request.instance_id)
    if existing_id is None:
        return group.members.get(member_id, StreamsThreadMember(member_id=member_id))
    existing = group.members[existing_id]
    if existing.member_epoch != STATIC_LEAVE_EPOCH:
        message = (
            f"Static member {member_id} with instance id {request.instance_id} cannot join the group because the"
            f" instance id is owned by {existing_id} member."
        )
        return GroupRefusal(ErrorCode.UNRELEASED_INSTANCE_ID, message)
    new = msgspec.structs.replace(existing, member_id=member_id, member_epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
    decision.replace(existing, new)
    return new


def _updated(
    member: StreamsThreadMember, request: StreamsGroupHeartbeatRequest, client: MemberClient
) -> StreamsThreadMember:
    """Returns the member with the fields of a heartbeat. Null keeps the old value, but joining removes the endpoint."""
    timeout_ms, sent = request.rebalance_timeout_ms, request.user_endpoint
    endpoint = member.user_endpoint if request.member_epoch != JOIN_EPOCH else None
    tags = request.client_tags
    return msgspec.structs.replace(
        member,
        instance_id=request.instance_id if request.instance_id is not None else member.instance_id,
        rack_id=request.rack_id if request.rack_id is not None else member.rack_id,
        rebalance_timeout_ms=timeout_ms if timeout_ms != -1 else member.rebalance_timeout_ms,
        topology_epoch=request.topology.epoch if request.topology is not None else member.topology_epoch,
        client_id=client.client_id,
        client_host=client.host,
        process_id=request.process_id if request.process_id is not None else member.process_id,
        user_endpoint=(sent.host, sent.port) if sent is not None else endpoint,
        client_tags=tags_of(tags) if tags is not None else member.client_tags,
    )


def _next_topology(decision: StreamsDecision, request: StreamsGroupHeartbeatRequest) -> Topology | GroupRefusal:
    """Returns the group's topology, which is that of its first member.

    Errors: INVALID_REQUEST for another topology of the same or a newer epoch; FENCED_MEMBER_EPOCH if the group has lost
    its topology, so that a member joins again with one.
    """
    group, sent = decision.group, request.topology
    known = group.topology
    if known.parsed is None or known.record is None:
        if sent is None:
            return GroupRefusal(ErrorCode.FENCED_MEMBER_EPOCH, f"Group {group.group_id} has no topology.")
        record = StreamsGroupTopology(epoch=sent.epoch, subtopologies=sent.subtopologies)
        decision.keep(StreamsRecordType.TOPOLOGY, "", record)
        return topology_of(record)
    if sent is not None and sent.epoch >= known.epoch and not is_same(known.record, sent):
        return GroupRefusal(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
    return known.parsed
