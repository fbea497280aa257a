"""The topology of a streams group: its record, the form that is configured, and that of descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from lowtide.broker.coordinator.streams.topology import (
    ConfiguredSubtopology,
    ConfiguredTopology,
    CopartitionGroup,
    InternalTopic,
    InternalTopicSpec,
    Subtopology,
    Topology,
)
from lowtide.protocol.coordinator_records import encode_value
from lowtide.protocol.messages.streams_group_describe import DescribedSubtopology, DescribedTopology
from lowtide.protocol.messages.streams_group_heartbeat import (
    HeartbeatSubtopology,
    HeartbeatTopology,
    StreamsTopicInfo,
)
from lowtide.protocol.streams_group_records import NO_TOPOLOGY_EPOCH, StreamsGroupTopology


def topology_of(record: StreamsGroupTopology | HeartbeatTopology) -> Topology:
    """Returns a topology as it is configured."""
    return Topology(epoch=record.epoch, subtopologies=tuple(map(_subtopology, record.subtopologies)))


def _subtopology(row: HeartbeatSubtopology) -> Subtopology:
    return Subtopology(
        subtopology_id=row.subtopology_id,
        source_topics=tuple(row.source_topics),
        source_topic_regex=tuple(row.source_topic_regex),
        repartition_sink_topics=tuple(row.repartition_sink_topics),
        state_changelog_topics=_internal(row.state_changelog_topics),
        repartition_source_topics=_internal(row.repartition_source_topics),
        copartition_groups=tuple(
            CopartitionGroup(
                source_topics=tuple(each.source_topics),
                source_topic_regex=tuple(each.source_topic_regex),
                repartition_source_topics=tuple(each.repartition_source_topics),
            )
            for each in row.copartition_groups
        ),
    )


def _internal(rows: Iterable[StreamsTopicInfo]) -> tuple[InternalTopic, ...]:
    return tuple(
        InternalTopic(
            name=row.name,
            partitions=row.partitions,
            replication_factor=row.replication_factor,
            configs={config.key: config.value for config in row.topic_configs},
        )
        for row in rows
    )


def is_same(record: StreamsGroupTopology, topology: HeartbeatTopology) -> bool:
    """Returns whether a member's topology is that of a record. The order of subtopologies does not count."""
    if record.epoch != topology.epoch or len(record.subtopologies) != len(topology.subtopologies):
        return False
    known = {row.subtopology_id: row for row in record.subtopologies}
    return all(known.get(row.subtopology_id) == row for row in topology.subtopologies)


def source_topics(record: StreamsGroupTopology) -> dict[str, str]:
    """Returns the subtopology of each topic that members consume."""
    found = {}
    for row in record.subtopologies:
        for name in (*row.source_topics, *(topic.name for topic in row.repartition_source_topics)):
            found[name] = row.subtopology_id
    return found


class GroupTopology(msgspec.Struct):
    """The topology of one group. Without a record there is none yet."""

    record: StreamsGroupTopology | None = None
    parsed: Topology | None = None
    sources: Mapping[str, str] = {}
    """Source topic → subtopology."""
    configured: ConfiguredTopology | None = None
    """The topology with the topics as they were when it was last configured."""
    size_bytes: int = 0
    """The memory that it takes."""

    @property
    def epoch(self) -> int:
        """The epoch of the topology; -1 without one."""
        return NO_TOPOLOGY_EPOCH if self.record is None else self.record.epoch


def group_topology(record: StreamsGroupTopology | None) -> GroupTopology:
    """Returns the topology of a record; of a tombstone, none."""
    if record is None:
        return GroupTopology()
    return GroupTopology(record, topology_of(record), source_topics(record), None, len(encode_value(record)))


def topic_names(topology: HeartbeatTopology) -> list[str]:
    """Returns all topics of a topology, each once."""
    names = (
        name
        for row in topology.subtopologies
        for name in (
            *row.source_topics,
            *row.repartition_sink_topics,
            *(topic.name for topic in row.repartition_source_topics),
            *(topic.name for topic in row.state_changelog_topics),
        )
    )
    return list(dict.fromkeys(names))


def described_topology(record: StreamsGroupTopology, configured: ConfiguredTopology | None) -> DescribedTopology:
    """Returns the topology of a description: as it is configured if that is ready, or else as members sent it."""
    known = None if configured is None or configured.refusal is not None else configured.subtopologies
    rows = sorted(record.subtopologies, key=lambda row: row.subtopology_id)
    return DescribedTopology(
        epoch=record.epoch,
        subtopologies=[_described(row, None if known is None else known.get(row.subtopology_id)) for row in rows],
    )


def _described(row: HeartbeatSubtopology, configured: ConfiguredSubtopology | None) -> DescribedSubtopology:
    changelogs = None if configured is None else configured.state_changelog_topics
    repartitions = None if configured is None else configured.repartition_source_topics
    return DescribedSubtopology(
        subtopology_id=row.subtopology_id,
        source_topics=sorted(row.source_topics),
        repartition_sink_topics=sorted(row.repartition_sink_topics),
        state_changelog_topics=_described_topics(row.state_changelog_topics, changelogs),
        repartition_source_topics=_described_topics(row.repartition_source_topics, repartitions),
    )


def _described_topics(
    rows: Iterable[StreamsTopicInfo], configured: Mapping[str, InternalTopicSpec] | None
) -> list[StreamsTopicInfo]:
    found = []
    for row in sorted(rows, key=lambda row: row.name):
        spec = None if configured is None else configured.get(row.name)
        found.append(row if spec is None else msgspec.structs.replace(row, partitions=spec.partitions))
    return found
