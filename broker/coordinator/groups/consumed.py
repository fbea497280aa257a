"""What all groups have consumed of partitions, for retention by consumption (KIP-68): taken together group by group.

The smallest offset that any group has committed for a partition is where consumption stands; what lies below it has
been consumed by all. Guards: a group with members that consumes a topic and hasn't committed for a partition of it
keeps the whole partition, and where it isn't known what a group consumes (its members are just joining, or what they
said can't be read) it may be any topic. Groups that were deleted, or whose offsets expired, don't count; neither do
offsets of transactions that are still open, nor those of an older topic of the same name. But a group that has nothing
else for a partition than an offset of an open transaction keeps it: it starts over if that is aborted, and it needn't
have members. A share group (KIP-932) has consumed what lies below its start offset, with members or without: `shares`
names the share partitions whose start offsets the caller has to find out.

Decisions only. `survey` walks through a coordinator's groups, `broker/retention/consumption.py` asks all coordinators.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.modern.share_group import ShareGroup
from lowtide.protocol.group_records import OffsetCommitValue
from lowtide.protocol.messages.describe_consumed_offsets import ConsumedOffsetsTopic
from lowtide.protocol.share_state_records import SharePlace
from lowtide.protocol.types import UNKNOWN_OFFSET, ZERO_TOPIC_ID, Offset, TopicId

_ANY: Final = "*"
ROWS_PER_STEP: Final = 256
"""Offsets that are looked at in one step: some tenths of a millisecond."""


class Release(NamedTuple):
    """A group whose commits may delete, and how far it lets records go."""

    offset: Offset
    """Exclusive."""
    group_id: str
    committer: str | None
    """The principal that committed the offset, where it is known."""


class NamedGroups(NamedTuple):
    """The groups that a topic names: ids, or beginnings of ids with `*` behind them."""

    ids: frozenset[str]
    beginnings: tuple[str, ...]

    @classmethod
    def of(cls, names: Iterable[str]) -> NamedGroups | None:
        """None where no group is named, so that all count."""
        wanted = tuple(names)
        ids = frozenset(name for name in wanted if not name.endswith(_ANY))
        return cls(ids, tuple(name[:-1] for name in wanted if name.endswith(_ANY))) if wanted else None

    def has(self, group_id: str) -> bool:
        """Whether a group is named."""
        return group_id in self.ids or group_id.startswith(self.beginnings)


class ConsumedEnd(NamedTuple):
    """How far a partition is consumed."""

    offset: Offset = UNKNOWN_OFFSET
    """The exclusive end of what all groups have consumed; -1 while it mustn't count."""
    group_id: str | None = None
    """The group that is there; with offset -1 one that consumes the partition and hasn't committed yet. None: no group has committed."""
    release: Release | None = None
    """Of the groups whose commits may delete, the slowest; None where there is none, and then nothing goes."""

    @property
    def is_known(self) -> bool:
        """Whether anything counts as consumed, and may go for it."""
        return self.offset >= 0 and self.release is not None

    def __and__(self, other: ConsumedEnd) -> ConsumedEnd:
        """What both have consumed: a group that waits keeps all, else the slower one counts."""
        if other.group_id is None:
            return self
        if self.group_id is None:
            return other
        slower = self if self[:2] <= other[:2] else other
        release = self.release
        if release is None or (other.release is not None and other.release[:2] < release[:2]):
            release = other.release
        return slower if slower.release is release else ConsumedEnd(slower.offset, slower.group_id, release)


NOT_CONSUMED: Final = ConsumedEnd()
"""No group has committed anything."""


