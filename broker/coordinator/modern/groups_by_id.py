"""The groups of one coordinator by id."""

from __future__ import annotations

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.counted_ids import CountedIds
from lowtide.broker.coordinator.group import Group
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.modern.share_group import ShareGroup


class GroupsById(CountedIds[Group]):
    """Maps ids to groups. A group here has a record, or a request has just named it."""

    def find_classic(self, group_id: str) -> ClassicGroup | None:
        """Returns the classic group of this id; None if there is none, or one of another type."""
        group = self.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def find_consumer(self, group_id: str) -> ConsumerGroup | None:
        """Returns the consumer group of this id; None if there is none, or one of another type."""
        group = self.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def find_share(self, group_id: str) -> ShareGroup | None:
        """Returns the share group of this id; None if there is none, or one of another type."""
        group = self.get(group_id)
        return group if isinstance(group, ShareGroup) else None
