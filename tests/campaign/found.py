"""Runs that have violated an invariant once, as small as they could be made: `tests/sim/found.jsonl`, a line each.

A campaign adds what it finds. `tests/sim/test_found.py` repeats them all: it fails from then on, until the fault is
fixed. `python -m tests.campaign.found RUN` repeats one, given as JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from lowtide.simulation.cluster_simulation import ClusterSimulation, simulate_cluster

from .drawn import DrawnRun

FILE = Path(__file__).resolve().parents[1] / "sim/found.jsonl"


class FoundRun(msgspec.Struct, frozen=True):
    """The violation when the run was found."""

    reason: str
    run: DrawnRun


def load(file: Path = FILE) -> list[FoundRun]:
    """Returns all of them, in the order in which they were found."""
    return (
        [msgspec.json.decode(line, type=FoundRun) for line in file.read_bytes().splitlines()] if file.exists() else []
    )


def keep(found: FoundRun, file: Path = FILE) -> None:
    """Adds one, unless its run is there."""
    if found.run not in [each.run for each in load(file)]:
        with file.open("ab") as lines:
            lines.write(msgspec.json.encode(found) + b"\n")


def repeat(run: DrawnRun) -> ClusterSimulation:
    """Repeats the run. Errors: HistoryError, or any other failure."""
    return simulate_cluster(**msgspec.structs.asdict(run))


if __name__ == "__main__":
    repeat(msgspec.json.decode(sys.argv[1], type=DrawnRun))
