"""Records of a key are erased despite all faults (E1 to E4)."""

from __future__ import annotations

import os
from collections import Counter
from typing import Final

import pytest

from lowtide.simulation.cluster_simulation import simulate_cluster
from lowtide.simulation.history import HistoryError
from lowtide.storage.log.log_erasures import LogErasures

SEEDS: Final = int(os.environ.get("ERASURES_SEEDS", "3"))
KINDS: Final = ("partitions", "erasures")

pytestmark = pytest.mark.skipif("PYTHONASYNCIODEBUG" in os.environ, reason="the other pass runs them")


def test_erased_records_stay_away_and_others_stay() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        counts += simulate_cluster(seed, kinds=KINDS).forgetting.counts
    assert counts["acknowledged"] >= SEEDS
    assert counts["looked at"] >= SEEDS


def test_a_broker_that_confirms_before_its_files_are_clean_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogErasures, "is_done", lambda _self, _end_offset: True)
    with pytest.raises(HistoryError, match="E3: .* has confirmed an erasure"):
        for seed in range(10):
            simulate_cluster(seed, kinds=KINDS)
