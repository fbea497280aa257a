"""Explicit-state search: every state that a model can reach with a bounded number of faults is visited once.

The order is fewest faults first, then fewest steps: the trace is a shortest one among those with the fewest faults. A
state that was reached with few faults is not entered again with more: what follows with fewer faults left also follows
with more. A model defines its states (any hashable values), the start, the next steps, and violations.
"""

from __future__ import annotations

import contextlib
import gc
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

Label = tuple[Any, ...]
"""A format string and its arguments: formatted only for the few steps that are printed."""

STATES_MAX = 5_000_000
"""A model that grows beyond this lacks a bound."""


class Model(Protocol):
    """A model that can be searched."""

    def starts(self) -> Iterator[tuple[Label, Any]]: ...

    def steps(self, state: Any, may_fail: bool) -> Iterator[tuple[bool, Label, Any]]: ...

    def violation(self, state: Any) -> str | None: ...


@dataclass(slots=True)
class SearchResult:
    """The result of a search. `broken` is empty if every state was visited and none was wrong."""

    states: int
    broken: str = ""
    steps: list[str] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Steps after the start."""
        return max(len(self.steps) - 1, 0)

    def __str__(self) -> str:
        if not self.broken:
            return f"{self.states} states, nothing found"
        lines = [f"{self.states} states, then: {self.broken}"]
        lines += [f"  {number:2}. {text}" for number, text in enumerate(self.steps)]
        return "\n".join(lines)


class ReachedStates:
    """The states seen so far, each with the step that led to it first."""

    def __init__(self) -> None:
        self.parents: dict[Any, tuple[Any, Label]] = {}

    def __len__(self) -> int:
        return len(self.parents)

    def trace(self, state: Any) -> list[str]:
        """Returns one line for each step from the start to the state."""
        lines = []
        while state is not None:
            state, label = self.parents[state]
            lines.append(label[0].format(*label[1:]))
        return lines[::-1]


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """States are tuples of tuples, without cycles: repeated garbage collections over millions of them find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def search(model: Model, *, faults: int) -> SearchResult:
    """Visit every state that is reachable with at most that many faults, and stop at the first wrong one."""
    with without_collection():
        return first_violation(model, faults)


def first_violation(model: Model, faults: int) -> SearchResult:
    """Breadth first, one layer for each number of faults."""
    reached = ReachedStates()
    parents = reached.parents
    layer: dict[int, list[tuple[Any, Any, Label]]] = {0: [(state, None, label) for label, state in model.starts()]}
    for used in range(faults + 1):
        may_fail = used < faults
        following: dict[int, list[tuple[Any, Any, Label]]] = defaultdict(list)
        depth = min(layer, default=0)
        frontier: list[Any] = []
        while frontier or layer:
            for state, parent, label in layer.pop(depth, ()):
                if state not in parents:
                    parents[state] = (parent, label)
                    if broken := model.violation(state):
                        return SearchResult(len(parents), broken, reached.trace(state))
                    frontier.append(state)
            depth += 1
            coming: list[Any] = []
            for state in frontier:
                for fault, label, after in model.steps(state, may_fail):
                    if fault:
                        if after not in parents:
                            following[depth].append((after, state, label))
                        continue
                    entry = (state, label)
                    if parents.setdefault(after, entry) is not entry:
                        continue
                    if broken := model.violation(after):
                        return SearchResult(len(parents), broken, reached.trace(after))
                    coming.append(after)
            frontier = coming
            assert len(parents) < STATES_MAX, "a bound is missing"
        layer = following
    return SearchResult(len(parents))


def stuck(model: Model, *, faults: int, goal: Callable[[Any], bool]) -> SearchResult:
    """Search a state from which the goal cannot be reached any more, even if nothing fails from then on."""
    with without_collection():
        reached, before, goals = graph(model, faults, goal)
        able = set(goals)
        waiting = list(goals)
        while waiting:
            for state in before.get(waiting.pop(), ()):
                if state not in able:
                    able.add(state)
                    waiting.append(state)
        for state in reached.parents:
            if state not in able:
                return SearchResult(len(reached), "the goal can't be reached any more", reached.trace(state))
        return SearchResult(len(reached))


def graph(
    model: Model, faults: int, goal: Callable[[Any], bool]
) -> tuple[ReachedStates, dict[Any, list[Any]], list[Any]]:
    """Returns all reachable states, the predecessors of each without a fault, and the states at the goal."""
    reached = ReachedStates()
    before: dict[Any, list[Any]] = defaultdict(list)
    goals = []
    layer: list[tuple[Any, Any, Label]] = [(state, None, label) for label, state in model.starts()]
    for used in range(faults + 1):
        following = []
        while layer:
            coming: list[tuple[Any, Any, Label]] = []
            for state, parent, label in layer:
                if state in reached.parents:
                    continue
                reached.parents[state] = (parent, label)
                if goal(state):
                    goals.append(state)
                    continue
                for fault, step, after in model.steps(state, used < faults):
                    if fault:
                        following.append((after, state, step))
                    else:
                        before[after].append(state)
                        coming.append((after, state, step))
            layer = coming
        layer = following
    return reached, before, goals
