from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class InternalTopic:
    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


@dataclass(frozen=True)
class CopartitionGroup:
    source_topics: tuple[int, ...]
    source_topic_regex: tuple[int, ...]
    repartition_source_topics: tuple[int, ...]


@dataclass(frozen=True)
class Subtopology:
    subtopology_id: str
    source_topics: tuple[str, ...]
    source_topic_regex: tuple[str, ...]
    repartition_sink_topics: tuple[str, ...]
    state_changelog_topics: tuple[InternalTopic, ...]
    repartition_source_topics: tuple[InternalTopic, ...]
    copartition_groups: tuple[CopartitionGroup, ...]


@dataclass(frozen=True)
class Topology:
    epoch: int
    subtopologies: tuple[Subtopology, ...]


@dataclass(frozen=True)
class InternalTopicSpec:
    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


@dataclass(frozen=True)
class ConfiguredSubtopology:
    number_of_tasks: int


@dataclass(frozen=True)
class TopologyRefusal:
    status: int
    detail: str


@dataclass(frozen=True)
class ConfiguredTopology:
    topology_epoch: int
    metadata_hash: int
    subtopologies: Mapping[str, ConfiguredSubtopology] | None
    internal_topics_to_create: Mapping[str, InternalTopicSpec] = field(default_factory=dict)
    refusal: TopologyRefusal | None = None


def required_topics(topology: Topology) -> frozenset[str]:
    names: set[str] = set()
    for each in topology.subtopologies:
        names.update(each.source_topics)
        names.update(t.name for t in each.repartition_source_topics)
        names.update(t.name for t in each.state_changelog_topics)
    return frozenset(names)


def configure(topology: Topology, metadata_hash: int, partitions_of: Callable[[str], int | None]) -> ConfiguredTopology:
    counts: dict[str, int] = {}
    missing = []
    for each in topology.subtopologies:
        for name in each.source_topics:
            n = partitions_of(name)
            if n is None:
                missing.append(name)
            else:
                counts[name] = n
    if missing:
        return ConfiguredTopology(
            topology.epoch,
            metadata_hash,
            None,
            {},
            TopologyRefusal(1, f"Source topics {', '.join(missing)} are missing."),
        )
    default = max(counts.values(), default=1)
    for each in topology.subtopologies:
        for t in each.repartition_source_topics:
            counts[t.name] = t.partitions or default
    tasks = {}
    create = {}
    for each in topology.subtopologies:
        n = max([counts[x] for x in each.source_topics] + [counts[t.name] for t in each.repartition_source_topics])
        tasks[each.subtopology_id] = ConfiguredSubtopology(n)
        for t in each.repartition_source_topics:
            if partitions_of(t.name) is None:
                create[t.name] = InternalTopicSpec(t.name, counts[t.name], t.replication_factor, t.configs)
        for t in each.state_changelog_topics:
            if partitions_of(t.name) is None:
                create[t.name] = InternalTopicSpec(t.name, n, t.replication_factor, t.configs)
    if create:
        return ConfiguredTopology(
            topology.epoch,
            metadata_hash,
            tasks,
            create,
            TopologyRefusal(3, f"Internal topics are missing: {sorted(create)}"),
        )
    return ConfiguredTopology(topology.epoch, metadata_hash, tasks)
