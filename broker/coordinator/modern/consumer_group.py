"""A group whose partitions the broker assigns (KIP-848): its members, what each is to have, and what each has.

Three epochs follow each other. A change of members, subscriptions or topics raises the group's epoch; a new target
assignment is computed for it, and takes its number; each member comes to the target in its own time (`reconciliation`),
and takes its number when it is there.

Guards: all changes come from records (`apply`), so what a coordinator knows is what one knows that loads the log; an
instance id belongs to one member; a partition has at most one owner (who has it, or may still have it).

Source: Kafka's `ConsumerGroup`, `ModernGroup`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, Literal

from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.member_memory import MemberMemory, bytes_of_member
from lowtide.broker.coordinator.modern.modern_member import NOTHING, Assignment, ModernMember, target_of
from lowtide.broker.coordinator.modern.partition_owners import PartitionOwners
from lowtide.broker.coordinator.modern.subscriptions import ResolvedPattern, Subscriptions
from lowtide.protocol.consumer_group_records import (
    ConsumerGroupChange,
    GroupEpoch,
    MemberCurrent,
    MemberSubscription,
    MemberTarget,
    PatternTopics,
    TargetAssignmentEpoch,
)
from lowtide.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import UNKNOWN_OFFSET, TopicId

INITIAL_EPOCH: Final = 1
"""A new group's epoch, and that of its empty target: the first member raises the former to 2. As in Kafka from 4.3 on."""

CONSUMER_EPOCHS_SINCE: Final = 9
"""The version of OffsetCommit with which a member of such a group may commit."""


class ConsumerGroupState(Enum):
    """What a group is doing. Values are the names that clients see; all but DEAD follow from its epochs."""

    EMPTY = "Empty"
    """No members. action: commits from outside are kept, a classic group may take it over. transition: a member joins → ASSIGNING."""
    ASSIGNING = "Assigning"
    """The target is older than the group's epoch. action: members keep what they have. transition: the target is computed → RECONCILING."""
    RECONCILING = "Reconciling"
    """Members give back and get. transition: all are at the target → STABLE; the group's epoch rises → ASSIGNING."""
    STABLE = "Stable"
    """Each has what it is to have. transition: the group's epoch rises → ASSIGNING; the last member is gone, from any state → EMPTY."""
    DEAD = "Dead"
    """Gone from this coordinator. transition: none."""


