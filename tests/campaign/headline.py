"""The numbers at the head of the README: what all campaigns together have searched, and when a promise was last broken.

`evidence.write_page` writes them, so that they are those of docs/lab/evidence.md. Adding up is pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .kinds import DELETES, KILLED, KINDS, Kind

if TYPE_CHECKING:
    from .evidence import Sum

README = Path(__file__).resolve().parents[2] / "README.md"
VIOLATIONS = README.parent / "docs/lab/violations.md"

CLUSTERS = ("cluster", "drawn faults", "erasures")
CRASH_STATE, POWER_CUT = "crash state", "power cut of a disk"

PLACE = re.compile(r"(<!-- written by make campaign ARGS=--publish -->\n).*?(\n\n)", re.DOTALL)


def headline(lines: Sequence[Sum], kinds: Sequence[Kind] = KINDS) -> str:
    """Returns the sentence. The last violation is dated by the last run of its campaign at that commit."""
    by_name = {kind.name: kind for kind in kinds}
    known = [(by_name[line.kind], line) for line in lines if line.kind in by_name]

    def total(counted: str) -> int:
        return sum(line.counted(kind) for kind, line in known if kind.counted == counted)

    clusters = sum(line.seeds for kind, line in known if kind.name in CLUSTERS)
    searched = (
        f"Searched for lost records, and for deleted ones that come back: {clusters:,} simulated clusters, "
        f"{total(KILLED):,} killed brokers, {total(POWER_CUT):,} power cuts, {total(CRASH_STATE):,} crashed disks."
    )
    if deletes := sum(line.faults.get(DELETES, 0) for line in lines):
        since = min(line.last[:10] for line in lines if DELETES in line.faults)
        searched += f" {deletes:,} acknowledged deletes were checked since {since}."
    broken = max((line.last[:10] for line in lines if line.violations), default=None)
    count = open_count(VIOLATIONS.read_text(encoding="utf-8"))
    open_findings = "1 finding is open" if count == 1 else f"{count} findings are open"
    ends = f"; {open_findings}" if count else ", fixed"
    last = "No violation was found" if broken is None else f"Last violation: {broken}{ends}"
    return f"**{searched} {last}** ([violations](docs/lab/violations.md), [evidence](docs/lab/evidence.md))."


def open_count(violations: str) -> int:
    """Returns the number of rows under *Open* in docs/lab/violations.md."""
    section = violations.partition("## Open\n")[2].partition("\n## ")[0]
    return max(section.count("\n| ") - 1, 0)


def with_headline(text: str, sentence: str) -> str:
    """Returns the README with another sentence, in lines of 120 characters at most."""
    words, rows = sentence.split(), [""]
    for word in words:
        if len(rows[-1]) + len(word) + 1 > 120:
            rows.append("")
        rows[-1] = f"{rows[-1]} {word}".lstrip()
    return PLACE.sub(lambda found: found[1] + "\n".join(rows) + found[2], text, count=1)


def write(lines: Sequence[Sum], readme: Path = README) -> None:
    """Writes the sentence of these sums into the README."""
    readme.write_text(with_headline(readme.read_text(encoding="utf-8"), headline(lines)), encoding="utf-8")
