"""The reports of a run of the suite: a line of progress, and a summary at the end. Values only.

Each lane keeps its `LaneState` in a file (`state.py`); the program that runs the lanes reads those files and prints the
lines from here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

KINDS = {
    "unit": "one module at a time",
    "wire": "bytes of the protocol",
    "model": "every order of events around deletes",
    "sim": "whole brokers and clusters on virtual time",
    "clients": "kcat and the Python clients",
    "chaos": "broker processes, killed, frozen and cut off",
    "pipeline": "PySpark",
}
"""Folders of tests/, in the order of the summary."""

OUTCOMES = ("passed", "failed", "skipped")

_PROGRESS = re.compile(r"[.sxXFE]+( *\[ *\d+%\])?")


class LaneState(msgspec.Struct):
    """The progress of a lane.

    Keys of `seconds`, `outcomes` and `left` are folders of tests/; times are of the monotonic clock.
    """

    total: int = 0
    done: int = 0
    failed: list[str] = []
    causes: dict[str, str] = {}
    running: dict[str, float] = {}
    seconds: dict[str, float] = {}
    outcomes: dict[str, dict[str, int]] = {}
    skipped: dict[str, int] = {}
    left: dict[str, int] = {}


def kind_of(node_id: str) -> str:
    """The folder of tests/ that a test is in: `tests/unit/x.py::test_y` is in `unit`."""
    parts = node_id.split("/")
    return parts[1] if len(parts) > 2 and parts[0] == "tests" else parts[0]


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def progress_line(states: Mapping[str, LaneState], elapsed_s: float, now_s: float) -> str:
    """`1:20  812 of 1,400 tests, 0 failed; unit 600/900, chaos 212/500; for 31 s: tests/chaos/test_x.py::test_y`."""
    total, done = sum(state.total for state in states.values()), sum(state.done for state in states.values())
    failed = sum(len(state.failed) for state in states.values())
    lanes = ", ".join(
        f"{name} {state.done:,}/{state.total:,}" if state.total else f"{name} begins" for name, state in states.items()
    )
    line = f"{clock(elapsed_s)}  {done:,} of {total:,} tests, {failed} failed; {lanes}"
    running = [(began_s, node_id) for state in states.values() for node_id, began_s in state.running.items()]
    if running:
        began_s, node_id = min(running)
        line += f"; for {now_s - began_s:.0f} s: {node_id}"
    return line


def summary(states: Sequence[LaneState], elapsed_s: float) -> list[str]:
    """A line for each kind that ran, with the sum of its tests' durations."""
    lines = [f"{'':10}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}"]
    for kind in [*KINDS, *sorted({kind for state in states for kind in state.outcomes} - set(KINDS))]:
        counts = Counter[str]()
        for state in states:
            counts.update(state.outcomes.get(kind, {}))
        if counts:
            seconds = sum(state.seconds.get(kind, 0.0) for state in states)
            columns = "".join(f"{counts[outcome]:8,}" for outcome in OUTCOMES)
            lines.append(f"{kind:10}{columns}{seconds:9.0f}  {KINDS.get(kind, '')}")
    reasons = Counter[str]()
    for state in states:
        reasons.update(state.skipped)
    lines += [f"skipped {count}: {reason}" for reason, count in sorted(reasons.items())]
    return [*lines, f"took {clock(elapsed_s)}"]


def causes(states: Sequence[LaneState]) -> list[str]:
    """Why each test failed, last of all that is printed: what is kept of a long output is its end."""
    return [f"{node_id}\n    {cause}" for state in states for node_id, cause in state.causes.items()]


def without_progress(log: str) -> str:
    """A log of pytest without the lines that only count tests: of thousands that passed, nothing else is left."""
    return "".join(line for line in log.splitlines(keepends=True) if not _PROGRESS.fullmatch(line.strip()))


def what_is_left(states: Sequence[LaneState]) -> str:
    """The tests that `make test-all` adds to `make test`."""
    left = Counter[str]()
    for state in states:
        left.update(state.left)
    kinds = ", ".join(f"{left[kind]:,} of {kind}" for kind in KINDS if left[kind])
    return (
        f"make test-all adds {left.total():,} tests ({kinds}), more seeds of the simulators, "
        "a pass in asyncio's debug mode and one without compiled code"
    )


def counts(states: Sequence[LaneState]) -> str:
    """The last line: `12 passed, 0 failed, 1 skipped`."""
    found = Counter[str]()
    for state in states:
        for outcomes in state.outcomes.values():
            found.update(outcomes)
    return ", ".join(f"{found[outcome]} {outcome}" for outcome in OUTCOMES)