class ConsumerGroup:
    """One group. Members are kept in the order in which they came."""

    group_type: Final[Literal[GroupType.CONSUMER]] = GroupType.CONSUMER

    __slots__ = (
        "assigned_wall_ms",
        "checked_image",
        "group_epoch",
        "group_id",
        "has_topics_record",
        "held_bytes",
        "is_dead",
        "last_record_offset",
        "members",
        "memory",
        "metadata_hash",
        "owners",
        "static_members",
        "subscriptions",
        "target_epoch",
        "targets",
    )

    def __init__(self, group_id: str, memory: MemberMemory | None = None) -> None:
        """`memory` is shared by a broker's groups."""
        self.group_id = group_id
        self.memory = memory if memory is not None else MemberMemory()
        self.held_bytes = 0
        self.group_epoch = INITIAL_EPOCH
        self.metadata_hash = 0
        self.target_epoch = INITIAL_EPOCH
        self.targets: dict[str, Assignment] = {}
        self.members: dict[str, ModernMember] = {}
        self.static_members: dict[str, str] = {}
        """Instance id → member id."""
        self.subscriptions = Subscriptions()
        self.owners = PartitionOwners(self.members)
        self.has_topics_record = False
        """Whether the log has a record of its topics that a coordinator of old left there."""
        self.last_record_offset = UNKNOWN_OFFSET
        self.is_dead = False
        self.assigned_wall_ms = 0
        """When the target was computed, 0 if unknown."""
        # What follows isn't kept in records.
        self.checked_image = 0
        """The number of the image that the group's hash was last compared with; 0 for none."""

    # ------------------------------------------------------------------ what it is
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
        """Whether it is alive without members."""
        return not self.members and not self.is_dead

    @property
    def since_empty_ms(self) -> int | None:
        """Not known: no record keeps it. Each offset expires by the time of its commit."""
        return None

    @property
    def may_expire_offsets(self) -> bool:
        """Whether offsets may expire now: what the members consume is known at all times."""
        return True

    @property
    def protocol_type(self) -> str:
        """What its members are: consumers."""
        return CONSUMER_PROTOCOL_TYPE

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members consume a topic."""
        return self.subscriptions.includes(topic)

    def living_subscriptions(self) -> frozenset[str] | None:
        """The topics that living members consume, or are about to; None while that isn't known: a pattern isn't matched yet."""
        return frozenset(self.subscriptions.names()) if self.subscriptions.is_matched else None

    def target_of(self, member: ModernMember) -> Assignment:
        """What a member is to have; a static one that is back, what it was to have before."""
        if member.instance_id is not None:
            known = self.static_members.get(member.instance_id)
            return NOTHING if known is None else self.targets.get(known, NOTHING)
        return self.targets.get(member.member_id, NOTHING)

    def waits_for_others(self, member: ModernMember) -> bool:
        """Whether another member still has something of a member's target."""
        target = self.targets.get(member.member_id, NOTHING)
        for topic_id, numbers in target.items():
            missing = numbers - member.assigned.get(topic_id, frozenset())
            if any(self.owners.is_owned(topic_id, number) for number in missing):
                return True
        return False

    # ------------------------------------------------------------------ who may
    def find_member(self, member_id: str, instance_id: str | None) -> ModernMember | ErrorCode:
        """A member.

        Errors: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID for a static one that another has taken the place of.
        """
        if instance_id is None:
            return self.members.get(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        known = self.static_members.get(instance_id)
        if known is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return self.members[known] if known == member_id else ErrorCode.FENCED_INSTANCE_ID

    def check_commit(
        self,
        member_id: str,
        member_epoch: int,
        api_version: int,
        places: Iterable[tuple[TopicId, int]] = (),
        *,
        is_transaction: bool = False,
    ) -> ErrorCode:
        """Whether offsets may be committed for these partitions; from outside, which is a negative epoch, while there are no members.

        A member without its newest epoch may commit for partitions that it received in its known epoch or before, and still has.
        `is_transaction` is TxnOffsetCommit, which needn't name a member. Errors: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION
        for a member of the classic protocol, UNSUPPORTED_VERSION. Source: `ConsumerGroup.validateOffsetCommit`; KIP-1251.
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
        given = [member.epoch_of(topic_id, number) for topic_id, number in places]
        return (
            ErrorCode.NONE if given and all(epoch is not None and epoch <= member_epoch for epoch in given) else error
        )

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether offsets may be returned; to a client that names no member, always. Errors: as of `check_commit`."""
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        return ErrorCode.UNKNOWN_MEMBER_ID if member is None else _check_epoch(member, member_epoch)

    def check_offset_delete(self) -> ErrorCode:
        """Whether single offsets may be deleted. Errors: GROUP_ID_NOT_FOUND."""
        return ErrorCode.GROUP_ID_NOT_FOUND if self.is_dead else ErrorCode.NONE

    def check_delete(self) -> ErrorCode:
        """Whether the group may be deleted. Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        if self.is_dead:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NON_EMPTY_GROUP if self.members else ErrorCode.NONE

    # ------------------------------------------------------------------ records
    def apply(self, change: ConsumerGroupChange) -> None:
        """Take over what a record says.

        That of the group's epoch being taken back is its owner's business: the group is gone.
        """
        value, name = change.value, change.name
        if isinstance(value, MemberCurrent):
            self._put(self._member(name).with_current(value, self.targets.get(name, NOTHING)))
        elif isinstance(value, MemberSubscription):
            self._put(self._member(name).with_subscription(value))
        elif isinstance(value, MemberTarget):
            self.targets[name] = target_of(value)
        elif isinstance(value, GroupEpoch):
            self.group_epoch, self.metadata_hash = value.epoch, value.metadata_hash
        elif isinstance(value, TargetAssignmentEpoch):
            self.target_epoch, self.assigned_wall_ms = value.assignment_epoch, value.assignment_timestamp
            # A log that was compacted and then lost its end may lack the group's last epoch: below the target's nothing
            # would be assigned.
            self.group_epoch = max(self.group_epoch, self.target_epoch)
        elif isinstance(value, PatternTopics):
            self.subscriptions.note_pattern(
                name, ResolvedPattern(frozenset(value.topics), value.version, value.timestamp)
            )
        else:
            self._apply_others(change)

    def _apply_others(self, change: ConsumerGroupChange) -> None:
        kind = change.kind
        if kind is kind.TOPICS:
            self.has_topics_record = change.value is not None
        elif kind is kind.MEMBER:
            self._remove(change.name)
        elif kind is kind.CURRENT:
            member = self.members.get(change.name)
            if member is not None:
                self._put(member.with_current(None))
        elif kind is kind.TARGET:
            self.targets.pop(change.name, None)
        elif kind is kind.TARGET_EPOCH:
            self.target_epoch = INITIAL_EPOCH
        elif kind is kind.PATTERN:
            self.subscriptions.note_pattern(change.name, None)

    def _member(self, member_id: str) -> ModernMember:
        known = self.members.get(member_id)
        return known if known is not None else ModernMember(member_id=member_id)

    def _put(self, member: ModernMember) -> None:
        old = self.members.get(member.member_id)
        self.members[member.member_id] = member
        self._note_subscription(old, member)
        self.owners.on_changed(old, member)
        if old is not None and old.instance_id is not None and old.instance_id != member.instance_id:
            self._release_instance(old)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def _remove(self, member_id: str) -> None:
        old = self.members.pop(member_id, None)
        if old is not None:
            self._note_subscription(old, None)
            self.owners.on_changed(old, None)
            self._release_instance(old)

    def _note_subscription(self, old: ModernMember | None, new: ModernMember | None) -> None:
        if old is not None and new is not None and old.says_the_same_as(new):
            return
        self.subscriptions.replace(old, new)
        self._hold((bytes_of(new) if new is not None else 0) - (bytes_of(old) if old is not None else 0))

    # ------------------------------------------------------------------ memory
    def _hold(self, more_bytes: int) -> None:
        self.held_bytes += more_bytes
        self.memory.held_bytes += more_bytes

    def close(self) -> None:
        """The group is gone from this coordinator, and counts no longer."""
        self.is_dead = True
        self.release()

    def release(self) -> None:
        """The group is gone: whatever still happens to it has no effect."""
        self.memory.held_bytes -= self.held_bytes
        self.memory = MemberMemory()

    def _release_instance(self, member: ModernMember) -> None:
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]


def bytes_of(member: ModernMember) -> int:
    """What a member takes by what it says."""
    words = (member.client_id, member.instance_id, member.rack_id, member.topic_regex, *member.topic_names)
    protocols = member.classic.supported_protocols if member.classic is not None else ()
    return bytes_of_member(words, ((protocol.name, protocol.metadata) for protocol in protocols))


def _check_epoch(member: ModernMember, member_epoch: int) -> ErrorCode:
    if member_epoch == member.member_epoch:
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


def is_within(owned: Assignment | None, assigned: Mapping[TopicId, frozenset[int]]) -> bool:
    """Whether a member says what it has, and all of it is assigned to it."""
    return owned is not None and all(
        numbers <= assigned.get(topic_id, frozenset()) for topic_id, numbers in owned.items()
    )
