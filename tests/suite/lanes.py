"""Which pytest processes make a part of the suite: `make test`, what CI adds, and the rest of `make test-all`.

Values only. A lane is one pytest process, which may have workers (pytest-xdist). Tests in one process keep a core busy,
those of real brokers wait most of the time: lanes of both kinds run side by side. Lanes start in the order of the list,
`AT_ONCE` at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum


class Part(Enum):
    """The part of the suite that runs."""

    TEST = "test"
    CI = "ci"
    REST = "rest"
    ALL = "all"
    PURE = "pure"


AT_ONCE = 4

TASTE_ONLY, FULL_ONLY = "not full", "full or seeds or hypothesis"
"""Marker expressions: `full` is left by `make test` to `make test-all` (`taste.py`); `seeds` runs in both, each time with other seeds.

Hypothesis marks the tests whose examples it draws: few in `make test`, all in `make test-rest`.
"""

CI_ONLY = f"({FULL_ONLY}) and not longest"
"""What CI adds to `make test`: with `make check` both pass within half an hour on a slow machine of two cores."""


@dataclass(frozen=True)
class Lane:
    """One pytest process.

    `workers` is 1 if tests keep a core busy, or share one Spark; a lane that outlasts all others has two.
    """

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
SIMULATED = ("tests/sim",)
CALCULATED = ("tests/unit", "tests/wire", "tests/model")
SOCKETS = ("tests/chaos", "tests/clients")
PIPELINE = ("tests/pipeline",)
DEBUGGED_BY_CI = ("tests/unit/broker", "tests/unit/metadata", "tests/unit/runtime")
DEBUGGED = (*DEBUGGED_BY_CI, *SIMULATED)
PURE = ("tests/unit", "tests/wire", "tests/clients")
PURE_BY_CI = (
    "tests/unit/protocol",
    "tests/unit/storage",
    "tests/unit/replication",
    "tests/unit/broker/partitions",
    "tests/unit/broker/lifecycle/test_start_lines.py",
    "tests/wire",
    "tests/clients/test_produce_and_consume.py",
    "tests/clients/test_delete_records.py",
    "tests/clients/test_erase.py",
    "tests/clients/test_transactions.py",
)
"""Those that walk over records, or report that the compiled walk is missing."""

FEW_SEEDS, SOME_SEEDS, SEEDS = 20, 60, 200
FEW_CLUSTER_SEEDS, SOME_CLUSTER_SEEDS, CLUSTER_SEEDS = 6, 30, 200


FEW_EXAMPLES = {"EXAMPLES_PERCENT": "25"}
"""What tests of tests/unit and tests/wire read from their environment (`tests/examples.py`)."""

FEW_RESTORES = {"RESTORE_SEEDS": "10"}
"""Of the metadata store, what tests/sim reads from it."""

FEW_ROUNDS = {"ROUNDS": "2", "SECONDS_OF_TRANSFER": "3", "FRAMES": "3000"}
"""What tests/chaos reads from it: how often a broker is killed under load, for how long money is moved, how many frames are damaged."""


def seeds(first: int, end: int, first_cluster: int, end_cluster: int) -> dict[str, str]:
    """The variables that tests/sim reads."""
    return {
        "FIRST_SEED": str(first),
        "SEEDS": str(end - first),
        "FIRST_CLUSTER_SEED": str(first_cluster),
        "CLUSTER_SEEDS": str(end_cluster - first_cluster),
    }


def lanes(part: Part, cores: int) -> list[Lane]:
    """The lanes of a part on a machine of so many cores. `CI` and `REST` continue the seeds of `TEST`."""
    few = seeds(0, FEW_SEEDS, 0, FEW_CLUSTER_SEEDS) | FEW_RESTORES
    some = seeds(FEW_SEEDS, SOME_SEEDS, FEW_CLUSTER_SEEDS, SOME_CLUSTER_SEEDS)
    more = seeds(FEW_SEEDS, SEEDS, FEW_CLUSTER_SEEDS, CLUSTER_SEEDS)
    waiting = cores + 1
    debug = Lane("asyncio debug mode", DEBUGGED, TASTE_ONLY, env={"PYTHONASYNCIODEBUG": "1", **few, **FEW_EXAMPLES})
    pure = Lane(
        "without the compiled walk",
        PURE,
        TASTE_ONLY,
        env={"LOWTIDE_PURE": "1", **FEW_EXAMPLES, **FEW_ROUNDS},
        workers=2,
    )
    match part:
        case Part.TEST:
            return [
                Lane("pipeline", PIPELINE, TASTE_ONLY),
                Lane("real brokers", SOCKETS, TASTE_ONLY, env=FEW_ROUNDS, workers=waiting),
                Lane("unit", UNIT, TASTE_ONLY, env=FEW_EXAMPLES, workers=2),
                Lane("wire, model, sim", WHOLE, TASTE_ONLY, env={**few, **FEW_EXAMPLES}),
            ]
        case Part.CI:
            return [
                Lane("real brokers", SOCKETS, CI_ONLY, workers=waiting),
                Lane("sim", SIMULATED, CI_ONLY, env=some),
                Lane("unit, wire, model", CALCULATED, CI_ONLY),
                Lane("pipeline", PIPELINE, CI_ONLY),
                replace(debug, paths=DEBUGGED_BY_CI),
                replace(pure, paths=PURE_BY_CI),
            ]
        case Part.REST:
            return [
                Lane("real brokers", SOCKETS, FULL_ONLY, workers=waiting),
                Lane("sim", SIMULATED, FULL_ONLY, env=more),
                Lane("unit, wire, model", CALCULATED, FULL_ONLY),
                Lane("pipeline", PIPELINE, FULL_ONLY),
                debug,
                pure,
            ]
        case Part.ALL:
            return [
                Lane("real brokers", SOCKETS, workers=waiting),
                Lane("sim", SIMULATED, env=seeds(0, SEEDS, 0, CLUSTER_SEEDS)),
                Lane("unit, wire, model", CALCULATED),
                Lane("pipeline", PIPELINE),
                debug,
                pure,
            ]
        case Part.PURE:
            return [pure]
