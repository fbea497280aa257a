"""What members of a classic group do between rebalances: fetch their assignments, show that they live, leave.

Source: Kafka's `GroupMetadataManager.classicGroupSync`, `classicGroupHeartbeat`, `classicGroupLeave`; KIP-345, KIP-559.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup, GroupState
from lowtide.broker.coordinator.classic.rebalancing import NO_MEMBER_ID, Rebalancing, sync_failed, synced
from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.leave_group import MemberIdentity, MemberResponse
from lowtide.protocol.messages.sync_group import SyncGroupRequest


class Membership:
    """Requests of members of one coordinator's groups."""

    def __init__(self, rebalancing: Rebalancing) -> None:
        self._rebalancing = rebalancing

    def sync(self, group: ClassicGroup, request: SyncGroupRequest, reply: Reply, effects: Effects) -> None:
        """Give a member its assignment; until the leader has brought them all, and they are kept, it waits."""
        error = _check_sync(group, request)
        if error != ErrorCode.NONE:
            effects.answer(reply, sync_failed(error))
            return
        member = group.members[request.member_id]
        self._rebalancing.note_synced(group, member.member_id)
        if group.state is GroupState.STABLE:
            effects.answer(reply, synced(group, member))
            return
        if member.awaiting_sync is not None:  # Its client has given that request up.
            effects.answer(member.awaiting_sync, sync_failed(ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = reply
        if member.member_id == group.leader_id:
            self._rebalancing.assign(group, {row.member_id: row.assignment for row in request.assignments}, effects)

    def heartbeat(self, group: ClassicGroup, member_id: str, group_instance_id: str | None, generation_id: int, now_ms: int) -> ErrorCode:
        """Note that a member lives; REBALANCE_IN_PROGRESS asks it to join again.

        Errors: COORDINATOR_NOT_AVAILABLE, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION.
        """
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = group.check_member(member_id, group_instance_id)
        if error != ErrorCode.NONE:
            return error
        if generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        self._rebalancing.extend_session(group, group.members[member_id], now_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING_REBALANCE else ErrorCode.NONE

    def leave(self, group: ClassicGroup, members: Sequence[MemberIdentity], effects: Effects) -> list[MemberResponse]:
        """Let members go; each is told whether it was one."""
        rows = []
        for identity in members:
            error = self._leave(group, identity, effects)
            rows.append(MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=error))
        if any(row.error_code == ErrorCode.NONE for row in rows):
            if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                self._rebalancing.rebalance_or_complete(group, effects)
            else:
                self._rebalancing.complete_join_if_all_joined(group, effects)
        return rows

    def _leave(self, group: ClassicGroup, identity: MemberIdentity, effects: Effects) -> ErrorCode:
        member_id = identity.member_id
        if member_id == NO_MEMBER_ID:
            static_id = group.static_members.get(identity.group_instance_id) if identity.group_instance_id is not None else None
            if static_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = static_id
        elif member_id not in group.pending_join:
            error = group.check_member(member_id, identity.group_instance_id)
            if error != ErrorCode.NONE:
                return error
        member = group.members.get(member_id)
        if member is not None:
            self._rebalancing.drop_waiting(group, member, effects)
        self._rebalancing.end_session(group, member_id)
        group.remove(member_id)
        return ErrorCode.NONE


def _check_sync(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.state is GroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.check_member(request.member_id, request.group_instance_id)
    if error != ErrorCode.NONE:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if request.protocol_type not in (None, group.protocol_type) or request.protocol_name not in (None, group.protocol_name):
        # In a rebalance the group's protocol is that of the generation before, and this member knows it.
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING_REBALANCE else ErrorCode.NONE
