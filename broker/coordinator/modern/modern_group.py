"""What consumer groups and share groups have in common: members, epochs and a target assignment.

Three epochs follow each other. A change of members, subscriptions or topics raises the group's epoch. A target
assignment is computed for the new epoch and takes its number. A member takes the number when it has its part of the
target.

Guards: only records change a group (`apply`), so a coordinator that loads the log has the same state.

Source: Kafka's `ModernGroup`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum
from typing import Any, ClassVar, Final, TypeAlias

from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.member_memory import GroupMemory, MemberMemory
from lowtide.broker.coordinator.modern.modern_member import NOTHING, Assignment, ModernMember, assignment_of
from lowtide.broker.coordinator.modern.subscriptions import Subscriptions
from lowtide.protocol.consumer_group_records import (
    ConsumerGroupChange,
    GroupEpoch,
    MemberCurrent,
    MemberSubscription,
    MemberTarget,
    RecordType,
    TargetAssignmentEpoch,
)
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.share_group_records import (
    ShareGroupChange,
    ShareGroupEpoch,
    ShareMemberCurrent,
    ShareMemberSubscription,
    ShareRecordType,
)
from lowtide.protocol.types import UNKNOWN_OFFSET

INITIAL_EPOCH: Final = 1
"""The epoch of a new group and of its empty target. The first member raises the group's epoch to 2, as in Kafka 4.3."""

ModernChange: TypeAlias = ConsumerGroupChange | ShareGroupChange
"""One record about a group."""


