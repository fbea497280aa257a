"""A simulation that can't begin closes its loop: an open loop is a warning in another test."""

from __future__ import annotations

from types import ModuleType
from typing import NoReturn

import pytest

from lowtide.runtime.simulated_loop import SimulatedLoop
from lowtide.simulation import broker_simulation, cluster_simulation


@pytest.mark.parametrize(
    ("module", "simulation", "simulate"),
    [(cluster_simulation, "ClusterSimulation", "simulate_cluster"), (broker_simulation, "Simulation", "simulate")],
)
def test_the_loop_is_closed_where_the_simulation_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, simulation: str, simulate: str
) -> None:
    loops: list[SimulatedLoop] = []

    def refuse(loop: SimulatedLoop, *_: object, **__: object) -> NoReturn:
        loops.append(loop)
        raise ValueError("no such settings")

    monkeypatch.setattr(module, simulation, refuse)
    with pytest.raises(ValueError, match="no such settings"):
        getattr(module, simulate)(1)
    assert [loop.is_closed() for loop in loops] == [True]
