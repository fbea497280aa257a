"""ShareGroupHeartbeat: a member joins, receives its partitions, and leaves.

Source: Kafka's `GroupMetadataManager.shareGroupHeartbeat`, `shareGroupLeave`; KIP-932.
"""

from __future__ import annotations

import msgspec

from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.modern.group_decision import GroupDecision, GroupRefusal, check_not_blank
from lowtide.broker.coordinator.modern.modern_groups import NO_ROOM_FOR_MEMBER
from lowtide.broker.coordinator.modern.modern_member import ModernMember, topic_rows
from lowtide.broker.coordinator.modern.share_group import ShareGroup
from lowtide.broker.coordinator.modern.share_groups import ShareGroups
from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.share_group_heartbeat import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareHeartbeatAssignment,
    ShareHeartbeatTopicPartitions,
)
from lowtide.replication.refusal import cut_message


def heartbeat_failed(error: ErrorCode, message: str | None = None) -> ShareGroupHeartbeatResponse:
    """Returns the response to a heartbeat that failed."""
    return ShareGroupHeartbeatResponse(error_code=error, error_message=cut_message(message))


class ShareHeartbeats:
    """Heartbeats of members of one coordinator's share groups."""

    def __init__(self, groups: ShareGroups) -> None:
        self._groups = groups

    def heartbeat(
        self, request: ShareGroupHeartbeatRequest, client: MemberClient, reply: Reply, effects: Effects
    ) -> None:
        """Answers a heartbeat that `check_heartbeat` has passed.

        Errors: GROUP_ID_NOT_FOUND, GROUP_MAX_SIZE_REACHED, COORDINATOR_LOAD_IN_PROGRESS, UNKNOWN_MEMBER_ID,
        FENCED_MEMBER_EPOCH.
        """
        leaves = request.member_epoch == LEAVE_EPOCH
        response = self._leave(request, effects) if leaves else self._update(request, client, effects)
        if isinstance(response, GroupRefusal):
            effects.answer(reply, heartbeat_failed(response.error, response.message))
        else:
            effects.answer_when_committed(reply, response, heartbeat_failed)

    def _update(
        self, request: ShareGroupHeartbeatRequest, client: MemberClient, effects: Effects
    ) -> ShareGroupHeartbeatResponse | GroupRefusal:
        groups, member_id, joins = self._groups, request.member_id, request.member_epoch == JOIN_EPOCH
        decision = self._open(request.group_id, effects, creates=joins)
        if isinstance(decision, GroupRefusal):
            return decision
        group = decision.group
        known = self._find_member(group, member_id, request.member_epoch)
        if isinstance(known, GroupRefusal):
            return known
        updated = _updated(known, request, client)
        if not groups.resources.has_room(group, updated):
            return NO_ROOM_FOR_MEMBER
        is_new = member_id not in group.members
        if is_new or not updated.has_same_subscription(known):
            decision.keep_subscription(updated)
        rises = is_new or updated.topic_names != known.topic_names
        epoch = groups.next_epoch(decision, known, updated, rises=rises)
        target = groups.next_target(decision, epoch, known, updated, effects)
        target_epoch, assigned = groups.subscribed_target(target, updated)
        after = updated
        if known.member_epoch != target_epoch or updated.assigned != assigned:
            after = msgspec.structs.replace(
                updated, member_epoch=target_epoch, previous_epoch=known.member_epoch, assigned=assigned
            )
            decision.keep_current(after)
        groups.states.initialize_missing(decision, (known, updated), epoch, effects)
        groups.timers.extend_session(group, after, effects.now_ms)
        decision.carry_out(effects)
        reports_all = request.subscribed_topic_names is not None
        response = ShareGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=groups.times.heartbeat_interval_ms(group.group_id),
        )
        if joins or reports_all or after.assigned != known.assigned:
            rows = topic_rows(after.assigned, ShareHeartbeatTopicPartitions)
            response.assignment = ShareHeartbeatAssignment(topic_partitions=rows)
        return response

    def _open(self, group_id: str, effects: Effects, *, creates: bool) -> GroupDecision[ShareGroup] | GroupRefusal:
        """Begins a decision about a group. Creates a group if there is room for it."""
        group = self._groups.find(group_id)
        if group is not None:
            if not group.is_deleting:
                return GroupDecision(group)
            message = f"Share group {group_id}, or where it continues, is being changed."
            return GroupRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)
        if group_id in self._groups.by_id or not creates:
            return _not_a_share_group(group_id)
        return self._groups.resources.check_new_group(effects.now_ms) or GroupDecision(
            ShareGroup(group_id), is_new=True
        )

    def _find_member(self, group: ShareGroup, member_id: str, epoch: int) -> ModernMember | GroupRefusal:
        """Returns the member that sent a heartbeat, or a new one."""
        known = group.members.get(member_id)
        if known is None:
            if epoch != JOIN_EPOCH:
                message = f"Member {member_id} is not a member of group {group.group_id}."
                return GroupRefusal(ErrorCode.UNKNOWN_MEMBER_ID, message)
            if len(group.members) >= self._groups.settings.share_max_size:
                message = f"The group has {len(group.members)} members, as many as it may have."
                return GroupRefusal(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
            return ModernMember(member_id=member_id)
        if epoch in (JOIN_EPOCH, known.member_epoch, known.previous_epoch):
            return known
        message = f"{member_id} is in epoch {known.member_epoch}, not {epoch}; it must join again."
        return GroupRefusal(ErrorCode.FENCED_MEMBER_EPOCH, message)

    def _leave(
        self, request: ShareGroupHeartbeatRequest, effects: Effects
    ) -> ShareGroupHeartbeatResponse | GroupRefusal:
        group = self._groups.find(request.group_id)
        if group is None:
            return _not_a_share_group(request.group_id)
        member = group.members.get(request.member_id)
        if member is None:
            return GroupRefusal(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id} is no member.")
        self._groups.fence(group, [member], effects)
        return ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE_EPOCH)


def check_heartbeat(request: ShareGroupHeartbeatRequest) -> GroupRefusal | None:
    """Checks the fields of a heartbeat. Errors: INVALID_REQUEST.

    Source: `GroupCoordinatorService.throwIfShareGroupHeartbeatRequestIsInvalid`, in its order.
    """
    blank = check_not_blank(MemberId=request.member_id, GroupId=request.group_id, RackId=request.rack_id)
    if blank is not None:
        return blank
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        return GroupRefusal(ErrorCode.INVALID_REQUEST, "SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_EPOCH:
        message = f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -1."
        return GroupRefusal(ErrorCode.INVALID_REQUEST, message)
    return None


def _not_a_share_group(group_id: str) -> GroupRefusal:
    return GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")


def _updated(member: ModernMember, request: ShareGroupHeartbeatRequest, client: MemberClient) -> ModernMember:
    """Returns the member with the fields of a heartbeat. Null keeps the old value."""
    names = request.subscribed_topic_names
    return msgspec.structs.replace(
        member,
        rack_id=request.rack_id if request.rack_id is not None else member.rack_id,
        topic_names=member.topic_names if names is None else frozenset(names),
        client_id=client.client_id,
        client_host=client.host,
    )
