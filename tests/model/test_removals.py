"""Replicas are removed and re-added while brokers see it late: none shows deleted records."""

from __future__ import annotations

import os

import pytest

from .removals import Removals, Rules
from .search import search

RECORDS = int(os.environ.get("FAULTS", "1")) + 4
"""States of the partition in the store that are explored."""


def test_no_removed_replica_does_harm():
    found = search(Removals(Rules(), RECORDS), faults=1)
    assert not found.broken, str(found)
    assert found.states > 90_000


@pytest.mark.parametrize(
    ("rules", "harm", "steps"),
    [
        (Rules(epoch_grows=False), "P2", 7),
        (Rules(removed_ones_are_asked=False), "D1", 4),
        (Rules(also_when_added_again=False), "D1", 6),
        (Rules(followers_keep_them=False), "D1", 6),
        (Rules(time_begins_again=False), "D1", 6),
    ],
    ids=[
        "the epoch grows",
        "removed ones are asked",
        "also when added again",
        "followers keep them",
        "time begins again",
    ],
)
def test_each_rule_is_needed(rules: Rules, harm: str, steps: int):
    found = search(Removals(rules, 4), faults=1)
    print(found)
    assert found.broken.startswith(harm), str(found)
    assert found.length == steps, str(found)


def test_a_delete_is_acknowledged_after_a_removal():
    """Also without the lag time passing."""

    class Goal(Removals):
        def violation(self, state):
            return "acknowledged" if state.acknowledged and state.history[-1].member is None else None

    assert search(Goal(Rules(), 3), faults=0).broken == "acknowledged"
