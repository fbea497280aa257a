"""The next step of a campaign: decided from the ledger alone. Pure.

The kind with the least CPU time relative to its share is next, with seeds that follow those of its last run. A new
ledger begins behind the seeds that others have published, so that another machine searches new ones. A campaign stops
when the disk has less free space than the minimum.

With `current`, the amounts that stand for the last commit, a campaign ends when every kind has what it wants, and the
kind that is furthest from that is next. A kind that counts faults has one run at a time then: how many there will be
isn't known before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .kinds import Kind
from .ledger import Totals


@dataclass(frozen=True)
class Run:
    """Seeds of a kind; `end` is exclusive."""

    kind: Kind
    first: int
    end: int


@dataclass(frozen=True)
class Stop:
    """The reason why nothing more is run."""

    reason: str


@dataclass(frozen=True)
class Limits:
    """The first seeds of a campaign, and its limits; None is no limit."""

    floor_bytes: int
    runs: int | None = None
    seconds: float | None = None
    first_seeds: Mapping[str, int] = field(default_factory=dict)
    """The first seed of a kind in a new ledger, by default 0."""


@dataclass(frozen=True)
class Spent:
    """The usage of this campaign, the current free space of the disk, and the runs under way."""

    runs: int
    seconds: float
    free_bytes: int
    under_way: Sequence[Run] = ()


def next_step(
    kinds: Sequence[Kind],
    totals: Mapping[str, Totals],
    limits: Limits,
    spent: Spent,
    current: Mapping[str, int] | None = None,
) -> Run | Stop:
    """`kinds` is not empty. Among equals the first one is chosen."""
    if spent.free_bytes < limits.floor_bytes:
        return Stop(f"the disk has {spent.free_bytes >> 20:,} MiB left, the floor is {limits.floor_bytes >> 20:,} MiB")
    if limits.runs is not None and spent.runs >= limits.runs:
        return Stop(f"{spent.runs} runs are done")
    if limits.seconds is not None and spent.seconds >= limits.seconds:
        return Stop(f"{limits.seconds:.0f} seconds are over")
    mine = {kind.name: [run for run in spent.under_way if run.kind.name == kind.name] for kind in kinds}
    if current is None:
        kind = min(
            kinds, key=lambda kind: (len(mine[kind.name]), totals.get(kind.name, Totals()).cpu_seconds / kind.share)
        )
    else:
        kinds = [kind for kind in kinds if _lacks(kind, current.get(kind.name, 0), mine[kind.name])]
        if not kinds:
            return Stop("every row has what it wants")
        kind = min(kinds, key=lambda kind: current.get(kind.name, 0) / kind.wanted)
    first = totals[kind.name].next_seed if kind.name in totals else limits.first_seeds.get(kind.name, 0)
    first = max([first, *(run.end for run in mine[kind.name])])
    return Run(kind, first, first + kind.seeds)


def _lacks(kind: Kind, count: int, under_way: Sequence[Run]) -> bool:
    """Returns whether another run of a kind is needed beside those under way."""
    if kind.counted is not None:
        return count < kind.wanted and not under_way
    return count + sum(run.end - run.first for run in under_way) < kind.wanted


@dataclass(frozen=True)
class Lack:
    """What a kind lacks on the last commit; `cpu_hours` is None if it was never run."""

    kind: Kind
    current: int
    cpu_hours: float | None


def lacking(kinds: Sequence[Kind], current: Mapping[str, int], per_cpu_second: Mapping[str, float]) -> list[Lack]:
    """Returns what is left to do, by the speed of earlier runs."""
    found = []
    for kind in kinds:
        count = current.get(kind.name, 0)
        speed = per_cpu_second.get(kind.name)
        left = max(kind.wanted - count, 0)
        found.append(Lack(kind, count, 0.0 if not left else left / speed / 3600 if speed else None))
    return found


def left_table(lacks: Sequence[Lack], processes: int) -> list[str]:
    """Returns the lines that say what is left, and for how long."""
    lines = [f"{'kind':16}{'current':>15}{'wanted':>15}{'CPU hours left':>16}"]
    for lack in lacks:
        hours = "?" if lack.cpu_hours is None else f"{lack.cpu_hours:.2f}"
        lines.append(f"{lack.kind.name:16}{lack.current:15,}{lack.kind.wanted:15,}{hours:>16}")
    total = sum(lack.cpu_hours or 0.0 for lack in lacks)
    return [*lines, f"together {total:.2f} CPU hours, {total / processes:.2f} hours if {processes} cores are free"]
