"""The ledger of the campaign: one JSON line for each run that ended, in the order of their ends.

Reading and adding up are pure.
```
{"kind": "cluster", "commit": "1a2b3c4d5e6f", "changed": false, "first_seed": 40, "end_seed": 60, "began":
"2026-01-02T03:04:05Z",
 "seconds": 21.5, "cpu_seconds": 17.3, "faults": {"kill": 31}, "violations": []}
```

`end_seed` is exclusive; `changed` means that files of the tree differ from the commit. A line is appended with one
write and reaches the disk before the next run starts. Guards: a line that a crash truncated is skipped, and the next
line starts on a new line; the next seed of a kind follows the highest `end_seed` of its lines, so that the ledger is
all that a campaign needs to continue.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec


class Violation(msgspec.Struct, frozen=True):
    """The violated invariant, and the command that reproduces it."""

    reason: str
    replay: str


class Entry(msgspec.Struct, frozen=True):
    """One run."""

    kind: str
    commit: str
    changed: bool
    first_seed: int
    end_seed: int
    began: str
    seconds: float
    cpu_seconds: float
    faults: dict[str, int]
    violations: list[Violation]
    states: int = 0
    """States of clusters that no run before had reached (`drawn`)."""


class Totals(msgspec.Struct):
    """All runs of a kind."""

    runs: int = 0
    seeds: int = 0
    next_seed: int = 0
    cpu_seconds: float = 0.0
    states: int = 0
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    violations: list[Violation] = []


def read(text: bytes) -> list[Entry]:
    """Every whole line. A line that is no entry was truncated, or is from another version, and is skipped."""
    entries = []
    for line in text.split(b"\n")[:-1]:
        try:
            entries.append(msgspec.json.decode(line, type=Entry))
        except msgspec.MsgspecError:
            continue
    return entries


def totals(entries: Iterable[Entry]) -> dict[str, Totals]:
    """The totals by kind."""
    found: dict[str, Totals] = {}
    for entry in entries:
        total = found.setdefault(entry.kind, Totals())
        total.runs += 1
        total.seeds += entry.end_seed - entry.first_seed
        total.next_seed = max(total.next_seed, entry.end_seed)
        total.cpu_seconds += entry.cpu_seconds
        total.states += entry.states
        total.faults.update(entry.faults)
        total.violations += entry.violations
    return found


def table(found: dict[str, Totals]) -> list[str]:
    """Returns the output of `make campaign ARGS=--totals`."""
    lines = [f"{'kind':16}{'runs':>8}{'seeds':>10}{'CPU hours':>11}{'faults':>12}{'violations':>12}"]
    for kind, total in sorted(found.items()):
        hours, faults = total.cpu_seconds / 3600, total.faults.total()
        lines.append(f"{kind:16}{total.runs:8,}{total.seeds:10,}{hours:11,.2f}{faults:12,}{len(total.violations):12,}")
    struck = Counter[str]()
    for total in found.values():
        struck.update(total.faults)
    lines += [f"{count:12,} {kind}" for kind, count in struck.most_common()]
    return lines + [
        f"{kind}: {violation.reason}\n    {violation.replay}"
        for kind, total in sorted(found.items())
        for violation in total.violations
    ]


def load(path: Path) -> list[Entry]:
    """Returns the entries; a missing ledger has none."""
    return read(path.read_bytes()) if path.exists() else []


def append(path: Path, entry: Entry) -> None:
    """Adds a line, which is durable when this returns."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        is_cut = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        line = b"\n" * is_cut + msgspec.json.encode(entry) + b"\n"
        written = os.write(descriptor, line)
        assert written == len(line), f"{written} of {len(line)} bytes were written to {path}"
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
