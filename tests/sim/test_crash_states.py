"""Every crash state of recorded runs of one broker: `crash_states`. SEED=n looks at all states of that run.

A failure names its seed and the state; the same seed gives the same states. `make campaign` goes through seeds without
end.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from lowtide.simulation.history import HistoryError

from . import test_planted_storage_bugs as planted
from .crash_states import record, search

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize(
    "seed", [int(os.environ["SEED"])] if "SEED" in os.environ else [0, pytest.param(3, marks=pytest.mark.slow)]
)
def test_a_broker_starts_on_every_state_and_keeps_its_promises(seed: int) -> None:
    """Wherever the crash is, no acknowledged record is lost, no deleted one returns, no offset has two contents."""
    result = search(seed, each=1 if "SEED" in os.environ else 16)
    assert result.states > 0
    assert {"lost_name", "lost_write", "torn_write"} <= set(result.effects), result.effects


def test_the_same_seed_gives_the_same_moments() -> None:
    assert record(4) == record(4)


@pytest.mark.parametrize(
    ("plant", "seed"),
    [
        (planted.new_names_are_not_synced, 1),
        (planted.a_delete_is_not_synced, 0),
        (planted.a_fold_is_not_synced, 2),
        (planted.the_name_of_a_fold_is_not_synced, 2),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@pytest.mark.slow
def test_a_planted_bug_is_found(plant: Plant, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run finds it: no luck with the moment is needed."""
    plant(monkeypatch)
    with pytest.raises(HistoryError, match=f"{planted.LOST}|its log start fell from|are deleted for good"):
        search(seed, each=8)
