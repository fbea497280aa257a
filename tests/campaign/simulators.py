"""`python -m tests.campaign.simulators KIND FIRST END FILE`: run seeds of a simulator in this process, and write their results.

The file gets one JSON object: `faults`, counts by kind, and `broken`, pairs of a seed and a reason. A violation ends its seed, not the
run.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from lowtide.simulation.broker_simulation import simulate
from lowtide.simulation.cluster_search import run_seed


def one_broker(seed: int) -> tuple[str | None, Counter[str]]:
    """The violation, if any, and the injected faults."""
    try:
        simulation = simulate(seed)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0], Counter()
    return None, Counter(simulation.faults) + Counter(simulation.filesystem.fault_counts)


def cluster(seed: int) -> tuple[str | None, Counter[str]]:
    _seed, reason, effects, _operations, _virtual_s = run_seed(seed)
    return reason, effects


SIMULATORS = {"one broker": one_broker, "cluster": cluster}


def main(kind: str, first: int, end: int, file: Path) -> None:
    faults, broken = Counter[str](), []
    for seed in range(first, end):
        reason, struck = SIMULATORS[kind](seed)
        faults.update(struck)
        if reason is not None:
            broken.append((seed, reason))
    file.write_text(json.dumps({"faults": faults, "broken": broken}), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
