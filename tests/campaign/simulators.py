"""`python -m tests.campaign.simulators KIND FIRST END FILE`: run seeds of a simulator in this process, and write their
results.

The file gets one JSON object: `faults`, counts by kind, `states`, how many states of clusters were reached for the
first time, and `broken`, of each violation its seed, its reason, and the run that repeats it where a seed doesn't. A
violation ends its seed, not the run. What the drawn runs reached is in `reached.json` beside the folder of the file,
for the next one.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import msgspec

from lowtide.simulation.broker_simulation import simulate
from lowtide.simulation.cluster_search import SeedResult, deletes_of, run_seed
from tests.sim import crash_states

from . import drawn, found
from .kinds import DELETES
from .minimise import minimise


class Result(msgspec.Struct):
    """The result of one seed. `reason` is the violation, if any; `replay` is the run that shows it, as JSON."""

    faults: Counter[str] = msgspec.field(default_factory=Counter)
    reason: str | None = None
    replay: str = ""
    states: int = 0


def one_broker(seed: int, _reached: drawn.Reached) -> Result:
    try:
        simulation = simulate(seed)
    except Exception as error:
        return Result(reason=first_line(error))
    deletes = Counter({DELETES: sum(load.counts["deleted"] for load in simulation.loads)})
    return Result(Counter(simulation.faults) + Counter(simulation.filesystem.fault_counts) + deletes)


def crashes(seed: int, _reached: drawn.Reached) -> Result:
    try:
        result = crash_states.search(seed)
    except Exception as error:
        return Result(reason=": ".join([first_line(error), *getattr(error, "__notes__", ())]))
    return Result(result.effects + Counter({"crash state": result.states}))


def cluster(seed: int, _reached: drawn.Reached) -> Result:
    return result_of(run_seed(seed))


def erasures(seed: int, _reached: drawn.Reached) -> Result:
    """Runs a cluster in which clients do nothing but erase."""
    return result_of(run_seed(seed, ("erasures",)))


def result_of(ran: SeedResult) -> Result:
    return Result(ran.effects + Counter({DELETES: ran.deletes}), ran.violation)


def drawn_cluster(seed: int, reached: drawn.Reached) -> Result:
    """Runs a drawn cluster. A violation is minimised, and kept among the tests."""
    run = drawn.draw(seed, reached)
    try:
        simulation = found.repeat(run)
    except Exception as error:
        smallest = minimise(run, first_line(error), violation)
        reason = violation(smallest) or first_line(error)
        found.keep(found.FoundRun(reason, smallest))
        return Result(reason=reason, replay=msgspec.json.encode(smallest).decode())
    effects = simulation.effects + Counter({DELETES: deletes_of(simulation)})
    return Result(effects, states=drawn.note(reached, run, simulation.states))


def violation(run: drawn.DrawnRun) -> str | None:
    """Returns what a run violates, or None."""
    try:
        found.repeat(run)
    except Exception as error:
        return first_line(error)
    return None


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


SIMULATORS = {
    "one broker": one_broker,
    "crash states": crashes,
    "cluster": cluster,
    "erasures": erasures,
    "drawn faults": drawn_cluster,
}


def load_reached(file: Path) -> drawn.Reached:
    """Returns a file that is missing, or of faults that were named otherwise, begins again."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=drawn.Reached)
    except (FileNotFoundError, msgspec.MsgspecError):
        return {}


def main(kind: str, first: int, end: int, file: Path) -> None:
    faults, broken, states = Counter[str](), [], 0
    kept = file.parent.parent / "reached.json"
    reached = load_reached(kept)
    for seed in range(first, end):
        result = SIMULATORS[kind](seed, reached)
        faults.update(result.faults)
        states += result.states
        if result.reason is not None:
            broken.append((seed, result.reason, result.replay))
    if states:
        new = kept.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(reached))
        os.replace(new, kept)
    file.write_text(json.dumps({"faults": faults, "states": states, "broken": broken}), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
