"""Brokers that share a machine and a supervisor: nothing is lost by what ends one of them, or all (ADR 16)."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from lowtide.simulation.cluster_simulation import simulate_cluster

ENOUGH = 16
"""Seeds in which each kind of end happens."""
SEEDS = min(int(os.environ.get("CLUSTER_SEEDS", os.environ.get("SEEDS", str(ENOUGH)))), 4 * ENOUGH)
FIRST_SEED = int(os.environ.get("FIRST_CLUSTER_SEED", os.environ.get("FIRST_SEED", "0")))
FAULTS = (
    "machine dies",
    "supervisor dies",
    "death is seen",
    "leaders are given",
    "kill",
    "pause",
    "cut off",
    "cut from store",
    "old image",
    "slow disk",
    "leader move",
    "replicas",
    "controlled shutdown",
)


@pytest.mark.seeds
def test_no_promise_is_broken() -> None:
    effects = Counter[str]()
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        effects += simulate_cluster(seed, faults=FAULTS, strikes=10).effects
    kinds = ("death of a machine", "death of a supervisor", "lease that ended with its process", "leadership given")
    assert SEEDS < ENOUGH or all(effects[kind] for kind in kinds), effects
