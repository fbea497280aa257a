"""A share group (KIP-932): its members, what each is to have, and the share partitions whose state has begun.

Partitions may have several members, so no member waits until another has given something back: it has its target at its
next heartbeat.

Guards: all changes come from records (`apply`), so what a coordinator knows is what one knows that loads the log; no
partition is assigned before its state has begun at the share coordinator.

Source: Kafka's `ShareGroup`, `ModernGroup`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final, Literal

import msgspec

from lowtide.broker.coordinator.consumer.consumer_member import (
    NOTHING,
    Assignment,
    ConsumerMember,
    assignment_of,
    target_of,
)
from lowtide.broker.coordinator.consumer.subscriptions import Subscriptions
from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.member_memory import MemberMemory, bytes_of_member
from lowtide.protocol.consumer_group_records import MemberTarget, TargetAssignmentEpoch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.share_group_heartbeat import LEAVE_EPOCH
from lowtide.protocol.share_group_records import (
    UNKNOWN_PARTITION_COUNT,
    DeletingStateTopic,
    ShareGroupChange,
    ShareGroupEpoch,
    ShareMemberCurrent,
    ShareMemberSubscription,
    SharePartitionStates,
    StatePartitions,
)
from lowtide.protocol.share_state_records import SharePlace
from lowtide.protocol.types import UNKNOWN_OFFSET, TopicId

SHARE_PROTOCOL_TYPE: Final = "share"
INITIAL_EPOCH: Final = 1
"""A new group's epoch; the first member raises it to 2. As of consumer groups."""


class ShareGroupState(Enum):
    """What a group is doing. Values are the names that clients see; they follow from its members."""

    EMPTY = "Empty"
    """No members. action: its offsets may be altered, it may be deleted. transition: a member joins → STABLE."""
    STABLE = "Stable"
    """There are members. action: heartbeats. transition: the last one is gone → EMPTY."""
    DEAD = "Dead"
    """Gone from this coordinator. transition: none."""


class InitializingTopic(msgspec.Struct, frozen=True):
    """Partitions of a topic whose state was asked to begin at a wall-clock time."""

    name: str
    partitions: frozenset[int]
    since_ms: int


class KnownStates(msgspec.Struct, frozen=True):
    """The share partitions that have a state at the share coordinator, or are about to have or to lose it."""

    initializing: Mapping[TopicId, InitializingTopic] = msgspec.field(default_factory=dict)
    initialized: Mapping[TopicId, tuple[str, frozenset[int]]] = msgspec.field(default_factory=dict)
    deleting: Mapping[TopicId, str] = msgspec.field(default_factory=dict)
    first_counts: Mapping[TopicId, int] = msgspec.field(default_factory=dict)
    """How many partitions each topic had when the group first knew it, as far as that was noted. Those above were added since."""

    def first_count(self, topic_id: TopicId, count: int) -> int:
        """Returns how many partitions a topic had when the group first knew it: `count`, which it has now, where it doesn't know it yet."""
        noted = self.first_counts.get(topic_id)
        if noted is not None:
            return noted
        asked = self.initializing.get(topic_id)
        known = self.initialized.get(topic_id, ("", frozenset[int]()))[1] | (
            asked.partitions if asked is not None else frozenset()
        )
        return max(known) + 1 if known else count

    def record(self) -> SharePartitionStates:
        """What is kept of it."""
        return SharePartitionStates(
            initializing_topics=[
                self._row(topic_id, row.name, row.partitions, row.since_ms)
                for topic_id, row in self.initializing.items()
            ],
            initialized_topics=[
                self._row(topic_id, name, numbers) for topic_id, (name, numbers) in self.initialized.items()
            ],
            deleting_topics=[
                DeletingStateTopic(topic_id=topic_id, topic_name=name) for topic_id, name in self.deleting.items()
            ],
        )

    def _row(self, topic_id: TopicId, name: str, numbers: Iterable[int], since_ms: int = 0) -> StatePartitions:
        return StatePartitions(
            topic_id=topic_id,
            topic_name=name,
            partitions=sorted(numbers),
            create_timestamp=since_ms,
            first_count=self.first_counts.get(topic_id, UNKNOWN_PARTITION_COUNT),
        )

    def includes(self, topic_id: TopicId) -> bool:
        """Whether partitions of a topic have a state, or may have one."""
        return topic_id in self.initialized or topic_id in self.initializing or topic_id in self.deleting

    def hash_of(self, topic_ids: Iterable[TopicId]) -> int:
        """A number that stands for the partitions of these topics that may be assigned; 0 where there are none."""
        whole, is_empty = hashlib.blake2b(digest_size=8), True
        for topic_id in sorted(topic_ids):
            numbers = self.initialized.get(topic_id, ("", frozenset()))[1]
            if numbers:
                whole.update(topic_id + repr(sorted(numbers)).encode())
                is_empty = False
        return 0 if is_empty else int.from_bytes(whole.digest(), "big", signed=True)


