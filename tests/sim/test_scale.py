"""A cluster of some hundred partitions runs `python -m lowtide.simulation.scale` on a small scale."""

from __future__ import annotations

from contextlib import closing

import pytest

from lowtide.metadata.changes import STEP_PARTITIONS
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.replication.alter_partition import BATCH_PARTITIONS
from lowtide.runtime.simulated_loop import SimulatedLoop
from lowtide.simulation.scale import line_of, lines_of_restarts, measure
from lowtide.simulation.scale_cluster import PARTITIONS, ScaleCluster, ScaleSpec, Stage
from lowtide.simulation.scale_stages import ASKED, LEADERS_WITHIN_S, LOOK_S, SETTINGS

SPEC = ScaleSpec(brokers=5, racks=3, topics=3, partitions_per_topic=100, groups=20, restarts=1)
ROLLING_SPEC = ScaleSpec(brokers=5, racks=3, topics=3, partitions_per_topic=100, restarts=5, rolling=True)
OTHER_WRITES = 20
"""Transactions about brokers and the controller, in any stage."""


@pytest.fixture(scope="module")
def cluster() -> ScaleCluster:
    return measure(SPEC)


@pytest.fixture(scope="module")
def rolled() -> ScaleCluster:
    """A cluster each of whose brokers has been restarted, one after the other."""
    return measure(ROLLING_SPEC)


def restarts_of(cluster: ScaleCluster) -> list[Stage]:
    return [stage for stage in cluster.stages if stage.host]


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


@pytest.mark.slow
def test_a_rolling_restart_leaves_no_partition_without_a_leader(rolled: ScaleCluster) -> None:
    restarts = restarts_of(rolled)
    assert [stage.host for stage in restarts] == [machine.host for machine in rolled.machines]
    for stage in restarts:
        assert stage.counts["leaders"] > 0
        assert stage.counts["without a leader when it was down"] == 0
        assert stage.counts["without one for, s"] <= 2 * LOOK_S


@pytest.mark.slow
def test_a_restart_writes_each_of_its_partitions_twice(rolled: ScaleCluster) -> None:
    """Once for the leader and the ISR without the broker, and once for the ISR with it; few others."""
    for stage in restarts_of(rolled):
        of_broker = sum(
            stage.host == f"broker-{broker_id}" for _, _, state in rolled.partitions() for broker_id in state.replicas
        )
        assert stage.keys_written[PARTITIONS] == 2 * of_broker
        by_controller, by_leaders = (
            -(-of_broker // STEP_PARTITIONS),
            len(rolled.machines) + -(-of_broker // BATCH_PARTITIONS),
        )
        assert stage.transactions <= by_controller + by_leaders + OTHER_WRITES


@pytest.mark.slow
def test_after_a_rolling_restart_leaderships_go_back_with_one_write_each(rolled: ScaleCluster) -> None:
    back = rolled.stages[-1]
    assert back.keys_written[PARTITIONS] == back.counts["leaders that go back"] > 0
    assert all(state.leader == state.replicas[0] for _, _, state in rolled.partitions())


def test_a_stage_counts_what_a_broker_answered_before_it_died() -> None:
    with closing(SimulatedLoop(0)) as loop:
        cluster = ScaleCluster(loop, ScaleSpec(brokers=2), SETTINGS)

        async def asked_and_killed() -> None:
            await cluster.ask(cluster.machines[1], FindCoordinatorRequest(key="group", key_type=0), 2)
            cluster.machines[1].kill()

        async def run() -> Stage:
            await cluster.start()
            return await cluster.stage("death", asked_and_killed(), cluster.machines[1].host)

        stage = loop.run_until_complete(run())
    assert stage.requests["FindCoordinator"] == 1
    assert stage.broker_cpu_s >= stage.host_cpu_s > 0


@pytest.mark.slow
def test_restarts_are_summed_up(rolled: ScaleCluster) -> None:
    lines = lines_of_restarts(rolled.stages)
    transactions = [stage.transactions for stage in restarts_of(rolled)]
    assert (
        f"transactions: {min(transactions):.2f} to {max(transactions):.2f}, {sum(transactions):.1f} in 5 restarts"
        in lines
    )
    assert not lines_of_restarts(rolled.stages[:2])


def test_a_pass_of_retention_asks_each_coordinator_once(cluster: ScaleCluster) -> None:
    consumed = stage_of(cluster, "consumed")
    assert consumed.requests[ASKED] == consumed.counts["questions, at one each"] > 0


def test_each_stage_is_a_line_of_the_report(cluster: ScaleCluster) -> None:
    assert [line_of(stage).partition(":")[0] for stage in cluster.stages] == [stage.name for stage in cluster.stages]
