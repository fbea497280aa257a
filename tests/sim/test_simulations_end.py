"""Protects the end of a simulation, and the end of a broker's life in it."""

from __future__ import annotations

import gc
from types import ModuleType
from typing import NoReturn

import pytest

from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.simulated_loop import SimulatedLoop
from lowtide.simulation import broker_simulation, cluster_simulation
from lowtide.simulation.cluster_simulation import simulate_cluster
from lowtide.storage.log.cleaned_segment import CleanedSegment

# With seed 8294 these faults kill brokers during compactions.
FAULTS = (
    "cold pages",
    "failing disk",
    "follower back and leader dead",
    "foreign directory",
    "kill of all",
    "old directory",
    "old image",
    "power cut of all",
    "replica leaves while it waits",
    "replicas",
    "slow network",
    "supervisor dies",
)


@pytest.mark.parametrize(
    ("module", "simulation", "simulate"),
    [(cluster_simulation, "ClusterSimulation", "simulate_cluster"), (broker_simulation, "Simulation", "simulate")],
)
def test_the_loop_is_closed_where_the_simulation_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, simulation: str, simulate: str
) -> None:
    """An open loop is a warning in another test."""
    loops: list[SimulatedLoop] = []

    def refuse(loop: SimulatedLoop, *_: object, **__: object) -> NoReturn:
        loops.append(loop)
        raise ValueError("no such settings")

    monkeypatch.setattr(module, simulation, refuse)
    with pytest.raises(ValueError, match="no such settings"):
        getattr(module, simulate)(1)
    assert [loop.is_closed() for loop in loops] == [True]


def test_a_compaction_that_a_kill_interrupts_never_cleans_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects determinism: Python's collector once closed such work later, which removed files of the next life."""
    is_collecting, late, abandon, crash = [False], [], CleanedSegment.abandon, MemoryFileSystem.crash_process

    def collect(filesystem: MemoryFileSystem) -> None:
        crash(filesystem)
        is_collecting[0] = True
        gc.collect()
        is_collecting[0] = False

    def note_abandoned(cleaned: CleanedSegment) -> None:
        if is_collecting[0]:
            late.append(cleaned)
        abandon(cleaned)

    monkeypatch.setattr(MemoryFileSystem, "crash_process", collect)
    monkeypatch.setattr(CleanedSegment, "abandon", note_abandoned)
    simulate_cluster(8294, faults=FAULTS, strikes=14, kinds=("partitions", "groups", "erasures"), erases=True)
    assert late == []
