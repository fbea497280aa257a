"""A share group (KIP-932): partitions may have several members, so no member waits for another.

Guards: no partition is assigned before its state is initialized at the share coordinator.

Source: Kafka's `ShareGroup`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Mapping
from enum import Enum
from typing import Final

import msgspec

from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.member_memory import MemberMemory
from lowtide.broker.coordinator.modern.modern_group import ModernChange, ModernGroup
from lowtide.broker.coordinator.modern.modern_member import ModernMember, topic_rows
from lowtide.protocol.consumer_group_records import TargetTopicPartitions
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.share_group_records import (
    UNKNOWN_PARTITION_COUNT,
    DeletingStateTopic,
    ShareGroupChange,
    ShareGroupEpoch,
    ShareMemberCurrent,
    ShareMemberSubscription,
    SharePartitionStates,
    ShareRecordType,
    StatePartitions,
)
from lowtide.protocol.share_state_records import SharePlace
from lowtide.protocol.types import TopicId


class ShareGroupState(Enum):
    """What a group is doing. Values are the names that clients see. They follow from its members."""

    EMPTY = "Empty"
    """No members. action: its offsets may be altered, it may be deleted. transition: a member joins → STABLE."""
    STABLE = "Stable"
    """There are members. action: heartbeats. transition: the last one is gone → EMPTY."""
    DEAD = "Dead"
    """Gone from this coordinator. transition: none."""


class InitializingTopic(msgspec.Struct, frozen=True):
    """Partitions of a topic whose states were requested at a wall-clock time."""

    name: str
    partitions: frozenset[int]
    since_ms: int


class KnownStates(msgspec.Struct, frozen=True):
    """The share partitions whose states exist at the share coordinator, or are being initialized or deleted there."""

    initializing: Mapping[TopicId, InitializingTopic] = msgspec.field(default_factory=dict)
    initialized: Mapping[TopicId, tuple[str, frozenset[int]]] = msgspec.field(default_factory=dict)
    deleting: Mapping[TopicId, str] = msgspec.field(default_factory=dict)
    first_counts: Mapping[TopicId, int] = msgspec.field(default_factory=dict)
    """How many partitions each topic had when the group first saw it, if known. Higher partitions were added later."""

    def initialized_of(self, topic_id: TopicId) -> frozenset[int]:
        """Returns the partitions of a topic that have a state."""
        return self.initialized[topic_id][1] if topic_id in self.initialized else frozenset()

    def initializing_of(self, topic_id: TopicId) -> frozenset[int]:
        """Returns the partitions of a topic whose states were requested."""
        return self.initializing[topic_id].partitions if topic_id in self.initializing else frozenset()

    def first_count(self, topic_id: TopicId, count: int) -> int:
        """Returns how many partitions a topic had when the group first saw it; `count` if that is now."""
        if topic_id in self.first_counts:
            return self.first_counts[topic_id]
        known = self.initialized_of(topic_id) | self.initializing_of(topic_id)
        return max(known) + 1 if known else count

    def names(self) -> dict[TopicId, str]:
        """Returns the topics that have states or are about to, by id."""
        names = {topic_id: row.name for topic_id, row in self.initializing.items()}
        return names | {topic_id: name for topic_id, (name, _) in self.initialized.items()}

    def without(self, topics: Container[TopicId], deleting: Mapping[TopicId, str]) -> KnownStates:
        """Returns the states without those of some topics; `deleting` are those whose states are being deleted."""
        return KnownStates(
            initializing={topic_id: row for topic_id, row in self.initializing.items() if topic_id not in topics},
            initialized={topic_id: row for topic_id, row in self.initialized.items() if topic_id not in topics},
            deleting=deleting,
            first_counts=self.first_counts,
        )

    def deleting_without(self, topics: Container[TopicId]) -> dict[TopicId, str]:
        """Returns the topics whose states are being deleted, without some of them."""
        return {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in topics}

    def record(self) -> SharePartitionStates:
        """Returns the record of the states. It has `first_counts` only of topics that have a state or are about to."""
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
        """Returns whether partitions of a topic have a state, or may have one."""
        return topic_id in self.initialized or topic_id in self.initializing or topic_id in self.deleting

    def hash_of(self, topic_ids: Iterable[TopicId]) -> int:
        """Returns a hash of the partitions of these topics that may be assigned; 0 if there are none."""
        whole, is_empty = hashlib.blake2b(digest_size=8), True
        for topic_id in sorted(topic_ids):
            numbers = self.initialized_of(topic_id)
            if numbers:
                whole.update(topic_id + repr(sorted(numbers)).encode())
                is_empty = False
        return 0 if is_empty else int.from_bytes(whole.digest(), "big", signed=True)


def states_of(value: SharePartitionStates) -> KnownStates:
    """Returns the states that a record has."""
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


class ShareGroup(ModernGroup):
    """One share group."""

    group_type = GroupType.SHARE
    protocol_type = "share"
    change_type = ShareGroupChange
    record_types = ShareRecordType
    epoch_type = ShareGroupEpoch

    __slots__ = ("is_deleting", "states")

    def __init__(self, group_id: str, memory: MemberMemory | None = None) -> None:
        super().__init__(group_id, memory)
        self.states = NO_STATES
        self.is_deleting = False
        """Whether states of the group are being changed or deleted: it takes no members meanwhile. Not in records."""

    @property
    def state(self) -> ShareGroupState:
        """What the group is doing."""
        if self.is_dead:
            return ShareGroupState.DEAD
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def is_unused(self) -> bool:
        """Always False: an empty group keeps its start offsets until it is deleted, as in Kafka."""
        return False

    def places(self, partition_count: Callable[[TopicId], int]) -> list[SharePlace]:
        """Returns the share partitions that have or may have a state.

        Of a topic whose states are being deleted these are all partitions.
        """
        states = self.states
        rows = [(topic_id, row.partitions) for topic_id, row in states.initializing.items()]
        rows += [(topic_id, numbers) for topic_id, (_, numbers) in states.initialized.items()]
        rows += [(topic_id, frozenset(range(partition_count(topic_id)))) for topic_id in states.deleting]
        return list(
            dict.fromkeys(
                SharePlace(self.group_id, topic_id, number) for topic_id, numbers in rows for number in sorted(numbers)
            )
        )

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Returns GROUP_ID_NOT_FOUND: there are no committed offsets. Source: `ShareGroup.validateOffsetFetch`."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def check_offset_delete(self) -> ErrorCode:
        """Returns GROUP_ID_NOT_FOUND, as `check_fetch` does."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    @property
    def empty_target_wall_ms(self) -> int:
        """The time of the last target (KAFKA-20442)."""
        return self.assigned_wall_ms

    # ------------------------------------------------------------------ records
    @staticmethod
    def subscription_record(member: ModernMember) -> ShareMemberSubscription:
        """Returns the record of a member's subscription."""
        return ShareMemberSubscription(
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topic_names),
        )

    @staticmethod
    def current_record(member: ModernMember) -> ShareMemberCurrent:
        """Returns the record of a member's current assignment."""
        return ShareMemberCurrent(
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_epoch,
            assigned_partitions=topic_rows(member.assigned, TargetTopicPartitions),
        )

    def own_records(self) -> Iterable[tuple[ShareRecordType, str]]:
        """Returns the record of states."""
        return [(ShareRecordType.STATES, "")]

    def _apply_own(self, change: ModernChange) -> None:
        if change.kind is ShareRecordType.STATES:
            value = change.value
            self.states = states_of(value) if isinstance(value, SharePartitionStates) else NO_STATES
            self.checked_image = 0
