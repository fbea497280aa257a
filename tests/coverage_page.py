"""Writes the lab's page of coverage from `coverage json`: how much of each room `make coverage` runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/lab/coverage.md"
COUNTS = ("covered_lines", "num_statements", "covered_branches", "num_branches")
HEAD = """# Coverage

Lines and branches of each room that the unit, wire and model tests of `make test` run, measured by `make coverage` with
coverage.py at {commit} on {date}. Simulators, clients and real brokers run more and are not counted. Nothing enforces
these figures: mutants and planted bugs say more about what the tests notice.

| room | lines | of | branches | of |
|---|---|---|---|---|
"""


def room_of(path: str) -> str:
    """Returns the folder of a module, two levels deep at most."""
    return "/".join(path.split("/")[:-1][:2])


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def main(report: Path) -> None:
    rooms: dict[str, list[int]] = defaultdict(lambda: [0] * len(COUNTS))
    for path, found in json.loads(report.read_text(encoding="utf-8"))["files"].items():
        for room in (room_of(path), "all"):
            rooms[room] = [known + found["summary"][name] for known, name in zip(rooms[room], COUNTS, strict=True)]
    commit = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    lines = [
        f"| {room} | {percent(lines, statements)} | {statements:,} | {percent(taken, branches)} | {branches:,} |\n"
        for room, (lines, statements, taken, branches) in sorted(rooms.items(), key=lambda row: (row[0] == "all", row))
    ]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(HEAD.format(commit=commit, date=datetime.now(UTC).date()) + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
