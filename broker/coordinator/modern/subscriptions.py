"""Counts of what the members of a group ask for: topics, patterns, assignors, and protocols of classic members.

The counts follow the members one change at a time, so that a heartbeat need not walk over all members.

Source: Kafka's `ModernGroup.subscribedTopicNames`, `ConsumerGroup`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from lowtide.broker.coordinator.modern.modern_member import ModernMember
from lowtide.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE


class ResolvedPattern(msgspec.Struct, frozen=True):
    """The topics that match a pattern at a revision of the metadata, found at a wall-clock time."""

    topics: frozenset[str]
    revision: int
    wall_ms: int


Counts: TypeAlias = Mapping[str, int]
"""How many members have each name. Names without a member are absent."""

NO_COUNTS: Final[Counts] = MappingProxyType({})
"""Shared by all empty counts: a broker may have tens of thousands of groups with one member."""

NO_PATTERNS: Final[Mapping[str, ResolvedPattern]] = MappingProxyType({})


class Subscriptions:
    """The counts of one group."""

    __slots__ = ("assignors", "classic_count", "classic_protocols", "pattern_counts", "patterns", "topic_counts")

    def __init__(self) -> None:
        self.topic_counts: Counts = NO_COUNTS
        self.pattern_counts: Counts = NO_COUNTS
        self.patterns: Mapping[str, ResolvedPattern] = NO_PATTERNS
        """The topics that match each pattern, as recorded."""
        self.assignors: Counts = NO_COUNTS
        self.classic_count = 0
        self.classic_protocols: Counts = NO_COUNTS
        """How many classic members speak each protocol."""

    # ------------------------------------------------------------------ topics
    @property
    def is_matched(self) -> bool:
        """Whether each pattern of a member is matched to topics."""
        return all(pattern in self.patterns for pattern in self.pattern_counts)

    def names(self) -> set[str]:
        """Returns all topics that members name, or that match a pattern as far as it is matched."""
        names = set(self.topic_counts)
        for pattern in self.patterns.values():
            names |= pattern.topics
        return names

    def names_of(self, member: ModernMember) -> frozenset[str]:
        """Returns the topics of a member, as far as its pattern is matched."""
        pattern = self.patterns.get(member.pattern) if member.pattern is not None else None
        return member.topic_names if pattern is None else member.topic_names | pattern.topics

    def names_after(self, old: ModernMember, new: ModernMember) -> set[str]:
        """Returns `names` with `new` in place of `old`."""
        if old.topic_names == new.topic_names:
            names = set(self.topic_counts)
        else:
            gone = {name for name in old.topic_names if self.topic_counts[name] == 1}
            names = (set(self.topic_counts) - gone) | new.topic_names
        for pattern, resolved in self.patterns.items():
            if pattern != old.pattern or pattern == new.pattern or self.pattern_counts.get(pattern, 0) > 1:
                names |= resolved.topics
        return names

    def includes(self, topic: str) -> bool:
        """Returns whether a member names a topic, or has a pattern that matches it."""
        return topic in self.topic_counts or any(topic in pattern.topics for pattern in self.patterns.values())

    def patterns_without(self, gone: Iterable[ModernMember]) -> frozenset[str]:
        """Returns the patterns that are left when these members leave."""
        left = Counter(member.pattern for member in gone if member.pattern is not None)
        return frozenset(pattern for pattern, count in self.pattern_counts.items() if left[pattern] < count)

    def matched_by(self, patterns: Container[str]) -> set[str]:
        """Returns the topics that match these patterns, as far as they are matched."""
        return {name for pattern, resolved in self.patterns.items() if pattern in patterns for name in resolved.topics}

    # ------------------------------------------------------------------ assignors, protocols
    def preferred_assignor(self, old: ModernMember | None = None, new: ModernMember | None = None) -> str | None:
        """Returns the assignor that most members ask for, with `new` in place of `old`; None if no member asks for one.

        Among equals it is the first by name.
        """
        votes = self.assignors
        if old is not None or new is not None:
            votes = dict(votes)
            if new is not None and new.server_assignor:
                votes = _counted(votes, (new.server_assignor,), 1)
            if old is not None and old.server_assignor:
                votes = _counted(votes, (old.server_assignor,), -1)
        return min(votes, key=lambda name: (-votes[name], name), default=None)

    def speaks(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Returns whether a classic member may join: a consumer with a protocol that all classic members share."""
        return protocol_type == CONSUMER_PROTOCOL_TYPE and any(
            self.classic_protocols.get(name, 0) == self.classic_count for name in names
        )

    # ------------------------------------------------------------------ changes
    def replace(self, old: ModernMember | None, new: ModernMember | None) -> None:
        """Counts a member that changes, joins (`old` is None) or leaves (`new` is None)."""
        for member, by in ((old, -1), (new, 1)):
            if member is None:
                continue
            self.topic_counts = _counted(self.topic_counts, member.topic_names, by)
            if member.pattern is not None:
                self.pattern_counts = _counted(self.pattern_counts, (member.pattern,), by)
            if member.server_assignor is not None:
                self.assignors = _counted(self.assignors, (member.server_assignor,), by)
            if member.classic is not None:
                self.classic_count += by
                names = (protocol.name for protocol in member.classic.supported_protocols)
                self.classic_protocols = _counted(self.classic_protocols, names, by)

    def note_pattern(self, pattern: str, resolved: ResolvedPattern | None) -> None:
        """Sets the topics that match a pattern; None removes it."""
        patterns = self.patterns if isinstance(self.patterns, dict) else {}
        if resolved is not None:
            patterns[pattern] = resolved
        else:
            patterns.pop(pattern, None)
        self.patterns = patterns or NO_PATTERNS


def _counted(counts: Counts, names: Iterable[str], by: int) -> Counts:
    """Returns the counts with `by` more of each name.

    The mapping is changed in place unless it was or becomes empty.
    """
    changed: dict[str, int] | None = counts if isinstance(counts, dict) else None
    for name in names:
        if changed is None:
            changed = dict(counts)
        count = changed.get(name, 0) + by
        if count:
            changed[name] = count
        else:
            changed.pop(name, None)
    return changed or NO_COUNTS
