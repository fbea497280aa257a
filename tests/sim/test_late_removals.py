"""Replicas that a reassignment takes away from brokers which neither fetch from the others nor see what the metadata
store has.

Such a broker believes that it has a replica, and answers consumers by rule DR7 until it sees the change, or its leader
was silent for long.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from lowtide.simulation.cluster_simulation import simulate_cluster

SEEDS = int(os.environ.get("LATE_SEEDS", "12"))

pytestmark = pytest.mark.skipif("PYTHONASYNCIODEBUG" in os.environ, reason="the other pass runs them")


@pytest.mark.slow
def test_a_replica_that_was_removed_shows_nothing_that_is_deleted() -> None:
    """D1 for former replicas: when leaders forgot them at once, seeds 23 and 29 broke it."""
    effects: Counter[str] = Counter()
    for seed in range(20, 20 + SEEDS):
        effects.update(simulate_cluster(seed, faults=("late removal",), kinds=("partitions",), strikes=12).effects)
    assert effects["late removal"] > 0
    assert effects["late removal that was taken back"] > 0
