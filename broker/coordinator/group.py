"""What every group is to its coordinator, of whichever type: `ClassicGroup`, `ConsumerGroup` and `ShareGroup` have what `Group` lists.

Nothing here decides. What the types differ in is asked of the group (`Group`), or of the service of its type
(`groups/group_services.py`), so that no caller checks a class.

Source: Kafka's `Group`, `Group.GroupType`.
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
    """Members agree among themselves who reads what: one of them assigns the partitions."""
    CONSUMER = "consumer"
    """The broker assigns the partitions."""
    SHARE = "share"
    """The broker assigns the partitions, and members share them (KIP-932)."""

    __hash__ = object.__hash__
    """There is one object of each; the hash that enumerations come with is a function in Python, and heartbeats look types up."""


class Group(Protocol):
    """One group of a coordinator."""

    group_id: str
    last_record_offset: Offset
    """The last record about this group or its offsets; what it says can be read when that is committed. -1 without any."""

    @property
    def group_type(self) -> GroupType:
        """Which service it belongs to. It never changes: a group that changes its type is another object."""
        ...

    @property
    def state(self) -> Enum:
        """What it does; the value is the name in ListGroups."""
        ...

    @property
    def protocol_type(self) -> str | None:
        """What its members are, `consumer` for one; None for a group that has never had a member."""
        ...

    @property
    def members(self) -> Mapping[str, object]:
        """Its members by their ids."""
        ...

    @property
    def is_unused(self) -> bool:
        """Whether it has no member, and no client is about to become one."""
        ...

    @property
    def since_empty_ms(self) -> int | None:
        """Since when it has no members, wall clock; None where that isn't recorded, or doesn't count: then each commit's time does."""
        ...

    @property
    def may_expire_offsets(self) -> bool:
        """Whether offsets may expire now: what the members consume is known."""
        ...

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members consume a topic, or may."""
        ...

    def living_subscriptions(self) -> frozenset[str] | None:
        """The topics that living members consume, or are about to; None while that isn't known."""
        ...

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether its offsets may be answered to this client."""
        ...

    def check_offset_delete(self) -> ErrorCode:
        """Whether single offsets may be deleted. Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        ...

    def check_delete(self) -> ErrorCode:
        """Whether the group may be deleted. Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        ...

    def release(self) -> None:
        """The group is gone: what it still holds counts no longer."""
        ...
