"""ConsumerGroupHeartbeat: a member joins, reports its subscription and its partitions, gets its assignment, and leaves.

Guards: a member with an unexpected epoch or another member's place changes nothing; a group has no more members than
`group.consumer.max.size`, and never more than `MEMBERS_MAX`.

Source: Kafka's `GroupMetadataManager.consumerGroupHeartbeat`, `consumerGroupLeave`; KIP-848.
"""

from __future__ import annotations

import uuid
from typing import Final

import msgspec

from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup, is_within
from lowtide.broker.coordinator.modern.consumer_groups import ConsumerGroups
from lowtide.broker.coordinator.modern.group_decision import GroupDecision, GroupRefusal, check_not_blank
from lowtide.broker.coordinator.modern.modern_groups import NO_ROOM_FOR_MEMBER
from lowtide.broker.coordinator.modern.modern_member import (
    Assignment,
    ModernMember,
    assignment_of,
    topic_rows,
)
from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.consumer_group_heartbeat import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)
from lowtide.replication.refusal import cut_message
from lowtide.runtime.random import Random

MEMBERS_MAX: Final = 10_000
"""The most members of a group, however large `group.consumer.max.size` is: each costs an assignor time, and a client
may send any number of ids. Kafka has no such limit."""

MEMBER_ID_REQUIRED_SINCE: Final = 1
"""The first version in which clients generate member ids (KIP-1082)."""


def heartbeat_failed(error: ErrorCode, message: str | None = None) -> ConsumerGroupHeartbeatResponse:
    """Returns the response to a heartbeat that failed."""
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=cut_message(message))


