"""Bugs planted on purpose in access control: the simulator of clusters must find each, and finds none where there is
none.

Each was found within 100 seeds; PLANT_SEEDS=2000 searches that many.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from lowtide.broker.administration.spread import Spread
from lowtide.broker.authorizer.standard_authorizer import StandardAuthorizer
from lowtide.simulation.cluster_simulation import simulate_cluster

from .planting import find

MAXIMUM_SEEDS = int(os.environ.get("PLANT_SEEDS", "100"))
KINDS = ("partitions", "authorization")

Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.slowest


def answered_before_all_know(patch: Patch) -> None:
    """A change of rules is answered when this broker decides by it."""

    async def reach_all(_self: Any, _revision: int, _what: str) -> None: ...

    patch.setattr(Spread, "reach_all", reach_all)


def remembered_over_a_change(patch: Patch) -> None:
    """A decision is remembered for ever."""

    class Forever(dict[Any, bool]):
        def clear(self) -> None: ...

    original = StandardAuthorizer.__init__

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self._decisions = Forever()

    patch.setattr(StandardAuthorizer, "__init__", init)


@pytest.mark.parametrize("plant", [answered_before_all_know, remembered_over_a_change])
def test_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    find("A1:", lambda seed: simulate_cluster(seed, kinds=KINDS), range(MAXIMUM_SEEDS))


def test_rules_change_and_are_obeyed() -> None:
    """Denied and allowed operations are both asked for, and answered."""
    counts = simulate_cluster(1, kinds=KINDS).authorization.counts
    assert counts["denied TOPIC_AUTHORIZATION_FAILED"] > 0
    assert counts["allowed NONE"] > 0