def states_of(value: SharePartitionStates) -> KnownStates:
    """The states by their record."""
    return KnownStates(
        initializing={
            row.topic_id: InitializingTopic(row.topic_name, frozenset(row.partitions), row.create_timestamp)
            for row in value.initializing_topics
        },
        initialized={row.topic_id: (row.topic_name, frozenset(row.partitions)) for row in value.initialized_topics},
        deleting={row.topic_id: row.topic_name for row in value.deleting_topics},
        first_counts={
            row.topic_id: row.first_count
            for row in (*value.initializing_topics, *value.initialized_topics)
            if row.first_count != UNKNOWN_PARTITION_COUNT
        },
    )


NO_STATES: Final = KnownStates()


class ShareGroup:
    """One group. Members are kept in the order in which they came."""

    group_type: Final[Literal[GroupType.SHARE]] = GroupType.SHARE

    __slots__ = (
        "assigned_wall_ms",
        "checked_image",
        "group_epoch",
        "group_id",
        "held_bytes",
        "is_dead",
        "is_deleting",
        "last_record_offset",
        "members",
        "memory",
        "metadata_hash",
        "states",
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
        self.members: dict[str, ConsumerMember] = {}
        self.subscriptions = Subscriptions()
        self.states = NO_STATES
        self.last_record_offset = UNKNOWN_OFFSET
        self.is_dead = False
        self.assigned_wall_ms = 0
        """When the target was computed, 0 if unknown."""
        # What follows isn't kept in records.
        self.checked_image = 0
        """The number of the image that the group's hash was last compared with; 0 for none."""
        self.is_deleting = False
        """Whether its states are being deleted, after which it is gone itself."""

    # ------------------------------------------------------------------ what it is
    @property
    def state(self) -> ShareGroupState:
        """What the group is doing."""
        if self.is_dead:
            return ShareGroupState.DEAD
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def is_unused(self) -> bool:
        """Never: an empty group keeps how far it is until it is deleted, as Kafka's does."""
        return False

    @property
    def since_empty_ms(self) -> int | None:
        """Not known."""
        return None

    @property
    def may_expire_offsets(self) -> bool:
        """Whether offsets may expire now: the group has none."""
        return True

    @property
    def protocol_type(self) -> str:
        """What its members are."""
        return SHARE_PROTOCOL_TYPE

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members consume a topic."""
        return self.subscriptions.includes(topic)

    def living_subscriptions(self) -> frozenset[str] | None:
        """The topics that living members consume."""
        return frozenset(self.subscriptions.names())

    def places(self, partition_count: Callable[[TopicId], int]) -> list[SharePlace]:
        """The share partitions that have a state, or may have one: of topics whose states are being deleted all partitions."""
        states = self.states
        rows = [(topic_id, row.partitions) for topic_id, row in states.initializing.items()]
        rows += [(topic_id, numbers) for topic_id, (_, numbers) in states.initialized.items()]
        rows += [(topic_id, frozenset(range(partition_count(topic_id)))) for topic_id in states.deleting]
        return list(
            dict.fromkeys(
                SharePlace(self.group_id, topic_id, number) for topic_id, numbers in rows for number in sorted(numbers)
            )
        )

    # ------------------------------------------------------------------ who may
    def check_fetch(self, _member_id: str | None, _member_epoch: int) -> ErrorCode:
        """A share group has no committed offsets.

        Errors: GROUP_ID_NOT_FOUND. Source: `ShareGroup.validateOffsetFetch`.
        """
        return ErrorCode.GROUP_ID_NOT_FOUND

    def check_offset_delete(self) -> ErrorCode:
        """As `check_fetch`."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def check_delete(self) -> ErrorCode:
        """Whether the group may be deleted. Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        if self.is_dead:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NON_EMPTY_GROUP if self.members else ErrorCode.NONE

    # ------------------------------------------------------------------ records
    def apply(self, change: ShareGroupChange) -> None:
        """Take over what a record says.

        That of the group's epoch being taken back is its owner's business: the group is gone.
        """
        value, name = change.value, change.name
        if isinstance(value, ShareMemberCurrent):
            self._put(with_current(self._member(name), value, self.targets.get(name, NOTHING)))
        elif isinstance(value, ShareMemberSubscription):
            self._put(with_subscription(self._member(name), value))
        elif isinstance(value, MemberTarget):
            self.targets[name] = target_of(value)
        elif isinstance(value, ShareGroupEpoch):
            self.group_epoch, self.metadata_hash = value.epoch, value.metadata_hash
        elif isinstance(value, TargetAssignmentEpoch):
            self.target_epoch, self.assigned_wall_ms = value.assignment_epoch, value.assignment_timestamp
            # A log that was compacted and then lost its end may lack the group's last epoch: below the target's nothing
            # would be assigned.
            self.group_epoch = max(self.group_epoch, self.target_epoch)
        elif isinstance(value, SharePartitionStates):
            self.states, self.checked_image = states_of(value), 0
        else:
            self._take_back(change)

    def _take_back(self, change: ShareGroupChange) -> None:
        kind = change.kind
        if kind is kind.MEMBER:
            old = self.members.pop(change.name, None)
            if old is not None:
                self._note_subscription(old, None)
        elif kind is kind.CURRENT:
            member = self.members.get(change.name)
            if member is not None:
                self._put(with_current(member, ShareMemberCurrent(
                    member_epoch=LEAVE_EPOCH, previous_member_epoch=LEAVE_EPOCH, assigned_partitions=[]
                )))  # fmt: skip
        elif kind is kind.TARGET:
            self.targets.pop(change.name, None)
        elif kind is kind.TARGET_EPOCH:
            self.target_epoch = INITIAL_EPOCH
        elif kind is kind.STATES:
            self.states, self.checked_image = NO_STATES, 0

    def _member(self, member_id: str) -> ConsumerMember:
        known = self.members.get(member_id)
        return known if known is not None else ConsumerMember(member_id=member_id)

    def _put(self, member: ConsumerMember) -> None:
        old = self.members.get(member.member_id)
        self.members[member.member_id] = member
        self._note_subscription(old, member)

    def _note_subscription(self, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        if old is not None and new is not None and old.says_the_same_as(new):
            return
        self.subscriptions.replace(old, new)
        more_bytes = (bytes_of(new) if new is not None else 0) - (bytes_of(old) if old is not None else 0)
        self.held_bytes += more_bytes
        self.memory.held_bytes += more_bytes

    # ------------------------------------------------------------------ memory
    def close(self) -> None:
        """The group is gone from this coordinator, and counts no longer."""
        self.is_dead = True
        self.release()

    def release(self) -> None:
        """The group is gone: whatever still happens to it has no effect."""
        self.memory.held_bytes -= self.held_bytes
        self.memory = MemberMemory()


def bytes_of(member: ConsumerMember) -> int:
    """What a member takes by what it says."""
    return bytes_of_member((member.client_id, member.rack_id, *member.topic_names), ())


def with_subscription(member: ConsumerMember, value: ShareMemberSubscription) -> ConsumerMember:
    """A member after a record of what it says."""
    return msgspec.structs.replace(
        member,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topic_names=frozenset(value.subscribed_topic_names),
    )


def with_current(member: ConsumerMember, value: ShareMemberCurrent, target: Assignment = NOTHING) -> ConsumerMember:
    """A member after a record of what it has.

    `target` is what it is to have: mostly that is what it has, which isn't kept twice.
    """
    assigned = assignment_of((row.topic_id, row.partitions) for row in value.assigned_partitions)
    return msgspec.structs.replace(
        member,
        member_epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        assigned=target if assigned == target else assigned,
    )
