"""The search of `search.py` for tens of millions of states: each takes some eighty bytes, and there are no traces.

A state is packed into one number: of its history and of each broker's side there are some thousand forms only, which
are kept once. Nothing is left out of it, as a hash would: two states are one only if they are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from .cluster_state import World
from .search import Model, without_collection

BITS: Final = 24
"""Of the number of a form."""

_MASK: Final = (1 << BITS) - 1


class Packing:
    """Numbers for states, and back."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._forms: list[Any] = []

    def pack(self, world: World) -> int:
        """Returns the number of a state: equal states have equal numbers, others have others."""
        numbers = self._numbers
        packed = int(world.acknowledged)
        for form in (world.history, *world.replicas):
            number = numbers.get(form)
            if number is None:
                number = numbers[form] = len(self._forms)
                assert number <= _MASK, "more forms than a number can have"
                self._forms.append(form)
            packed = packed << BITS | number
        return packed

    def unpack(self, packed: int) -> World:
        """The state with this number."""
        forms = self._forms
        first, second, third = forms[packed >> 2 * BITS & _MASK], forms[packed >> BITS & _MASK], forms[packed & _MASK]
        return World(forms[packed >> 3 * BITS & _MASK], (first, second, third), bool(packed >> 4 * BITS))


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitedStates:
    """The extent of a search. `broken` is empty if every state was visited and none was wrong.

    `faults` and `steps` are those of the last new state, or of the wrong one. `is_closed`: no state is missing, with
    however many faults.
    """

    states: int
    faults: int
    steps: int
    is_closed: bool
    broken: str = ""

    def __str__(self) -> str:
        reach = f"the last with {self.faults} faults" + (", and more faults lead to no other" if self.is_closed else "")
        return f"{self.states} states, {reach}: {self.broken or 'nothing found'}"


def visit(model: Model, *, faults: int, tell: Callable[[str], None] = lambda _line: None) -> VisitedStates:
    """Visit every state that is reachable with at most that many faults, and stop at the first wrong one: `search`,
    without its trace.

    `tell` gets a line for each depth: how far the search is.
    """
    with without_collection():
        return _visit(model, faults, tell)


def _visit(model: Model, faults: int, tell: Callable[[str], None]) -> VisitedStates:
    """Fewest faults first, then breadth first, as `search.first_violation`."""
    packing = Packing()
    seen: set[int] = set()
    layer: dict[int, list[int]] = {0: [packing.pack(state) for _, state in model.starts()]}
    used = depth = last_faults = last_depth = 0
    while layer and used <= faults:
        following: dict[int, list[int]] = {}
        depth = min(layer)
        frontier: set[int] = set()
        while frontier or layer:
            coming = frontier.union(layer.pop(depth, ())).difference(seen)
            seen.update(coming)
            if coming:
                last_faults, last_depth = used, depth
            frontier, failed, broken = _after(model, packing, coming)
            if broken:
                return VisitedStates(states=len(seen), faults=used, steps=depth, is_closed=False, broken=broken)
            depth += 1
            frontier.difference_update(seen)
            if fresh := failed.difference(seen):
                following[depth] = list(fresh)
            tell(f"{used} faults, {depth} steps: {len(seen)} states, {len(frontier)} to continue from")
        layer = {
            number: fresh
            for number, states in following.items()
            if (fresh := [state for state in states if state not in seen])
        }
        used += 1
    return VisitedStates(states=len(seen), faults=last_faults, steps=last_depth, is_closed=not layer)


def _after(model: Model, packing: Packing, states: Iterable[int]) -> tuple[set[int], set[int], str]:
    """Returns the next states without and with one more fault, and the error in one of them, or ""."""
    following: set[int] = set()
    failed: set[int] = set()
    for packed in states:
        state = packing.unpack(packed)
        if broken := model.violation(state):
            return following, failed, broken
        for fault, _, after in model.steps(state, True):
            (failed if fault else following).add(packing.pack(after))
    return following, failed, ""
