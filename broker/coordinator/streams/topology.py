"""Decides which topics and how many tasks a topology has, given the topics that exist.

Pure. The number of partitions of a repartition topic follows from the topics that its writers read, unless the client
fixed it. Topics that are read together have equally many partitions. A changelog topic has one for each task. The
number of tasks is that of the largest source topic.

Guards: all topics have a number of partitions, or there is a refusal that says why not. An existing topic is never
taken with another number of partitions than the topology needs. The cost is O(n log n) in the size of the topology,
also for chains and loops of repartition topics.

Does not: create topics, or check names and positions; `heartbeat_checks` does. Regular expressions are not resolved, as
in Kafka.

Departures: subtopologies are visited by number. Kafka visits them in the order of a hash map, which is the same for up
to ten. In a group of repartition topics only, Kafka takes the number of any fixed topic of the whole topology; here
only the topics of the group count, as in Kafka's classic client. Details list topics in order.

Source: KIP-1071; Kafka's `InternalTopicManager`, `RepartitionTopics`, `CopartitionedTopicsEnforcer`, `ChangelogTopics`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from typing import Final

TOPICS_SHOWN: Final = 3
"""How many topics a list of missing topics names. Source: Kafka's `InternalTopicManager`."""
COUNTS_SHOWN: Final = 20
"""How many topics a list of partition counts names. Kafka names all."""
BROKER_DEFAULT: Final = -1
"""The replication factor that lets the broker decide."""


