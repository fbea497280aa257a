"""The groups of one coordinator by their ids, and the one place where a group of a certain type is picked out."""

from __future__ import annotations

from typing import TypeAlias

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.modern.share_group import ShareGroup

AnyGroup: TypeAlias = ClassicGroup | ConsumerGroup | ShareGroup
"""What `Group` describes."""


class GroupsById(dict[str, AnyGroup]):
    """A mapping of ids to groups; what is here has a record, or a request has just named it."""

    def find_classic(self, group_id: str) -> ClassicGroup | None:
        """The classic group of this id; None where there is none, or one of another type."""
        group = self.get(group_id)
        return group if group is not None and group.group_type is GroupType.CLASSIC else None

    def find_consumer(self, group_id: str) -> ConsumerGroup | None:
        """The consumer group of this id; None where there is none, or one of another type."""
        group = self.get(group_id)
        return group if group is not None and group.group_type is GroupType.CONSUMER else None

    def find_share(self, group_id: str) -> ShareGroup | None:
        """The share group of this id; None where there is none, or one of another type."""
        group = self.get(group_id)
        return group if group is not None and group.group_type is GroupType.SHARE else None
