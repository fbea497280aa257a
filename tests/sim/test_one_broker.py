"""A whole broker on virtual time, killed and faulted at any step, by seeds: SEEDS=n runs that many, SEED=n replays one.

A failure names its seed; the same seed gives the same run.
"""

from __future__ import annotations

import os

import pytest

from lowtide.simulation.broker_simulation import FAULTS, simulate

SEEDS = int(os.environ.get("SEEDS", "200"))
FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
CHUNK = 20


def seeds() -> list[range]:
    if "SEED" in os.environ:
        return [range(int(os.environ["SEED"]), int(os.environ["SEED"]) + 1)]
    return [
        range(first, min(first + CHUNK, FIRST_SEED + SEEDS)) for first in range(FIRST_SEED, FIRST_SEED + SEEDS, CHUNK)
    ]


@pytest.mark.seeds
@pytest.mark.parametrize("chunk", seeds(), ids=lambda chunk: f"seeds {chunk.start}-{chunk.stop - 1}")
def test_no_promise_is_broken(chunk: range) -> None:
    """Nothing acknowledged is lost, no deleted record returns, no offset has two contents, offsets keep their order."""
    for seed in chunk:
        simulation = simulate(seed)
        assert simulation.checks > 0
        assert sum(load.counts["produced"] for load in simulation.loads) > 0


def test_same_seed_same_run() -> None:
    first, second, other = simulate(11), simulate(11), simulate(12)
    assert first.loop.trace_digest == second.loop.trace_digest != other.loop.trace_digest
    assert [load.counts for load in first.loads] == [load.counts for load in second.loads]


@pytest.mark.slow
def test_every_kind_of_fault_takes_effect() -> None:
    """A simulation whose faults never strike has tested nothing."""
    faults: dict[str, int] = {}
    effects: dict[str, int] = {}
    for seed in range(1000, 1030):
        simulation = simulate(seed)
        for name, count in simulation.faults.items():
            faults[name] = faults.get(name, 0) + count
        for name, count in simulation.filesystem.fault_counts.items():
            effects[name] = effects.get(name, 0) + count
    assert set(FAULTS) <= set(faults)
    assert {"crash", "sync", "write"} <= set(effects), effects
