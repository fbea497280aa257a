"""A consumer group (KIP-848): a partition has one owner, so a member waits until others have revoked its partitions.

Guards: an instance id belongs to one member; a partition has at most one owner, which is the member that has it or may
still have it (`partition_owners`, `reconciliation`).

Source: Kafka's `ConsumerGroup`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final

from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.member_memory import MemberMemory
from lowtide.broker.coordinator.modern.modern_group import ModernChange, ModernGroup
from lowtide.broker.coordinator.modern.modern_member import NOTHING, Assignment, ModernMember
from lowtide.broker.coordinator.modern.partition_owners import PartitionOwners
from lowtide.broker.coordinator.modern.static_members import StaticMembers
from lowtide.broker.coordinator.modern.subscriptions import ResolvedPattern
from lowtide.protocol.consumer_group_records import ConsumerGroupChange, GroupEpoch, PatternTopics, RecordType
from lowtide.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicId

CONSUMER_EPOCHS_SINCE: Final = 9
"""The first version of OffsetCommit with which a member of a consumer group may commit."""


class ConsumerGroupState(Enum):
    """What a group is doing. Values are the names that clients see. All but DEAD follow from its epochs."""

    EMPTY = "Empty"
    """No members. action: commits without a member are kept, a classic group may take over the id.
    transition: a member joins → ASSIGNING."""
    ASSIGNING = "Assigning"
    """The target is older than the group's epoch. action: members keep their assignments.
    transition: the target is computed → RECONCILING."""
    RECONCILING = "Reconciling"
    """Members revoke and receive partitions.
    transition: all are at the target → STABLE; the group's epoch rises → ASSIGNING."""
    STABLE = "Stable"
    """Each member has its target.
    transition: the group's epoch rises → ASSIGNING; the last member is gone, from any state → EMPTY."""
    DEAD = "Dead"
    """Gone from this coordinator. transition: none."""


class ConsumerGroup(ModernGroup):
    """One consumer group."""

    group_type = GroupType.CONSUMER
    protocol_type = CONSUMER_PROTOCOL_TYPE
    change_type = ConsumerGroupChange
    record_types = RecordType
    epoch_type = GroupEpoch
    subscription_record = staticmethod(ModernMember.subscription_record)
    current_record = staticmethod(ModernMember.current_record)

    __slots__ = ("owners", "static_members")

    def __init__(self, group_id: str, memory: MemberMemory | None = None) -> None:
        super().__init__(group_id, memory)
        self.static_members = StaticMembers()
        self.owners = PartitionOwners(self.members)

    @property
    def state(self) -> ConsumerGroupState:
        """What the group is doing."""
        if self.is_dead:
            return ConsumerGroupState.DEAD
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.group_epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_unused(self) -> bool:
        """Whether the group is alive and has no members."""
        return not self.members and not self.is_dead

    def target_of(self, member: ModernMember) -> Assignment:
        """Returns a member's part of the target. A returning static member gets that of the member it replaces."""
        known = self.static_members.predecessor_of(member)
        return NOTHING if known is None else self.targets.get(known, NOTHING)

    def members_with(self, member: ModernMember) -> dict[str, ModernMember]:
        """Returns the members after one has joined or changed, without the one whose instance id it takes over."""
        return self.static_members.members_with(self.members, member)

    def waits_for_others(self, member: ModernMember) -> bool:
        """Returns whether another member still owns a partition of a member's target."""
        target = self.targets.get(member.member_id, NOTHING)
        for topic_id, numbers in target.items():
            missing = numbers - member.assigned.get(topic_id, frozenset())
            if any(self.owners.is_owned(topic_id, number) for number in missing):
                return True
        return False

    # ------------------------------------------------------------------ checks
    def find_member(self, member_id: str, instance_id: str | None) -> ModernMember | ErrorCode:
        """Returns a member.

        Errors: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID if another member has taken over the instance id.
        """
        return self.static_members.find(self.members, member_id, instance_id)

    def check_commit(
        self,
        member_id: str,
        member_epoch: int,
        api_version: int,
        places: Iterable[tuple[TopicId, int]] = (),
        *,
        is_transaction: bool = False,
    ) -> ErrorCode:
        """Checks whether offsets of these partitions may be committed.

        A commit without a member has a negative epoch and is allowed while the group has no members. A member with an
        older epoch may commit for partitions that it got in that epoch or before, and still has. `is_transaction` is
        TxnOffsetCommit, which may omit the member. Errors: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, UNSUPPORTED_VERSION,
        ILLEGAL_GENERATION for a member of the classic protocol.
        Source: `ConsumerGroup.validateOffsetCommit`; KIP-1251.
        """
        if member_epoch < 0 and (not self.members or (is_transaction and not member_id)):
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not is_transaction and member.classic is None and api_version < CONSUMER_EPOCHS_SINCE:
            return ErrorCode.UNSUPPORTED_VERSION
        error = _check_epoch(member, member_epoch)
        if error == ErrorCode.NONE or member_epoch > member.member_epoch:
            return error
        epochs = [member.epoch_of(topic_id, number) for topic_id, number in places]
        covers_all = bool(epochs) and all(epoch is not None and epoch <= member_epoch for epoch in epochs)
        return ErrorCode.NONE if covers_all else error

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Checks whether offsets may be returned. A client that names no member always gets them.

        Errors: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION for a member of the classic protocol.
        """
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        return ErrorCode.UNKNOWN_MEMBER_ID if member is None else _check_epoch(member, member_epoch)

    def check_offset_delete(self) -> ErrorCode:
        """Checks whether single offsets may be deleted. Errors: GROUP_ID_NOT_FOUND."""
        return ErrorCode.GROUP_ID_NOT_FOUND if self.is_dead else ErrorCode.NONE

    @property
    def empty_target_wall_ms(self) -> int:
        """Always 0, as in a new group, so that the next member's target does not wait for the interval."""
        return 0

    # ------------------------------------------------------------------ records
    def own_records(self) -> Iterator[tuple[RecordType, str]]:
        """Yields the records of patterns and topics."""
        for pattern in self.subscriptions.patterns:
            yield RecordType.PATTERN, pattern
        yield RecordType.TOPICS, ""

    def _apply_own(self, change: ModernChange) -> None:
        if change.kind is RecordType.TOPICS:
            self.has_topics_record = change.value is not None
        elif change.kind is RecordType.PATTERN:
            value, resolved = change.value, None
            if isinstance(value, PatternTopics):
                resolved = ResolvedPattern(frozenset(value.topics), value.version, value.timestamp)
            self.subscriptions.note_pattern(change.name, resolved)

    def _on_member_changed(self, old: ModernMember | None, new: ModernMember | None) -> None:
        super()._on_member_changed(old, new)
        self.owners.on_changed(old, new)
        self.static_members.on_changed(old, new)


def _check_epoch(member: ModernMember, member_epoch: int) -> ErrorCode:
    if member_epoch == member.member_epoch:
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


def is_within(owned: Assignment | None, assigned: Mapping[TopicId, frozenset[int]]) -> bool:
    """Returns whether a member reports its partitions, and all of them are assigned to it."""
    return owned is not None and all(
        numbers <= assigned.get(topic_id, frozenset()) for topic_id, numbers in owned.items()
    )
