"""Joining a classic group: which member is let in under which id, and what that starts.

Guards: a group has no more members than `group.max.size`, no more unused member ids than `PENDING_MEMBERS_MAX`, and no
more memory than `member_memory` allows. A static member that joins again takes over its place and fences its
predecessor.

Source: Kafka's `GroupMetadataManager.classicGroupJoinToClassicGroup`; KIP-345, KIP-394, KIP-389 (the group size),
KIP-814.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.classic.classic_member import ClassicMember
from lowtide.broker.coordinator.classic.classic_record import group_record
from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.classic.rebalancing import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    NO_MEMBER_ID,
    Rebalancing,
    join_failed,
    joined,
    sync_failed,
)
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.member_memory import bytes_of_member
from lowtide.broker.coordinator.runtime.effects import Effects, Reply, append_error
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.join_group import JoinGroupRequest
from lowtide.runtime.random import Random

PENDING_MEMBERS_MAX: Final = 10_000
"""The most unused member ids of one group. Kafka has no such limit. Each takes memory for a session timeout."""

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""Names and metadata of a member's protocols, the preferred one first."""

MEMBER_ID_REQUIRED_SINCE: Final = 4
SKIP_ASSIGNMENT_SINCE: Final = 9


class MemberClient(msgspec.Struct, frozen=True):
    """The client that sends a request."""

    client_id: str
    host: str
    api_version: int
    may_see: Callable[[str], bool] | None = None
    """Whether it may see a topic that a pattern of its group matches; None if it may see all."""


