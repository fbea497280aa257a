"""What all groups have consumed of partitions, for retention by consumption (KIP-68): taken together group by group.

The smallest offset that any group has committed for a partition is where consumption stands; what lies below it has been consumed by all.
Guards: a group with members that consumes a topic and hasn't committed for a partition of it keeps the whole partition, and where it isn't
known what a group consumes (its members are just joining, or what they said can't be read) it may be any topic. Groups that were deleted,
or whose offsets expired, don't count; neither do offsets of transactions that are still open, nor those of an older topic of the same name.
But a group that has nothing else for a partition than an offset of an open transaction keeps it: it starts over if that is aborted, and it
needn't have members. A share group (KIP-932) has consumed what lies below its start offset, with members or without: `shares` names the
share partitions whose start offsets the caller has to find out.

Decisions only. `survey` walks through a coordinator's groups, `broker/retention/consumption.py` asks all coordinators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from lowtide.broker.coordinator.consumer.share_group import ShareGroup
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.protocol.group_records import OffsetCommitValue
from lowtide.protocol.messages.describe_consumed_offsets import ConsumedOffsetsTopic
from lowtide.protocol.share_state_records import SharePlace
from lowtide.protocol.types import UNKNOWN_OFFSET, ZERO_TOPIC_ID, Offset, TopicId

ROWS_PER_STEP: Final = 256
"""Offsets that are looked at in one step: some tenths of a millisecond."""


class Consumed(NamedTuple):
    """How far a partition is consumed."""

    offset: Offset = UNKNOWN_OFFSET
    """The exclusive end of what all groups have consumed; -1 while it mustn't count."""
    group_id: str | None = None
    """The group that is there; with offset -1 one that consumes the partition and hasn't committed yet. None: no group has committed."""

    @property
    def is_known(self) -> bool:
        """Whether anything counts as consumed."""
        return self.offset >= 0

    def __and__(self, other: Consumed) -> Consumed:
        """What both have consumed: a group that waits keeps all, else the slower one counts."""
        if other.group_id is None:
            return self
        if self.group_id is None:
            return other
        return min(self, other)


NOT_CONSUMED: Final = Consumed()
"""No group has committed anything."""


class ConsumedOffsets:
    """Of the partitions that were asked for, how far the groups have consumed them that were taken in."""

    def __init__(self, asked: Iterable[ConsumedOffsetsTopic]) -> None:
        self.found: dict[str, dict[int, Consumed]] = {}
        """By topic and partition, each that was asked for."""
        self.shares: dict[SharePlace, str] = {}
        """Share partitions that count with their start offsets, by the names of their topics: see `take_start`."""
        self._ids: dict[str, TopicId] = {}
        for topic in asked:
            self.found[topic.name] = dict.fromkeys(topic.partitions, NOT_CONSUMED)
            self._ids[topic.name] = topic.topic_id

    def take_in(self, groups: Groups, group_id: str) -> Iterator[None]:
        """Count a group, a step at a time: what it has committed, and what it is about to consume."""
        committed = groups.committed.offsets.get(group_id, {})
        group = groups.by_id.get(group_id)
        if isinstance(group, ShareGroup):
            yield from self._take_share(group)
            return
        live: frozenset[str] | None = frozenset()
        if group is not None:
            live = group.living_subscriptions()  # Members that aren't consumers, of Kafka Connect for one, have none.
        for name in self._concerned(committed, live):
            rows = dict(committed.get(name, ()))
            is_live = live is None or name in live
            yield from self._take_rows(name, rows, group_id, is_live=is_live)
        if groups.committed.pending.has_any(group_id):
            yield from self._take_pending(groups, group_id)

    def take_start(self, place: SharePlace, start_offset: Offset | None) -> None:
        """Count the start offset of a share partition; where it isn't known, or the group has none yet, it keeps the partition."""
        offset = UNKNOWN_OFFSET if start_offset is None or start_offset < 0 else start_offset
        self.found[self.shares[place]][place.partition] &= Consumed(offset, place.group_id)

    def _take_share(self, group: ShareGroup) -> Iterator[None]:
        live, states = group.living_subscriptions() or (), group.states
        for name, found in self.found.items():
            topic_id = self._ids[name]
            _, begun = states.initialized.get(topic_id, (name, frozenset[int]()))
            is_live = name in live or topic_id in states.initializing
            for number in found:
                if number in begun:
                    self.shares[SharePlace(group.group_id, topic_id, number)] = name
                elif is_live:
                    found[number] &= Consumed(UNKNOWN_OFFSET, group.group_id)
            yield

    def _take_pending(self, groups: Groups, group_id: str) -> Iterator[None]:
        for count, (name, number, values) in enumerate(list(groups.committed.pending.of_group(group_id)), 1):
            found = self.found.get(name, {})
            if number in found:
                is_of_topic = any(self._is_of(name, value) for value in values)
                committed = groups.committed.offsets.get(group_id, {}).get(name, {}).get(number)
                if is_of_topic and (committed is None or not self._is_of(name, committed)):
                    found[number] &= Consumed(UNKNOWN_OFFSET, group_id)
            if count % ROWS_PER_STEP == 0:
                yield

    def _concerned(self, committed: Mapping[str, object], live: frozenset[str] | None) -> list[str]:
        """The topics of a group that were asked for: by whichever list is shorter."""
        if live is None:
            return list(self.found)
        if len(committed) + len(live) < len(self.found):
            return [name for name in dict.fromkeys((*committed, *sorted(live))) if name in self.found]
        return [name for name in self.found if name in committed or name in live]

    def _take_rows(self, name: str, rows: Mapping[int, OffsetCommitValue], group_id: str, *, is_live: bool) -> Iterator[None]:
        found = self.found[name]
        numbers = list(found) if is_live or len(found) <= len(rows) else [number for number in rows if number in found]
        for count, number in enumerate(numbers, 1):
            value = rows.get(number)
            if value is not None and self._is_of(name, value):
                found[number] &= Consumed(value.offset, group_id)
            elif is_live:
                found[number] &= Consumed(UNKNOWN_OFFSET, group_id)
            if count % ROWS_PER_STEP == 0:
                yield
        yield

    def _is_of(self, name: str, value: OffsetCommitValue) -> bool:
        """Whether an offset was committed for the topic that is asked about, and not for an older one of its name."""
        return value.topic_id in (self._ids[name], ZERO_TOPIC_ID) and value.offset >= 0
