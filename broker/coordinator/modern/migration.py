"""Changes a group's type while its members work (KIP-848, KIP-1099).

A classic group becomes a consumer group when a member of the consumer protocol joins, and a consumer group becomes
classic when the last of these leaves. The other members stay and keep their partitions. One set of records removes the
group of the old type and adds that of the new type; the classic generation becomes the epoch, and the reverse.

Guards: only groups of consumers without assignors of their own change, only as `group.consumer.migration.policy` and
the group size limits allow; if a member's data can't be parsed, the group stays as it is.

Source: Kafka's `GroupMetadataManager.convertToConsumerGroup`, `convertToClassicGroup`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.classic.classic_member import ClassicMember
from lowtide.broker.coordinator.classic.classic_record import group_record
from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.classic.rebalancing import Rebalancing, join_failed, sync_failed
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.modern.group_decision import GroupDecision, GroupRefusal
from lowtide.broker.coordinator.modern.groups_by_id import GroupsById
from lowtide.broker.coordinator.modern.modern_group import INITIAL_EPOCH
from lowtide.broker.coordinator.modern.modern_groups import GroupResources
from lowtide.broker.coordinator.modern.modern_member import (
    NOTHING,
    Assignment,
    ModernMember,
    assignment_of,
)
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.protocol.consumer_group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
)
from lowtide.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    encode_assignment,
    parse_assignment,
    parse_subscription,
)
from lowtide.protocol.errors import ErrorCode, ProtocolError


class Migration:
    """Changes groups from one type to the other."""

    def __init__(self, groups: GroupsById, resources: GroupResources, rebalancing: Rebalancing) -> None:
        self._groups = groups
        self._settings, self._topics, self._memory, _ = resources
        self._rebalancing = rebalancing
        self._prepared: dict[str, ClassicGroup] = {}
        """Classic groups whose records are being appended."""

    # ------------------------------------------------------------------ to the new kind
    def upgrade(self, classic: ClassicGroup) -> GroupDecision[ConsumerGroup] | GroupRefusal:
        """Begins a decision that turns a classic group with members into a consumer group.

        Errors: GROUP_ID_NOT_FOUND if that is not allowed or not possible.
        """
        reason = ""
        if not self._settings.may_upgrade:
            reason = "upgrades are disabled"
        elif not classic.uses_consumer_protocol:
            reason = "its members are no consumers"
        elif len(classic.members) > self._settings.consumer_max_size:
            reason = "it has too many members"
        if not reason:
            try:
                return self._upgraded(classic)
            except ProtocolError as error:
                reason = str(error)
        return GroupRefusal(
            ErrorCode.GROUP_ID_NOT_FOUND, f"{classic.group_id} is a classic group, and stays so: {reason}."
        )

    def _upgraded(self, classic: ClassicGroup) -> GroupDecision[ConsumerGroup]:
        group = ConsumerGroup(classic.group_id)
        decision = GroupDecision(group, takes_over=classic)
        epoch = _first_epoch(classic)
        members = [self._as_consumer(classic, member) for member in classic.members.values()]
        names = {name for member in members for name in member.topic_names}
        for member in members:
            decision.keep_subscription(member)
        decision.keep_epoch(epoch, self._topics.hash_of(names))
        for member in members:
            decision.keep_target(member.member_id, member.assigned)
        decision.keep_target_epoch(epoch, 0)
        for member in members:
            decision.keep_current(member)
        for change in decision.changes:
            group.apply(change)
        return decision

    def _as_consumer(self, classic: ClassicGroup, member: ClassicMember) -> ModernMember:
        """Returns a member of a classic group as one of a consumer group. Errors: ProtocolError."""
        assigned = NOTHING
        if member.assignment:
            given = parse_assignment(member.assignment)
            if given.user_data:
                message = "its assignor is one of its members' own"
                raise ProtocolError(message)
            assigned = self._assignment(given.topics)
        name = classic.protocol_name or member.protocols[0][0]
        subscription = parse_subscription(
            member.metadata(name) if any(name == known for known, _ in member.protocols) else b""
        )
        return ModernMember(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            rack_id=subscription.rack_id or None,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topic_names=frozenset(subscription.topics),
            classic=ClassicMemberMetadata(
                session_timeout_ms=member.session_timeout_ms,
                supported_protocols=[
                    ClassicProtocol(name=known, metadata=metadata) for known, metadata in member.protocols
                ],
            ),
            member_epoch=_first_epoch(classic),
            previous_epoch=_first_epoch(classic),
            assigned=assigned,
        )

    def _assignment(self, rows: tuple[tuple[str, tuple[int, ...]], ...]) -> Assignment:
        topics = self._topics.image.topics
        return assignment_of((topics[name].topic_id, numbers) for name, numbers in rows if name in topics)

    def send_away(self, classic: ClassicGroup, effects: Effects) -> None:
        """Answers REBALANCE_IN_PROGRESS to members that wait in a classic group that ends: they join again."""
        for member in classic.members.values():
            reply = classic.take_awaiting_join(member)
            if reply is not None:
                effects.answer(reply, join_failed(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
            if member.awaiting_sync is not None:
                effects.answer(member.awaiting_sync, sync_failed(ErrorCode.REBALANCE_IN_PROGRESS))
                member.awaiting_sync = None

    # ------------------------------------------------------------------ to the classic kind
    def may_downgrade(
        self, group: ConsumerGroup, gone: Mapping[str, ModernMember], joining: ModernMember | None = None
    ) -> bool:
        """Returns whether a group becomes classic without these members, or with `joining` in their place."""
        left = len(group.members) - len(gone)
        classic_left = group.subscriptions.classic_count - sum(member.classic is not None for member in gone.values())
        count = left + (joining is not None)
        return classic_left == left and count > 0 and self._settings.may_downgrade and count <= self._settings.max_size

    def downgrade(self, group: ConsumerGroup, gone: Mapping[str, ModernMember], effects: Effects) -> None:
        """Turns a group that these members leave into a classic one. The others rebalance."""
        left = [member for member in group.members.values() if member.member_id not in gone]
        self._become_classic(group, left, effects, rebalances=True)

    def downgrade_by(
        self, group: ConsumerGroup, old: ModernMember, new: ModernMember, effects: Effects, *, rebalances: bool
    ) -> None:
        """Turns a group into a classic one because its last consumer member returns as a classic one.

        The members rebalance if `rebalances`, or if their assignments differ from their targets.
        """
        left = [member for member in group.members.values() if member.member_id != old.member_id]
        targets = {member.member_id: group.targets.get(member.member_id, NOTHING) for member in left}
        targets[new.member_id] = group.targets.get(old.member_id, NOTHING)
        members = [*left, new]
        is_settled = group.group_epoch == group.target_epoch and all(
            member.held == targets[member.member_id] for member in members
        )
        self._become_classic(group, members, effects, rebalances=rebalances or not is_settled)

    def _become_classic(
        self, group: ConsumerGroup, members: list[ModernMember], effects: Effects, *, rebalances: bool
    ) -> None:
        decision = GroupDecision(group)
        decision.remove_group()
        decision.carry_out(effects)
        classic = ClassicGroup(group.group_id, wall_ms=effects.wall_ms, memory=self._memory)
        classic.generation_id = group.group_epoch
        for member in members:
            classic.add(_as_classic(member), CONSUMER_PROTOCOL_TYPE)
        classic.protocol_name = classic.select_protocol()
        classic.compute_subscribed()
        classic.state = GroupState.STABLE
        # The assignment is what the member may have, not its target, which another member may still have in part. Kafka
        # takes the target: a group that changes back before it has rebalanced then assigns a partition to one member
        # while another consumes it.
        for member in members:
            row = classic.members[member.member_id]
            classic.assign(row, self.encode(member.held, row.metadata(classic.protocol_name)))
        effects.keep_group(
            group.group_id, group_record(classic, {row.member_id: row.assignment for row in classic.members.values()})
        )
        self._prepared[group.group_id] = classic
        effects.then.append(partial(self._on_classic, classic, rebalances))

    def encode(self, assignment: Assignment, subscription: bytes) -> bytes:
        """Returns an assignment for a classic member, in the version of its subscription."""
        try:
            version = parse_subscription(subscription).version
        except ProtocolError:
            version = 0
        names = self._topics.image.topic_names
        rows = ((names[topic_id], sorted(numbers)) for topic_id, numbers in assignment.items() if topic_id in names)
        return encode_assignment(version, rows)

    def take_prepared(self, group_id: str) -> ClassicGroup | None:
        """Returns and clears the classic group of a record that was just appended, if it was created here."""
        return self._prepared.pop(group_id, None)

    def _on_classic(self, classic: ClassicGroup, rebalances: bool, _error: ErrorCode, effects: Effects) -> None:  # noqa: FBT001
        """Starts the members' sessions, and a rebalance if needed, unless the records were not appended."""
        self._prepared.pop(classic.group_id, None)
        if self._groups.get(classic.group_id) is not classic:
            classic.release()
            return
        for member in classic.members.values():
            self._rebalancing.extend_session(classic, member, effects.now_ms)
        if rebalances and classic.state is GroupState.STABLE:
            self._rebalancing.prepare(classic, effects)


def _first_epoch(classic: ClassicGroup) -> int:
    """Returns the epoch of the new group: the classic generation, but at least 1, because no member has epoch 0."""
    return max(classic.generation_id, INITIAL_EPOCH)


def _as_classic(member: ModernMember) -> ClassicMember:
    assert member.classic is not None, f"{member.member_id} speaks the new protocol only"
    return ClassicMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in member.classic.supported_protocols),
    )


def first_protocol(member: ModernMember) -> str:
    """Returns the protocol that a classic member sees as the group's: the one it prefers."""
    assert member.classic is not None
    return member.classic.supported_protocols[0].name
