"""`make campaign`: search without end, with simulators, SIGKILL, damaged frames and generated examples, beside other
work of the machine.

One run at a time, or `--processes` of them, each on one core, at the lowest priority. Each run that ends is a line of
the ledger (`ledger.py`), from which the next campaign continues: Ctrl-C, SIGTERM and SIGKILL lose the current runs.
Files are removed after each run; the output of a run with a violation is kept in `failures/`, the last of each kind and
seed, at most `KEPT` of them. Below a minimum of free space nothing is run.

With `--until-current` it runs what a release needs on its own code, and ends when every kind has as much as it wants.
`--left` says what that would take.

A run that ends by its time limit, a full disk or an interrupt adds no line: its seeds are used again.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from . import evidence, ledger, machine
from .kinds import KINDS, Command, Kind, Workplace
from .outcome import RunFiles, outcome
from .plan import Limits, Run, Spent, Stop, lacking, left_table, next_step

ROOT = Path(__file__).resolve().parents[2]
RUN_LIMIT_S = 7200.0
"""Generous: at the lowest priority a run may wait for long."""

WRITTEN = ("docs/lab/evidence.md", "tests/campaign/evidence.jsonl", "tests/sim/found.jsonl", "tests/sim/planted.jsonl")
"""Files that campaigns and counts of planted bugs write; they don't count as changes of the tree."""

KEPT = 50
KEPT_BYTES = 200_000


