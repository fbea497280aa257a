"""The next step of a campaign: decided from the ledger alone. Pure.

The kind with the least CPU time relative to its share is next, with seeds that follow those of its last run. A new
ledger begins behind the seeds that others have published, so that another machine searches new ones. A campaign stops
when the disk has less free space than the minimum.
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
    """The usage of this campaign, and the current free space of the disk."""

    runs: int
    seconds: float
    free_bytes: int


def next_step(kinds: Sequence[Kind], totals: Mapping[str, Totals], limits: Limits, spent: Spent) -> Run | Stop:
    """`kinds` is not empty. Among equals the first one is chosen."""
    if spent.free_bytes < limits.floor_bytes:
        return Stop(f"the disk has {spent.free_bytes >> 20:,} MiB left, the floor is {limits.floor_bytes >> 20:,} MiB")
    if limits.runs is not None and spent.runs >= limits.runs:
        return Stop(f"{spent.runs} runs are done")
    if limits.seconds is not None and spent.seconds >= limits.seconds:
        return Stop(f"{limits.seconds:.0f} seconds are over")
    kind = min(kinds, key=lambda kind: totals.get(kind.name, Totals()).cpu_seconds / kind.share)
    first = totals[kind.name].next_seed if kind.name in totals else limits.first_seeds.get(kind.name, 0)
    return Run(kind, first, first + kind.seeds)
