"""What all groups have consumed of each partition, for retention by consumption (KIP-68).

The smallest offset that any group has committed for a partition is where consumption stands; records below it have been consumed by all.
Guards: any doubt means that nothing counts as consumed. There is doubt where no group has committed anything; while a coordinator's
partition is led elsewhere, isn't loaded, or has records that may still be lost; where a group with members subscribes to the topic and
hasn't committed for the partition yet; and for every topic while such a group's subscription isn't known. Groups that were deleted, or
whose offsets expired, don't count; neither do offsets of pending transactions, nor those of an older topic of the same name.

Not yet: to ask the coordinators on other brokers. In a cluster where they are, all is doubt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lowtide.broker.coordinator.classic_group import ClassicGroup
from lowtide.broker.coordinator.groups import Groups
from lowtide.broker.coordinator.service import GroupCoordinator
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import ZERO_TOPIC_ID, Offset, TopicId


class ConsumedOffsets:
    """Of the groups that were taken in. Times pass between two surveys: what a group commits only raises what it has consumed."""

    def __init__(self) -> None:
        self.in_doubt = False
        """Whether anything is missing that could matter for every partition."""
        self._committed: dict[tuple[str, int], dict[str, tuple[Offset, TopicId]]] = {}
        self._live: dict[str, dict[str, None]] = {}

    def take_in(self, groups: Groups, group_id: str) -> None:
        """Count a group: what it has committed, and what it is about to consume."""
        for topic, rows in groups.committed.topics_of(group_id):
            for number, value in rows:
                self._committed.setdefault((topic, number), {})[group_id] = (value.offset, value.topic_id)
        group = groups.groups.get(group_id)
        if group is not None and _consumes(group):
            if group.subscribed is None:
                self.in_doubt = True
            for topic in sorted(group.subscribed or ()):
                self._live.setdefault(topic, {})[group_id] = None

    def of(self, topic: str, number: int, topic_id: TopicId) -> Offset | None:
        """The exclusive end of what all groups have consumed of a partition; None when there is any doubt."""
        if self.in_doubt:
            return None
        found = self._committed.get((topic, number), {})
        offsets = {group_id: offset for group_id, (offset, known_id) in found.items() if known_id in (topic_id, ZERO_TOPIC_ID)}
        if not offsets or any(group_id not in offsets for group_id in self._live.get(topic, ())):
            return None
        return min(offsets.values())


def _consumes(group: ClassicGroup) -> bool:
    """Whether somebody is about to consume in its name."""
    return bool(group.members) and group.uses_consumer_protocol


def survey(coordinator: GroupCoordinator, found: ConsumedOffsets) -> Iterator[None]:
    """Take in all groups, a step at a time. `found` is to be used when this has come to its end."""
    if not coordinator.topic.exists:
        found.in_doubt = True
        return
    shards = coordinator.loaded()
    if isinstance(shards, ErrorCode) or len(shards) < coordinator.topic.partition_count:
        found.in_doubt = True
        return
    for shard in shards:
        log = shard.partition.log
        if log.high_watermark < log.log_end_offset:
            found.in_doubt = True
        for group_id in _names(shard.groups):
            if shard.unloaded or not shard.leads:
                found.in_doubt = True
            if found.in_doubt:
                return
            found.take_in(shard.groups, group_id)
            yield


def _names(groups: Groups) -> Sequence[str]:
    return list(dict.fromkeys((*groups.committed.offsets, *groups.groups)))
