"""A violation with fewer faults: what is left is what it takes. Pure, but for the runs themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import msgspec

from .drawn import MOVES, DrawnRun

TRIES = 150
_LETTER = re.compile(r"\b[A-Z]\d+(?=:)")


def invariant(reason: str) -> str:
    """Returns the letter of the violated invariant, or else the type of the error."""
    found = _LETTER.search(reason)
    return found[0] if found else reason.partition(":")[0]


def minimise(run: DrawnRun, reason: str, breaks: Callable[[DrawnRun], str | None], tries: int = TRIES) -> DrawnRun:
    """Returns the smallest run found that violates the same.

    `breaks` gives a run's violation, or None; it is called `tries` times at most.
    """
    wanted = invariant(reason)
    left = tries
    while left > 0:
        for smaller in _smaller(run):
            left -= 1
            found = breaks(smaller)
            if found is not None and invariant(found) == wanted:
                run = smaller
                break
            if left <= 0:
                return run
        else:
            return run
    return run


def _smaller(run: DrawnRun) -> Iterator[DrawnRun]:
    """Runs with something less, what saves most first."""
    if run.strikes > 1:
        yield msgspec.structs.replace(run, strikes=run.strikes // 2)
    for kind in run.kinds[1:]:
        yield msgspec.structs.replace(run, kinds=tuple(each for each in run.kinds if each != kind))
    for fault in run.faults if len(run.faults) > 1 else ():
        yield msgspec.structs.replace(run, faults=tuple(each for each in run.faults if each != fault))
    if len(run.directories) > 1 and MOVES not in run.faults:
        yield msgspec.structs.replace(run, directories=run.directories[:1])
    for flag in ("erases", "unclean"):
        if getattr(run, flag):
            yield msgspec.structs.replace(run, **{flag: False})
    if run.strikes > 1:
        yield msgspec.structs.replace(run, strikes=run.strikes - 1)
