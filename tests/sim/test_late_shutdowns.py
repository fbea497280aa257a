"""Brokers that are asked to stop, while they neither fetch from the others nor see what the metadata store has.

The others count such a broker out at once: deletes are acknowledged without it, others lead what it led. It may answer
for seconds more.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from lowtide.simulation.cluster_simulation import simulate_cluster

SEEDS = int(os.environ.get("LATE_SEEDS", "12"))

pytestmark = pytest.mark.skipif("PYTHONASYNCIODEBUG" in os.environ, reason="the other pass runs them")


@pytest.mark.slow
def test_a_broker_that_is_counted_out_shows_nothing_that_is_deleted() -> None:
    """D1, of what followers answer too: with rule DR7 as it was before, seeds 20, 21, 33 and 38 broke it."""
    effects: Counter[str] = Counter()
    for seed in range(20, 20 + SEEDS):
        effects.update(simulate_cluster(seed, faults=("late shutdown",), kinds=("partitions",)).effects)
    assert effects["late shutdown"] > 0
