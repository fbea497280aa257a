"""What the members of a group ask for, counted: topics, patterns with the topics that match, assignors, and protocols of classic members.

The counts follow the members, one change at a time: a heartbeat must not walk over all members to learn what the group consumes.

Guards: what no member asks for any more is in no count.

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
    """The topics that match a pattern, at a revision of the metadata, found at a wall-clock time."""

    topics: frozenset[str]
    revision: int
    wall_ms: int


Counts: TypeAlias = Mapping[str, int]
"""How many members name each; what none names isn't in it."""

NO_COUNTS: Final[Counts] = MappingProxyType({})
"""All counts that are empty are this one: a broker may have ten thousands of groups of one member."""

NO_PATTERNS: Final[Mapping[str, ResolvedPattern]] = MappingProxyType({})


class Subscriptions:
    """Of one group's members."""

    __slots__ = ("assignors", "classic_count", "classic_protocols", "pattern_counts", "patterns", "topic_counts")

    def __init__(self) -> None:
        self.topic_counts: Counts = NO_COUNTS
        """How many members name each topic."""
        self.pattern_counts: Counts = NO_COUNTS
        """How many members subscribe to each pattern."""
        self.patterns: Mapping[str, ResolvedPattern] = NO_PATTERNS
        """Patterns that were matched to topics, as records keep them."""
        self.assignors: Counts = NO_COUNTS
        """How many members ask for each assignor."""
        self.classic_count = 0
        """How many members speak the classic protocol."""
        self.classic_protocols: Counts = NO_COUNTS
        """How many of those speak each protocol."""

    # ------------------------------------------------------------------ topics
    @property
    def is_matched(self) -> bool:
        """Whether each pattern of a member was matched to topics."""
        return all(pattern in self.patterns for pattern in self.pattern_counts)

    def names(self) -> set[str]:
        """All topics that members name or that match their patterns, as far as these are matched."""
        names = set(self.topic_counts)
        for pattern in self.patterns.values():
            names |= pattern.topics
        return names

    def names_of(self, member: ModernMember) -> frozenset[str]:
        """The topics that a member consumes, as far as its pattern is matched."""
        pattern = self.patterns.get(member.pattern) if member.pattern is not None else None
        return member.topic_names if pattern is None else member.topic_names | pattern.topics

    def names_after(self, old: ModernMember, new: ModernMember) -> set[str]:
        """As `names`, if `new` takes the place of `old`."""
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
        """Whether a member names a topic, or has a pattern that it matches."""
        return topic in self.topic_counts or any(topic in pattern.topics for pattern in self.patterns.values())

    def patterns_without(self, gone: Iterable[ModernMember]) -> frozenset[str]:
        """The patterns that members have if these leave."""
        left = Counter(member.pattern for member in gone if member.pattern is not None)
        return frozenset(pattern for pattern, count in self.pattern_counts.items() if left[pattern] < count)

    def matched_by(self, patterns: Container[str]) -> set[str]:
        """The topics that match these patterns, as far as they are matched."""
        return {name for pattern, resolved in self.patterns.items() if pattern in patterns for name in resolved.topics}

    # ------------------------------------------------------------------ assignors, protocols
    def preferred_assignor(self, old: ModernMember | None = None, new: ModernMember | None = None) -> str | None:
        """The assignor that most members ask for, the first by name of several; None where none does.

        `new` takes the place of `old`.
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
        """Whether a member of the classic protocol may join: it is a consumer, and speaks what all others of that protocol speak."""
        return protocol_type == CONSUMER_PROTOCOL_TYPE and any(
            self.classic_protocols.get(name, 0) == self.classic_count for name in names
        )

    # ------------------------------------------------------------------ changes
    def replace(self, old: ModernMember | None, new: ModernMember | None) -> None:
        """A member asks for something else, is new (`old` is None), or is gone (`new` is None)."""
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
        """A record says which topics match a pattern; with None, that no member asks for it any more."""
        patterns = self.patterns if isinstance(self.patterns, dict) else {}
        if resolved is not None:
            patterns[pattern] = resolved
        else:
            patterns.pop(pattern, None)
        self.patterns = patterns or NO_PATTERNS


def _counted(counts: Counts, names: Iterable[str], by: int) -> Counts:
    """The counts with `by` more of each name: the same mapping, changed, unless it was or is now empty."""
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
