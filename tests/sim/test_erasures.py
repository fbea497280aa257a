"""Records of a key are erased despite all faults (E1 to E5)."""

from __future__ import annotations

import os
from collections import Counter
from typing import Final

import pytest

from lowtide.simulation.cluster_simulation import simulate_cluster

SEEDS: Final = int(os.environ.get("ERASURES_SEEDS", "5"))
KINDS: Final = ("erasures",)

pytestmark = pytest.mark.skipif("PYTHONASYNCIODEBUG" in os.environ, reason="the other pass runs them")


@pytest.mark.seeds
def test_erased_records_stay_away_and_others_stay() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        counts += simulate_cluster(seed, kinds=KINDS).forgetting.counts
    assert counts["acknowledged"] >= SEEDS
    assert counts["looked at"] >= SEEDS


@pytest.mark.slow
def test_deletes_and_several_partitions_go_with_erasures() -> None:
    """As in runs of all kinds: longer, with old brokers in some seeds."""
    counts = simulate_cluster(3, kinds=("partitions", *KINDS)).forgetting.counts
    assert counts["acknowledged"] >= 1


@pytest.mark.slow
def test_an_older_copy_of_a_disk_may_lack_what_lost_records_superseded() -> None:
    """Compaction removed a record because there was a newer one. A power cut of all brokers may lose the newer one."""
    simulate_cluster(11078, kinds=KINDS)


@pytest.mark.slow
def test_a_new_directory_on_a_full_disk_is_offline() -> None:
    """A replaced disk has no room for the journal of log start offsets, and the other directory serves."""
    simulate_cluster(13259, kinds=KINDS)


@pytest.mark.slow
def test_a_restored_metadata_store_has_no_standing_erasures() -> None:
    """They are in no backup, because the digests of keys must not outlive them; the operator repeats them."""
    simulate_cluster(13432, kinds=KINDS)