class ModernGroup(ABC):
    """One group. Members are kept in the order in which they joined."""

    group_type: ClassVar[GroupType]
    protocol_type: ClassVar[str]
    change_type: ClassVar[type[Any]]
    record_types: ClassVar[type[RecordType | ShareRecordType]]
    epoch_type: ClassVar[type[GroupEpoch | ShareGroupEpoch]]

    __slots__ = (
        "assigned_wall_ms",
        "checked_image",
        "group_epoch",
        "group_id",
        "has_topics_record",
        "is_dead",
        "last_record_offset",
        "members",
        "memory",
        "metadata_hash",
        "subscriptions",
        "target_epoch",
        "targets",
    )

    def __init__(self, group_id: str, memory: MemberMemory | None = None) -> None:
        """`memory` is shared by a broker's groups."""
        self.group_id = group_id
        self.memory = GroupMemory(memory)
        self.group_epoch = INITIAL_EPOCH
        self.metadata_hash = 0
        self.target_epoch = INITIAL_EPOCH
        self.targets: dict[str, Assignment] = {}
        self.members: dict[str, ModernMember] = {}
        self.subscriptions = Subscriptions()
        self.has_topics_record = False
        """Whether the log has a record of the group's topics, which Kafka wrote for consumer groups before 4.1."""
        self.last_record_offset = UNKNOWN_OFFSET
        self.is_dead = False
        self.assigned_wall_ms = 0
        """When the target was computed; 0 if unknown."""
        self.checked_image = 0
        """The number of the image that the group's hash was last compared with; 0 for none. Not in records."""

    # ------------------------------------------------------------------ what it is
    @property
    @abstractmethod
    def state(self) -> Enum:
        """What the group is doing."""

    @property
    @abstractmethod
    def is_unused(self) -> bool:
        """Whether the group may be removed once it has no offsets."""

    @property
    def since_empty_ms(self) -> int | None:
        """Always None: each offset expires by the time of its own commit, since no record keeps the time."""
        return None

    @property
    def may_expire_offsets(self) -> bool:
        """Whether offsets may expire now: always, because the subscriptions are always known."""
        return True

    def is_subscribed_to(self, topic: str) -> bool:
        """Returns whether members consume a topic."""
        return self.subscriptions.includes(topic)

    def living_subscriptions(self) -> frozenset[str] | None:
        """Returns the topics that members consume; None while a pattern is not yet matched to topics."""
        return frozenset(self.subscriptions.names()) if self.subscriptions.is_matched else None

    def target_of(self, member: ModernMember) -> Assignment:
        """Returns a member's part of the target assignment."""
        return self.targets.get(member.member_id, NOTHING)

    def members_with(self, member: ModernMember) -> dict[str, ModernMember]:
        """Returns the members after one has joined or changed."""
        return {**self.members, member.member_id: member}

    # ------------------------------------------------------------------ checks
    @abstractmethod
    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Checks whether offsets may be returned to a client."""

    @abstractmethod
    def check_offset_delete(self) -> ErrorCode:
        """Checks whether single offsets may be deleted."""

    def check_delete(self) -> ErrorCode:
        """Checks whether the group may be deleted. Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        if self.is_dead:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NON_EMPTY_GROUP if self.members else ErrorCode.NONE

    @property
    @abstractmethod
    def empty_target_wall_ms(self) -> int:
        """The time of the target after the last member leaves, in wall-clock milliseconds."""

    # ------------------------------------------------------------------ records
    @staticmethod
    @abstractmethod
    def subscription_record(member: ModernMember, /) -> MemberSubscription | ShareMemberSubscription:
        """Returns the record of a member's subscription."""

    @staticmethod
    @abstractmethod
    def current_record(member: ModernMember, /) -> MemberCurrent | ShareMemberCurrent:
        """Returns the record of a member's current assignment."""

    @abstractmethod
    def own_records(self) -> Iterable[tuple[RecordType | ShareRecordType, str]]:
        """Yields type and name of the records that only groups of this type have."""

    def apply(self, change: ModernChange) -> None:
        """Applies a record. Its owner removes the group when the record of its epoch is a tombstone."""
        value, name = change.value, change.name
        if isinstance(value, MemberCurrent | ShareMemberCurrent):
            self._put(self._member(name).with_current(value, self.targets.get(name, NOTHING)))
        elif isinstance(value, MemberSubscription | ShareMemberSubscription):
            self._put(self._member(name).with_subscription(value))
        elif isinstance(value, MemberTarget):
            self.targets[name] = assignment_of((row.topic_id, row.partitions) for row in value.topic_partitions)
        elif isinstance(value, GroupEpoch | ShareGroupEpoch):
            self.group_epoch, self.metadata_hash = value.epoch, value.metadata_hash
        elif isinstance(value, TargetAssignmentEpoch):
            self.target_epoch, self.assigned_wall_ms = value.assignment_epoch, value.assignment_timestamp
            # A compacted log that lost its end may lack the last epoch of the group. Below the target's epoch nothing
            # would be assigned.
            self.group_epoch = max(self.group_epoch, self.target_epoch)
        elif value is None:
            self._apply_tombstone(change)
        else:
            self._apply_own(change)

    def _apply_tombstone(self, change: ModernChange) -> None:
        kind, name = change.kind, change.name
        if kind is kind.MEMBER:
            self._remove(name)
        elif kind is kind.CURRENT:
            member = self.members.get(name)
            if member is not None:
                self._put(member.with_current(None))
        elif kind is kind.TARGET:
            self.targets.pop(name, None)
        elif kind is kind.TARGET_EPOCH:
            self.target_epoch = INITIAL_EPOCH
        else:
            self._apply_own(change)

    @abstractmethod
    def _apply_own(self, change: ModernChange) -> None:
        """Applies one of `own_records`."""

    def _member(self, member_id: str) -> ModernMember:
        known = self.members.get(member_id)
        return known if known is not None else ModernMember(member_id=member_id)

    def _put(self, member: ModernMember) -> None:
        old = self.members.get(member.member_id)
        self.members[member.member_id] = member
        self._on_member_changed(old, member)

    def _remove(self, member_id: str) -> None:
        old = self.members.pop(member_id, None)
        if old is not None:
            self._on_member_changed(old, None)

    def _on_member_changed(self, old: ModernMember | None, new: ModernMember | None) -> None:
        if old is not None and new is not None and old.has_same_subscription(new):
            return
        self.subscriptions.replace(old, new)
        self.memory.hold((new.size_bytes if new is not None else 0) - (old.size_bytes if old is not None else 0))

    # ------------------------------------------------------------------ memory
    def close(self) -> None:
        """Marks the group as dead and releases its memory."""
        self.is_dead = True
        self.release()

    def release(self) -> None:
        """Gives the group's memory back to the broker. Later changes of the group no longer count."""
        self.memory.release()
