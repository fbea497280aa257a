"""Which pytest processes make a part of the suite: `make test`, `make test-rest`, both as `make test-all`. Values only.

A lane is one pytest process, which may have workers (pytest-xdist). Tests of one process keep a core busy, those of real brokers wait most
of the time: lanes of both kinds run side by side. Lanes begin in the order of the list, as many at a time as `AT_ONCE` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Part(Enum):
    """What of the suite runs."""

    TEST = "test"
    REST = "rest"
    ALL = "all"
    PURE = "pure"


AT_ONCE = 4

TASTE_ONLY, FULL_ONLY = "not full", "full or seeds"
"""Marker expressions: `full` is left by `make test` to `make test-all` (`taste.py`); `seeds` runs in both, each time with other seeds."""


@dataclass(frozen=True)
class Lane:
    """One pytest process. `workers` is 1 where tests keep a core busy, or share one Spark."""

    name: str
    paths: tuple[str, ...]
    select: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    workers: int = 1

    def options(self, seed: int) -> list[str]:
        """The arguments of pytest; `seed` is that of the order of tests."""
        spread = ["-n", str(self.workers), "--dist=loadfile", "--no-loadscope-reorder"] if self.workers > 1 else []
        chosen = ["-m", self.select] if self.select else []
        return ["-q", f"--randomly-seed={seed}", *spread, *chosen, *self.paths]


UNIT = ("tests/unit",)
WHOLE = ("tests/wire", "tests/model", "tests/sim")
IN_PROCESS = (*UNIT, *WHOLE)
SOCKETS = ("tests/chaos", "tests/clients")
PIPELINE = ("tests/pipeline",)
DEBUGGED = ("tests/unit/broker", "tests/unit/metadata", "tests/unit/runtime", "tests/sim")
PURE = ("tests/unit", "tests/wire", "tests/clients")

FEW_SEEDS, SEEDS = 20, 200
FEW_CLUSTER_SEEDS, CLUSTER_SEEDS = 8, 200


def seeds(first: int, end: int, first_cluster: int, end_cluster: int) -> dict[str, str]:
    """What tests/sim reads from its environment."""
    return {
        "FIRST_SEED": str(first),
        "SEEDS": str(end - first),
        "FIRST_CLUSTER_SEED": str(first_cluster),
        "CLUSTER_SEEDS": str(end_cluster - first_cluster),
    }


def lanes(part: Part, cores: int) -> list[Lane]:
    """The lanes of a part on a machine of so many cores. `REST` continues the seeds of `TEST`."""
    few = seeds(0, FEW_SEEDS, 0, FEW_CLUSTER_SEEDS)
    more = seeds(FEW_SEEDS, SEEDS, FEW_CLUSTER_SEEDS, CLUSTER_SEEDS)
    waiting = cores + 1
    debug = Lane("asyncio debug mode", DEBUGGED, TASTE_ONLY, env={"PYTHONASYNCIODEBUG": "1", **few})
    pure = Lane("without the compiled walk", PURE, env={"LOWTIDE_PURE": "1"}, workers=2)
    match part:
        case Part.TEST:
            return [
                Lane("pipeline", PIPELINE, TASTE_ONLY),
                Lane("real brokers", SOCKETS, TASTE_ONLY, workers=waiting),
                Lane("unit", UNIT, TASTE_ONLY),
                Lane("wire, model, sim", WHOLE, TASTE_ONLY, env=few),
            ]
        case Part.REST:
            return [
                Lane("real brokers", SOCKETS, FULL_ONLY, workers=waiting),
                Lane("in process", IN_PROCESS, FULL_ONLY, env=more),
                Lane("pipeline", PIPELINE, FULL_ONLY),
                debug,
                pure,
            ]
        case Part.ALL:
            return [
                Lane("real brokers", SOCKETS, workers=waiting),
                Lane("in process", IN_PROCESS, env=seeds(0, SEEDS, 0, CLUSTER_SEEDS)),
                Lane("pipeline", PIPELINE),
                debug,
                pure,
            ]
        case Part.PURE:
            return [pure]