class ConsumerHeartbeats:
    """Heartbeats of members of one coordinator's consumer groups."""

    def __init__(self, groups: ConsumerGroups, random: Random) -> None:
        self._groups = groups
        self._random = random

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: MemberClient, reply: Reply, effects: Effects
    ) -> None:
        """Answers a heartbeat that `check_heartbeat` has passed.

        Errors: GROUP_ID_NOT_FOUND, GROUP_MAX_SIZE_REACHED, COORDINATOR_LOAD_IN_PROGRESS, UNKNOWN_MEMBER_ID,
        FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID, INVALID_REGULAR_EXPRESSION.
        """
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            response = self._leave(request, effects)
        else:
            response = self._update(request, client, effects)
        if isinstance(response, GroupRefusal):
            effects.answer(reply, heartbeat_failed(response.error, response.message))
        else:
            effects.answer_when_committed(reply, response, heartbeat_failed)

    # ------------------------------------------------------------------ members
    def _update(
        self, request: ConsumerGroupHeartbeatRequest, client: MemberClient, effects: Effects
    ) -> ConsumerGroupHeartbeatResponse | GroupRefusal:
        groups, joins = self._groups, request.member_epoch == JOIN_EPOCH
        decision = self._open(request.group_id, effects, creates=joins)
        if isinstance(decision, GroupRefusal):
            return decision
        group = decision.group
        decision.may_see = client.may_see
        owned = owned_of(request)
        member_id = request.member_id or str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        if is_full(group, groups.settings, member_id, request.instance_id):
            message = f"The group has {len(group.members)} members, as many as it may have."
            return GroupRefusal(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
        known = self._find_member(decision, request, member_id, owned)
        if isinstance(known, GroupRefusal):
            return known
        updated = _updated(known, request, client)
        if not groups.resources.has_room(group, updated):
            return NO_ROOM_FOR_MEMBER
        after = groups.update_member(decision, known, updated, owned, effects)
        if isinstance(after, GroupRefusal):
            return after
        groups.timers.extend_session(group, after, effects.now_ms)
        response = ConsumerGroupHeartbeatResponse(
            member_id=after.member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=groups.times.heartbeat_interval_ms(group.group_id),
        )
        reports_all = request.rebalance_timeout_ms != -1 and owned is not None and _names_any(request)
        if joins or reports_all or updated.assigned != after.assigned:
            rows = topic_rows(after.assigned, HeartbeatTopicPartitions)
            response.assignment = HeartbeatAssignment(topic_partitions=rows)
        groups.carry_out(decision, effects)
        return response

    def _open(self, group_id: str, effects: Effects, *, creates: bool) -> GroupDecision[ConsumerGroup] | GroupRefusal:
        """Begins a decision about a group. Creates a group if there is room for it."""
        decision = self._groups.open(group_id, creates=creates)
        if isinstance(decision, GroupRefusal) or not decision.is_new or decision.takes_over is not None:
            return decision
        return self._groups.resources.check_new_group(effects.now_ms) or decision

    def _find_member(
        self,
        decision: GroupDecision[ConsumerGroup],
        request: ConsumerGroupHeartbeatRequest,
        member_id: str,
        owned: Assignment | None,
    ) -> ModernMember | GroupRefusal:
        """Returns the member that sent a heartbeat, or a new one."""
        group, epoch = decision.group, request.member_epoch
        if request.instance_id is not None and epoch == JOIN_EPOCH:
            return self._find_static(decision, request.instance_id, member_id)
        found = group.find_member(member_id, request.instance_id)
        if isinstance(found, ModernMember):
            return _check_epoch(found, epoch, owned) or found
        if epoch == JOIN_EPOCH:
            return ModernMember(member_id=member_id)
        return GroupRefusal(found, f"{request.instance_id or member_id} is no member, or another's place.")

    @staticmethod
    def _find_static(
        decision: GroupDecision[ConsumerGroup], instance_id: str, member_id: str
    ) -> ModernMember | GroupRefusal:
        """Returns the static member that joins: a new one, a known one, or one that takes over the instance id."""
        group = decision.group
        existing_id = group.static_members.get(instance_id)
        if existing_id is None:
            return group.members.get(member_id, ModernMember(member_id=member_id))
        existing = group.members[existing_id]
        has_left = existing.member_epoch == STATIC_LEAVE_EPOCH
        if existing_id == member_id and not has_left:
            return existing
        if existing.classic is None and not has_left:
            return GroupRefusal(ErrorCode.UNRELEASED_INSTANCE_ID, f"{instance_id} is {existing_id}, which hasn't left.")
        new = msgspec.structs.replace(existing, member_id=member_id, member_epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        decision.replace(existing, new)
        return new

    def _leave(
        self, request: ConsumerGroupHeartbeatRequest, effects: Effects
    ) -> ConsumerGroupHeartbeatResponse | GroupRefusal:
        decision = self._groups.open(request.group_id, creates=False)
        if isinstance(decision, GroupRefusal):
            return decision
        member = decision.group.find_member(request.member_id, request.instance_id)
        if isinstance(member, ErrorCode):
            return GroupRefusal(member, f"{request.member_id} is no member.")
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            decision.keep_current(msgspec.structs.replace(member, member_epoch=STATIC_LEAVE_EPOCH, revoking={}))
            self._groups.carry_out(decision, effects)
        else:
            self._groups.fence(decision.group, [member], effects)
        return ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)


def check_heartbeat(
    request: ConsumerGroupHeartbeatRequest, api_version: int, assignors: tuple[str, ...]
) -> GroupRefusal | None:
    """Checks the fields of a heartbeat. Errors: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR.

    Source: `GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid`, in its order.
    """
    epoch = request.member_epoch
    needs_id = api_version >= MEMBER_ID_REQUIRED_SINCE or epoch > 0 or epoch == LEAVE_EPOCH
    blank = check_not_blank(
        MemberId=request.member_id if needs_id else None,
        GroupId=request.group_id,
        InstanceId=request.instance_id,
        RackId=request.rack_id,
    )
    if blank is not None:
        return blank
    message = ""
    if epoch == JOIN_EPOCH:
        message = _check_join(request)
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        message = "InstanceId can't be null."
    elif epoch < STATIC_LEAVE_EPOCH:
        message = "MemberEpoch is invalid."
    if message:
        return GroupRefusal(ErrorCode.INVALID_REQUEST, message)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        return GroupRefusal(
            ErrorCode.UNSUPPORTED_ASSIGNOR, f"{request.server_assignor} is none of {', '.join(assignors)}."
        )
    return None


def _check_join(request: ConsumerGroupHeartbeatRequest) -> str:
    if request.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be given when joining."
    if request.topic_partitions is None or request.topic_partitions:
        return "TopicPartitions must be empty when joining."
    return "" if _names_any(request) else "SubscribedTopicNames or SubscribedTopicRegex must be given when joining."


def _names_any(request: ConsumerGroupHeartbeatRequest) -> bool:
    return request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None


def _check_epoch(member: ModernMember, epoch: int, owned: Assignment | None) -> GroupRefusal | None:
    """Checks a member's epoch. A member may use its previous epoch: it may have missed the last response."""
    if epoch in (JOIN_EPOCH, member.member_epoch):
        return None
    if epoch < member.member_epoch and epoch == member.previous_epoch and is_within(owned, member.assigned):
        return None
    message = f"{member.member_id} is in epoch {member.member_epoch}, not {epoch}; it must join again."
    return GroupRefusal(ErrorCode.FENCED_MEMBER_EPOCH, message)


def is_full(group: ConsumerGroup, settings: GroupSettings, member_id: str, instance_id: str | None) -> bool:
    """Returns whether a group has as many members as it may have, and this one would be another."""
    if len(group.members) < min(settings.consumer_max_size, MEMBERS_MAX):
        return False
    return member_id not in group.members and (instance_id is None or instance_id not in group.static_members)


def owned_of(request: ConsumerGroupHeartbeatRequest) -> Assignment | None:
    """Returns the partitions that a member reports; None if it reports none."""
    rows = request.topic_partitions
    return None if rows is None else assignment_of((row.topic_id, row.partitions) for row in rows)


def _updated(member: ModernMember, request: ConsumerGroupHeartbeatRequest, client: MemberClient) -> ModernMember:
    """Returns the member with the fields of a heartbeat. Null keeps the old value."""
    names = request.subscribed_topic_names
    topic_names = member.topic_names
    if names is not None and (len(names) != len(topic_names) or frozenset(names) != topic_names):
        topic_names = frozenset(names)
    timeout_ms = request.rebalance_timeout_ms
    return msgspec.structs.replace(
        member,
        instance_id=request.instance_id if request.instance_id is not None else member.instance_id,
        rack_id=request.rack_id if request.rack_id is not None else member.rack_id,
        rebalance_timeout_ms=timeout_ms if timeout_ms != -1 else member.rebalance_timeout_ms,
        server_assignor=request.server_assignor if request.server_assignor is not None else member.server_assignor,
        topic_names=topic_names,
        topic_regex=request.subscribed_topic_regex
        if request.subscribed_topic_regex is not None
        else member.topic_regex,
        client_id=client.client_id,
        client_host=client.host,
        classic=None,
    )
