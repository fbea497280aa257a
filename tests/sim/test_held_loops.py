"""Brokers whose event loop is blocked: for less than a session no lease is lost, for more than one it is.

HELD_SEEDS=n runs that many.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from lowtide.metadata.lease_keeper import LeaseWatch
from lowtide.metadata.store import NO_LEASE
from lowtide.simulation.cluster_simulation import simulate_cluster

SEEDS = int(os.environ.get("HELD_SEEDS", "12"))
SHORT, LONG = "lease lost in a short hold", "lease lost in a long hold"

pytestmark = pytest.mark.skipif("PYTHONASYNCIODEBUG" in os.environ, reason="the other pass runs them")


def effects() -> Counter[str]:
    total: Counter[str] = Counter()
    for seed in range(SEEDS):
        total.update(simulate_cluster(seed, faults=("held loop",), kinds=("partitions",)).effects)
    return total


@pytest.mark.slow
def test_a_lease_survives_every_block_that_is_shorter_than_the_session() -> None:
    seen = effects()
    assert seen["held loop"] > 0
    assert seen[SHORT] == 0
    assert seen[LONG] > 0


@pytest.mark.slowest
def test_without_a_keeper_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseWatch, "due", lambda *_: NO_LEASE)
    assert effects()[SHORT] > 0