class TopologyStatus(IntEnum):
    """Why a topology is not ready: the status codes of a heartbeat."""

    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """A repartition or changelog topic as a client sent it. `partitions` is 0 if the broker decides."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopartitionGroup:
    """Topics with equally many partitions, as positions in the lists of their subtopology."""

    source_topics: tuple[int, ...] = ()
    source_topic_regex: tuple[int, ...] = ()
    repartition_source_topics: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtopology:
    """A part of a topology whose tasks run together."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regex: tuple[str, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    state_changelog_topics: tuple[InternalTopic, ...] = ()
    repartition_source_topics: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()

    def sources(self) -> Iterator[str]:
        """Yields all topics that it reads."""
        yield from self.source_topics
        for topic in self.repartition_source_topics:
            yield topic.name

    def internal_topics(self) -> Iterator[InternalTopic]:
        """Yields the internal topics that it reads, and its changelogs."""
        yield from self.repartition_source_topics
        yield from self.state_changelog_topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What the members of a group run."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopicSpec:
    """An internal topic with its number of partitions. `replication_factor` is -1 if the broker decides."""

    name: str
    partitions: int
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredSubtopology:
    """A subtopology with the numbers that follow from the topics."""

    number_of_tasks: int
    source_topics: frozenset[str] = frozenset()
    repartition_sink_topics: frozenset[str] = frozenset()
    repartition_source_topics: Mapping[str, InternalTopicSpec] = field(default_factory=dict)
    state_changelog_topics: Mapping[str, InternalTopicSpec] = field(default_factory=dict)

    @property
    def is_stateful(self) -> bool:
        """Whether its tasks have state that standby tasks can hold."""
        return bool(self.state_changelog_topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyRefusal:
    """Why a topology is not ready. If it is invalid, no topic that anyone creates can help."""

    status: TopologyStatus
    detail: str
    is_invalid: bool = False
    """Kafka answers such a heartbeat with STREAMS_INVALID_TOPOLOGY and the detail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredTopology:
    """A topology with the topics as they were. Without `refusal` all topics exist, and tasks can be assigned."""

    topology_epoch: int
    metadata_hash: int
    subtopologies: Mapping[str, ConfiguredSubtopology] | None
    """By id, in order; None if the numbers of partitions are unknown."""
    internal_topics_to_create: Mapping[str, InternalTopicSpec] = field(default_factory=dict)
    refusal: TopologyRefusal | None = None


def required_topics(topology: Topology) -> frozenset[str]:
    """Returns the topics that must exist: sources, repartition topics that are read, and changelogs."""
    return frozenset(
        name
        for row in topology.subtopologies
        for name in (*row.source_topics, *(topic.name for topic in row.internal_topics()))
    )


def configure(topology: Topology, metadata_hash: int, partitions_of: Callable[[str], int | None]) -> ConfiguredTopology:
    """Decides the number of tasks of each subtopology, and the internal topics to create.

    `partitions_of` returns the number of partitions of a topic that exists. Names of missing internal topics come with
    the numbers that they are to be created with.
    """
    try:
        subtopologies, missing = _Configuration(topology, partitions_of).decide()
    except _RefusedError as error:
        return ConfiguredTopology(
            topology_epoch=topology.epoch, metadata_hash=metadata_hash, subtopologies=None, refusal=error.refusal
        )
    refusal = None
    if missing:
        detail = f"Internal topics are missing: {_summary(missing)}"
        refusal = TopologyRefusal(status=TopologyStatus.MISSING_INTERNAL_TOPICS, detail=detail)
    return ConfiguredTopology(
        topology_epoch=topology.epoch,
        metadata_hash=metadata_hash,
        subtopologies=subtopologies,
        internal_topics_to_create=missing,
        refusal=refusal,
    )


class _RefusedError(Exception):
    def __init__(self, status: TopologyStatus, detail: str, *, is_invalid: bool = False) -> None:
        self.refusal = TopologyRefusal(status=status, detail=detail, is_invalid=is_invalid)


class _Configuration:
    """One run over a topology: the numbers of partitions that have been decided so far."""

    def __init__(self, topology: Topology, partitions_of: Callable[[str], int | None]) -> None:
        self._rows = sorted(topology.subtopologies, key=lambda row: (len(row.subtopology_id), row.subtopology_id))
        self._partitions_of = partitions_of
        self._decided: dict[str, int] = {}
        """Numbers of partitions of internal topics. An existing topic's real number comes first, see `_count`."""
        self._is_fixed = {
            topic.name: topic.partitions != 0 for row in self._rows for topic in row.repartition_source_topics
        }

    def decide(self) -> tuple[dict[str, ConfiguredSubtopology], dict[str, InternalTopicSpec]]:
        """Returns the configured subtopologies, and the internal topics that are missing."""
        for row in self._rows:
            if next(row.sources(), None) is None:
                raise _invalid(f"No source topics found for subtopology {row.subtopology_id}")
        self._check_sources_exist()
        self._decided = _repartition_counts(self._rows, self._partitions_of)
        for row in self._rows:
            for group in row.copartition_groups:
                self._copartition(row, group)
        for row in self._rows:
            tasks = self._tasks(row)
            self._decided |= dict.fromkeys((topic.name for topic in row.state_changelog_topics), tasks)
        configured = {row.subtopology_id: self._configured(row) for row in self._rows}
        return dict(sorted(configured.items())), self._missing(configured)

    def _check_sources_exist(self) -> None:
        missing = {name for row in self._rows for name in row.source_topics if self._partitions_of(name) is None}
        if missing:
            detail = f"Source topics {_summary(missing)} are missing."
            raise _RefusedError(TopologyStatus.MISSING_SOURCE_TOPICS, detail)

    def _count(self, name: str) -> int:
        existing = self._partitions_of(name)
        return self._decided[name] if existing is None else existing

    def _tasks(self, row: Subtopology) -> int:
        return max(map(self._count, row.sources()))

    def _copartition(self, row: Subtopology, group: CopartitionGroup) -> None:
        """Gives the repartition topics of a group the number of its source topics, of its fixed ones, or the largest.

        Errors: INCORRECTLY_PARTITIONED_TOPICS if topics differ whose number cannot be changed.
        """
        names = {row.source_topics[place] for place in group.source_topics}
        names |= {row.repartition_source_topics[place].name for place in group.repartition_source_topics}
        counts = {name: self._count(name) for name in names}
        repartition = {name: count for name, count in counts.items() if name in self._is_fixed}
        fixed = {name: count for name, count in repartition.items() if self._is_fixed[name]}
        others = {name: count for name, count in counts.items() if name not in repartition}
        if not counts:
            return
        deciding = others or fixed
        if len(set(deciding.values())) > 1:
            shown = _summary([f"{name}={count}" for name, count in deciding.items()], COUNTS_SHOWN)
            raise _mispartitioned(f"Following topics do not have the same number of partitions: [{{{shown}}}]")
        wanted = next(iter(deciding.values())) if deciding else max(repartition.values())
        for name, count in sorted(fixed.items()):
            if count != wanted:
                raise _mispartitioned(
                    f"Number of partitions [{count}] of repartition topic [{name}] doesn't match number of partitions"
                    f" [{wanted}] of the source topic."
                )
        self._decided |= dict.fromkeys(repartition, wanted)

    def _configured(self, row: Subtopology) -> ConfiguredSubtopology:
        return ConfiguredSubtopology(
            number_of_tasks=self._tasks(row),
            source_topics=frozenset(row.source_topics),
            repartition_sink_topics=frozenset(row.repartition_sink_topics),
            repartition_source_topics={topic.name: self._spec(topic) for topic in row.repartition_source_topics},
            state_changelog_topics={topic.name: self._spec(topic) for topic in row.state_changelog_topics},
        )

    def _spec(self, topic: InternalTopic) -> InternalTopicSpec:
        return InternalTopicSpec(
            name=topic.name,
            partitions=topic.partitions or self._decided[topic.name],
            replication_factor=topic.replication_factor or BROKER_DEFAULT,
            configs=topic.configs,
        )

    def _missing(self, configured: Mapping[str, ConfiguredSubtopology]) -> dict[str, InternalTopicSpec]:
        """Returns internal topics that don't exist. Errors: INCORRECTLY_PARTITIONED_TOPICS."""
        expected = {
            spec.name: spec
            for row in configured.values()
            for spec in (*row.repartition_source_topics.values(), *row.state_changelog_topics.values())
        }
        missing = {}
        for name, spec in sorted(expected.items()):
            existing = self._partitions_of(name)
            if existing is None:
                missing[name] = spec
            elif existing != spec.partitions:
                raise _mispartitioned(
                    f"Existing topic {name} has different number of partitions: expected {spec.partitions}, found"
                    f" {existing}"
                )
        return missing


def _repartition_counts(rows: Collection[Subtopology], partitions_of: Callable[[str], int | None]) -> dict[str, int]:
    """Returns the number of partitions of each repartition topic: the largest among the topics that its writer reads.

    Kafka visits all subtopologies repeatedly. A subtopology decides the topics that it writes at the first visit at
    which it reads a topic whose number is known. The heap holds these visits by round and place, so that each
    subtopology is visited once.
    Errors: an invalid topology, if a topic has no number.
    """
    counts = {
        topic.name: topic.partitions for row in rows for topic in row.repartition_source_topics if topic.partitions != 0
    }
    in_order = list(rows)
    readers: dict[str, list[int]] = {}
    visits: list[tuple[int, int]] = []
    is_planned = [False] * len(in_order)
    for place, row in enumerate(in_order):
        for topic in row.repartition_source_topics:
            readers.setdefault(topic.name, []).append(place)
        if row.source_topics or any(topic.name in counts for topic in row.repartition_source_topics):
            visits.append((0, place))
            is_planned[place] = True
    while visits:
        visit, place = heapq.heappop(visits)
        row = in_order[place]
        known = [counts[topic.name] for topic in row.repartition_source_topics if topic.name in counts]
        most = max([*known, *(partitions_of(name) or 0 for name in row.source_topics)])
        for sink in row.repartition_sink_topics:
            if sink in counts:
                continue
            counts[sink] = most
            for reader in readers.get(sink, ()):
                if not is_planned[reader]:
                    is_planned[reader] = True
                    heapq.heappush(visits, (visit + (reader <= place), reader))
    if any(sink not in counts for row in in_order for sink in row.repartition_sink_topics):
        raise _invalid(
            "Failed to compute number of partitions for all repartition topics. There may be loops in the topology that"
            " cannot be resolved."
        )
    if not readers.keys() <= counts.keys():
        raise _invalid(
            "Failed to compute number of partitions for all repartition topics, because a repartition source topic is"
            " never used as a sink topic."
        )
    if min(counts.values(), default=1) < 1:
        raise _invalid("Number of partitions must be at least 1.")
    return counts


def _mispartitioned(detail: str) -> _RefusedError:
    return _RefusedError(TopologyStatus.INCORRECTLY_PARTITIONED_TOPICS, detail)


def _invalid(detail: str) -> _RefusedError:
    return _RefusedError(TopologyStatus.INCORRECTLY_PARTITIONED_TOPICS, detail, is_invalid=True)


def _summary(topics: Collection[str], shown: int = TOPICS_SHOWN) -> str:
    names = ", ".join(islice(sorted(topics), shown))
    return names if len(topics) <= shown else f"{names} and {len(topics) - shown} additional topics"
