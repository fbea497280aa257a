"""Runs many seeds of the simulated cluster: `python -m lowtide.simulation.cluster_search --seeds 20000`.

Several processes share the seeds. Prints each seed with a violation, and at the end the number of runs, the speed, and
the number of effective faults by kind. The exit code is 1 after a violation.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from lowtide.runtime.clock import SystemClock
from lowtide.simulation.cluster_simulation import KINDS, simulate_cluster

if TYPE_CHECKING:
    from lowtide.simulation.cluster_simulation import ClusterSimulation

_REASON_CHARACTERS: Final = 300
_TOLD_EVERY: Final = 500


class SeedResult(NamedTuple):
    """The result of one seed: `violation` is None if no promise was broken."""

    seed: int
    violation: str | None
    effects: Counter[str]
    """Effective faults by kind."""
    requests: int = 0
    """Answered ones."""
    deletes: int = 0
    virtual_s: float = 0.0


def deletes_of(cluster: ClusterSimulation) -> int:
    """Returns the number of acknowledged deletes and erasures, all of which a run checks until its end."""
    prefixes = sum(load.counts["deleted"] + load.counts["deleted, leader only"] for load in cluster.loads)
    return prefixes + cluster.forgetting.counts["acknowledged"]


def run_seed(seed: int, kinds: tuple[str, ...] | None = None) -> SeedResult:
    """Runs one seed of the simulated cluster. An exception ends it, and is its violation."""
    try:
        cluster = simulate_cluster(seed, kinds=kinds)
    except Exception as error:  # noqa: BLE001 - the others are searched all the same
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return SeedResult(seed, reason[:_REASON_CHARACTERS], Counter())
    return SeedResult(seed, None, cluster.effects, cluster.operations, deletes_of(cluster), cluster.loop.time())


def search(seeds: range, processes: int, kinds: tuple[str, ...] | None = None) -> Iterator[SeedResult]:
    """Runs all seeds, in any order; with `kinds`, clients do only that."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(
            partial(run_seed, kinds=kinds), seeds, chunksize=max(min(10, len(seeds) // processes), 1)
        )


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns its exit code."""
    parser = argparse.ArgumentParser(description="search seeds of the simulated cluster")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--kinds", help=f"what clients do, of {','.join(KINDS)}: left to chance without it")
    options = parser.parse_args(arguments)
    kinds = tuple(options.kinds.split(",")) if options.kinds else None
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    effects: Counter[str] = Counter()
    ran, broken, requests, deletes, virtual_s = 0, 0, 0, 0, 0.0
    for result in search(range(options.first, options.first + options.seeds), options.processes, kinds):
        ran += 1
        effects += result.effects
        requests += result.requests
        deletes += result.deletes
        virtual_s += result.virtual_s
        if result.violation is not None:
            broken += 1
            print(f"seed {result.seed}: {result.violation}", flush=True)  # noqa: T201 - this is a command
        if ran % _TOLD_EVERY == 0:
            print(f"{ran} seeds, {ran * 1000 / (clock.monotonic_ms() - began_ms):.1f} a second", flush=True)  # noqa: T201
    rate = ran * 1000 / max(clock.monotonic_ms() - began_ms, 1)
    print(  # noqa: T201
        f"{ran} seeds, {broken} broke a promise; {rate:.1f} a second, {requests} requests, {deletes} deletes, "
        f"{virtual_s:.0f} virtual seconds"
    )
    print(f"{effects.total():8} faults had an effect, {effects.total() / max(ran, 1):.1f} a seed; by kind:")  # noqa: T201
    for kind, count in effects.most_common():
        print(f"{count:8} {kind}")  # noqa: T201
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
