"""The reduced model of a cluster reaches exactly what the full one reaches, in a fraction of the states."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from typing import Any

import pytest

from .cluster import Cluster
from .cluster_state import HELD, LEASE, LOST, MOVE, OLD_DIRECTORY, REPLICAS, RESTART, Rules, Scope, World
from .reduction import ReducedModel, canonical, renamed
from .search import search
from .test_cluster import FAULTS, NEEDED, Without
from .wide import Packing, visit

NOBODY_READS = None
EVERY = 97
"""One of this many states, in the order of a search, is checked."""

SCOPES = [(None, {RESTART}), (0, set()), (2, set())]
LONG_SCOPES = [
    (None, {LEASE, RESTART}),
    (None, {MOVE, OLD_DIRECTORY}),
    (None, {HELD, LOST}),
    (0, {LEASE, MOVE}),
    (2, {LEASE, MOVE}),
]


def scope(faults: set[str], reader: int | None = NOBODY_READS) -> Scope:
    return Scope(faults=frozenset(faults), reader=reader, first_isrs=((0, 1),))


def reached(model: Any, faults: int) -> dict[World, int]:
    """All states with the fewest faults that lead to them, by a search independent of the others."""
    seen: dict[World, int] = {}
    waiting = [(world, 0) for _, world in model.starts()]
    while waiting:
        world, used = waiting.pop()
        if seen.get(world, faults + 1) <= used:
            continue
        seen[world] = used
        waiting += [(after, used + fault) for fault, _, after in model.steps(world, used < faults)]
    return seen


@cache
def of_restarts() -> dict[World, int]:
    return reached(Cluster(Rules(), scope({RESTART})), 1)


@pytest.mark.parametrize(
    ("reader", "kinds"),
    [
        pytest.param(reader, kinds, marks=pytest.mark.slow if kinds else ())
        for reader, kinds in SCOPES + (LONG_SCOPES if FAULTS else [])
    ],
)
def test_the_reduced_search_reaches_each_state_in_its_canonical_form(reader: int | None, kinds: set[str]):
    """No state is missing, none is added, and each takes as many faults as before."""
    cluster = Cluster(Rules(), scope(kinds, reader))
    full = of_restarts() if kinds == {RESTART} else reached(cluster, 1 if kinds else 0)
    expected: dict[World, int] = {}
    for world, used in full.items():
        form = canonical(world, reader)
        expected[form] = min(used, expected.get(form, used))
    assert reached(ReducedModel(cluster), 1 if kinds else 0) == expected


@pytest.mark.parametrize(
    "without", [without for without in NEEDED if FAULTS or not without.faults], ids=lambda without: without.rule
)
def test_without_one_rule_the_reduced_search_finds_the_same_harm(without: Without):
    """The violation is as many steps away. (The names of brokers may differ.)"""
    found = visit(ReducedModel(Cluster(Rules(**without.change), without.allowed)), faults=without.faults)
    assert (found.broken[:2], found.steps, found.faults) == (without.harm, without.steps, without.faults)


def test_a_state_with_other_names_has_the_same_canonical_form():
    worlds = list(of_restarts())[::EVERY]
    forms = {canonical(world, NOBODY_READS) for world in worlds}
    assert 1 < len(forms) < len(worlds)
    for world in worlds:
        form = canonical(world, NOBODY_READS)
        assert canonical(form, NOBODY_READS) == form
        assert {canonical(renamed(world, names), NOBODY_READS) for names in permutations(REPLICAS)} == {form}


def test_a_reader_keeps_its_name():
    for world in list(reached(Cluster(Rules(), scope(set(), reader=2)), 0))[::EVERY]:
        assert canonical(world, 2).replicas[2].start == world.replicas[2].start
        assert canonical(world, 2).replicas[2].trusted == min(world.replicas[2].trusted, 1)


@pytest.mark.slow
def test_packed_states_are_the_same_afterwards():
    packing = Packing()
    worlds = list(of_restarts())[::EVERY]
    numbers = [packing.pack(world) for world in worlds]
    assert len(set(numbers)) == len(worlds)
    assert [packing.unpack(number) for number in numbers] == worlds
    assert [packing.pack(world) for world in worlds] == numbers


def test_a_wide_search_visits_what_a_search_does():
    cluster = ReducedModel(Cluster(Rules(), scope({LOST})))
    lines: list[str] = []
    found = visit(cluster, faults=1, tell=lines.append)
    assert found.states == search(cluster, faults=1).states
    assert found.faults == 1
    assert not found.is_closed
    assert lines[-1] == f"1 faults, {found.steps + 1} steps: {found.states} states, 0 to continue from"


def test_a_wide_search_that_no_fault_can_extend_is_closed():
    cluster = ReducedModel(Cluster(Rules(), scope(set())))
    found = visit(cluster, faults=5)
    assert found.is_closed
    assert found.faults == 0
    assert (
        str(found) == f"{found.states} states, the last with 0 faults, and more faults lead to no other: nothing found"
    )
