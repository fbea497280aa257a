"""The model of how a log start travels to an idle follower: rule DR5, two round trips and no wait for a timer of half a
second.

The leader answers a fetch when it has data, or at the end of the fetch's maximum wait. Here that end never comes for a
fetch with the usual long wait: if only that end could continue, the rule has failed. A short wait does end, after
milliseconds. So does the hold of a fetch for a commit; that counts as a fault, because only a slow disk causes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

OLD, ACCEPTED, DURABLE = 0, 1, 2
SHORT, LONG = "short", "long"
COUNTED = 4
"""This many rounds are too many in any case, and counting further would create unlimited states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """DR5 as switches."""

    level: bool = True
    """A fetch is answered at once while the log start is above the last sent one, or only at its rise."""
    short_wait: bool = True
    """A follower that has received a log start and not reported it asks for a short wait."""
    hold: bool = True
    """Before such a fetch it waits for its commit, for some milliseconds."""
    new_leader_wakes: bool = True
    """A new leader answers the parked fetches of its replicas, so that they add the partition."""
    missing_is_short: bool = True
    """While a replica's fetch lacks a partition that this broker leads, it waits only shortly."""


class State(NamedTuple):
    """`fetch` and `parked` are (reported log start, wait, with the partition); `knows` belongs to the follower."""

    leads: bool
    knows: bool
    start: int
    sent: int
    reported: int
    parked: tuple[int, str, bool] | None
    fetch: tuple[int, str, bool] | None
    answer: int | None
    own: int
    rounds: int


def news(state: State, rules: Rules) -> bool:
    """Is there a log start that was not sent?"""
    return rules.level and state.leads and visible(state) > state.sent


def visible(state: State) -> int:
    """Returns the leader's log start that may be reported."""
    return int(state.start == DURABLE)


def answered(state: State, fetch: tuple[int, str, bool]) -> State:
    """The fetch is answered now, with the leader's log start if the partition is in it."""
    sent = visible(state) if fetch[2] and state.leads else state.sent
    count = min(state.rounds + (state.start == DURABLE), COUNTED)
    return state._replace(parked=None, fetch=None, answer=sent, sent=sent, rounds=count)


class Rounds:
    """One leader, one follower, one delete.

    `new`: the leader is about to take the leadership, and its replica's fetch is parked already.
    `rounds` is the number of answers that the leader may send between its own commit and the follower's report.
    """

    def __init__(self, rules: Rules, *, rounds: int, new: bool = False) -> None:
        self.rules = rules
        self.rounds = rounds
        self.new = new

    def starts(self) -> Iterator[tuple[tuple, State]]:
        led = not self.new
        fetch = (0, LONG, led)
        yield ("a fetch is parked",), State(led, led, OLD, 0, 0, fetch, None, None, OLD, 0)
        yield ("a fetch is on its way",), State(led, led, OLD, 0, 0, None, fetch, None, OLD, 0)
        yield ("an answer is on its way",), State(led, led, OLD, 0, 0, None, None, 0, OLD, 0)

    def steps(self, state: State, may_fail: bool) -> Iterator[tuple[bool, tuple, State]]:
        if state.reported:
            return
        yield from self.leader_steps(state, may_fail)
        yield from self.follower_steps(state, may_fail)

    def leader_steps(self, state: State, may_fail: bool) -> Iterator[tuple[bool, tuple, State]]:
        if not state.leads:
            led = state._replace(leads=True)
            woken = self.rules.new_leader_wakes and led.parked is not None
            yield False, ("the broker takes the leadership",), answered(led, led.parked) if woken else led
            return
        if state.start == OLD:
            yield False, ("the leader accepts the delete",), state._replace(start=ACCEPTED)
        if state.start == ACCEPTED:
            risen = state._replace(start=DURABLE)
            wakes = risen.parked is not None and risen.parked[2]
            yield False, ("the leader has it on its disk",), answered(risen, risen.parked) if wakes else risen
        if state.parked is not None and state.parked[1] == SHORT:
            yield False, ("the short wait is over",), answered(state, state.parked)

    def follower_steps(self, state: State, may_fail: bool) -> Iterator[tuple[bool, tuple, State]]:
        rules = self.rules
        if not state.knows and state.leads:
            yield False, ("the follower sees who leads",), state._replace(knows=True)
        if state.own == ACCEPTED:
            yield False, ("the follower has it on its disk",), state._replace(own=DURABLE)
        if state.answer is not None:
            own = ACCEPTED if state.answer and state.own == OLD else state.own
            yield False, ("the answer arrives with log start {}", state.answer), state._replace(answer=None, own=own)
        elif state.fetch is None and state.parked is None:
            holds = state.own == ACCEPTED and rules.hold
            if not holds or may_fail:
                unreported = state.own != OLD and rules.short_wait
                fetch = (int(state.own == DURABLE), SHORT if unreported else LONG, state.knows)
                yield holds, ("the follower fetches, {}", describe(fetch)), state._replace(fetch=fetch)
        elif state.fetch is not None:
            yield False, ("the fetch arrives",), self.arrived(state, state.fetch)

    def arrived(self, state: State, fetch: tuple[int, str, bool]) -> State:
        """The leader records its contents, and answers or parks it."""
        if fetch[2]:
            state = state._replace(reported=fetch[0])
            if news(state, self.rules):
                return answered(state, fetch)
        elif state.leads and self.rules.missing_is_short:
            fetch = (fetch[0], SHORT, False)
        return state._replace(fetch=None, parked=fetch)

    def violation(self, state: State) -> str | None:
        if state.reported:
            return None if state.rounds <= self.rounds else f"DR5: {state.rounds} answers before the delete is reported"
        if not any(True for _ in self.steps(state, True)):
            return "DR5: only the end of a long wait can continue from here"
        return None


def describe(fetch: tuple[int, str, bool]) -> str:
    """A description for traces."""
    return f"log start {fetch[0]}, {fetch[1]} wait{'' if fetch[2] else ', without the partition'}"
