"""A topology has the numbers of tasks and partitions that Kafka decides, and a refusal says what a user must change."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.broker.coordinator.streams.topology import (
    ConfiguredTopology,
    CopartitionGroup,
    InternalTopic,
    InternalTopicSpec,
    Subtopology,
    Topology,
    TopologyStatus,
    configure,
    required_topics,
)
from tests.examples import examples

HASH = 17
MISSING_SOURCE = TopologyStatus.MISSING_SOURCE_TOPICS
MISPARTITIONED = TopologyStatus.INCORRECTLY_PARTITIONED_TOPICS
MISSING_INTERNAL = TopologyStatus.MISSING_INTERNAL_TOPICS


def row(
    name: str,
    sources: str = "",
    repartition: str = "",
    sinks: str = "",
    changelogs: str = "",
    together: tuple[CopartitionGroup, ...] = (),
) -> Subtopology:
    """A subtopology. Lists are words; `r:3` is a repartition topic with a fixed number of partitions."""
    return Subtopology(
        subtopology_id=name,
        source_topics=tuple(sources.split()),
        repartition_sink_topics=tuple(sinks.split()),
        repartition_source_topics=tuple(map(internal, repartition.split())),
        state_changelog_topics=tuple(map(internal, changelogs.split())),
        copartition_groups=together,
    )


def internal(text: str) -> InternalTopic:
    name, _, partitions = text.partition(":")
    return InternalTopic(name=name, partitions=int(partitions or 0))


def configured(rows: list[Subtopology], **existing: int) -> ConfiguredTopology:
    return configure(Topology(epoch=3, subtopologies=tuple(rows)), HASH, existing.get)


def created(found: ConfiguredTopology) -> dict[str, int]:
    return {name: spec.partitions for name, spec in found.internal_topics_to_create.items()}


def refusal(found: ConfiguredTopology) -> tuple[TopologyStatus, str]:
    assert found.refusal is not None
    return found.refusal.status, found.refusal.detail


def test_a_topology_whose_topics_exist_is_ready() -> None:
    found = configured([row("0", "in", sinks="r"), row("1", "", "r", changelogs="c")], **{"in": 4, "r": 4, "c": 4})
    assert (found.topology_epoch, found.metadata_hash, found.refusal) == (3, HASH, None)
    assert found.subtopologies is not None
    assert {name: each.number_of_tasks for name, each in found.subtopologies.items()} == {"0": 4, "1": 4}
    assert [each.is_stateful for each in found.subtopologies.values()] == [False, True]
    assert found.subtopologies["1"].state_changelog_topics["c"] == InternalTopicSpec(name="c", partitions=4)
    assert not found.internal_topics_to_create


def test_missing_internal_topics_come_with_their_numbers_and_configs() -> None:
    repartition = InternalTopic(name="r", replication_factor=2, configs={"cleanup.policy": "delete"})
    rows = [
        row("0", "in other", sinks="r"),
        Subtopology(
            subtopology_id="1", repartition_source_topics=(repartition,), state_changelog_topics=(internal("c"),)
        ),
    ]
    found = configured(rows, **{"in": 2, "other": 5})
    assert refusal(found) == (MISSING_INTERNAL, "Internal topics are missing: c, r")
    assert found.internal_topics_to_create == {
        "c": InternalTopicSpec(name="c", partitions=5, replication_factor=-1),
        "r": InternalTopicSpec(name="r", partitions=5, replication_factor=2, configs={"cleanup.policy": "delete"}),
    }
    assert found.subtopologies is not None


def test_missing_source_topics_are_named() -> None:
    found = configured([row("0", "d a c b"), row("1", "e in")], **{"in": 1})
    assert refusal(found) == (MISSING_SOURCE, "Source topics a, b, c and 2 additional topics are missing.")
    assert found.subtopologies is None
    assert not found.internal_topics_to_create


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([row("0", "a", sinks="r"), row("1", "b", "r")], {"r": 3}, id="as the topic of the writer"),
        pytest.param([row("0", "a b", sinks="r"), row("1", "", "r")], {"r": 6}, id="the most of them"),
        pytest.param(
            [row("0", "a", sinks="r"), row("1", "", "r:9", "s"), row("2", "", "s")], {"r": 9, "s": 9}, id="fixed"
        ),
        pytest.param(
            [row("0", "", "loop", "loop"), row("1", "a", sinks="loop")], {"loop": 3}, id="a loop with a way in"
        ),
        pytest.param(
            [row("0", "a", "r", "s"), row("1", "b", sinks="r"), row("2", "", "s")], {"r": 6, "s": 3}, id="first visit"
        ),
        pytest.param(
            [row("0", "", "r", "s"), row("1", "a", sinks="r"), row("2", "b", "s")], {"r": 3, "s": 3}, id="second round"
        ),
        pytest.param(
            [row("0", "a", sinks="r"), row("1", "b", sinks="r"), row("2", "", "r")], {"r": 3}, id="first writer"
        ),
        pytest.param(
            [row("2", "a", sinks="r"), row("10", "b", sinks="r r"), row("3", "", "r")], {"r": 3}, id="by number"
        ),
    ],
)
def test_repartition_topics_get_their_numbers_as_in_kafka(rows: list[Subtopology], expected: dict[str, int]) -> None:
    assert created(configured(rows, a=3, b=6)) == expected


def group(sources: int = 0, repartition: int = 0) -> tuple[CopartitionGroup, ...]:
    """A group of the first topics of each list."""
    return (CopartitionGroup(source_topics=tuple(range(sources)), repartition_source_topics=tuple(range(repartition))),)


def test_topics_that_are_joined_get_the_number_of_the_source_topic() -> None:
    rows = [row("0", "b", sinks="r"), row("1", "a", "r", changelogs="c", together=group(1, 1))]
    assert created(configured(rows, a=3, b=6)) == {"r": 3, "c": 3}


def test_joined_repartition_topics_get_the_largest_number() -> None:
    rows = [row("0", "a", sinks="r"), row("1", "b", sinks="s"), row("2", "", "r s", together=group(0, 2))]
    assert created(configured(rows, a=3, b=6)) == {"r": 6, "s": 6}


def test_joined_repartition_topics_get_the_number_that_one_of_them_is_fixed_to() -> None:
    rows = [row("0", "a", sinks="r"), row("1", "b", sinks="s"), row("2", "", "r:4 s", together=group(0, 2))]
    assert created(configured(rows, a=3, b=6)) == {"r": 4, "s": 4}


def test_fixed_numbers_of_other_groups_do_not_count() -> None:
    rows = [
        row("0", "a", sinks="r x y"),
        row("1", "b", sinks="s"),
        row("2", "", "r s", together=group(0, 2)),
        row("3", "", "x:7"),
        row("4", "", "y:8"),
    ]
    assert created(configured(rows, a=3, b=6)) == {"r": 6, "s": 6, "x": 7, "y": 8}


@pytest.mark.parametrize(
    ("last", "detail"),
    [
        (
            row("2", "a b", together=group(2)),
            "Following topics do not have the same number of partitions: [{a=3, b=6}]",
        ),
        (
            row("2", "", "r:1 s:2", together=group(0, 2)),
            "Following topics do not have the same number of partitions: [{r=1, s=2}]",
        ),
        (
            row("2", "a", "r:4", together=group(1, 1)),
            "Number of partitions [4] of repartition topic [r] doesn't match number of partitions [3] of the source",
        ),
    ],
)
def test_joined_topics_that_must_differ_are_refused(last: Subtopology, detail: str) -> None:
    found = configured([row("0", "a", sinks="r"), row("1", "b", sinks="s"), last], a=3, b=6)
    status, sentence = refusal(found)
    assert status == MISPARTITIONED
    assert sentence.startswith(detail)
    assert found.subtopologies is None


def test_many_topics_that_differ_make_no_endless_sentence() -> None:
    existing = {f"topic-{number:03}": number + 1 for number in range(500)}
    _, detail = refusal(configured([row("0", " ".join(existing), together=group(500))], **existing))
    assert detail.endswith("topic-019=20 and 480 additional topics}]")


def test_existing_internal_topics_of_another_size_are_refused() -> None:
    found = configured([row("0", "a", changelogs="c")], a=3, c=2)
    assert refusal(found) == (
        MISPARTITIONED,
        "Existing topic c has different number of partitions: expected 3, found 2",
    )


@pytest.mark.parametrize(
    ("rows", "detail"),
    [
        ([row("0", "", "r", "s"), row("1", "", "s", "r")], "There may be loops"),
        ([row("0", "a", "r")], "is never used as a sink topic"),
        ([row("0", "a"), row("1", changelogs="c")], "No source topics found for subtopology 1"),
        ([row("0", "a", sinks="r"), row("1", "", "r:-2")], "Number of partitions must be at least 1."),
    ],
)
def test_invalid_topologies_are_refused_as_such(rows: list[Subtopology], detail: str) -> None:
    found = configured(rows, a=3)
    assert found.refusal is not None
    assert found.refusal.is_invalid
    assert detail in found.refusal.detail


def test_required_topics_are_all_that_must_exist() -> None:
    topology = Topology(epoch=0, subtopologies=(row("0", "a", "r", "s", "c"),))
    assert required_topics(topology) == {"a", "r", "c"}


# ---------------------------------------------------------------------- against Kafka's rounds
def numbers_by_rounds(rows: list[Subtopology], existing: Mapping[str, int]) -> dict[str, int] | None:
    """The numbers as Kafka finds them, by visiting all subtopologies again and again; None if it gives up."""
    found = {
        topic.name: topic.partitions for each in rows for topic in each.repartition_source_topics if topic.partitions
    }
    while True:
        is_needed = made_progress = False
        for each in rows:
            for sink in each.repartition_sink_topics:
                if sink in found:
                    continue
                known = [found[t.name] for t in each.repartition_source_topics if t.name in found]
                known += [existing[name] for name in each.source_topics]
                if known:
                    found[sink] = max(known)
                    made_progress = True
                else:
                    is_needed = True
        if not is_needed:
            break
        if not made_progress:
            return None
    is_written = all(topic.name in found for each in rows for topic in each.repartition_source_topics)
    return found if is_written else None


words = st.lists(st.sampled_from(["p", "q", "r", "s"]), max_size=2, unique=True).map(" ".join)
fixed_words = st.lists(st.sampled_from(["p", "q", "r:2", "s"]), max_size=3, unique=True).map(" ".join)
some_rows = st.lists(st.tuples(st.sampled_from(["", "", "a", "b", "a b"]), fixed_words, words), max_size=6)


@settings(deadline=None, max_examples=examples(300))
@given(some_rows)
def test_the_visits_find_what_rounds_find(drawn: list[tuple[str, str, str]]) -> None:
    rows = [row(str(number), *each) for number, each in enumerate(drawn) if each[0] or each[1]]
    found = configured(rows, a=3, b=6)
    expected = numbers_by_rounds(rows, {"a": 3, "b": 6})
    if expected is None:
        assert found.refusal is not None
        assert found.refusal.is_invalid
    else:
        read = {topic.name for each in rows for topic in each.repartition_source_topics}
        assert created(found) == {name: expected[name] for name in sorted(read)}


# ---------------------------------------------------------------------- bounds
def calls_made(rows: list[Subtopology], **existing: int) -> int:
    """Returns how many calls of functions it takes to configure a topology."""
    count = 0

    def on_event(_frame: FrameType, _event: str, _arg: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(on_event)
    try:
        configured(rows, **existing)
    finally:
        sys.setprofile(None)
    return count


def chain(length: int) -> list[Subtopology]:
    """A chain of repartition topics in the order that is the worst for rounds: each waits for the next one."""
    rows = [row(str(number), "", f"r{number + 1}", f"r{number}") for number in range(length)]
    return [*rows, row(str(length), "in", sinks=f"r{length}")]


def test_a_long_chain_costs_in_proportion() -> None:
    assert created(configured(chain(5_000), **{"in": 3}))["r1"] == 3
    few, many = calls_made(chain(500), **{"in": 3}), calls_made(chain(5_000), **{"in": 3})
    assert many < 15 * few


def test_a_topic_with_many_readers_and_writers_costs_in_proportion() -> None:
    def rows(count: int) -> list[Subtopology]:
        return [row(str(number), "in" if number == count - 1 else "", "r", "r") for number in range(count)]

    few, many = calls_made(rows(200), **{"in": 3}), calls_made(rows(2_000), **{"in": 3})
    assert many < 15 * few
