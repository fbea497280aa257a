"""A process without free descriptors for a while: it refuses, waits and continues, and never treats that as a disk
failure.

DESCRIPTOR_SEEDS=n runs that many.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from lowtide.runtime.filesystem import failures
from lowtide.simulation.cluster_simulation import simulate_cluster
from lowtide.storage import errors

SEEDS = int(os.environ.get("DESCRIPTOR_SEEDS", "20"))
PLANT_SEEDS = int(os.environ.get("PLANT_SEEDS", "100"))

FAULTS = (
    "no descriptors",
    "kill",
    "pause",
    "link cut",
    "leader flip",
    "leader move",
    "replicas",
    "controlled shutdown",
    "follower back and leader dead",
    "topic created again",
)

pytestmark = pytest.mark.slowest


def test_a_lack_of_descriptors_is_survived() -> None:
    effects: Counter[str] = Counter()
    for seed in range(SEEDS):
        effects.update(simulate_cluster(seed, faults=FAULTS).effects)
    assert effects["no descriptors"] > 0


def test_a_lack_of_descriptors_that_counts_as_a_disk_failure_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "OUT_OF_RESOURCE", frozenset())
    monkeypatch.setattr(errors, "PASSING", failures.DISK_FULL)
    for seed in range(PLANT_SEEDS):
        try:
            simulate_cluster(seed, faults=FAULTS)
        except Exception as error:
            print(f"seed {seed}: {str(error)[:200]}")
            return
    pytest.fail(f"{PLANT_SEEDS} seeds found nothing")
