"""A decision about a streams group: the records that it asks for.

Nothing changes until the decision is carried out as a whole, so a decision that ends in a refusal leaves no trace.
"""

from __future__ import annotations

from typing import Any

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.streams.streams_group import StreamsGroup
from lowtide.broker.coordinator.streams.streams_member import StreamsThreadMember, target_record
from lowtide.broker.coordinator.streams.tasks import EMPTY_TASKS
from lowtide.protocol.streams_group_records import StreamsGroupChange, StreamsRecordType


class StreamsDecision:
    """The changes of one group that a request or a timer asks for."""

    __slots__ = ("changes", "group", "is_new", "takes_over")

    def __init__(self, group: StreamsGroup, *, is_new: bool = False, takes_over: ClassicGroup | None = None) -> None:
        """`is_new`: the group has no record yet. `takes_over` is the empty classic group that it replaces."""
        self.group = group
        self.is_new = is_new
        self.takes_over = takes_over
        self.changes: list[StreamsGroupChange] = []

    def keep(self, kind: StreamsRecordType, name: str, value: Any) -> None:
        """Asks for a record; with None, for its tombstone."""
        self.changes.append(StreamsGroupChange(kind, self.group.group_id, name, value))

    def remove(self, member_id: str) -> None:
        """Adds the tombstones of a member to the records."""
        for kind in (StreamsRecordType.CURRENT, StreamsRecordType.TARGET, StreamsRecordType.MEMBER):
            self.keep(kind, member_id, None)

    def replace(self, old: StreamsThreadMember, new: StreamsThreadMember) -> None:
        """Adds the records that give a member's place to another member id."""
        self.remove(old.member_id)
        self.keep(StreamsRecordType.MEMBER, new.member_id, new.metadata_record())
        target = self.group.targets.get(old.member_id, EMPTY_TASKS)
        self.keep(StreamsRecordType.TARGET, new.member_id, target_record(target))
        self.keep(StreamsRecordType.CURRENT, new.member_id, new.current_record())

    def carry_out(self, effects: Effects) -> None:
        """Adds the records to the effects. Without any, the answer waits until the group's last record is committed."""
        if self.takes_over is not None:
            effects.keep_group(self.group.group_id, None)
        for change in self.changes:
            effects.keep_change(change)
        if not self.changes:
            effects.barrier = max(effects.barrier, self.group.last_record_offset)