class Joining:
    """Joins to the groups of one coordinator."""

    def __init__(self, settings: GroupSettings, rebalancing: Rebalancing, random: Random) -> None:
        self._settings = settings
        self._rebalancing = rebalancing
        self._random = random

    def join(
        self, group: ClassicGroup, request: JoinGroupRequest, client: MemberClient, reply: Reply, effects: Effects
    ) -> None:
        """Adds a member, or refuses it. The answer waits for the rebalance that this starts, or that is in progress."""
        member_id = request.member_id
        protocols = _protocols(request)
        if not self._has_room(group, member_id):
            group.remove(member_id)
            self._rebalancing.end_session(group, member_id)
            effects.answer(reply, join_failed(ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif group.state is GroupState.DEAD:
            effects.answer(reply, join_failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id))
        elif not group.supports(request.protocol_type, [name for name, _ in protocols]):
            effects.answer(reply, join_failed(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
        elif not group.memory.has_room(_more_bytes(group, request, client, protocols)):
            effects.answer(reply, join_failed(ErrorCode.GROUP_MAX_SIZE_REACHED, member_id))
        elif member_id == NO_MEMBER_ID:
            self._join_new(group, request, client, reply, effects)
        elif member_id in group.pending_join and request.group_instance_id is None:
            self._add(group, request, client, member_id, reply, effects)
        else:
            error = group.check_member(member_id, request.group_instance_id)
            if error != ErrorCode.NONE:
                effects.answer(reply, join_failed(error, member_id))
            else:
                self._join_again(group, request, protocols, reply, effects)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        maximum = self._settings.max_size
        if group.state in (GroupState.EMPTY, GroupState.DEAD):
            return True
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            return (member is not None and member.awaiting_join is not None) or group.awaiting_join_count < maximum
        return member is not None or len(group.members) < maximum

    def _join_new(
        self, group: ClassicGroup, request: JoinGroupRequest, client: MemberClient, reply: Reply, effects: Effects
    ) -> None:
        instance_id = request.group_instance_id
        member_id = f"{client.client_id if instance_id is None else instance_id}-{self._unique()}"
        if instance_id is not None and instance_id in group.static_members:
            self._replace(group, request, client, member_id, reply, effects)
        elif instance_id is not None or client.api_version < MEMBER_ID_REQUIRED_SINCE:
            self._add(group, request, client, member_id, reply, effects)
        elif len(group.pending_join) >= PENDING_MEMBERS_MAX:
            effects.answer(reply, join_failed(ErrorCode.GROUP_MAX_SIZE_REACHED))
        else:
            group.give_out(member_id)
            self._rebalancing.extend_new_member(group, member_id, request.session_timeout_ms, effects.now_ms)
            effects.answer(reply, join_failed(ErrorCode.MEMBER_ID_REQUIRED, member_id))

    def _unique(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def _join_again(
        self, group: ClassicGroup, request: JoinGroupRequest, protocols: Protocols, reply: Reply, effects: Effects
    ) -> None:
        """Handles a known member. Begins a rebalance, unless nothing changes and it does not lead a stable group."""
        member = group.members[request.member_id]
        unchanged = member.protocols == protocols
        is_leader = member.member_id == group.leader_id
        if group.state is GroupState.COMPLETING_REBALANCE and unchanged:
            effects.answer(reply, joined(group, member.member_id, with_members=is_leader))
        elif group.state is GroupState.STABLE and unchanged and not is_leader:
            effects.answer(reply, joined(group, member.member_id, with_members=False))
        elif group.state is GroupState.EMPTY:
            effects.answer(reply, join_failed(ErrorCode.UNKNOWN_MEMBER_ID, member.member_id))
        else:
            self._update(group, member, request, protocols, reply, effects)
            self._rebalancing.rebalance_or_complete(group, effects)

    @staticmethod
    def _update(
        group: ClassicGroup,
        member: ClassicMember,
        request: JoinGroupRequest,
        protocols: Protocols,
        reply: Reply,
        effects: Effects,
    ) -> None:
        """Takes over a member's data. An earlier join that still waits is answered: the client has given up on it."""
        if member.awaiting_join is not None:
            effects.answer(member.awaiting_join, join_failed(ErrorCode.UNKNOWN_MEMBER_ID, member.member_id))
        group.update(member, protocols, _rebalance_timeout_ms(request), request.session_timeout_ms, reply)

    def _add(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        client: MemberClient,
        member_id: str,
        reply: Reply,
        effects: Effects,
    ) -> None:
        member = ClassicMember(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=client.client_id,
            client_host=client.host,
            rebalance_timeout_ms=_rebalance_timeout_ms(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=_protocols(request),
            awaiting_join=reply,
            is_new=True,
        )
        if group.initial_delay is not None:
            group.new_member_added = True
        group.add(member, request.protocol_type)
        self._rebalancing.extend_new_member(group, member_id, NEW_MEMBER_JOIN_TIMEOUT_MS, effects.now_ms)
        self._rebalancing.rebalance_or_complete(group, effects)

    def _replace(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        client: MemberClient,
        member_id: str,
        reply: Reply,
        effects: Effects,
    ) -> None:
        """Handles a static member with a new id.

        In a stable group whose protocol stays the same, this needs no rebalance.
        """
        assert request.group_instance_id is not None
        old_leader_id = group.leader_id
        old, new = group.replace_static(request.group_instance_id, member_id)
        if old.awaiting_join is not None:
            effects.answer(old.awaiting_join, join_failed(ErrorCode.FENCED_INSTANCE_ID, old.member_id))
        if old.awaiting_sync is not None:
            effects.answer(old.awaiting_sync, sync_failed(ErrorCode.FENCED_INSTANCE_ID))
        self._rebalancing.end_session(group, old.member_id)
        group.update(new, _protocols(request), _rebalance_timeout_ms(request), request.session_timeout_ms, reply)
        self._rebalancing.extend_session(group, new, effects.now_ms)
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            self._keep_replaced(group, old, new, client, old_leader_id, effects)
        elif group.state is GroupState.PREPARING_REBALANCE:
            self._rebalancing.complete_join_if_all_joined(group, effects)
        else:
            self._rebalancing.prepare(group, effects)

    def _keep_replaced(
        self,
        group: ClassicGroup,
        old: ClassicMember,
        new: ClassicMember,
        client: MemberClient,
        old_leader_id: str | None,
        effects: Effects,
    ) -> None:
        """Records the new id; then the member continues with its old assignment.

        If the write fails, the old id stays.
        """
        group.compute_subscribed()
        assignments = {member.member_id: member.assignment for member in group.members.values()}
        effects.keep_group(group.group_id, group_record(group, assignments))

        def on_committed(error: ErrorCode, effects: Effects) -> None:
            if group.members.get(new.member_id) is not new or new.awaiting_join is None:
                return  # It was replaced or removed meanwhile, and answered then.
            if error != ErrorCode.NONE:
                self._put_back(group, old, new, error, effects)
                return
            if group.state is not GroupState.STABLE:
                return  # A rebalance has begun, and will answer.
            self._rebalancing.extend_session(
                group, new, effects.now_ms
            )  # Its session may have expired while it waited.
            is_leader = new.member_id == group.leader_id
            skips = client.api_version >= SKIP_ASSIGNMENT_SINCE
            response = joined(group, new.member_id, with_members=skips and is_leader)
            response.skip_assignment = skips and is_leader
            if not skips:
                # A leader would assign partitions that no member waits for. Source: KIP-345; improved by KIP-814.
                response.leader = old_leader_id or ""
            effects.answer(group.take_awaiting_join(new), response)

        effects.then.append(on_committed)

    def _put_back(
        self, group: ClassicGroup, old: ClassicMember, new: ClassicMember, error: ErrorCode, effects: Effects
    ) -> None:
        reply = group.take_awaiting_join(new)
        effects.answer(reply, join_failed(append_error(error)))
        assert new.group_instance_id is not None
        _, back = group.replace_static(new.group_instance_id, old.member_id)
        group.update(back, old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms, None)
        self._rebalancing.end_session(group, new.member_id)
        self._rebalancing.extend_session(group, back, effects.now_ms)


def _protocols(request: JoinGroupRequest) -> Protocols:
    return tuple([(protocol.name, protocol.metadata) for protocol in request.protocols])


def _more_bytes(group: ClassicGroup, request: JoinGroupRequest, client: MemberClient, protocols: Protocols) -> int:
    """Returns how much more memory the group would take for this member."""
    known = group.members.get(request.member_id)
    if known is not None and known.protocols == protocols:
        return 0
    held = known.held_bytes - len(known.assignment) if known is not None else 0
    return bytes_of_member((client.client_id, request.group_instance_id), protocols) - held


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Returns the rebalance timeout. Version 0 has none, and the session timeout is used."""
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms
