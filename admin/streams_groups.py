"""Streams groups (KIP-1071): the topology of a group, and the tasks of its members, as a description has them.

Their offsets are those of other groups: `group_offsets` lists, sets and deletes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from lowtide.protocol.types import TopicPartition


class StreamsTask(NamedTuple):
    """A task: one partition number of a subtopology."""

    subtopology_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology_id}_{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsTasks:
    """The tasks of a member by kind, in order."""

    active: tuple[StreamsTask, ...] = ()
    standby: tuple[StreamsTask, ...] = ()
    warmup: tuple[StreamsTask, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsMemberDescription:
    """What a member of a streams group has beyond a consumer. `target` differs from `tasks` while it rebalances."""

    process_id: str
    rack_id: str | None
    topology_epoch: int
    endpoint: str | None
    """`host:port` of its interactive queries."""
    client_tags: tuple[tuple[str, str], ...]
    tasks: StreamsTasks
    target: StreamsTasks


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsSubtopology:
    """A part of a topology, with the names of its topics in order."""

    subtopology_id: str
    source_topics: tuple[str, ...]
    repartition_source_topics: tuple[str, ...]
    repartition_sink_topics: tuple[str, ...]
    state_changelog_topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsTopology:
    """The topology that the members of a group run."""

    epoch: int
    subtopologies: tuple[StreamsSubtopology, ...]

    def read_by(self, tasks: Iterable[StreamsTask]) -> Iterator[TopicPartition]:
        """Yields the partitions that active tasks read. If source topics differ in size, some do not exist."""
        topics = {row.subtopology_id: row.source_topics + row.repartition_source_topics for row in self.subtopologies}
        for task in tasks:
            for topic in topics.get(task.subtopology_id, ()):
                yield TopicPartition(topic, task.partition)

    def source_topics(self) -> set[str]:
        """Returns the topics that come from outside of the application."""
        return {topic for row in self.subtopologies for topic in row.source_topics}


NO_TOPOLOGY = StreamsTopology(epoch=-1, subtopologies=())


def topology_of(row: Any) -> StreamsTopology:
    """Reads the topology of a described group; one without subtopologies if it has none."""
    if row is None:
        return NO_TOPOLOGY
    subtopologies = tuple(
        StreamsSubtopology(
            subtopology_id=each.subtopology_id,
            source_topics=tuple(sorted(each.source_topics)),
            repartition_source_topics=_names(each.repartition_source_topics),
            repartition_sink_topics=tuple(sorted(each.repartition_sink_topics)),
            state_changelog_topics=_names(each.state_changelog_topics),
        )
        for each in row.subtopologies or ()
    )
    return StreamsTopology(epoch=row.epoch, subtopologies=subtopologies)


def member_of(row: Any) -> StreamsMemberDescription:
    """Reads a member of a described group."""
    endpoint = row.user_endpoint
    return StreamsMemberDescription(
        process_id=row.process_id,
        rack_id=row.rack_id,
        topology_epoch=row.topology_epoch,
        endpoint=None if endpoint is None else f"{endpoint.host}:{endpoint.port}",
        client_tags=tuple((tag.key, tag.value) for tag in row.client_tags),
        tasks=_tasks(row.assignment),
        target=_tasks(row.target_assignment),
    )


def _names(topics: Iterable[Any]) -> tuple[str, ...]:
    return tuple(sorted(topic.name for topic in topics))


def _tasks(row: Any) -> StreamsTasks:
    return StreamsTasks(active=_ids(row.active_tasks), standby=_ids(row.standby_tasks), warmup=_ids(row.warmup_tasks))


def _ids(rows: Iterable[Any]) -> tuple[StreamsTask, ...]:
    return tuple(sorted(StreamsTask(row.subtopology_id, number) for row in rows for number in row.partitions))
