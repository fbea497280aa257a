"""What all groups have in common: `ClassicGroup`, `ConsumerGroup`, `ShareGroup` and `StreamsGroup`.

No caller checks a group's class. What differs between types is a method of the group, or of the service of its type
(`groups/group_shard.py`). Source: Kafka's `Group.GroupType`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Protocol

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
    STREAMS = "streams"
    """The broker assigns the tasks of a Kafka Streams application (KIP-1071)."""

    __hash__ = object.__hash__
    """Each member is one object. The hash of Enum is a Python function, and heartbeats look types up."""


class Group(Protocol):
    """A group of any type."""

    group_id: str
    last_record_offset: Offset
    """The last record about the group; -1 if there is none."""

    @property
    def group_type(self) -> GroupType: ...
    @property
    def protocol_type(self) -> str | None: ...
    @property
    def members(self) -> Mapping[str, Any]: ...
    @property
    def state(self) -> Enum:
        """What the group is doing."""

    @property
    def is_unused(self) -> bool:
        """Whether the group may be removed once it has no offsets."""

    @property
    def since_empty_ms(self) -> int | None:
        """Since when offsets expire together, in wall-clock milliseconds; None if each expires by its commit."""

    @property
    def may_expire_offsets(self) -> bool:
        """Whether offsets may expire now."""

    def is_subscribed_to(self, topic: str) -> bool:
        """Returns whether members consume a topic."""

    def living_subscriptions(self) -> frozenset[str] | None:
        """Returns the topics that members consume; None if that is unknown."""

    def check_fetch(self, member_id: str | None, member_epoch: int, /) -> ErrorCode:
        """Checks whether offsets may be returned to a client."""

    def check_offset_delete(self) -> ErrorCode:
        """Checks whether single offsets may be deleted."""

    def check_delete(self) -> ErrorCode:
        """Checks whether the group may be deleted."""

    def release(self) -> None:
        """Gives the group's memory back to the broker."""