class ConsumedOffsets:
    """Collects how far each group has consumed the partitions that were asked for.

    **Who counts.** Of a topic that names groups these alone: each named by its id must have committed, and each has a right to delete by
    being named. Of other topics every group counts as one that keeps what it has not consumed, for its unread records
    must not go; but something goes only where a commit may delete. So a group without that right can keep records,
    until another rule deletes them, and can't delete any.
    """

    def __init__(self, asked: Iterable[ConsumedOffsetsTopic], *, every_commit_deletes: bool = True) -> None:
        """`every_commit_deletes`: there is no authorizer.

        With one a share group, whose starts have no committer, may where it is named.
        """
        self.found: dict[str, dict[int, ConsumedEnd]] = {}
        """By topic and partition, each that was asked for."""
        self.shares: dict[SharePlace, str] = {}
        """Share partitions that count with their start offsets, by the names of their topics: see `take_start`."""
        self.named_groups: dict[str, list[str]] = {}
        """Groups that topics name by their ids, with these topics: they count where they have not committed, and where there are none."""
        self._every_commit_deletes = every_commit_deletes
        self._named: dict[str, NamedGroups] = {}
        self._ids: dict[str, TopicId] = {}
        for topic in asked:
            self.found[topic.name] = dict.fromkeys(topic.partitions, NOT_CONSUMED)
            self._ids[topic.name] = topic.topic_id
            named = NamedGroups.of(topic.groups)
            if named is not None:
                self._named[topic.name] = named
                for group_id in named.ids:
                    self.named_groups.setdefault(group_id, []).append(topic.name)

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
        waited_for = self.named_groups.get(group_id, ())
        for name in self._concerned(committed, live, waited_for):
            if not self._counts(name, group_id):
                yield
                continue
            rows = dict(committed.get(name, ()))
            is_live = live is None or name in live or name in waited_for
            yield from self._take_rows(name, rows, group_id, is_live=is_live)
        if groups.committed.pending.has_any(group_id):
            yield from self._take_pending(groups, group_id)

    def take_start(self, place: SharePlace, start_offset: Offset | None) -> None:
        """Count the start offset of a share partition; where it isn't known, or the group has none yet, it keeps the partition."""
        offset = UNKNOWN_OFFSET if start_offset is None or start_offset < 0 else start_offset
        name = self.shares[place]
        release = Release(offset, place.group_id, None) if self._every_commit_deletes or name in self._named else None
        self.found[name][place.partition] &= ConsumedEnd(offset, place.group_id, release)

    def _take_share(self, group: ShareGroup) -> Iterator[None]:
        live, states = group.living_subscriptions() or (), group.states
        waited_for = self.named_groups.get(group.group_id, ())
        for name, found in self.found.items():
            if not self._counts(name, group.group_id):
                yield
                continue
            topic_id = self._ids[name]
            _, begun = states.initialized.get(topic_id, (name, frozenset[int]()))
            is_live = name in live or topic_id in states.initializing or name in waited_for
            for number in found:
                if number in begun:
                    self.shares[SharePlace(group.group_id, topic_id, number)] = name
                elif is_live:
                    found[number] &= ConsumedEnd(UNKNOWN_OFFSET, group.group_id)
            yield

    def _take_pending(self, groups: Groups, group_id: str) -> Iterator[None]:
        for count, (name, number, values) in enumerate(list(groups.committed.pending.of_group(group_id)), 1):
            found = self.found.get(name, {})
            if number in found and self._counts(name, group_id):
                is_of_topic = any(self._is_of(name, value) for value in values)
                committed = groups.committed.offsets.get(group_id, {}).get(name, {}).get(number)
                if is_of_topic and (committed is None or not self._is_of(name, committed)):
                    found[number] &= ConsumedEnd(UNKNOWN_OFFSET, group_id)
            if count % ROWS_PER_STEP == 0:
                yield

    def _counts(self, name: str, group_id: str) -> bool:
        """Whether a group counts for a topic."""
        named = self._named.get(name)
        return named is None or named.has(group_id)

    def _concerned(
        self, committed: Mapping[str, object], live: frozenset[str] | None, waited_for: Collection[str]
    ) -> list[str]:
        """The topics of a group that were asked for: by whichever list is shorter."""
        if live is None:
            return list(self.found)
        if len(committed) + len(live) + len(waited_for) < len(self.found):
            return [name for name in dict.fromkeys((*committed, *sorted(live), *waited_for)) if name in self.found]
        return [name for name in self.found if name in committed or name in live or name in waited_for]

    def _take_rows(
        self, name: str, rows: Mapping[int, OffsetCommitValue], group_id: str, *, is_live: bool
    ) -> Iterator[None]:
        found = self.found[name]
        numbers = list(found) if is_live or len(found) <= len(rows) else [number for number in rows if number in found]
        for count, number in enumerate(numbers, 1):
            value = rows.get(number)
            if value is not None and self._is_of(name, value):
                may_delete = self._every_commit_deletes or value.may_delete or name in self._named
                release = Release(value.offset, group_id, value.committer) if may_delete else None
                found[number] &= ConsumedEnd(value.offset, group_id, release)
            elif is_live:
                found[number] &= ConsumedEnd(UNKNOWN_OFFSET, group_id)
            if count % ROWS_PER_STEP == 0:
                yield
        yield

    def _is_of(self, name: str, value: OffsetCommitValue) -> bool:
        """Whether an offset was committed for the topic that is asked about, and not for an older one of its name."""
        return value.topic_id in (self._ids[name], ZERO_TOPIC_ID) and value.offset >= 0
