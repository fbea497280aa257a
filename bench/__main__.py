"""Runs the workloads on the targets: `python -m bench --help`.

Rounds are interleaved: each runs all targets before the next one starts, every other one backwards, so that changes on
the machine affect all of them alike. A workload that fails on a target is reported, left out for that target, and makes
the exit code 1.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lowtide.protocol.errors import ProtocolError

from .arguments import Arguments, parse_arguments
from .cluster import ClusterTarget
from .errors import BenchError
from .floor import floor
from .report import Results, Round, figures_table, summary_table, workload_table, write_csv, write_json
from .targets import Target, TargetSpec
from .usage import PROC
from .workloads import FLOOR, WORKLOADS

ROOT = Path(__file__).resolve().parents[1]
_BUSY = 0.5
"""With a load average above this share of the cores before the start, other work distorts the figures."""


def main(words: Sequence[str] | None = None) -> int:
    """Runs the requested workloads. Returns the exit code."""
    arguments = parse_arguments(sys.argv[1:] if words is None else words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    scratch = Path(tempfile.mkdtemp(prefix="bench-", dir=arguments.scratch))
    targets = [make_target(spec, scratch) for spec in arguments.targets]
    results = Results([target.name for target in targets])
    keep_bytecode(scratch)
    about = circumstances()
    print("\n".join(f"{name}: {value}" for name, value in about.items() if value))
    _warn(about)
    about |= {
        "amounts": dataclasses.asdict(arguments.amounts),
        "started": {spec.name: spec.command for spec in arguments.targets},
    }
    try:
        for name in arguments.workloads:
            if name == FLOOR:
                print("\n## floor: the load generator and the disk, without a broker\n", flush=True)
                about["floor"] = floor(scratch, arguments.amounts)
                print(figures_table("", about["floor"]), flush=True)
            else:
                run_workload(name, arguments, targets, results)
                print(f"\n## {name}: {WORKLOADS[name].says}\n\n{workload_table(results, name)}", flush=True)
    except KeyboardInterrupt:
        results.faults.append("interrupted")
    finally:
        for target in targets:
            target.close()
        shutil.rmtree(scratch, ignore_errors=True)
        _save(arguments, results, about)
    headlines = {name: WORKLOADS[name].headline for name in arguments.workloads if name != FLOOR}
    print(f"\n## Summary\n\n{summary_table(results, headlines)}")
    for fault in results.faults:
        print(f"bench: {fault}", file=sys.stderr)
    return 1 if results.faults else 0


def keep_bytecode(scratch: Path) -> None:
    """Lets Python keep bytecode for brokers that run from a source tree; pip compiles installed packages."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(scratch / "bytecode")


def make_target(spec: TargetSpec, scratch: Path) -> Target:
    """Returns a target of one broker, or of several."""
    return ClusterTarget(spec, scratch) if spec.brokers > 1 and spec.command else Target(spec, scratch)


def run_workload(name: str, arguments: Arguments, targets: Sequence[Target], results: Results) -> None:
    """Runs all rounds of one workload on all targets."""
    workload = WORKLOADS[name]
    able = [
        target
        for target in targets
        if (target.can_be_started or not workload.starts) and (target.brokers > 1 or not workload.several)
    ]
    able = [target for target in able if target.spec.tls or not workload.over_tls]
    for number in range(-arguments.warm_rounds if workload.warms else 0, arguments.rounds):
        for target in list(able if number % 2 == 0 else reversed(able)):
            print(
                f"{name}: {target.name}, {f'round {number + 1}' if number >= 0 else 'warming'}",
                file=sys.stderr,
                flush=True,
            )
            try:
                if not workload.starts:
                    target.ensure_up()
                figures = workload.run(target, arguments.amounts)
            except (BenchError, OSError, ProtocolError) as error:
                results.faults.append(f"{name} on {target.name}: {error}")
                able.remove(target)
                continue
            results.rounds.append(
                Round(
                    workload=name,
                    target=target.name,
                    number=number,
                    load_average=round(os.getloadavg()[0], 2),
                    figures=figures,
                )
            )


def circumstances() -> dict[str, Any]:
    """Returns when and where the figures were measured."""
    return {
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "machine": f"{os.cpu_count()} cores, {_processor()}, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load average before": round(os.getloadavg()[0], 2),
    }


def _warn(about: dict[str, Any]) -> None:
    if about["load average before"] > _BUSY * (os.cpu_count() or 1):
        print(
            "bench: this machine is busy with other work: trust CPU times more than rates, and ratios more than both",
            file=sys.stderr,
        )
    if not PROC.is_dir():
        print("bench: without /proc, CPU time and memory of brokers are unknown", file=sys.stderr)


def _commit() -> str:
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return described.stdout.strip()


def _processor() -> str:
    path = PROC / "cpuinfo"
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _save(arguments: Arguments, results: Results, about: dict[str, Any]) -> None:
    if arguments.json is not None:
        write_json(arguments.json, results, about)
    if arguments.csv is not None:
        write_csv(arguments.csv, results)


if __name__ == "__main__":
    sys.exit(main())
