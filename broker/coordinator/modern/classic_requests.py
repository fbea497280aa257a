"""Requests of members of the classic protocol to consumer groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

For such a member its member epoch is the generation. Heartbeats return REBALANCE_IN_PROGRESS if it has to revoke, may
get, or has to catch up with something; it joins, learns its epoch, and gets its assignment with the sync. There is no
leader.

Source: Kafka's `GroupMetadataManager.classicGroupJoinToConsumerGroup` and similar; KIP-848, KIP-1099.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec

from lowtide.broker.coordinator.classic.classic_groups import ClassicGroups
from lowtide.broker.coordinator.classic.joining import MEMBER_ID_REQUIRED_SINCE, MemberClient
from lowtide.broker.coordinator.classic.rebalancing import NO_MEMBER_ID, join_failed, sync_failed
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.modern.consumer_groups import ConsumerGroups, has_other_topics
from lowtide.broker.coordinator.modern.consumer_heartbeats import is_full
from lowtide.broker.coordinator.modern.group_decision import GroupDecision, GroupRefusal
from lowtide.broker.coordinator.modern.member_state import MemberState
from lowtide.broker.coordinator.modern.migration import first_protocol
from lowtide.broker.coordinator.modern.modern_member import ModernMember, assignment_of
from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.protocol.consumer_group_records import ClassicMemberMetadata, ClassicProtocol
from lowtide.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE, Subscription, parse_subscription
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.consumer_group_heartbeat import JOIN_EPOCH
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from lowtide.protocol.messages.leave_group import MemberIdentity, MemberResponse
from lowtide.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from lowtide.runtime.random import Random


class ClassicRequests:
    """Requests of classic members of one coordinator's consumer groups."""

    def __init__(self, groups: ConsumerGroups, classic: ClassicGroups, random: Random) -> None:
        self._groups = groups
        self._classic = classic
        self._random = random

    # ------------------------------------------------------------------ joining
    def join(
        self, group: ConsumerGroup, request: JoinGroupRequest, client: MemberClient, reply: Reply, effects: Effects
    ) -> None:
        """Handles JoinGroup. A group without members becomes a classic one.

        Errors: GROUP_MAX_SIZE_REACHED, INCONSISTENT_GROUP_PROTOCOL, MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID,
        FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH.
        """
        if not group.members:
            self._join_empty(group, request, client, reply, effects)
            return
        member_id = request.member_id or str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        subscription = self._check_join(group, request, member_id, client)
        if isinstance(subscription, ErrorCode):
            named = member_id if subscription is ErrorCode.MEMBER_ID_REQUIRED else request.member_id
            effects.answer(reply, join_failed(subscription, named))
            return
        decision = GroupDecision(group)
        decision.may_see = client.may_see
        member = self._subscribe(decision, request, member_id)
        if isinstance(member, ErrorCode):
            effects.answer(reply, join_failed(member, request.member_id))
            return
        updated = _updated(member, request, client, subscription)
        if not self._groups.resources.has_room(group, updated):
            effects.answer(reply, join_failed(ErrorCode.GROUP_MAX_SIZE_REACHED, request.member_id))
            return
        joined = self._update(decision, member, updated, subscription, effects)
        if isinstance(joined, GroupRefusal):
            effects.answer(reply, join_failed(joined.error, request.member_id))
            return
        self._answer_join(group, joined, reply, effects)

    def _join_empty(
        self, group: ConsumerGroup, request: JoinGroupRequest, client: MemberClient, reply: Reply, effects: Effects
    ) -> None:
        """Replaces a group without members by a classic group."""
        if request.member_id != NO_MEMBER_ID:
            effects.answer(reply, join_failed(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
            return
        self._groups.remove(group, effects)
        classic = self._classic.create(group.group_id, effects.wall_ms)
        self._classic.join(classic, request, client, reply, effects)

    def _check_join(
        self, group: ConsumerGroup, request: JoinGroupRequest, member_id: str, client: MemberClient
    ) -> Subscription | ErrorCode:
        if is_full(group, self._groups.settings, member_id, request.group_instance_id):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not group.subscriptions.speaks(request.protocol_type, [protocol.name for protocol in request.protocols]):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        is_new = request.member_id == NO_MEMBER_ID and request.group_instance_id is None
        if is_new and client.api_version >= MEMBER_ID_REQUIRED_SINCE:
            return ErrorCode.MEMBER_ID_REQUIRED
        try:
            return parse_subscription(request.protocols[0].metadata)
        except ProtocolError:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    @staticmethod
    def _subscribe(
        decision: GroupDecision[ConsumerGroup], request: JoinGroupRequest, member_id: str
    ) -> ModernMember | ErrorCode:
        """Returns the member that joins, or a new one."""
        group, instance_id = decision.group, request.group_instance_id
        fresh = ModernMember(member_id=member_id)
        if instance_id is None:
            return group.members.get(member_id, fresh)
        if request.member_id != NO_MEMBER_ID:
            return group.find_member(member_id, instance_id)
        existing_id = group.static_members.get(instance_id)
        if existing_id is None:
            return fresh
        existing = group.members[existing_id]
        new = msgspec.structs.replace(existing, member_id=member_id, member_epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        decision.replace(existing, new)
        return new

    def _update(
        self,
        decision: GroupDecision[ConsumerGroup],
        old: ModernMember,
        new: ModernMember,
        subscription: Subscription,
        effects: Effects,
    ) -> ModernMember | GroupRefusal:
        """Takes over a member's subscription. If it replaces the last consumer member, the group becomes classic."""
        groups, group = self._groups, decision.group
        topics = groups.topics.image.topics
        owned = assignment_of(
            (topics[name].topic_id, numbers) for name, numbers in subscription.owned if name in topics
        )
        replaced = self._replaced(group, new)
        if (
            replaced is None
            or not groups.migration.may_downgrade(group, {replaced.member_id: replaced}, new)
            or replaced.classic is not None
        ):
            updated = groups.update_member(decision, old, new, owned, effects)
            if not isinstance(updated, GroupRefusal):
                groups.carry_out(decision, effects)
            return updated
        # The group's records include this member's changes, so this decision is not carried out.
        scratch = GroupDecision(group)
        changed = groups.update_subscription(scratch, old, new, effects)
        if isinstance(changed, GroupRefusal):
            return changed
        if not changed[1]:
            target = (group.target_epoch, group.target_of(new))
            moved = groups.reconcile_member(scratch, new, target, owned, effects.now_ms, subscription_changed=False)
            if isinstance(moved, GroupRefusal):
                return moved
            new = moved
        groups.migration.downgrade_by(group, replaced, new, effects, rebalances=changed[1])
        return new

    @staticmethod
    def _replaced(group: ConsumerGroup, new: ModernMember) -> ModernMember | None:
        """Returns the member whose instance id `new` takes over."""
        known = group.static_members.get(new.instance_id) if new.instance_id is not None else None
        return group.members[known] if known is not None else None

    def _answer_join(self, group: ConsumerGroup, member: ModernMember, reply: Reply, effects: Effects) -> None:
        response = JoinGroupResponse(
            error_code=ErrorCode.NONE,
            generation_id=member.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=first_protocol(member),
            leader="",
            member_id=member.member_id,
            members=[],
        )
        groups, group_id = self._groups, group.group_id

        def on_committed(_error: ErrorCode, effects: Effects) -> None:
            groups.timers.deadlines.cancel(("rejoin", group_id, member.member_id))
            known = groups.by_id.find_consumer(group_id)
            if known is not None and member.member_id in known.members:
                groups.timers.extend_session(known, member, effects.now_ms)
                due_ms = effects.now_ms + max(member.rebalance_timeout_ms, 0)
                groups.timers.deadlines.schedule(("resync", group_id, member.member_id), due_ms)

        effects.then.append(on_committed)
        effects.answer_when_committed(reply, response, join_failed)

    # ------------------------------------------------------------------ syncing, living
    def sync(self, group: ConsumerGroup, request: SyncGroupRequest, reply: Reply, effects: Effects) -> None:
        """Handles SyncGroup.

        Errors: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL,
        REBALANCE_IN_PROGRESS.
        """
        member = self._find(group, request.member_id, request.group_instance_id, request.generation_id)
        error = member if isinstance(member, ErrorCode) else _check_sync(group, member, request)
        if isinstance(member, ErrorCode) or error != ErrorCode.NONE:
            if isinstance(member, ModernMember) and error is ErrorCode.REBALANCE_IN_PROGRESS:
                self._expect_join(group, member, effects.now_ms)
            effects.answer(reply, sync_failed(error))
            return
        self._groups.timers.deadlines.cancel(("resync", group.group_id, member.member_id))
        self._groups.timers.extend_session(group, member, effects.now_ms)
        assert member.classic is not None
        response = SyncGroupResponse(
            error_code=ErrorCode.NONE,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=self._groups.migration.encode(member.assigned, member.classic.supported_protocols[0].metadata),
        )
        effects.barrier = max(effects.barrier, group.last_record_offset)
        effects.answer_when_committed(reply, response, sync_failed)

    def heartbeat(
        self, group: ConsumerGroup, member_id: str, group_instance_id: str | None, generation_id: int, now_ms: int
    ) -> ErrorCode:
        """Handles Heartbeat.

        Errors: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS.
        """
        member = self._find(group, member_id, group_instance_id, generation_id)
        if isinstance(member, ErrorCode):
            return member
        self._groups.timers.extend_session(group, member, now_ms)
        may_get = member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member)
        is_behind = member.member_epoch < group.group_epoch or has_other_topics(self._groups.topics, group)
        if is_behind or member.state is MemberState.UNREVOKED_PARTITIONS or may_get:
            self._expect_join(group, member, now_ms)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, group: ConsumerGroup, members: Sequence[MemberIdentity], effects: Effects) -> list[MemberResponse]:
        """Handles LeaveGroup for members of both protocols. Errors in rows: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        rows, gone = [], {}
        for identity in members:
            if identity.group_instance_id is not None and identity.member_id == NO_MEMBER_ID:
                known = group.static_members.get(identity.group_instance_id)
                found = group.members[known] if known is not None else ErrorCode.UNKNOWN_MEMBER_ID
            else:
                found = group.find_member(identity.member_id, identity.group_instance_id)
            error = found if isinstance(found, ErrorCode) else ErrorCode.NONE
            if isinstance(found, ModernMember):
                gone[found.member_id] = found
            rows.append(
                MemberResponse(
                    member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=error
                )
            )
        self._groups.fence(group, gone.values(), effects)
        return rows

    @staticmethod
    def _find(
        group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
    ) -> ModernMember | ErrorCode:
        member = group.find_member(member_id, instance_id)
        if isinstance(member, ErrorCode):
            return member
        if member.classic is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return member if member.member_epoch == generation_id else ErrorCode.ILLEGAL_GENERATION

    def _expect_join(self, group: ConsumerGroup, member: ModernMember, now_ms: int) -> None:
        """Starts the member's rebalance timeout, unless it runs: the member has to join again."""
        key = ("rejoin", group.group_id, member.member_id)
        if self._groups.timers.deadlines.deadline_of(key) is None:  # type: ignore[arg-type]  # the literal is one of the key's
            self._groups.timers.deadlines.schedule(key, now_ms + max(member.rebalance_timeout_ms, 0))  # type: ignore[arg-type]


def _check_sync(group: ConsumerGroup, member: ModernMember, request: SyncGroupRequest) -> ErrorCode:
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
        None,
        first_protocol(member),
    ):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    # A member that has to revoke partitions has joined already, and revokes them first.
    is_behind = group.group_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS
    return ErrorCode.REBALANCE_IN_PROGRESS if is_behind else ErrorCode.NONE


def _updated(
    member: ModernMember, request: JoinGroupRequest, client: MemberClient, subscription: Subscription
) -> ModernMember:
    """Returns the member with the fields of its join. It has no pattern, which is only in the consumer protocol."""
    topic_names = frozenset(subscription.topics)
    timeout_ms = request.rebalance_timeout_ms
    return msgspec.structs.replace(
        member,
        instance_id=request.group_instance_id if request.group_instance_id is not None else member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=timeout_ms if timeout_ms != -1 else request.session_timeout_ms,
        topic_names=topic_names if topic_names != member.topic_names else member.topic_names,
        topic_regex="",
        client_id=client.client_id,
        client_host=client.host,
        classic=ClassicMemberMetadata(
            session_timeout_ms=request.session_timeout_ms,
            supported_protocols=[
                ClassicProtocol(name=protocol.name, metadata=protocol.metadata) for protocol in request.protocols
            ],
        ),
    )
