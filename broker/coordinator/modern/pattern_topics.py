"""Matches the patterns of a group's members to topics, in slices, and records the result.

Guards: an invalid pattern is refused before a member has it. The patterns of a group are matched once at a time, and
not more often than every `REFRESH_MIN_MS`, whatever its members send.

Source: Kafka's `GroupMetadataManager.maybeUpdateRegularExpressions`, `handleRegularExpressionsResult`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.modern.group_decision import GroupDecision, GroupRefusal
from lowtide.broker.coordinator.modern.groups_by_id import GroupsById
from lowtide.broker.coordinator.modern.modern_member import ModernMember
from lowtide.broker.coordinator.modern.subscription_patterns import NamePattern, PatternError, check_pattern
from lowtide.broker.coordinator.modern.topic_view import TopicView
from lowtide.broker.coordinator.runtime.effects import Effects, Job
from lowtide.protocol.consumer_group_records import PatternTopics, RecordType
from lowtide.protocol.errors import ErrorCode

REFRESH_MIN_MS: Final = 10_000
"""Source: `GroupMetadataManager.REGEX_BATCH_REFRESH_MIN_INTERVAL_MS`."""


class PatternChange(NamedTuple):
    """Whether a member's pattern changed, and whether its topics are being searched.

    The group's epoch rises when they are found. Any other change of a pattern raises it at once: the member gives up
    topics, and nothing else would assign them to another member.
    """

    changed: bool
    is_being_matched: bool = False


class PatternMatching:
    """The patterns of one coordinator's groups."""

    def __init__(self, groups: GroupsById, settings: GroupSettings, topics: TopicView) -> None:
        self._groups = groups
        self._settings = settings
        self._topics = topics
        self._matching: dict[str, frozenset[str]] = {}
        """The patterns that are being matched, by group id."""

    def update(
        self, decision: GroupDecision[ConsumerGroup], old: ModernMember, new: ModernMember, wall_ms: int
    ) -> PatternChange | GroupRefusal:
        """Takes over a member's pattern, and decides whether the group's patterns have to be matched again.

        Errors: INVALID_REGULAR_EXPRESSION.
        """
        group = decision.group
        changed = old.pattern != new.pattern
        wanted = set(group.subscriptions.pattern_counts)
        if changed:
            if old.pattern is not None and group.subscriptions.pattern_counts[old.pattern] == 1:
                wanted.discard(old.pattern)
                decision.keep(RecordType.PATTERN, old.pattern, None)
            if new.pattern is not None:
                if (
                    new.pattern not in group.subscriptions.pattern_counts
                    and check_pattern(new.pattern) != ErrorCode.NONE
                ):
                    return GroupRefusal(
                        ErrorCode.INVALID_REGULAR_EXPRESSION, "SubscribedTopicRegex is not a valid regular expression."
                    )
                wanted.add(new.pattern)
        if wanted and self._needs_refresh(group, wanted, wall_ms):
            decision.resolves = frozenset(wanted)
        being_matched = decision.resolves or self._matching.get(group.group_id, frozenset())
        is_unknown = new.pattern is not None and new.pattern not in group.subscriptions.patterns
        return PatternChange(changed, changed and is_unknown and new.pattern in being_matched)

    def _needs_refresh(self, group: ConsumerGroup, wanted: set[str], wall_ms: int) -> bool:
        if group.group_id in self._matching:
            return False
        last = next(iter(group.subscriptions.patterns.values()), None)
        if last is None:
            return True
        age_ms = wall_ms - last.wall_ms
        if 0 <= age_ms <= REFRESH_MIN_MS:
            return False
        return (
            wanted != set(group.subscriptions.patterns)
            or last.revision < self._topics.new_topics_revision
            or not 0 <= age_ms <= self._settings.consumer_regex_refresh_interval_ms
        )

    def begin(self, decision: GroupDecision[ConsumerGroup], effects: Effects) -> None:
        """Matches a group's patterns to the topics that the client may see, and records the result later."""
        group_id, patterns, may_see = decision.group.group_id, decision.resolves, decision.may_see
        self._matching[group_id] = patterns
        image = self._topics.image
        found: dict[str, frozenset[str]] = {}
        names = tuple(image.topics)

        def steps() -> Generator[None, None, None]:
            for pattern in sorted(patterns):
                try:
                    compiled = NamePattern(pattern)
                except PatternError:  # From a record of another broker. The other patterns are matched all the same.
                    found[pattern] = frozenset()
                    continue
                matching = yield from compiled.matching(names)
                found[pattern] = frozenset(matching if may_see is None else filter(may_see, matching))

        effects.jobs.append(Job(steps(), lambda effects: self._on_resolved(group_id, found, image.revision, effects)))

    def _on_resolved(self, group_id: str, found: dict[str, frozenset[str]], revision: int, effects: Effects) -> None:
        self._matching.pop(group_id, None)
        group = self._groups.find_consumer(group_id)
        if group is None:
            return
        decision = GroupDecision(group)
        names = set(group.subscriptions.topic_counts)
        bumps = False
        for pattern, topics in found.items():
            if pattern in group.subscriptions.pattern_counts:
                known = group.subscriptions.patterns.get(pattern)
                # Also for a pattern that matches nothing: members may have given up topics for it.
                bumps = bumps or known is None or topics != known.topics
                names |= topics
                value = PatternTopics(topics=sorted(topics), version=revision, timestamp=effects.wall_ms)
                decision.keep(RecordType.PATTERN, pattern, value)
        for pattern, known in group.subscriptions.patterns.items():
            if pattern not in found:
                names |= known.topics
        metadata_hash = self._topics.hash_of(names)
        if bumps or metadata_hash != group.metadata_hash:
            decision.keep_epoch(group.group_epoch + 1, metadata_hash)
        decision.carry_out(effects)
