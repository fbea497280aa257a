"""Whole clusters on virtual time, by seeds: SEEDS=n runs so many, FIRST_SEED=m begins there, SEED=k replays one."""

from __future__ import annotations

import os

import pytest

from lowtide.simulation.cluster_search import search
from lowtide.simulation.cluster_simulation import simulate_cluster

SEEDS = int(os.environ.get("CLUSTER_SEEDS", os.environ.get("SEEDS", "200")))
FIRST_SEED = int(os.environ.get("FIRST_CLUSTER_SEED", os.environ.get("FIRST_SEED", "0")))
PARTS = 1 if "SEED" in os.environ or SEEDS < 50 else 5


@pytest.mark.seeds
@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken(part: int) -> None:
    """Under faults of brokers, disks, clocks, links and the metadata store. Several processes take seeds in turn."""
    if "SEED" in os.environ:
        simulate_cluster(int(os.environ["SEED"]))
        return
    first, end = (FIRST_SEED + SEEDS * each // PARTS for each in (part, part + 1))
    for result in search(range(first, end), os.cpu_count() or 1):
        if result.violation is not None:
            simulate_cluster(result.seed)  # The error has its history.
            pytest.fail(f"seed {result.seed} isn't the same in every process: {result.violation}")
        assert result.requests > 0


@pytest.mark.slowest
def test_what_an_unclean_election_loses_is_reported_and_the_replicas_are_equal_again() -> None:
    lost = []
    for seed in range(40):
        cluster = simulate_cluster(seed, unclean=True)
        if (
            cluster.effects["unclean election that lost records"]
            and cluster.effects["unclean election that took deletes back"]
        ):
            topic = cluster.shared.image.topics["sim"]
            committed = [
                cluster.invariants.promises.committed(topic.topic_id, number) for number in range(len(topic.partitions))
            ]
            assert all(one.batches and not one.is_void for one in committed)
            lost.append(seed)
            break
    assert lost


@pytest.mark.slow
def test_same_seed_same_run() -> None:
    first, second, other = simulate_cluster(3), simulate_cluster(3), simulate_cluster(4)
    assert first.loop.trace_digest == second.loop.trace_digest != other.loop.trace_digest
    assert first.chronicle.text() == second.chronicle.text()
    assert first.effects == second.effects
