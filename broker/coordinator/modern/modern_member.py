"""A member of a modern group: a value that each of its records replaces. Share groups use only some of its fields.

Source: Kafka's `ModernGroupMember`, `ConsumerGroupMember`, `ShareGroupMember`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final, TypeAlias, TypeVar

import msgspec

from lowtide.broker.coordinator.member_memory import bytes_of_member
from lowtide.broker.coordinator.modern.member_state import MemberEvent, MemberState, next_state, state_of_record
from lowtide.protocol.consumer_group_records import (
    ClassicMemberMetadata,
    CurrentTopicPartitions,
    MemberCurrent,
    MemberSubscription,
    MemberTarget,
    TargetTopicPartitions,
)
from lowtide.protocol.messages.consumer_group_heartbeat import JOIN_EPOCH, LEAVE_EPOCH
from lowtide.protocol.share_group_records import ShareMemberCurrent, ShareMemberSubscription
from lowtide.protocol.types import TopicId

R = TypeVar("R")

Assignment: TypeAlias = Mapping[TopicId, frozenset[int]]
"""Partitions by topic. Topics without partitions are absent, so equal assignments compare equal."""

NOTHING: Final[Assignment] = {}

Epochs: TypeAlias = Mapping[TopicId, Mapping[int, int]] | int
"""The member epoch in which a member got each partition that it has or has to revoke (KIP-1251); one number if all are
equal."""

NO_EPOCHS: Final[Epochs] = 0

FEW: Final = 8
"""Sets of up to this many partitions or topic names are shared by all members that have the same, to save memory."""


class ModernMember(msgspec.Struct, frozen=True):
    """One member.

    `topic_regex` is None or empty without a pattern; `classic` is set for a member of the classic protocol.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = None
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None
    member_epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING
    """The partitions that it has to revoke and may still have."""
    epochs: Epochs = NO_EPOCHS

    @property
    def pattern(self) -> str | None:
        """The pattern; None if it has none."""
        return self.topic_regex or None

    @property
    def held(self) -> Assignment:
        """The partitions that it may consume now. Those to revoke are included until it reports their revocation."""
        if not self.revoking:
            return self.assigned
        held = dict(self.assigned)
        for topic_id, numbers in self.revoking.items():
            held[topic_id] = held.get(topic_id, frozenset()) | numbers
        return held

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Returns whether it has exactly its part of the target of this epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch

    def has_same_subscription(self, other: ModernMember) -> bool:
        """Returns whether the records of both subscriptions are equal."""
        return (
            self.topic_names == other.topic_names
            and self.topic_regex == other.topic_regex
            and self.instance_id == other.instance_id
            and self.rack_id == other.rack_id
            and self.client_id == other.client_id
            and self.client_host == other.client_host
            and self.rebalance_timeout_ms == other.rebalance_timeout_ms
            and self.server_assignor == other.server_assignor
            and self.classic == other.classic
        )

    @property
    def size_bytes(self) -> int:
        """The memory that its subscription takes."""
        words = (self.client_id, self.instance_id, self.rack_id, self.topic_regex, *self.topic_names)
        protocols = self.classic.supported_protocols if self.classic is not None else ()
        return bytes_of_member(words, ((protocol.name, protocol.metadata) for protocol in protocols))

    def subscription_record(self) -> MemberSubscription:
        """Returns the record of its subscription in a consumer group."""
        return MemberSubscription(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.topic_names),
            subscribed_topic_regex=self.topic_regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.server_assignor,
            classic_member_metadata=self.classic,
        )

    def current_record(self) -> MemberCurrent:
        """Returns the record of its current assignment in a consumer group."""
        return MemberCurrent(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            assigned_partitions=self._current_rows(self.assigned),
            partitions_pending_revocation=self._current_rows(self.revoking),
        )

    def with_subscription(self, value: MemberSubscription | ShareMemberSubscription) -> ModernMember:
        """Returns the member after a record of its subscription."""
        member = msgspec.structs.replace(
            self,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topic_names=_names(tuple(value.subscribed_topic_names)),
        )
        if isinstance(value, ShareMemberSubscription):
            return member
        return msgspec.structs.replace(
            member,
            instance_id=value.instance_id,
            topic_regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def holds(self, topic_id: TopicId, number: int) -> bool:
        """Returns whether it has a partition, or may still have it."""
        return number in self.assigned.get(topic_id, ()) or number in self.revoking.get(topic_id, ())

    def with_current(
        self, value: MemberCurrent | ShareMemberCurrent | None, target: Assignment = NOTHING
    ) -> ModernMember:
        """Returns the member after a record of its current assignment; None is the tombstone.

        `target` is its part of the target. The current assignment usually equals it and is then the same object.
        """
        if value is None:
            return msgspec.structs.replace(
                self,
                member_epoch=LEAVE_EPOCH,
                previous_epoch=LEAVE_EPOCH,
                state=next_state(self.state, MemberEvent.CLEARED),
                assigned=NOTHING,
                revoking=NOTHING,
                epochs=NO_EPOCHS,
            )
        assigned = assignment_of((row.topic_id, row.partitions) for row in value.assigned_partitions)
        member = msgspec.structs.replace(
            self,
            member_epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            assigned=target if assigned == target else assigned,
        )
        if isinstance(value, ShareMemberCurrent):
            return member
        return msgspec.structs.replace(
            member,
            state=state_of_record(value.state),
            revoking=assignment_of((row.topic_id, row.partitions) for row in value.partitions_pending_revocation),
            epochs=_epochs_of(
                (*value.assigned_partitions, *value.partitions_pending_revocation), max(value.member_epoch, 0)
            ),
        )

    def epoch_of(self, topic_id: TopicId, number: int) -> int | None:
        """Returns the epoch in which it got a partition; None if it doesn't have it."""
        epochs = self.epochs
        if isinstance(epochs, int):
            return epochs if self.holds(topic_id, number) else None
        return epochs.get(topic_id, {}).get(number)

    def _current_rows(self, assignment: Assignment) -> list[CurrentTopicPartitions]:
        rows = []
        for topic_id, numbers in assignment.items():
            partitions = sorted(numbers)
            epochs = (self.epoch_of(topic_id, number) for number in partitions)
            given = [self.member_epoch if epoch is None else epoch for epoch in epochs]
            rows.append(CurrentTopicPartitions(topic_id=topic_id, partitions=partitions, assignment_epochs=given))
        return rows


def assignment_of(rows: Iterable[tuple[TopicId, Iterable[int]]]) -> Assignment:
    """Returns the partitions by topic."""
    found: dict[TopicId, frozenset[int]] = {}
    for topic_id, partitions in rows:
        numbers = _numbers(tuple(partitions))
        if numbers:
            known = found.get(topic_id)
            found[topic_id] = numbers if known is None else known | numbers
    return found or NOTHING


def _numbers(partitions: tuple[int, ...]) -> frozenset[int]:
    return _few_numbers(partitions) if len(partitions) <= FEW else frozenset(partitions)


def _names(topics: tuple[str, ...]) -> frozenset[str]:
    return _few_names(topics) if len(topics) <= FEW else frozenset(topics)


_few_numbers = lru_cache(1024)(frozenset[int])
_few_names = lru_cache(1024)(frozenset[str])


def topic_rows(assignment: Assignment, row: Callable[..., R]) -> list[R]:
    """Returns the rows of an assignment in a record or a response."""
    return [row(topic_id=topic_id, partitions=sorted(numbers)) for topic_id, numbers in assignment.items()]


def target_record(assignment: Assignment) -> MemberTarget:
    """Returns the record of a member's part of the target."""
    return MemberTarget(topic_partitions=topic_rows(assignment, TargetTopicPartitions))


def _epochs_of(rows: Iterable[CurrentTopicPartitions], default: int) -> Epochs:
    """Returns the epochs in a record. Records of older coordinators have none, and get `default`."""
    found: dict[TopicId, dict[int, int]] = {}
    for row in rows:
        given = row.assignment_epochs
        if given is None or len(given) != len(row.partitions):
            given = [default] * len(row.partitions)
        found.setdefault(row.topic_id, {}).update(zip(row.partitions, given, strict=True))
    return compact_epochs(found)


def compact_epochs(epochs: Mapping[TopicId, Mapping[int, int]]) -> Epochs:
    """Returns the epochs as `ModernMember.epochs` keeps them."""
    different = {epoch for of_topic in epochs.values() for epoch in of_topic.values()}
    return epochs if len(different) > 1 else different.pop() if different else NO_EPOCHS
