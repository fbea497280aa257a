"""Measures a large cluster on virtual time: `python -m lowtide.simulation.scale --brokers 30`.

Prints a line per stage: creation, groups, a pass of retention by consumption (KIP-68), death and return of the
controller, rolling restarts, loss of a rack. `--rolling` only restarts all brokers one by one. Fails if a partition has
no leader ten virtual seconds after a death. `--json` writes the figures to a file.
"""

from __future__ import annotations

import argparse
import gc
import sys
from contextlib import closing
from typing import Final

import msgspec

from lowtide.runtime.simulated_loop import SimulatedLoop
from lowtide.simulation.scale_cluster import PARTITIONS, ScaleCluster, ScaleSpec, Stage
from lowtide.simulation.scale_stages import RESTART, ROLLING_SETTINGS, SETTINGS, stages

TIME_LIMIT_S: Final = 36_000.0


def measure(spec: ScaleSpec, *, tells: bool = False) -> ScaleCluster:
    """Runs all stages. `tells`: prints each when it is done."""
    gc.disable()  # Millions of objects live: it is run between two stages.
    try:
        with closing(SimulatedLoop(spec.seed, time_limit_s=TIME_LIMIT_S)) as loop:
            cluster = ScaleCluster(loop, spec, SETTINGS | (ROLLING_SETTINGS if spec.rolling else {}))

            async def run() -> None:
                async for stage in stages(cluster):
                    if tells:
                        sys.stdout.write(f"{line_of(stage)}\n")
                        sys.stdout.flush()

            loop.run_until_complete(run())
            if failures := loop.failures():
                raise BaseExceptionGroup("unhandled failures", failures)
            return cluster
    finally:
        gc.enable()


def line_of(stage: Stage) -> str:
    """Formats a stage."""
    written = ", ".join(
        f"{count} {name}" for name, count in sorted(stage.keys_written.items(), key=lambda row: -row[1])[:4]
    )
    counts = ", ".join(f"{name} {value:g}" for name, value in stage.counts.items())
    requests = ", ".join(
        f"{count} {name}" for name, count in sorted(stage.requests.items(), key=lambda row: -row[1])[:5]
    )
    return (
        f"{stage.name}: {stage.virtual_s:.1f} s; {stage.transactions} transactions ({written}); CPU "
        f"{stage.broker_cpu_s:.1f} s, "
        f"of one broker {stage.busiest_cpu_s:.2f} s, of the controller {stage.controller_cpu_s:.2f} s"
        f"{f', of {stage.host} {stage.host_cpu_s:.2f} s' if stage.host else ''}; {stage.resident_mb:.0f} MB; {counts}; "
        f"{requests}"
    )


def lines_of_restarts(stages: list[Stage]) -> list[str]:
    """Formats minimum, maximum and sum of restarts."""
    restarts = [stage for stage in stages if stage.name.startswith(RESTART)]
    if not restarts:
        return []
    rows: dict[str, list[float]] = {
        "virtual time, s": [stage.virtual_s for stage in restarts],
        "transactions": [stage.transactions for stage in restarts],
        "keys of partitions written": [stage.keys_written.get(PARTITIONS, 0) for stage in restarts],
        "requests": [sum(stage.requests.values()) for stage in restarts],
        "CPU of all brokers, s": [stage.broker_cpu_s for stage in restarts],
        "CPU of the broker, s": [stage.host_cpu_s for stage in restarts],
        "CPU of the controller, s": [stage.controller_cpu_s for stage in restarts],
        **{name: [stage.counts[name] for stage in restarts] for name in restarts[0].counts},
    }
    return [f"{name}: {min(of):.2f} to {max(of):.2f}, {sum(of):.1f} in {len(of)} restarts" for name, of in rows.items()]


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns its exit code."""
    parser = argparse.ArgumentParser(description="measure a large simulated cluster")
    parser.add_argument("--brokers", type=int, default=30)
    parser.add_argument("--racks", type=int, default=3)
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=100, help="of each topic")
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--restarts", type=int, help="brokers to restart one after the other: 3, or all with --rolling")
    parser.add_argument("--rolling", action="store_true", help="restart brokers, and leave the other stages out")
    parser.add_argument(
        "--rack-stays-away",
        action="store_true",
        help="leave the last stage out: it takes the memory of a rack's brokers",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="a file for the figures")
    options = parser.parse_args(arguments)
    spec = ScaleSpec(
        brokers=options.brokers,
        racks=options.racks,
        topics=options.topics,
        partitions_per_topic=options.partitions,
        groups=options.groups,
        restarts=(options.brokers if options.rolling else 3) if options.restarts is None else options.restarts,
        rolling=options.rolling,
        returns_rack=not options.rack_stays_away,
        seed=options.seed,
    )
    sys.stdout.write(
        f"{spec.brokers} brokers, {spec.racks} racks, {spec.topics} topics, {spec.partitions} partitions, "
        f"{spec.groups} groups\n"
    )
    cluster = measure(spec, tells=True)
    for line in lines_of_restarts(cluster.stages):
        sys.stdout.write(f"{line}\n")
    if options.json:
        with open(options.json, "wb") as file:
            file.write(msgspec.json.encode({"spec": spec, "stages": cluster.stages}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
