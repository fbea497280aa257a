"""The interface of a group of any type: `ClassicGroup`, `ConsumerGroup` and `ShareGroup`.

No caller checks a group's class. What differs between types is a method of the group, or of the service of its type
(`groups/group_services.py`). Source: Kafka's `Group`, `Group.GroupType`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Protocol

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import Offset


class GroupType(Enum):
    """The types of groups. Values are the names in ListGroups (KIP-848)."""

    CLASSIC = "classic"
    """One member assigns the partitions for all."""
    CONSUMER = "consumer"
    """The broker assigns the partitions."""
    SHARE = "share"
    """The broker assigns the partitions, and members share them (KIP-932)."""

    __hash__ = object.__hash__
    """Each member is one object. The hash of Enum is a Python function, and heartbeats look types up."""


class Group(Protocol):
    """One group of a coordinator."""

    group_id: str
    last_record_offset: Offset
    """The last record about this group or its offsets; -1 without any. Answers about it wait until it is committed."""

    @property
    def group_type(self) -> GroupType:
        """The type of the group, which never changes: a group that changes its type becomes another object."""
        ...

    @property
    def state(self) -> Enum:
        """The state; its value is the name in ListGroups."""
        ...

    @property
    def protocol_type(self) -> str | None:
        """The protocol type of the members, such as `consumer`; None if the group never had a member."""
        ...

    @property
    def members(self) -> Mapping[str, object]:
        """The members by id."""
        ...

    @property
    def is_unused(self) -> bool:
        """Whether the group has no member and no client is about to join."""
        ...

    @property
    def since_empty_ms(self) -> int | None:
        """Since when the group is empty, wall clock; None if unknown or irrelevant.

        Then each offset expires by its own time.
        """
        ...

    @property
    def may_expire_offsets(self) -> bool:
        """Whether offsets may expire now: the members' subscriptions are known."""
        ...

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members consume a topic, or may."""
        ...

    def living_subscriptions(self) -> frozenset[str] | None:
        """Returns the topics that members consume or are about to; None if that is unknown."""
        ...

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Checks whether offsets may be returned to a client."""
        ...

    def check_offset_delete(self) -> ErrorCode:
        """Checks whether single offsets may be deleted. Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        ...

    def check_delete(self) -> ErrorCode:
        """Checks whether the group may be deleted. Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        ...

    def release(self) -> None:
        """Gives the group's memory back to the broker: the group is gone."""
        ...
