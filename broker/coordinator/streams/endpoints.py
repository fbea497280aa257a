"""The topic partitions that a member serves at its endpoint, for interactive queries.

Pure. A task reads the partition with its number of each source topic that has so many. Topics without such a partition
are left out.

Cost: the length of the answer. Topics with equally many partitions share one list.

Source: KIP-1071; Kafka's `EndpointToPartitionsManager`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias

from lowtide.broker.coordinator.streams.tasks import Tasks
from lowtide.broker.coordinator.streams.topology import ConfiguredSubtopology, ConfiguredTopology

TopicPartitions: TypeAlias = list[tuple[str, list[int]]]
"""Topic and partitions, ascending. A topic that two subtopologies read is listed twice."""


class EndpointPartitions(NamedTuple):
    """What a member serves."""

    active: TopicPartitions
    standby: TopicPartitions


def endpoint_partitions(
    tasks: Tasks, topology: ConfiguredTopology, partitions_of: Callable[[str], int | None]
) -> EndpointPartitions:
    """Returns the partitions of a member's assigned tasks. Without configured subtopologies there are none.

    `partitions_of` returns the number of partitions of a topic that exists. A task that the topology no longer has, or
    a topic that was deleted, is left out. Kafka fails the heartbeat then.
    """
    subtopologies = topology.subtopologies or {}

    def partitions(rows: Mapping[str, Collection[int]]) -> TopicPartitions:
        return [
            row
            for name in sorted(rows.keys() & subtopologies.keys())
            for row in _of_subtopology(subtopologies[name], sorted(rows[name]), partitions_of)
        ]

    return EndpointPartitions(partitions(tasks.active), partitions(tasks.standby))


def _of_subtopology(
    subtopology: ConfiguredSubtopology, numbers: list[int], partitions_of: Callable[[str], int | None]
) -> TopicPartitions:
    shared: dict[int, list[int]] = {}
    found = []
    for topic in sorted(subtopology.source_topics | subtopology.repartition_source_topics.keys()):
        length = bisect_left(numbers, partitions_of(topic) or 0)
        if length:
            found.append((topic, shared.setdefault(length, numbers[:length])))
    return found
