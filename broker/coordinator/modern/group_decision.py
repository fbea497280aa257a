"""A decision about a group whose partitions the broker assigns, while it is being made: what it is about, and the records it asks for.

Nothing of it has happened before it is carried out as a whole: a decision that ends in a refusal leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.modern.modern_member import ModernMember, target_record
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.protocol.consumer_group_records import ChangeValue, ConsumerGroupChange, GroupEpoch, RecordType
from lowtide.protocol.errors import ErrorCode


class GroupRefusal(NamedTuple):
    """Why something isn't done, with a sentence for the client."""

    error: ErrorCode
    message: str = ""


class GroupDecision:
    """The changes of one group that a request asks for."""

    __slots__ = ("changes", "group", "is_new", "may_see", "resolves", "takes_over")

    def __init__(self, group: ConsumerGroup, *, is_new: bool = False, takes_over: ClassicGroup | None = None) -> None:
        """`is_new`: the group isn't known yet; `takes_over` is the classic group that it replaces."""
        self.group = group
        self.is_new = is_new
        self.takes_over = takes_over
        self.changes: list[ConsumerGroupChange] = []
        self.may_see: Callable[[str], bool] | None = None
        """Which topics the client may know of whose request this is about; None for all."""
        self.resolves: frozenset[str] = frozenset()
        """The group's patterns, where they are to be matched to topics when this is carried out."""

    def keep(self, kind: RecordType, name: str, value: ChangeValue | None) -> None:
        """Ask for a record, or with None for that which takes it back."""
        self.changes.append(ConsumerGroupChange(kind, self.group.group_id, name, value))

    def keep_subscription(self, member: ModernMember) -> None:
        """Ask for the record of what a member says."""
        self.keep(RecordType.MEMBER, member.member_id, member.subscription_record())

    def keep_current(self, member: ModernMember) -> None:
        """Ask for the record of what a member has."""
        self.keep(RecordType.CURRENT, member.member_id, member.current_record())

    def keep_epoch(self, epoch: int, metadata_hash: int) -> None:
        """Ask for the record of the group's epoch; what a coordinator of old kept of its topics goes with it."""
        self.keep(RecordType.GROUP, "", GroupEpoch(epoch=epoch, metadata_hash=metadata_hash))
        if self.group.has_topics_record:
            self.keep(RecordType.TOPICS, "", None)

    def remove(self, member_id: str) -> None:
        """Ask for a member's records to be taken back."""
        self.keep(RecordType.CURRENT, member_id, None)
        self.keep(RecordType.TARGET, member_id, None)
        self.keep(RecordType.MEMBER, member_id, None)

    def replace(self, old: ModernMember, new: ModernMember) -> None:
        """Ask for a member's place to be given to one with another id."""
        self.remove(old.member_id)
        self.keep_subscription(new)
        self.keep(RecordType.TARGET, new.member_id, target_record(self.group.targets.get(old.member_id, {})))
        self.keep_current(new)

    def remove_group(self) -> None:
        """Ask for the whole group to be taken back, in the order in which Kafka does."""
        group = self.group
        for kind in (RecordType.CURRENT, RecordType.TARGET):
            for member_id in dict.fromkeys((*group.members, *group.targets)):
                self.keep(kind, member_id, None)
        self.keep(RecordType.TARGET_EPOCH, "", None)
        for member_id in group.members:
            self.keep(RecordType.MEMBER, member_id, None)
        for pattern in group.subscriptions.patterns:
            self.keep(RecordType.PATTERN, pattern, None)
        self.keep(RecordType.TOPICS, "", None)
        self.keep(RecordType.GROUP, "", None)

    def carry_out(self, effects: Effects) -> None:
        """Ask for all of it, or only for what it is based on to be committed."""
        if self.takes_over is not None:
            effects.keep_group(self.group.group_id, None)
        for change in self.changes:
            effects.keep_change(change)
        if not self.changes:
            effects.barrier = max(effects.barrier, self.group.last_record_offset)
