"""Finds planted bugs by the promise that they break; other failures don't count.

Otherwise a plant that breaks the program in another way, or breaks another promise, would count as found, although its
checker sees nothing.

`make plants` sets `PLANT_FIRST_SEEDS`. The same tests then count the seeds until the bug is found, from each of these
first seeds, and add a line to `planted.jsonl` for each; `docs/lab/evidence.md` is made from them. A search with a line
is not repeated. One that found nothing continues where it ended, if `PLANT_SEEDS` asks for more seeds. The last line
of a search counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest

from lowtide.simulation.history import HistoryError

LEDGER = Path(__file__).resolve().parent / "planted.jsonl"
GOAL_SEEDS = 2000

FIRST_SEEDS = [int(text) for text in os.environ.get("PLANT_FIRST_SEEDS", "").split(",") if text]
"""Empty in a test."""
SEARCHED_MAX = int(os.environ.get("PLANT_SEEDS", str(GOAL_SEEDS)))


class Try(msgspec.Struct, frozen=True):
    """One search for one planted bug."""

    plant: str
    expected: str
    first: int
    """The first seed."""
    searched: int
    seeds: int | None
    """The number of seeds up to the one that found it; None if it wasn't found."""


def find(expected: str, simulate: Callable[[int], object], seeds: Iterable[int]) -> int:
    """Returns the first seed whose run breaks the expected promise. Without the plant the same seeds break none.

    `expected` is a regular expression of the violation: `D8:`, or what L1 waits for. Other violations are passed over,
    and named in the end. Whatever isn't a violation is raised, and fails the test.
    """
    if FIRST_SEEDS:
        measure(expected, simulate)
    others: list[str] = []
    for seed in seeds:
        text = violation(simulate, seed)
        if breaks(expected, text):
            print(f"seed {seed}: {text[:200]}")
            return seed
        if text:
            others.append(f"seed {seed}: {text[:200]}")
    pytest.fail("\n".join([f"no seed of {seeds} violates {expected}", *others]))


def violation(simulate: Callable[[int], object], seed: int) -> str:
    """Returns what a run says of the promise that it breaks; empty if it breaks none."""
    try:
        simulate(seed)
    except HistoryError as error:
        return str(error)
    return ""


def breaks(expected: str, text: str) -> bool:
    """Returns whether a violation is the expected one."""
    return bool(text and re.search(rf"\b{expected}", text))


def measure(expected: str, simulate: Callable[[int], object]) -> None:
    """Counts the seeds until the bug is found, from each first seed, and skips the test."""
    plant = plant_of(os.environ["PYTEST_CURRENT_TEST"])
    known = {(each.plant, each.expected, each.first): each for each in load(LEDGER)}
    for first in FIRST_SEEDS:
        before = known.get((plant, expected, first))
        if before is not None and (before.seeds is not None or before.searched >= SEARCHED_MAX):
            continue
        counts = range(1 if before is None else before.searched + 1, SEARCHED_MAX + 1)
        seeds = next((count for count in counts if is_found(expected, simulate, first + count - 1)), None)
        line = Try(
            plant=plant, expected=expected, first=first, searched=SEARCHED_MAX if seeds is None else seeds, seeds=seeds
        )
        with LEDGER.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
    pytest.skip("it was counted how many seeds it takes")


def is_found(expected: str, simulate: Callable[[int], object], seed: int) -> bool:
    """Returns whether a run breaks the expected promise. One that fails in any other way has not found it."""
    try:
        return breaks(expected, violation(simulate, seed))
    except Exception:
        return False


def plant_of(test: str) -> str:
    """Returns the name of a bug from the id of its test, `test_is_found[name-...]`, or else the test's name."""
    name = test.rpartition(" ")[0].rpartition("::")[2]
    inside = re.search(r"\[(\w+?)(-.*)?\]$", name)
    return inside[1] if inside else name.removeprefix("test_")


def load(file: Path = LEDGER) -> list[Try]:
    """Returns the last line of each search."""
    tries = [msgspec.json.decode(line, type=Try) for line in file.read_bytes().splitlines()] if file.exists() else []
    return list({(each.plant, each.expected, each.first): each for each in tries}.values())
