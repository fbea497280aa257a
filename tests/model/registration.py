"""The model of a registration: how a log directory that lost deletes is detected (rule DR8).

Each start draws a number from the store. It is written to the log directory, durably, and then to the store, in the
transaction that registers. A directory whose number is missing or behind the store's was restored from a copy, or is
new: it is marked in the store, in that same transaction, and only then its number is written again. The mark prevents
the election of its replicas; joining the ISR again removes it.

A copy from the same registration as the deletes that it lacks cannot be distinguished; that is not promised, and left
out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

MISSING = -1
NUMBERS = 5
"""The number of registrations that are explored."""

DOWN, READ, WRITTEN, REGISTERED, UP = "down", "read", "directory written", "registered", "up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The steps of a registration, each as a switch."""

    compares: bool = True
    directory_before_store: bool = True
    marked_with_registration: bool = True
    marked_before_number: bool = True
    mark_stays: bool = True
    number_is_drawn: bool = True
    """The epoch comes from a rising counter in the store, or is one more than the last registered one."""


class State(NamedTuple):
    """`number`, `drawn` and `marked` are in the store, `own` in the directory; `lost`: it lacks deletes that were
    reported from it.

    `stale` and `chosen` are the results of a start. `copy` is the number in a copy that was made while the broker was
    down, and `outdated` says that the broker was registered since.
    """

    phase: str
    number: int
    drawn: int
    marked: bool
    own: int
    lost: bool
    stale: bool
    chosen: int
    copy: int | None
    outdated: bool


class Registration:
    """One broker with one log directory."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def starts(self) -> Iterator[tuple[tuple, State]]:
        yield ("a broker that has been in use",), State(UP, 1, 1, False, 1, False, False, 1, None, False)

    def steps(self, state: State, may_fail: bool) -> Iterator[tuple[bool, tuple, State]]:
        if state.phase == DOWN:
            if state.drawn < NUMBERS:
                yield False, ("the broker starts",), self.read(state)
            yield from self.meddling(state, may_fail)
            return
        if state.phase == UP:
            yield False, ("the broker stops",), state._replace(phase=DOWN, stale=False, chosen=0)
            if state.marked:
                yield False, ("its replica joins the ISR again",), state._replace(marked=False, lost=False)
            return
        if may_fail:
            yield True, ("THE BROKER CRASHES",), state._replace(phase=DOWN, stale=False, chosen=0)
        yield from self.registering(state)

    def meddling(self, state: State, may_fail: bool) -> Iterator[tuple[bool, tuple, State]]:
        """Changes by operators to the directory of a stopped broker."""
        if state.copy is None and not state.lost:
            yield (
                False,
                ("an operator copies the directory, number {}", state.own),
                state._replace(copy=state.own, outdated=False),
            )
        if not may_fail:
            return
        if state.copy is not None:
            back = state._replace(own=state.copy, lost=state.outdated, copy=None, outdated=False)
            yield True, ("THE COPY IS PUT BACK, number {}", state.copy), back
        yield True, ("THE DIRECTORY IS REPLACED by an empty one",), state._replace(own=MISSING, lost=True)

    def read(self, state: State) -> State:
        """The directory is compared with the store, and a new number is drawn."""
        stale = self.rules.compares and state.own < state.number
        if not self.rules.number_is_drawn:
            return state._replace(
                phase=READ, stale=stale, chosen=state.number + 1, drawn=max(state.drawn, state.number + 1)
            )
        return state._replace(phase=READ, stale=stale, chosen=state.drawn + 1, drawn=state.drawn + 1)

    def registering(self, state: State) -> Iterator[tuple[bool, tuple, State]]:
        """Directory, then store; or, for a stale directory, store, then directory."""
        rules = self.rules
        first = not rules.marked_before_number if state.stale else rules.directory_before_store
        if state.phase == READ and first:
            yield False, ("the directory gets number {}", state.chosen), state._replace(phase=WRITTEN, own=state.chosen)
        elif state.phase in {READ, WRITTEN}:
            marked = (state.stale and rules.marked_with_registration) or (
                state.marked and (rules.mark_stays or state.stale)
            )
            registered = state._replace(number=state.chosen, marked=marked, outdated=state.copy is not None)
            phase = UP if state.phase == WRITTEN else REGISTERED
            label = ("the store registers number {}{}", state.chosen, ", the directory as stale" if marked else "")
            yield False, label, registered._replace(phase=phase)
        else:
            marked = state.marked or state.stale
            yield (
                False,
                ("the directory gets number {}", state.chosen),
                state._replace(phase=UP, own=state.chosen, marked=marked),
            )

    def violation(self, state: State) -> str | None:
        if state.phase not in {REGISTERED, UP}:
            return None
        if state.lost and not state.marked:
            return "D1: a directory that lost deletes can be elected"
        if state.marked and not state.lost:
            return "S1: a directory that lost nothing can't be elected"
        return None
