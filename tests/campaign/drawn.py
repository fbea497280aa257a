"""Runs of the simulated cluster that are chosen, not left to the seed alone: few faults at a time, near what was seldom
seen. Pure.

A run in which all faults strike hides what two of them do together. Here a run has some of them only. Half of the runs
are drawn freely, half are changed copies of a run that reached a rare state. A state is what a fault struck upon
(`ClusterSimulation.states`): the faults under way, and how many brokers and replicas were left.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lowtide.runtime.random import Random
from lowtide.simulation.cluster_simulation import KINDS
from lowtide.simulation.faults import FAULTS, WHERE_NAMED

FAULTS_MAX = 12
STRIKES = (4, 6, 8, 10, 14)
DIRECTORIES = (("/a",), ("/a", "/b"), ("/a", "/b", "/c"))
MOVES = "moves between directories"


class DrawnRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that a run depends on; see `simulate_cluster`. The same values give the same run."""

    seed: int
    faults: tuple[str, ...]
    strikes: int
    kinds: tuple[str, ...] = ("partitions",)
    directories: tuple[str, ...] = ("/a",)
    erases: bool = False
    unclean: bool = False


class Sight(msgspec.Struct):
    """How often each state was reached, and by which run first."""

    count: int
    run: DrawnRun


Reached = dict[str, Sight]
"""State → when it was reached."""


def draw(seed: int, reached: Mapping[str, Sight]) -> DrawnRun:
    """Returns the run of a seed. It depends on the states of all runs before, so only the run itself repeats it."""
    random = Random(seed)
    if reached and random.random() < 0.5:
        states = sorted(reached)
        rare = random.choices(states, [1 / reached[state].count for state in states])[0]
        return near(reached[rare].run, seed, random)
    names = sorted(FAULTS | WHERE_NAMED)
    directories = random.choice(DIRECTORIES)
    return DrawnRun(
        seed=seed,
        faults=possible(random.sample(names, random.randint(2, FAULTS_MAX)), directories),
        strikes=random.choice(STRIKES),
        kinds=tuple(kind for kind in KINDS if kind == "partitions" or random.random() < 0.2),
        directories=directories,
        erases=random.random() < 0.2,
        unclean=random.random() < 0.1,
    )


def near(run: DrawnRun, seed: int, random: Random) -> DrawnRun:
    """Returns the same with another seed and one fault more, less, or another."""
    faults = list(run.faults)
    if len(faults) > 1 and random.random() < 0.6:
        faults.remove(random.choice(faults))
    others = sorted((FAULTS | WHERE_NAMED).keys() - set(faults))
    if random.random() < 0.6:
        faults.append(random.choice(others))
    return msgspec.structs.replace(run, seed=seed, faults=possible(faults, run.directories))


def possible(faults: list[str], directories: tuple[str, ...]) -> tuple[str, ...]:
    """Without what such a cluster can't have; never none."""
    return tuple(sorted(fault for fault in faults if fault != MOVES or len(directories) > 1)) or ("kill",)


def note(reached: Reached, run: DrawnRun, states: Mapping[str, int]) -> int:
    """Adds the states of a run. Returns how many of them are new."""
    new = 0
    for state in states:
        sight = reached.get(state)
        if sight is None:
            reached[state] = Sight(1, run)
            new += 1
        else:
            sight.count += 1
    return new
