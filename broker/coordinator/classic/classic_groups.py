"""The service of classic groups: joins, syncs, heartbeats, leaves, commits, timeouts, and the end of a group.

Guards: a group without a record exists only while a client is in it or about to join, because clients may name any
number of groups. Source: Kafka's `GroupMetadataManager.classicGroupSync`, `classicGroupHeartbeat`, `classicGroupLeave`;
KIP-345, KIP-559.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.classic.joining import Joining, MemberClient
from lowtide.broker.coordinator.classic.rebalancing import (
    NO_MEMBER_ID,
    Rebalancing,
    TimerKey,
    join_failed,
    sync_failed,
    synced,
)
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.member_memory import MemberMemory
from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.protocol.errors import NONE, ErrorCode
from lowtide.protocol.messages.join_group import JoinGroupRequest
from lowtide.protocol.messages.leave_group import MemberIdentity, MemberResponse
from lowtide.protocol.messages.offset_commit import OffsetCommitRequest
from lowtide.protocol.messages.sync_group import SyncGroupRequest
from lowtide.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from lowtide.protocol.types import UNKNOWN_OFFSET
from lowtide.runtime.random import Random


class ClassicGroups:
    """The service of one coordinator's classic groups."""

    def __init__(
        self,
        by_id: MutableMapping[str, Any],
        settings: GroupSettings,
        timers: Timers[TimerKey],
        memory: MemberMemory,
        random: Random,
    ) -> None:
        """`by_id` also has groups of types that this room doesn't know."""
        self._by_id = by_id
        self._settings = settings
        self._memory = memory
        self.rebalancing = Rebalancing(settings, timers)
        self._joining = Joining(settings, self.rebalancing, random)

    # ------------------------------------------------------------------ beginning and end
    def create(self, group_id: str, wall_ms: int) -> ClassicGroup:
        """Creates a group without members."""
        group = self._by_id[group_id] = ClassicGroup(group_id, wall_ms=wall_ms, memory=self._memory)
        return group

    def drop_if_unused(self, group: ClassicGroup) -> None:
        """Removes a group that has no record and no client."""
        if (
            group.is_unused
            and group.last_record_offset == UNKNOWN_OFFSET
            and group.generation_id == 0
            and self._by_id.get(group.group_id) is group
        ):
            del self._by_id[group.group_id]

    def on_removed(self, group: ClassicGroup) -> None:
        """Removes a group whose tombstone was appended."""
        del self._by_id[group.group_id]
        self.rebalancing.cancel_timers(group)
        group.close()

    @staticmethod
    def remove(group: ClassicGroup, effects: Effects) -> None:
        """Asks for the group's tombstone."""
        effects.keep_group(group.group_id, None)

    def on_loaded(self, group: ClassicGroup, effects: Effects) -> None:
        """Starts the sessions of all members. A group that is now too large rebalances."""
        for member in group.members.values():
            self.rebalancing.extend_session(group, member, effects.now_ms)
        if len(group.members) > self._settings.max_size:
            self.rebalancing.prepare(group, effects)

    @staticmethod
    def on_unloaded(group: ClassicGroup, effects: Effects) -> None:
        """Answers NOT_COORDINATOR to waiting members, and closes the group."""
        for member in group.members.values():
            reply = group.take_awaiting_join(member)
            if reply is not None:
                effects.answer(reply, join_failed(ErrorCode.NOT_COORDINATOR, member.member_id))
            if member.awaiting_sync is not None:
                effects.answer(member.awaiting_sync, sync_failed(ErrorCode.NOT_COORDINATOR))
                member.awaiting_sync = None
        group.close()

    def on_timer(self, group: ClassicGroup, key: TimerKey, effects: Effects) -> None:
        """Handles a member that is late, or the timeout of a rebalance."""
        kind, _, member_id = key
        if kind == "heartbeat":
            self.rebalancing.on_silent(group, member_id, effects)
        elif kind == "join":
            self.rebalancing.on_join_timeout(group, effects)
        elif kind == "sync":
            self.rebalancing.on_sync_timeout(group, effects)
        self.drop_if_unused(group)

    # ------------------------------------------------------------------ commits
    def admit_commit(
        self, group: ClassicGroup, request: OffsetCommitRequest, _api_version: int, now_ms: int
    ) -> ErrorCode:
        """Checks whether a commit is allowed, and extends the member's session. Errors: those of `check_commit`."""
        error = check_commit(group, request.member_id, request.group_instance_id, request.generation_id_or_member_epoch)
        if error == NONE and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self.rebalancing.extend_session(group, group.members[request.member_id], now_ms)
        return error

    @staticmethod
    def check_transactional_commit(group: ClassicGroup, request: TxnOffsetCommitRequest) -> ErrorCode:
        """Checks whether a commit in a transaction is allowed. Errors: those of `check_commit`."""
        generation_id = request.generation_id_or_member_epoch
        return check_commit(group, request.member_id, request.group_instance_id, generation_id, is_transactional=True)

    # ------------------------------------------------------------------ members
    def join(
        self, group: ClassicGroup, request: JoinGroupRequest, client: MemberClient, reply: Reply, effects: Effects
    ) -> None:
        """Handles JoinGroup. Errors: those of `Joining.join`."""
        self._joining.join(group, request, client, reply, effects)
        self.drop_if_unused(group)

    def sync(self, group: ClassicGroup, request: SyncGroupRequest, reply: Reply, effects: Effects) -> None:
        """Returns a member's assignment. The member waits until the leader has sent all, and they are committed."""
        error = _check_sync(group, request)
        if error != NONE:
            effects.answer(reply, sync_failed(error))
            return
        member = group.members[request.member_id]
        self.rebalancing.note_synced(group, member.member_id)
        if group.state is GroupState.STABLE:
            # After a load, the record of the generation may not be committed yet.
            effects.barrier = max(effects.barrier, group.last_record_offset)
            effects.answer_when_committed(reply, synced(group, member), sync_failed)
            return
        if member.awaiting_sync is not None:  # The client has given up that request.
            effects.answer(member.awaiting_sync, sync_failed(ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = reply
        if member.member_id == group.leader_id:
            self.rebalancing.assign(group, {row.member_id: row.assignment for row in request.assignments}, effects)

    def heartbeat(
        self, group: ClassicGroup, member_id: str, group_instance_id: str | None, generation_id: int, now_ms: int
    ) -> ErrorCode:
        """Extends a member's session. REBALANCE_IN_PROGRESS asks it to join again.

        Errors: COORDINATOR_NOT_AVAILABLE, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION.
        """
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = group.check_member(member_id, group_instance_id)
        if error != NONE:
            return error
        if generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        self.rebalancing.extend_session(group, group.members[member_id], now_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING_REBALANCE else NONE

    def leave(self, group: ClassicGroup, members: Sequence[MemberIdentity], effects: Effects) -> list[MemberResponse]:
        """Removes members. Each row tells whether it was one."""
        rows = []
        for identity in members:
            error = self._leave(group, identity, effects)
            rows.append(
                MemberResponse(
                    member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=error
                )
            )
        if any(row.error_code == NONE for row in rows):
            if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                self.rebalancing.rebalance_or_complete(group, effects)
            else:
                self.rebalancing.complete_join_if_all_joined(group, effects)
        self.drop_if_unused(group)
        return rows

    def _leave(self, group: ClassicGroup, identity: MemberIdentity, effects: Effects) -> ErrorCode:
        member_id = identity.member_id
        if member_id == NO_MEMBER_ID:
            static_id = (
                group.static_members.get(identity.group_instance_id) if identity.group_instance_id is not None else None
            )
            if static_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = static_id
        elif member_id not in group.pending_join:
            error = group.check_member(member_id, identity.group_instance_id)
            if error != NONE:
                return error
        member = group.members.get(member_id)
        if member is not None:
            self.rebalancing.drop_waiting(group, member, effects)
        self.rebalancing.end_session(group, member_id)
        group.remove(member_id)
        return NONE


def _check_sync(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.state is GroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.check_member(request.member_id, request.group_instance_id)
    if error != NONE:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if request.protocol_type not in (None, group.protocol_type) or request.protocol_name not in (
        None,
        group.protocol_name,
    ):
        # During a rebalance the group's protocol is that of the last generation, which this member knows.
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING_REBALANCE else NONE


def check_commit(
    group: ClassicGroup,
    member_id: str,
    group_instance_id: str | None,
    generation_id: int,
    *,
    is_transactional: bool = False,
) -> ErrorCode:
    """Checks whether a member may commit offsets.

    A commit without a member has a negative generation and is allowed while the group is empty. Transactional commits
    may omit the member id, as old clients do, and don't fail because of a rebalance.

    Errors: COORDINATOR_NOT_AVAILABLE, UNKNOWN_MEMBER_ID (also without a member, if the group has members),
    FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS. Source: `ClassicGroup.validateOffsetCommit`.
    """
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if generation_id < 0 and group.state is GroupState.EMPTY:
        return NONE
    if generation_id < 0 and not member_id and group_instance_id is None:
        return NONE if is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
    error = group.check_member(member_id, group_instance_id)
    if error != NONE:
        return error
    if generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    is_late = group.state is GroupState.COMPLETING_REBALANCE and not is_transactional
    return ErrorCode.REBALANCE_IN_PROGRESS if is_late else NONE
