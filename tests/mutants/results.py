"""Reads and writes results of mutants: a line for each run, explanations of survivors, and the sums in
`docs/lab/evidence.md`.

- `results.jsonl` in the working folder: every mutant that was run, the last line of one counts. It is all that the next
  run needs.
- `explained.jsonl` beside this file: survivors that are no gap, each with the reason. They are not reported.
- `sums.jsonl` beside this file: counts by module, written by `make mutants ARGS=--publish`.

A mutant that was killed stays so while its module is the same; one that survived is run again when tests have changed.
Pure but for the loading and writing of these files.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

HERE = Path(__file__).resolve().parent
EXPLAINED, SUMS = HERE / "explained.jsonl", HERE / "sums.jsonl"

Outcome = Literal["killed", "timed out", "survived", "not reached"]
"""`not reached`: no test runs the line."""

LineT = TypeVar("LineT")

FOUND = frozenset({"killed", "timed out"})


class Result(msgspec.Struct, frozen=True):
    """One run of one mutant."""

    module: str
    digest: str
    """The digest of the module."""
    key: str
    outcome: Outcome
    wider: bool
    """Whether the wider tests were run, too."""
    tests: str
    """The digest of the tests of its group, the wider ones included."""
    by: str = ""
    """The test that found it."""


class Explanation(msgspec.Struct, frozen=True):
    """A survivor that is no gap of the tests."""

    module: str
    key: str
    why: Literal["equivalent", "speed only", "message only", "never so"]
    """`never so`: only a caller that breaks a rule would see it."""
    because: str


class Sum(msgspec.Struct, frozen=True):
    """The counts of a module at the commit at which they were published."""

    module: str
    digest: str
    commit: str
    date: str
    mutants: int
    killed: int
    timed_out: int
    explained: int
    open: int
    """Survivors without an explanation."""


def digest_of(*texts: bytes) -> str:
    """Short, of these in their order."""
    total = hashlib.sha256()
    for text in texts:
        total.update(len(text).to_bytes(8, "big") + text)
    return total.hexdigest()[:12]


def load_lines(file: Path, kind: type[LineT]) -> list[LineT]:
    """Every whole line. A line that a crash truncated is skipped; a missing file has none."""
    found = []
    for line in file.read_bytes().split(b"\n")[:-1] if file.exists() else []:
        try:
            found.append(msgspec.json.decode(line, type=kind))
        except msgspec.MsgspecError:
            continue
    return found


def latest(results: Iterable[Result], digests: Mapping[str, str]) -> dict[tuple[str, str], Result]:
    """Returns the last result of each mutant, of modules as they are now."""
    return {(each.module, each.key): each for each in results if digests.get(each.module) == each.digest}


def is_due(result: Result | None, tests: str, *, wider: bool) -> bool:
    """Returns whether a mutant must run: by its own tests first, and by the wider ones if it survived those."""
    if result is None or result.outcome in FOUND:
        return result is None and not wider
    return result.tests == tests and not result.wider if wider else result.tests != tests


def sum_of(
    module: str, keys: Iterable[str], known: Mapping[tuple[str, str], Result], explained: Iterable[Explanation]
) -> Counter[str]:
    """Counts of a module's mutants: by outcome, `explained` and `open`; a mutant that wasn't run counts as neither."""
    reasons = {each.key for each in explained if each.module == module}
    counts = Counter[str]()
    for key in keys:
        result = known.get((module, key))
        if result is None:
            continue
        counts["mutants"] += 1
        counts[result.outcome if result.outcome in FOUND else "explained" if key in reasons else "open"] += 1
    return counts


def is_at_its_end(
    module: str, keys: Iterable[str], known: Mapping[tuple[str, str], Result], explained: Iterable[Explanation]
) -> bool:
    """Returns whether each of a module's mutants is found, explained, or has survived the wider tests too."""
    reasons = {each.key for each in explained if each.module == module}
    results = [(key, known.get((module, key))) for key in keys]
    return all(
        result is not None and (result.outcome in FOUND or key in reasons or result.wider) for key, result in results
    )
