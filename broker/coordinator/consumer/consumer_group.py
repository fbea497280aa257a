"""A group whose partitions the broker assigns (KIP-848): its members, what each is to have, and what each has.

Three epochs follow each other. A change of members, subscriptions or topics raises the group's epoch; a new target assignment is computed
for it, and takes its number; each member comes to the target in its own time (`reconciliation`), and takes its number when it is there.

Guards: all changes come from records (`apply`), so what a coordinator knows is what one knows that loads the log; an instance id belongs to
one member; a partition has at most one owner (who has it, or may still have it).

Source: Kafka's `ConsumerGroup`, `ModernGroup`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, Literal

import msgspec

from lowtide.broker.coordinator.consumer.consumer_member import NOTHING, Assignment, ConsumerMember, target_of
from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.member_memory import MemberMemory, bytes_of_member
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


class ResolvedPattern(msgspec.Struct, frozen=True):
    """The topics that match a pattern, at a revision of the metadata, found at a wall-clock time."""

    topics: frozenset[str]
    revision: int
    wall_ms: int


class ConsumerGroup:
    """One group. Members are kept in the order in which they came."""

    group_type: Final[Literal[GroupType.CONSUMER]] = GroupType.CONSUMER

    __slots__ = (
        "assigned_wall_ms",
        "assignors",
        "checked_image",
        "classic_count",
        "classic_protocols",
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
        "pattern_counts",
        "patterns",
        "static_members",
        "target_epoch",
        "targets",
        "topic_counts",
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
        self.static_members: dict[str, str] = {}
        """Instance id → member id."""
        self.patterns: dict[str, ResolvedPattern] = {}
        self.owners: dict[TopicId, dict[int, str]] = {}
        """Topic → partition → who has it, or may still have it."""
        self.topic_counts: Counter[str] = Counter()
        """How many members name each topic."""
        self.pattern_counts: Counter[str] = Counter()
        self.assignors: Counter[str] = Counter()
        self.classic_count = 0
        self.classic_protocols: Counter[str] = Counter()
        self.has_topics_record = False
        """Whether the log has a record of its topics that a coordinator of old left there."""
        self.last_record_offset = UNKNOWN_OFFSET
        self.is_dead = False
        self.assigned_wall_ms = 0
        """When the target was made, 0 where that isn't known."""
        # What follows isn't kept in records.
        self.checked_image: object = None
        """The image that the group's hash was last compared with."""

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

    def subscribed_names(self) -> set[str]:
        """All topics that members name or that match their patterns, as far as these are matched."""
        names = set(self.topic_counts)
        for pattern in self.patterns.values():
            names |= pattern.topics
        return names

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members consume a topic."""
        return topic in self.topic_counts or any(topic in pattern.topics for pattern in self.patterns.values())

    def living_subscriptions(self) -> frozenset[str] | None:
        """The topics that living members consume, or are about to; None while that isn't known: a pattern isn't matched yet."""
        if any(pattern not in self.patterns for pattern in self.pattern_counts):
            return None
        return frozenset(self.subscribed_names())

    def names_of(self, member: ConsumerMember) -> frozenset[str]:
        """The topics that a member consumes, as far as its pattern is matched."""
        pattern = self.patterns.get(member.pattern) if member.pattern is not None else None
        return member.topic_names if pattern is None else member.topic_names | pattern.topics

    def is_owned(self, topic_id: TopicId, number: int) -> bool:
        """Whether a member has a partition, or may still have it."""
        return number in self.owners.get(topic_id, ())

    def preferred_assignor(self, old: ConsumerMember | None = None, new: ConsumerMember | None = None) -> str | None:
        """The assignor that most members ask for, the first by name of several; None where none does. `old` is `new` then."""
        votes = self.assignors
        if old is not None or new is not None:
            votes = Counter(votes)
            _count(votes, (old.server_assignor,) if old is not None and old.server_assignor else (), -1)
            _count(votes, (new.server_assignor,) if new is not None and new.server_assignor else (), 1)
        return min(votes, key=lambda name: (-votes[name], name), default=None)

    def target_of(self, member: ConsumerMember) -> Assignment:
        """What a member is to have; a static one that is back, what it was to have before."""
        if member.instance_id is not None:
            known = self.static_members.get(member.instance_id)
            return NOTHING if known is None else self.targets.get(known, NOTHING)
        return self.targets.get(member.member_id, NOTHING)

    def speaks(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member of the classic protocol may join: it is a consumer, and speaks what all others of that protocol speak."""
        return protocol_type == CONSUMER_PROTOCOL_TYPE and any(self.classic_protocols[name] == self.classic_count for name in names)

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether another member still has something of a member's target."""
        target = self.targets.get(member.member_id, NOTHING)
        for topic_id, numbers in target.items():
            missing = numbers - member.assigned.get(topic_id, frozenset())
            if any(self.is_owned(topic_id, number) for number in missing):
                return True
        return False

    # ------------------------------------------------------------------ who may
    def find_member(self, member_id: str, instance_id: str | None) -> ConsumerMember | ErrorCode:
        """A member. Errors: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID for a static one that another has taken the place of."""
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

        A member that hasn't heard of its newest epoch may commit for what it was given in the one that it knows, or before, and still has.
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
        return ErrorCode.NONE if given and all(epoch is not None and epoch <= member_epoch for epoch in given) else error

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
        """Take over what a record says. That of the group's epoch being taken back is its owner's business: the group is gone."""
        value, name = change.value, change.name
        if isinstance(value, MemberCurrent):
            self._put(self._member(name).with_current(value))
        elif isinstance(value, MemberSubscription):
            self._put(self._member(name).with_subscription(value))
        elif isinstance(value, MemberTarget):
            self.targets[name] = target_of(value)
        elif isinstance(value, GroupEpoch):
            self.group_epoch, self.metadata_hash = value.epoch, value.metadata_hash
        elif isinstance(value, TargetAssignmentEpoch):
            self.target_epoch, self.assigned_wall_ms = value.assignment_epoch, value.assignment_timestamp
        elif isinstance(value, PatternTopics):
            self.patterns[name] = ResolvedPattern(frozenset(value.topics), value.version, value.timestamp)
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
            self.patterns.pop(change.name, None)

    def _member(self, member_id: str) -> ConsumerMember:
        known = self.members.get(member_id)
        return known if known is not None else ConsumerMember(member_id=member_id)

    def _put(self, member: ConsumerMember) -> None:
        old = self.members.get(member.member_id)
        self.members[member.member_id] = member
        self._count_subscription(old, member)
        if old is None or old.assigned is not member.assigned or old.revoking is not member.revoking:
            self._release(old)
            for assignment in (member.assigned, member.revoking):
                for topic_id, numbers in assignment.items():
                    self.owners.setdefault(topic_id, {}).update(dict.fromkeys(numbers, member.member_id))
        if old is not None and old.instance_id is not None and old.instance_id != member.instance_id:
            self._release_instance(old)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def _remove(self, member_id: str) -> None:
        old = self.members.pop(member_id, None)
        if old is not None:
            self._count_subscription(old, None)
            self._release(old)
            self._release_instance(old)

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

    def _release_instance(self, member: ConsumerMember) -> None:
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]

    def _release(self, member: ConsumerMember | None) -> None:
        """What this member had is free, unless another member was given it since: a log may have lost the record between the two."""
        if member is None:
            return
        for assignment in (member.assigned, member.revoking):
            for topic_id, numbers in assignment.items():
                owners = self.owners.get(topic_id)
                if owners is None:
                    continue
                for number in numbers:
                    if owners.get(number) == member.member_id:
                        del owners[number]
                if not owners:
                    del self.owners[topic_id]

    def _count_subscription(self, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        if old is not None and new is not None and old.says_the_same_as(new):
            return
        for member, by in ((old, -1), (new, 1)):
            if member is None:
                continue
            self._hold(by * bytes_of(member))
            _count(self.topic_counts, member.topic_names, by)
            _count(self.pattern_counts, (member.pattern,) if member.pattern is not None else (), by)
            _count(self.assignors, (member.server_assignor,) if member.server_assignor is not None else (), by)
            if member.classic is not None:
                self.classic_count += by
                _count(self.classic_protocols, (protocol.name for protocol in member.classic.supported_protocols), by)


def bytes_of(member: ConsumerMember) -> int:
    """What a member takes by what it says."""
    words = (member.client_id, member.instance_id, member.rack_id, member.topic_regex, *member.topic_names)
    protocols = member.classic.supported_protocols if member.classic is not None else ()
    return bytes_of_member(words, ((protocol.name, protocol.metadata) for protocol in protocols))


def _count(counts: Counter[str], names: Iterable[str], by: int) -> None:
    for name in names:
        counts[name] += by
        if not counts[name]:
            del counts[name]


def _check_epoch(member: ConsumerMember, member_epoch: int) -> ErrorCode:
    if member_epoch == member.member_epoch:
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


def is_within(owned: Assignment | None, assigned: Mapping[TopicId, frozenset[int]]) -> bool:
    """Whether a member says what it has, and all of it is assigned to it."""
    return owned is not None and all(numbers <= assigned.get(topic_id, frozenset()) for topic_id, numbers in owned.items())
