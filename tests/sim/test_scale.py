"""A cluster of some hundred partitions goes through all that `python -m lowtide.simulation.scale` does to large ones."""

from __future__ import annotations

import pytest

from lowtide.metadata.changes import STEP_PARTITIONS
from lowtide.simulation.scale import line_of, measure
from lowtide.simulation.scale_cluster import PARTITIONS, ScaleCluster, ScaleSpec, Stage
from lowtide.simulation.scale_stages import ASKED, LEADERS_WITHIN_S

SPEC = ScaleSpec(brokers=5, racks=3, topics=3, partitions_per_topic=100, groups=20, restarts=1)
OTHER_WRITES = 20
"""Transactions about brokers and the controller, in any stage."""


@pytest.fixture(scope="module")
def cluster() -> ScaleCluster:
    return measure(SPEC)


def stage_of(cluster: ScaleCluster, name: str) -> Stage:
    return next(stage for stage in cluster.stages if stage.name == name)


def test_a_creation_writes_each_partition_once(cluster: ScaleCluster) -> None:
    created = stage_of(cluster, "create")
    assert created.keys_written[PARTITIONS] == SPEC.partitions
    assert created.transactions <= SPEC.topics * -(-SPEC.partitions_per_topic // STEP_PARTITIONS) + OTHER_WRITES


@pytest.mark.parametrize("name", ["death of the controller", "loss of a rack"])
def test_a_death_gives_every_partition_a_leader_with_one_write_each(cluster: ScaleCluster, name: str) -> None:
    death = stage_of(cluster, name)
    assert death.counts["leaders lost"] > 0
    assert death.virtual_s < LEADERS_WITHIN_S
    partitions = sum(len(topic.partitions) for topic in cluster.image.topics.values())
    assert 0 < death.keys_written[PARTITIONS] <= partitions
    assert death.transactions <= 2 * -(-partitions // STEP_PARTITIONS) + OTHER_WRITES


def test_a_restart_in_order_leaves_no_partition_without_a_leader(cluster: ScaleCluster) -> None:
    assert stage_of(cluster, "restart of broker-1").counts["without a leader when it was down"] == 0


def test_a_pass_of_retention_asks_each_coordinator_once(cluster: ScaleCluster) -> None:
    consumed = stage_of(cluster, "consumed")
    assert consumed.requests[ASKED] == consumed.counts["questions, at one each"] > 0


def test_each_stage_is_a_line_of_the_report(cluster: ScaleCluster) -> None:
    assert [line_of(stage).partition(":")[0] for stage in cluster.stages] == [stage.name for stage in cluster.stages]
