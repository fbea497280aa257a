"""`python -m tests.suite test|ci|rest|all|pure`: run the lanes of a part side by side, report progress each ten seconds, and summarize.

Each lane has a log in `build/tests/`; the log of a lane that failed is printed when it ends, without the dots of its progress. The order
of tests comes from one seed, which is printed first; `--seed` replays it. With `--within` no test begins after so many minutes: those that
are left are counted among the skipped ones, and lanes that did not begin are named.

Returns 0 when every lane that began ran tests and all passed, 1 otherwise, 130 after Ctrl-C: lanes get the signal too and stop their
brokers.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.bytecode import with_bytecode
from tests.interrupts import sigint

from .lanes import AT_ONCE, Lane, Part, lanes
from .report import LaneState, causes, counts, progress_line, summary, what_is_left, without_progress
from .state import VARIABLE
from .until import VARIABLE as UNTIL

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build/tests"
BYTECODE = ROOT / "build/bytecode"
PROGRESS_EVERY_S = 9.0
POLL_S = 0.2
STOP_S = 30.0
"""The time for an interrupted lane to stop its brokers, before it is killed."""


@dataclass
class Running:
    """A lane whose process runs or has ended."""

    lane: Lane
    process: subprocess.Popen[bytes]
    log: Path
    state_file: Path
    shown_failures: int = 0
    ended: bool = False

    @classmethod
    def start(cls, lane: Lane, folder: Path, seed: int, until_s: float) -> Running:
        log, state_file = (
            folder / f"{lane.name.replace(', ', '-').replace(' ', '-')}.{suffix}" for suffix in ("log", "json")
        )
        state_file.unlink(missing_ok=True)
        env = with_bytecode({**os.environ, **lane.env, VARIABLE: str(state_file), UNTIL: str(until_s)}, BYTECODE)
        command = [str(Path(sys.executable).with_name("pytest")), *lane.options(seed)]
        # A process that a shell started in the background ignores Ctrl-C, and so would its lanes.
        with log.open("wb") as output, sigint():
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(lane, process, log, state_file)

    def state(self) -> LaneState:
        """As the process last wrote it."""
        try:
            return msgspec.json.decode(self.state_file.read_bytes(), type=LaneState)
        except FileNotFoundError:
            return LaneState()

    def tell(self) -> None:
        """Print new failures, and the whole log if the lane failed."""
        failed = self.state().failed
        for node_id in failed[self.shown_failures :]:
            print(f"FAILED {node_id}", flush=True)
        self.shown_failures = len(failed)
        if not self.ended and self.process.poll() is not None:
            self.ended = True
            if self.process.returncode != 0:
                print(
                    f"--- {self.lane.name} ended with {self.process.returncode}; {self.log.relative_to(ROOT)}:",
                    flush=True,
                )
                print(without_progress(self.log.read_text(encoding="utf-8", errors="replace")), flush=True)

    def stop(self) -> None:
        """Interrupt it as Ctrl-C does, and kill what remains after a while."""
        for number, patience_s in ((signal.SIGINT, STOP_S), (signal.SIGKILL, STOP_S)):
            if self.process.poll() is None:
                os.killpg(self.process.pid, number)
                try:
                    self.process.wait(patience_s)
                except subprocess.TimeoutExpired:
                    continue


def run(
    plan: list[Lane], at_once: int, seed: int, folder: Path, within_s: float = math.inf
) -> tuple[list[Running], float]:
    """Run all lanes that can begin within `within_s`. Returns them, and the seconds that they took."""
    waiting, started = deque(plan), list[Running]()
    began_s = told_s = time.monotonic()
    until_s = began_s + within_s
    try:
        while waiting or not all(one.ended for one in started):
            if time.monotonic() >= until_s:
                waiting.clear()
            while waiting and sum(not one.ended for one in started) < at_once:
                started.append(Running.start(waiting.popleft(), folder, seed, until_s))
            time.sleep(POLL_S)
            for one in started:
                one.tell()
            now_s = time.monotonic()
            if now_s - told_s >= PROGRESS_EVERY_S:
                told_s = now_s
                states = {one.lane.name: one.state() for one in started if not one.ended}
                print(progress_line(states, now_s - began_s, now_s), flush=True)
    except BaseException:
        for one in started:
            one.stop()
        raise
    return started, time.monotonic() - began_s


def minutes_above_zero(text: str) -> float:
    """Errors: ArgumentTypeError."""
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not minutes > 0:
        message = f"minutes above 0, not '{text}'"
        raise argparse.ArgumentTypeError(message)
    return minutes


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.suite", description="run a part of the tests")
    parser.add_argument("part", type=Part, choices=list(Part), metavar="|".join(part.value for part in Part))
    parser.add_argument("--seed", type=int, default=None, help="of the order of the tests")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="how many lanes run side by side")
    parser.add_argument(
        "--within", type=minutes_above_zero, default=math.inf, metavar="MINUTES", help="begin no test later"
    )
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    plan = lanes(options.part, os.cpu_count() or 1)
    folder = LOGS / options.part.value
    folder.mkdir(parents=True, exist_ok=True)
    print(
        f"{len(plan)} lanes ({', '.join(lane.name for lane in plan)}), --seed={seed}, logs in {folder.relative_to(ROOT)}",
        flush=True,
    )
    try:
        ended, took_s = run(plan, options.at_once, seed, folder, 60 * options.within)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        return 130
    states = [one.state() for one in ended]
    bad = [one.lane.name for one in ended if one.process.returncode != 0]
    lines = summary(states, took_s) + ([what_is_left(states)] if options.part is Part.TEST else [])
    not_begun = [lane.name for lane in plan[len(ended) :]]
    lines += [f"not begun, because the time was up: {', '.join(not_begun)}"] if not_begun else []
    lines += [*causes(states), f"failed: {', '.join(bad)}"] if bad else []
    print("\n".join([*lines, counts(states)]), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
