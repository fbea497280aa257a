"""A decision about a modern group: the records that it asks for.

Nothing changes until the decision is carried out as a whole, so a decision that ends in a refusal leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.modern.modern_group import ModernChange, ModernGroup
from lowtide.broker.coordinator.modern.modern_member import NOTHING, Assignment, ModernMember, target_record
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.protocol.consumer_group_records import RecordType, TargetAssignmentEpoch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.share_group_records import ShareRecordType

G = TypeVar("G", bound=ModernGroup)


class GroupRefusal(NamedTuple):
    """Why a request is refused, with a sentence for the client."""

    error: ErrorCode
    message: str = ""


def check_not_blank(**fields: str | None) -> GroupRefusal | None:
    """Checks that the fields of a heartbeat are null or not blank. Errors: INVALID_REQUEST."""
    for field, value in fields.items():
        if value is not None and not value.strip():
            return GroupRefusal(ErrorCode.INVALID_REQUEST, f"{field} can't be empty.")
    return None


class GroupDecision(Generic[G]):
    """The changes of one group that a request or a timer asks for."""

    __slots__ = ("changes", "group", "is_new", "may_see", "resolves", "takes_over")

    def __init__(self, group: G, *, is_new: bool = False, takes_over: ClassicGroup | None = None) -> None:
        """`is_new`: the group has no record yet. `takes_over` is the classic group that it replaces."""
        self.group = group
        self.is_new = is_new
        self.takes_over = takes_over
        self.changes: list[ModernChange] = []
        self.may_see: Callable[[str], bool] | None = None
        """Whether the client that sent the request may see a topic; None if it may see all."""
        self.resolves: frozenset[str] = frozenset()
        """The group's patterns, if they are to be matched to topics when the decision is carried out."""

    def keep(self, kind: RecordType | ShareRecordType, name: str, value: Any) -> None:
        """Requests a record; with None, for its tombstone."""
        self.changes.append(self.group.change_type(kind, self.group.group_id, name, value))

    def keep_subscription(self, member: ModernMember) -> None:
        """Requests the record of a member's subscription."""
        self.keep(self.group.record_types.MEMBER, member.member_id, self.group.subscription_record(member))

    def keep_current(self, member: ModernMember) -> None:
        """Adds the record of a member's current assignment."""
        self.keep(self.group.record_types.CURRENT, member.member_id, self.group.current_record(member))

    def keep_epoch(self, epoch: int, metadata_hash: int) -> None:
        """Adds the record of the group's epoch, and the tombstone of the topics' record if there is one."""
        value = self.group.epoch_type(epoch=epoch, metadata_hash=metadata_hash)
        self.keep(self.group.record_types.GROUP, "", value)
        if self.group.has_topics_record:
            self.keep(RecordType.TOPICS, "", None)

    def keep_target(self, member_id: str, target: Assignment) -> None:
        """Requests the record of a member's part of the target."""
        self.keep(self.group.record_types.TARGET, member_id, target_record(target))

    def keep_target_epoch(self, epoch: int, wall_ms: int) -> None:
        """Requests the record that makes a target valid, computed at this time; 0 if unknown."""
        value = TargetAssignmentEpoch(assignment_epoch=epoch, assignment_timestamp=wall_ms)
        self.keep(self.group.record_types.TARGET_EPOCH, "", value)

    def remove(self, member_id: str) -> None:
        """Requests the tombstones of a member."""
        kinds = self.group.record_types
        for kind in (kinds.CURRENT, kinds.TARGET, kinds.MEMBER):
            self.keep(kind, member_id, None)

    def replace(self, old: ModernMember, new: ModernMember) -> None:
        """Requests the records that give a member's place to another member id."""
        self.remove(old.member_id)
        self.keep_subscription(new)
        self.keep_target(new.member_id, self.group.targets.get(old.member_id, NOTHING))
        self.keep_current(new)

    def remove_group(self) -> None:
        """Requests the tombstones of the whole group, in Kafka's order."""
        group, kinds = self.group, self.group.record_types
        for kind in (kinds.CURRENT, kinds.TARGET):
            for member_id in dict.fromkeys((*group.members, *group.targets)):
                self.keep(kind, member_id, None)
        self.keep(kinds.TARGET_EPOCH, "", None)
        for member_id in group.members:
            self.keep(kinds.MEMBER, member_id, None)
        for kind, name in group.own_records():
            self.keep(kind, name, None)
        self.keep(kinds.GROUP, "", None)

    def carry_out(self, effects: Effects) -> None:
        """Adds the records to the effects. Without any, the answer waits until the group's last record is committed."""
        if self.takes_over is not None:
            effects.keep_group(self.group.group_id, None)
        for change in self.changes:
            effects.keep_change(change)
        if not self.changes:
            effects.barrier = max(effects.barrier, self.group.last_record_offset)