def commit() -> tuple[str, frozenset[str]]:
    """Returns the commit of the tree, and the files that differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("diff", "--name-only", "HEAD", "--", ".", *(f":!{path}" for path in WRITTEN))
    return git("rev-parse", "--short=12", "HEAD") or "unknown", frozenset(changed.splitlines())


@dataclass(frozen=True)
class UnderWay:
    """A run that has not ended."""

    run: Run
    command: Command
    place: Workplace
    running: machine.Running
    commit: str
    changed: bool
    began: str


class Campaign:
    """Runs in one folder, which no other campaign may use at the same time."""

    def __init__(
        self, folder: Path, kinds: Sequence[Kind], limits: Limits, *, processes: int = 1, until_current: bool = False
    ) -> None:
        self._folder, self._kinds, self._limits = folder, kinds, limits
        self.ledger = folder / "ledger.jsonl"
        self.failures = folder / "failures"
        self._free = [
            Workplace(sys.executable, folder / f"process-{number}" if number else folder) for number in range(processes)
        ]
        self._under_way: list[UnderWay] = []
        self._processes = processes
        self._until_current = until_current
        self._began_s = time.monotonic()
        self.runs = self.broken = 0

    def go(self) -> str:
        """Runs until a limit is reached. Returns the limit."""
        for place in self._free:
            place.folder.mkdir(exist_ok=True)
            machine.end_marked(place.folder)
        reason = ""
        try:
            while True:
                while self._free and not reason:
                    step = self._next()
                    if isinstance(step, Stop):
                        if self._under_way:
                            break
                        return step.reason
                    self._start(step)
                if reason and not self._under_way:
                    return reason
                time.sleep(machine.POLL_S)
                reason = self._look() or reason
        finally:
            for each in self._under_way:
                each.running.end()

    def left(self) -> list[str]:
        """Returns the lines that say what every kind lacks on the last commit."""
        lines = evidence.known(self._folder)
        speeds = evidence.per_cpu_second(lines, self._kinds)
        return left_table(lacking(self._kinds, self._current(lines), speeds), self._processes)

    def _current(self, lines: Sequence[evidence.Sum]) -> dict[str, int]:
        return {kind.name: evidence.current_count(kind, lines, evidence.unchanged_since) for kind in self._kinds}

    def _next(self) -> Run | Stop:
        under_way = [each.run for each in self._under_way]
        spent = Spent(self.runs, time.monotonic() - self._began_s, machine.free_bytes(self._folder), under_way)
        totals = ledger.totals(ledger.load(self.ledger))
        current = self._current(evidence.known(self._folder)) if self._until_current else None
        return next_step(self._kinds, totals, self._limits, spent, current)

    def _start(self, run: Run) -> None:
        place = self._free.pop(0)
        command = run.kind.command(place, run.first, run.end)
        (commit_id, changed), began = commit(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        running = machine.Running(command, ROOT, place, machine.RunLimits(RUN_LIMIT_S, self._limits.floor_bytes))
        is_changed = any(map(run.kind.concerns, changed))
        self._under_way.append(UnderWay(run, command, place, running, commit_id, is_changed, began))
        self.runs += 1

    def _look(self) -> str:
        """Adds the lines of runs that have ended. Returns why there can be no further run, or an empty text."""
        for each in list(self._under_way):
            ended = each.running.ended()
            if ended is not None:
                self._under_way.remove(each)
                self._free.append(each.place)
                if ended.why:
                    return f"{each.run.kind.name} {each.run.first}: {ended.why}"
                self._keep(each, ended)
                if self._until_current:
                    print("\n".join(self.left()), flush=True)
        return ""

    def _keep(self, each: UnderWay, ended: machine.RunEnd) -> None:
        """Adds the line of a run."""
        run, place = each.run, each.place
        texts = [path.read_text(encoding="utf-8") if path.exists() else "" for path in place.files]
        left = RunFiles(ended.exit_code, place.log.read_text(encoding="utf-8", errors="replace"), *texts)
        result = outcome(left, each.command)
        ledger.append(
            self.ledger,
            ledger.Entry(
                kind=run.kind.name,
                commit=each.commit,
                changed=each.changed,
                first_seed=run.first,
                end_seed=run.end,
                began=each.began,
                seconds=round(ended.seconds, 1),
                cpu_seconds=round(ended.cpu_seconds, 1),
                faults=result.faults,
                violations=result.violations,
                states=result.states,
            ),
        )
        seeds = f"seed {run.first}" if run.end == run.first + 1 else f"seeds {run.first}-{run.end - 1}"
        violations = result.violations
        found = f"{sum(result.faults.values())} faults, {len(violations)} violations"
        print(f"{each.began} {run.kind.name}, {seeds}: {found}, {ended.cpu_seconds:.0f} s of CPU", flush=True)
        if violations:
            self.broken += 1
            self._keep_output(run, left.output)
            print("\n".join(f"    {violation.reason}\n    {violation.replay}" for violation in violations), flush=True)

    def _keep_output(self, run: Run, output: str) -> None:
        folder = self.failures
        folder.mkdir(exist_ok=True)
        (folder / f"{run.kind.name.replace(' ', '-')}-{run.first}.log").write_text(
            output[-KEPT_BYTES:], encoding="utf-8"
        )
        for old in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            old.unlink()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Errors: BlockingIOError if another campaign uses the folder."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaign", description="search without end, at the lowest priority"
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build/campaign", help="of the ledger and of all other files"
    )
    parser.add_argument("--totals", action="store_true", help="print the totals of the ledger, and end")
    parser.add_argument("--publish", action="store_true", help="add the ledger to docs/lab/evidence.md, and end")
    parser.add_argument("--kinds", help=f"only these, of {', '.join(kind.name for kind in KINDS)}")
    parser.add_argument("--runs", type=int, help="end after this many")
    parser.add_argument("--minutes", type=float, help="start no run after this many")
    parser.add_argument(
        "--first-seed",
        type=int,
        help="of a new ledger, for a second campaign at a time; else what is published is passed over",
    )
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument(
        "--until-current", action="store_true", help="end when each kind has what a release needs on the last commit"
    )
    parser.add_argument("--left", action="store_true", help="print what --until-current has to do, and end")
    parser.add_argument("--floor-mib", type=int, default=5 * 1024, help="stop when the disk has less free space")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command.

    Returns 0, 1 if a run found a violation, 2 if another campaign uses the folder, 130 after an interrupt.
    """
    options = parse(arguments)
    folder: Path = options.folder.resolve()
    if options.totals:
        print("\n".join(ledger.table(ledger.totals(ledger.load(folder / "ledger.jsonl")))))
        return 0
    if options.publish:
        evidence.publish(folder)
        return 0
    names = [name.strip() for name in options.kinds.split(",")] if options.kinds else [kind.name for kind in KINDS]
    if unknown := set(names) - {kind.name for kind in KINDS}:
        print(f"{', '.join(sorted(unknown))}: there are {', '.join(kind.name for kind in KINDS)}")
        return 2
    kinds = [kind for kind in KINDS if kind.name in names]
    for kind in kinds:
        if reason := kind.missing():
            print(f"{kind.name} is left out: {reason}", flush=True)
    kinds = [kind for kind in kinds if kind.missing() is None]
    if not kinds:
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    seconds = None if options.minutes is None else options.minutes * 60
    published = evidence.seeds_of(evidence.load())
    first_seeds = published if options.first_seed is None else dict.fromkeys(names, options.first_seed)
    limits = Limits(options.floor_mib << 20, options.runs, seconds, first_seeds)
    campaign = Campaign(folder, kinds, limits, processes=options.processes, until_current=options.until_current)
    if options.left or options.until_current:
        print("\n".join(campaign.left()), flush=True)
    if options.left:
        return 0
    try:
        with locked(folder):
            return search(campaign, options.processes)
    except BlockingIOError:
        print(f"another campaign uses {folder}")
        return 2


def search(campaign: Campaign, cores: int) -> int:
    """Runs it as the only work of this process. Returns the exit code."""
    machine.step_back(cores=cores)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        print(campaign.go(), flush=True)
    except KeyboardInterrupt:
        print(f"interrupted after {campaign.runs} runs; the next campaign continues from {campaign.ledger}", flush=True)
        return 130
    finally:
        if campaign.broken:
            print(
                f"{campaign.broken} of {campaign.runs} runs found violations: their output is in {campaign.failures}",
                flush=True,
            )
    return 1 if campaign.broken else 0


if __name__ == "__main__":
    sys.exit(main())
