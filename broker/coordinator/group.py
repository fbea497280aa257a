"""The types of groups: `ClassicGroup`, `ConsumerGroup` and `ShareGroup`.

No caller checks a group's class. What differs between types is a method of the group, or of the service of its type
(`groups/group_shard.py`). Source: Kafka's `Group.GroupType`.
"""

from __future__ import annotations

from enum import Enum


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
