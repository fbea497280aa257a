"""The member that owns each partition of a consumer group: it has the partition, or may still have it.

A broker may have tens of thousands of groups with one member, so nothing is kept for these.

Guards: a partition has at most one owner. `reconciliation` assigns it to a member only after others have released it.

Source: Kafka's `ConsumerGroup.currentPartitionEpoch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from lowtide.broker.coordinator.modern.modern_member import ModernMember
from lowtide.protocol.types import TopicId

Owners: TypeAlias = dict[TopicId, dict[int, str]]
"""Topic → partition → member id, without empty rows."""


class PartitionOwners:
    """The owners of one group's partitions. They follow the members' records."""

    __slots__ = ("_members", "_owners")

    def __init__(self, members: Mapping[str, ModernMember]) -> None:
        """`members` is the group's own mapping, by id."""
        self._members = members
        self._owners: Owners | None = None
        """None if the group has one member at most."""

    @property
    def by_topic(self) -> Owners:
        """All owners."""
        return _owners_of(self._members.values()) if self._owners is None else self._owners

    def is_owned(self, topic_id: TopicId, number: int) -> bool:
        """Returns whether a member has a partition, or may still have it."""
        if self._owners is None:
            return any(member.holds(topic_id, number) for member in self._members.values())
        return number in self._owners.get(topic_id, ())

    def on_changed(self, old: ModernMember | None, new: ModernMember | None) -> None:
        """Takes over a member that changes, joins (`old` is None) or leaves (`new` is None)."""
        if len(self._members) <= 1:
            self._owners = None
        elif self._owners is None:
            self._owners = _owners_of(self._members.values())
        elif old is None or new is None or old.assigned is not new.assigned or old.revoking is not new.revoking:
            if old is not None:
                _release(self._owners, old)
            if new is not None:
                _take(self._owners, new)


def _owners_of(members: Iterable[ModernMember]) -> Owners:
    owners: Owners = {}
    for member in members:
        _take(owners, member)
    return owners


def _take(owners: Owners, member: ModernMember) -> None:
    for assignment in (member.assigned, member.revoking):
        for topic_id, numbers in assignment.items():
            owners.setdefault(topic_id, {}).update(dict.fromkeys(numbers, member.member_id))


def _release(owners: Owners, member: ModernMember) -> None:
    """Releases a member's partitions, unless another member has got them since: a log may lack the record between."""
    for assignment in (member.assigned, member.revoking):
        for topic_id, numbers in assignment.items():
            of_topic = owners.get(topic_id)
            if of_topic is None:
                continue
            for number in numbers:
                if of_topic.get(number) == member.member_id:
                    del of_topic[number]
            if not of_topic:
                del owners[topic_id]
