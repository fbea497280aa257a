"""How far all groups have consumed partitions, for retention by consumption (KIP-68).

The smallest offset that any group has committed for a partition is where consumption stands: what lies below has been
consumed by all. Deleted groups, expired offsets, offsets of open transactions, and offsets of an older topic of the
same name don't count.

Guards: a group with members that consumes a topic but hasn't committed for a partition keeps the whole partition. If
its topics are unknown, because members are joining or their subscriptions can't be parsed, that is any topic. A group
with only an offset of an open transaction for a partition keeps it, even without members: it starts over if the
transaction aborts. A share group (KIP-932) has consumed what lies below its start offset; the caller has to find the
start offsets of `shares`.

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
"""Offsets in one step: some tenths of a millisecond."""


class Release(NamedTuple):
    """A group whose commits may delete records, and how far they do."""

    offset: Offset
    """Exclusive."""
    group_id: str
    committer: str | None
    """The principal that committed the offset, if known."""


class NamedGroups(NamedTuple):
    """The groups that a topic names: ids, or prefixes of ids followed by `*`."""

    ids: frozenset[str]
    beginnings: tuple[str, ...]

    @classmethod
    def of(cls, names: Iterable[str]) -> NamedGroups | None:
        """Returns the groups that a topic names; None if all groups count."""
        wanted = tuple(names)
        ids = frozenset(name for name in wanted if not name.endswith(_ANY))
        return cls(ids, tuple(name[:-1] for name in wanted if name.endswith(_ANY))) if wanted else None

    def has(self, group_id: str) -> bool:
        """Returns whether a group is named."""
        return group_id in self.ids or group_id.startswith(self.beginnings)


class ConsumedEnd(NamedTuple):
    """How far a partition is consumed."""

    offset: Offset = UNKNOWN_OFFSET
    """The exclusive end of what all groups have consumed; -1 if a group keeps all."""
    group_id: str | None = None
    """The slowest group; with offset -1 one that consumes without a commit; None without any group."""
    release: Release | None = None
    """The slowest of the groups whose commits may delete; None without any, and then nothing is deleted."""

    @property
    def is_known(self) -> bool:
        """Whether records count as consumed and may be deleted for it."""
        return self.offset >= 0 and self.release is not None

    def __and__(self, other: ConsumedEnd) -> ConsumedEnd:
        """Returns what both have consumed: the slower one, or nothing if one keeps all."""
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
    """Collects how far each group has consumed the requested partitions.

    **Which groups count.** If a topic names groups, only these: each one named by id must have committed, and each may
    delete because it is named. For other topics every group counts, so that its unread records stay, but records are
    deleted only if some commit may delete. So a group without that right can keep records until another rule deletes
    them, and can't delete any.
    """

    def __init__(self, asked: Iterable[ConsumedOffsetsTopic], *, every_commit_deletes: bool = True) -> None:
        """`every_commit_deletes`: any share group may cause deletes, not only those that a topic names."""
        self.found: dict[str, dict[int, ConsumedEnd]] = {}
        """The requested partitions, by topic and partition."""
        self.shares: dict[SharePlace, str] = {}
        """The topic names of the share partitions whose start offsets count: see `take_start`."""
        self.named_groups: dict[str, list[str]] = {}
        """The topics that name each group by id. These groups count even if they have not committed or don't exist."""
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
        """Counts a group in steps: its committed offsets, and the topics that it is about to consume."""
        committed = groups.committed.offsets.get(group_id, {})
        group = groups.by_id.get(group_id)
        if isinstance(group, ShareGroup):
            yield from self._take_share(group)
            return
        live: frozenset[str] | None = frozenset()
        if group is not None:
            live = group.living_subscriptions()  # Empty for members that aren't consumers, such as Kafka Connect's.
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
        """Counts the start offset of a share partition. If it is unknown, the group keeps the partition."""
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
        """Returns whether a group counts for a topic."""
        named = self._named.get(name)
        return named is None or named.has(group_id)

    def _concerned(
        self, committed: Mapping[str, object], live: frozenset[str] | None, waited_for: Collection[str]
    ) -> list[str]:
        """Returns the requested topics of a group."""
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
        """Returns whether an offset was committed for the requested topic, not for an older one of its name."""
        return value.topic_id in (self._ids[name], ZERO_TOPIC_ID) and value.offset >= 0
