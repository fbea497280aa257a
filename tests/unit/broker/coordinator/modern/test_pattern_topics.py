"""The patterns of a group are matched to topics when due, once at a time, and the result is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.modern.group_decision import GroupDecision, GroupRefusal
from lowtide.broker.coordinator.modern.groups_by_id import GroupsById
from lowtide.broker.coordinator.modern.modern_member import ModernMember
from lowtide.broker.coordinator.modern.pattern_topics import REFRESH_MIN_MS, PatternChange, PatternMatching
from lowtide.broker.coordinator.modern.subscriptions import ResolvedPattern
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.protocol.consumer_group_records import ConsumerGroupChange, GroupEpoch, PatternTopics, RecordType
from lowtide.protocol.errors import ErrorCode
from tests.unit.broker.coordinator.consumer_world import Cluster

INTERVAL_MS = 600_000
WALL_MS = 1_000_000_000
INVALID = "("


def member(pattern: str | None = None, *topics: str, name: str = "m") -> ModernMember:
    return ModernMember(name, topic_regex=pattern, topic_names=frozenset(topics))


class World:
    """A group with members of these patterns; `matched` were matched at `WALL_MS` and the current revision."""

    def __init__(self, *members: ModernMember, **matched: set[str]) -> None:
        self.cluster = Cluster({"apple": 1, "avocado": 1, "banana": 1})
        self.group = ConsumerGroup("g")
        self.groups = GroupsById()
        self.groups["g"] = self.group
        for each in members:
            self.group.subscriptions.replace(None, each)
        for pattern, topics in matched.items():
            self.match(pattern, topics)
        self.patterns = PatternMatching(
            self.groups, GroupSettings(consumer_regex_refresh_interval_ms=INTERVAL_MS), self.cluster.view
        )

    def match(self, pattern: str, topics: set[str]) -> None:
        self.group.subscriptions.note_pattern(
            pattern, ResolvedPattern(frozenset(topics), self.cluster.image.revision, WALL_MS)
        )

    def update(
        self, old: ModernMember, new: ModernMember, age_ms: int = REFRESH_MIN_MS + 1
    ) -> tuple[Any, GroupDecision]:
        decision = GroupDecision(self.group)
        return self.patterns.update(decision, old, new, WALL_MS + age_ms), decision

    def resolves(self, old: ModernMember, new: ModernMember, age_ms: int = REFRESH_MIN_MS + 1) -> set[str]:
        """The patterns that are to be matched."""
        return set(self.update(old, new, age_ms)[1].resolves)

    def begin(self, *patterns: str, may_see: Callable[[str], bool] | None = None) -> Effects:
        decision, effects = GroupDecision(self.group), Effects(0, WALL_MS)
        decision.resolves, decision.may_see = frozenset(patterns), may_see
        self.patterns.begin(decision, effects)
        return effects

    def finish(self, effects: Effects) -> list[ConsumerGroupChange]:
        """Match the patterns; the records that this asks for."""
        [job] = effects.jobs
        for _step in job.steps:
            pass
        after = Effects(0, WALL_MS + 5)
        job.on_done(after)
        return list(after.changes)


def removal(pattern: str) -> ConsumerGroupChange:
    return ConsumerGroupChange(RecordType.PATTERN, "g", pattern, None)


# ------------------------------------------------------------------ what members do with their patterns
def test_a_new_pattern_is_to_be_matched() -> None:
    changed, decision = World().update(member(), member("a.*"))
    assert (changed, decision.resolves, decision.changes) == (
        PatternChange(changed=True, is_being_matched=True),
        {"a.*"},
        [],
    )


def test_a_pattern_that_another_member_has_is_known() -> None:
    world = World(member("a"), a={"apple"})
    changed, decision = world.update(member(), member("a"))
    assert (changed, decision.resolves) == (PatternChange(changed=True), frozenset())


def test_the_last_member_takes_its_pattern_with_it() -> None:
    one, two = World(member("a"), a={"apple"}), World(member("a"), member("a"), a={"apple"})
    assert one.update(member("a"), member())[1].changes == [removal("a")]
    assert two.update(member("a"), member())[1].changes == []
    changed, decision = one.update(member("a"), member("b"))
    expected = PatternChange(changed=True, is_being_matched=True), [removal("a")], {"b"}
    assert (changed, decision.changes, decision.resolves) == expected
    assert two.update(member("a"), member("b"))[1].resolves == {"a", "b"}


def test_a_member_that_keeps_its_pattern_changes_nothing() -> None:
    world = World(member("a"), a={"apple"})
    changed, decision = world.update(member("a"), member("a"))
    assert (changed, decision.changes, decision.resolves) == (PatternChange(changed=False), [], frozenset())


def test_an_invalid_pattern_is_refused_unless_the_group_has_it() -> None:
    refused, decision = World().update(member(), member(INVALID))
    assert isinstance(refused, GroupRefusal)
    assert (refused.error, decision.resolves) == (ErrorCode.INVALID_REGULAR_EXPRESSION, frozenset())
    changed, _ = World(member(INVALID)).update(member(), member(INVALID))
    assert changed == PatternChange(changed=True, is_being_matched=True)


def test_a_group_without_patterns_has_none_matched() -> None:
    assert World(member()).resolves(member(), member()) == set()
    assert World(member("a"), a={"apple"}).resolves(member("a"), member(""), 2 * INTERVAL_MS) == set()


# ------------------------------------------------------------------ when they are matched again
@pytest.mark.parametrize(
    ("age_ms", "is_due"),
    [
        (-1, True),
        (0, False),
        (REFRESH_MIN_MS, False),
        (REFRESH_MIN_MS + 1, False),
        (INTERVAL_MS, False),
        (INTERVAL_MS + 1, True),
    ],
)
def test_patterns_are_matched_again_after_a_while_or_when_the_clock_was_set_back(age_ms: int, is_due: bool) -> None:
    world = World(member("a"), a={"apple"})
    assert world.resolves(member("a"), member("a"), age_ms) == ({"a"} if is_due else set())


@pytest.mark.parametrize(("age_ms", "is_due"), [(0, False), (REFRESH_MIN_MS, False), (REFRESH_MIN_MS + 1, True)])
@pytest.mark.parametrize("cause", ["another pattern", "a new topic"])
def test_patterns_are_matched_again_for_a_cause_but_not_too_often(age_ms: int, is_due: bool, cause: str) -> None:
    world = World(member("a"), a={"apple"})
    new = member("a")
    if cause == "another pattern":
        new = member("b")
        world.group.subscriptions.replace(None, member("a"))
    else:
        world.cluster.set_topic("apricot", 1)
    wanted = {"a", "b"} if cause == "another pattern" else {"a"}
    assert world.resolves(member("a"), new, age_ms) == (wanted if is_due else set())


def test_a_topic_that_grows_or_goes_is_no_cause() -> None:
    world = World(member("a"), a={"apple"})
    world.cluster.set_topic("banana", 0)
    world.cluster.set_topic("apple", 2)
    assert world.resolves(member("a"), member("a")) == set()


def test_the_patterns_of_a_group_are_matched_one_time_at_once() -> None:
    world = World(member("a.*"))
    effects = world.begin("a.*")
    assert world.resolves(member(), member("b.*")) == set()
    world.finish(effects)
    assert world.resolves(member(), member("b.*")) == {"a.*", "b.*"}


# ------------------------------------------------------------------ what is kept
def test_the_topics_that_match_are_kept_and_raise_the_epoch() -> None:
    world = World(member("a.*"), member("b.*"))
    world.group.group_epoch = 4
    changes = world.finish(world.begin("b.*", "a.*"))
    revision = world.cluster.image.revision
    hashed = world.cluster.view.hash_of(["apple", "avocado", "banana"])
    assert changes == [
        ConsumerGroupChange(
            RecordType.PATTERN,
            "g",
            "a.*",
            PatternTopics(topics=["apple", "avocado"], version=revision, timestamp=WALL_MS + 5),
        ),
        ConsumerGroupChange(
            RecordType.PATTERN, "g", "b.*", PatternTopics(topics=["banana"], version=revision, timestamp=WALL_MS + 5)
        ),
        ConsumerGroupChange(RecordType.GROUP, "g", "", GroupEpoch(epoch=5, metadata_hash=hashed)),
    ]


def test_topics_that_the_client_may_not_see_do_not_match() -> None:
    world = World(member("a.*"))
    [change, _] = world.finish(world.begin("a.*", may_see=lambda name: name != "apple"))
    assert change.value == PatternTopics(
        topics=["avocado"], version=world.cluster.image.revision, timestamp=WALL_MS + 5
    )


def epochs(changes: list[ConsumerGroupChange]) -> list[int]:
    return [change.value.epoch for change in changes if isinstance(change.value, GroupEpoch)]


def test_a_group_whose_topics_are_the_same_keeps_its_epoch() -> None:
    world = World(member("a.*"), member("b.*"))
    world.match("a.*", {"apple", "avocado"})
    world.match("b.*", {"banana"})
    world.group.metadata_hash = world.cluster.view.hash_of(["apple", "avocado", "banana"])
    changes = world.finish(world.begin("a.*", "b.*"))
    assert ([change.name for change in changes], epochs(changes)) == (["a.*", "b.*"], [])
    world.group.metadata_hash += 1
    assert epochs(world.finish(world.begin("a.*", "b.*"))) == [2]


@pytest.mark.parametrize("changed", ["a.*", "b.*"])
@pytest.mark.parametrize("known", [None, frozenset[str]()])
def test_a_member_that_gets_a_topic_which_others_name_raises_the_epoch(
    changed: str, known: frozenset[str] | None
) -> None:
    """The topics of the group are the same."""
    world = World(member("a.*"), member("b.*"), member(None, "apple", "avocado", "banana"))
    for pattern, topics in (("a.*", {"apple", "avocado"}), ("b.*", {"banana"})):
        if pattern != changed:
            world.match(pattern, topics)
        elif known is not None:
            world.match(pattern, set(known))
    world.group.metadata_hash = world.cluster.view.hash_of(["apple", "avocado", "banana"])
    assert epochs(world.finish(world.begin("a.*", "b.*"))) == [2]


def test_a_pattern_that_is_matched_for_the_first_time_raises_the_epoch_though_it_matches_nothing() -> None:
    """Its member may have given up the topics of the pattern that it had before."""
    world = World(member("x.*"))
    changes = world.finish(world.begin("x.*"))
    assert ([change.name for change in changes], epochs(changes)) == (["x.*", ""], [2])
    world.match("x.*", set())
    assert epochs(world.finish(world.begin("x.*"))) == []


def test_the_topics_of_a_pattern_are_awaited_while_they_are_being_found_only() -> None:
    world = World(member("a.*"), member("b.*"), **{"a.*": {"apple"}})
    soon = WALL_MS + REFRESH_MIN_MS
    decision = GroupDecision(world.group)
    late = world.patterns.update(decision, member("a.*"), member("b.*"), soon)
    assert (late, decision.resolves) == (PatternChange(changed=True), frozenset()), (
        "patterns were matched a short while ago"
    )
    effects = world.begin("b.*")
    assert world.update(member("a.*"), member("b.*"))[0] == PatternChange(changed=True, is_being_matched=True)
    assert world.update(member("a.*"), member("c.*"))[0] == PatternChange(changed=True)
    assert world.update(member("b.*"), member("b.*"))[0] == PatternChange(changed=False)
    world.finish(effects)
    world.match("b.*", {"banana"})
    assert world.update(member("a.*"), member("b.*"), REFRESH_MIN_MS)[0] == PatternChange(changed=True)


def test_a_pattern_that_can_not_be_compiled_matches_nothing() -> None:
    world = World(member(INVALID), member("b.*"))
    changes = world.finish(world.begin(INVALID, "b.*"))
    assert [change.value.topics for change in changes if isinstance(change.value, PatternTopics)] == [[], ["banana"]]
    assert world.resolves(member(INVALID), member(INVALID)) == {INVALID, "b.*"}, "it isn't the end of matching"


def test_a_pattern_that_no_member_has_any_more_is_not_kept() -> None:
    world = World(member("a.*"))
    effects = world.begin("a.*", "b.*")
    changes = world.finish(effects)
    assert [change.name for change in changes] == ["a.*", ""]
    assert changes[-1].value.metadata_hash == world.cluster.view.hash_of(["apple", "avocado"])


def test_the_topics_of_patterns_that_were_matched_before_count() -> None:
    world = World(member("a.*"), member("b.*"))
    world.match("b.*", {"banana"})
    changes = world.finish(world.begin("a.*"))
    assert changes[-1].value.metadata_hash == world.cluster.view.hash_of(["apple", "avocado", "banana"])
    world.group.metadata_hash = world.cluster.view.hash_of(["apple", "avocado", "banana"])
    world.match("a.*", {"apple", "avocado", "banana"})
    world.group.subscriptions.note_pattern("b.*", None)
    assert epochs(world.finish(world.begin("a.*"))) == [2], "what a pattern matched before counts no longer"


def test_what_matches_for_a_group_that_is_gone_is_dropped() -> None:
    world = World(member("a.*"))
    effects = world.begin("a.*")
    del world.groups["g"]
    assert world.finish(effects) == []


def test_a_group_that_had_nothing_to_keep_relies_on_its_records() -> None:
    world = World()
    world.group.last_record_offset = 7
    effects = world.begin("a.*")
    [job] = effects.jobs
    list(job.steps)
    after = Effects(0, 0)
    job.on_done(after)
    assert (after.changes, after.barrier) == ([], 7)
