"""An endpoint is listed with the partitions that its tasks read, and with no partition that does not exist."""

from __future__ import annotations

from lowtide.broker.coordinator.streams.endpoints import endpoint_partitions
from lowtide.broker.coordinator.streams.tasks import EMPTY_TASKS, Tasks
from lowtide.broker.coordinator.streams.topology import (
    ConfiguredSubtopology,
    ConfiguredTopology,
    InternalTopicSpec,
)

TOPOLOGY = ConfiguredTopology(
    topology_epoch=0,
    metadata_hash=0,
    subtopologies={
        "0": ConfiguredSubtopology(
            number_of_tasks=5,
            source_topics=frozenset(("wide", "narrow")),
            repartition_source_topics={"again": InternalTopicSpec(name="again", partitions=5)},
        ),
        "1": ConfiguredSubtopology(number_of_tasks=2, source_topics=frozenset(("other",))),
    },
)
PARTITIONS = {"wide": 5, "narrow": 2, "again": 5, "other": 2}


def test_tasks_are_partitions_of_all_source_topics() -> None:
    found = endpoint_partitions(
        Tasks(active={"1": frozenset((1,)), "0": frozenset((4, 1))}, standby={"0": frozenset((0, 3))}),
        TOPOLOGY,
        PARTITIONS.get,
    )
    assert found.active == [("again", [1, 4]), ("narrow", [1]), ("wide", [1, 4]), ("other", [1])]
    assert found.standby == [("again", [0, 3]), ("narrow", [0]), ("wide", [0, 3])]


def test_topics_without_the_partition_are_left_out() -> None:
    found = endpoint_partitions(Tasks(active={"0": frozenset((4,))}), TOPOLOGY, PARTITIONS.get)
    assert found.active == [("again", [4]), ("wide", [4])]


def test_what_no_longer_exists_is_left_out() -> None:
    tasks = Tasks(active={"gone": frozenset((0,)), "1": frozenset((0,))}, standby={"0": frozenset((0,))})
    without_other = {name: count for name, count in PARTITIONS.items() if name != "other"}
    found = endpoint_partitions(tasks, TOPOLOGY, without_other.get)
    assert found.active == []
    assert [topic for topic, _ in found.standby] == ["again", "narrow", "wide"]


def test_without_tasks_or_subtopologies_there_is_nothing() -> None:
    unknown = ConfiguredTopology(topology_epoch=0, metadata_hash=0, subtopologies=None)
    assert endpoint_partitions(EMPTY_TASKS, TOPOLOGY, PARTITIONS.get) == ([], [])
    assert endpoint_partitions(Tasks(active={"0": frozenset((0,))}), unknown, PARTITIONS.get) == ([], [])
