"""The model of one delete that waits at its leader: which events must wake it (rule DR4), and which leadership may
answer it (rule DR6).

One follower is enough. The wait is right if no request with an answer is ever parked, if success is answered only by
the leadership that accepted the request and only while the condition holds, and if no request is answered after the
deadline.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

ACCEPTED, PARKED, NONE, NOT_LEADER, TIMED_OUT = (
    "accepted",
    "parked",
    "NONE",
    "NOT_LEADER_OR_FOLLOWER",
    "REQUEST_TIMED_OUT",
)
SAME, LOST, AGAIN, ANEW = (
    "leads",
    "leads no more",
    "leads again, in a later leader epoch",
    "leads a new topic of the same name",
)


class Event(Enum):
    """The events that can end a delete.

    An event that is not in `Rules.wake` changes the state without a check of the purgatory.
    """

    FETCH = "the follower reports the delete"
    ISR = "the follower leaves the ISR"
    ASSIGNMENT = "the follower is no replica any more"
    FENCED = "the follower's broker is fenced"
    SHUTTING_DOWN = "the follower's broker shuts down"
    DIRECTORY_OF_FOLLOWER = "the follower's log directory fails"
    SLOW = "the follower has not fetched for too long"
    OWN_DIRECTORY = "our log directory fails"
    SELF_FENCED = "we fence ourselves"
    LEADERSHIP = "another broker leads"
    LEADERSHIP_FLIPS = "we see at once that we lost the leadership and have it again"
    ANEW = "we see at once that the topic was deleted and created again, and that we lead it"
    DELETED = "the partition is deleted"
    RETURNED = "the follower's broker returns"
    DEADLINE = "the deadline passes"


class State(NamedTuple):
    """The state of the request, of our leadership, and of the follower in our view."""

    request: str
    leads: str
    serving: bool
    member: bool
    live: bool
    reached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """DR4 and DR6 as switches."""

    wake: frozenset[Event] = frozenset(Event)
    checked_when_durable: bool = True
    bound_to_leader_epoch: bool = True
    bound_to_topic_id: bool = True


def holds(state: State) -> bool:
    """Rule DR3: every replica that must have the delete has it."""
    return state.reached or not (state.member or state.live)


def bound(state: State, rules: Rules) -> bool:
    """Does the request still belong to our leadership, as far as the rules check it?"""
    if not state.serving or state.leads == LOST:
        return False
    if state.leads == AGAIN:
        return not rules.bound_to_leader_epoch
    return state.leads == SAME or not rules.bound_to_topic_id


def checked(state: State, rules: Rules) -> State:
    """A parked request gets its answer, if there is one."""
    if state.request != PARKED:
        return state
    if not bound(state, rules):
        return state._replace(request=NOT_LEADER)
    return state._replace(request=NONE) if holds(state) else state


def outcomes(state: State) -> Iterator[tuple[Event, State]]:
    """The state after each event.

    The ISR loses a member some time after the reason; a member may be slow, fenced or removed.
    """
    if state.live and state.leads == SAME:
        yield Event.FETCH, state._replace(reached=True)
    if state.live:
        yield Event.FENCED, state._replace(live=False)
        yield Event.SHUTTING_DOWN, state._replace(live=False)
        yield Event.DIRECTORY_OF_FOLLOWER, state._replace(live=False)
        yield Event.SLOW, state._replace(live=False)
    else:
        yield Event.RETURNED, state._replace(live=True, reached=False)
    if state.member and not state.live:
        yield Event.ISR, state._replace(member=False)
    if state.member or state.live:
        yield Event.ASSIGNMENT, state._replace(member=False, live=False)
    if state.serving:
        yield Event.OWN_DIRECTORY, state._replace(serving=False)
        yield Event.SELF_FENCED, state._replace(serving=False)
    if state.leads == SAME:
        yield Event.LEADERSHIP, state._replace(leads=LOST)
        yield Event.DELETED, state._replace(leads=LOST)
        yield Event.LEADERSHIP_FLIPS, state._replace(leads=AGAIN, reached=False)
        yield Event.ANEW, state._replace(leads=ANEW, reached=False)
    elif state.live and state.leads in {AGAIN, ANEW}:
        yield Event.FETCH, state._replace(reached=True)


class Wakes:
    """The state from the acceptance of a delete by the leader until its answer."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def starts(self) -> Iterator[tuple[tuple, State]]:
        for member, live in ((True, True), (True, False), (False, True)):
            known = f"{'in' if member else 'outside'} the ISR and {'live' if live else 'not live'}"
            yield ("a delete is accepted; the follower is {}", known), State(ACCEPTED, SAME, True, member, live, False)

    def steps(self, state: State, may_fail: bool) -> Iterator[tuple[bool, tuple, State]]:
        rules = self.rules
        if state.request == ACCEPTED:
            parked = state._replace(request=PARKED)
            yield False, ("the delete is durable",), checked(parked, rules) if rules.checked_when_durable else parked
        if state.request not in {ACCEPTED, PARKED}:
            return
        if state.request == PARKED:
            late = checked(state, rules) if Event.DEADLINE in rules.wake else state
            yield False, (Event.DEADLINE.value,), late if late.request != PARKED else late._replace(request=TIMED_OUT)
        for event, after in outcomes(state):
            yield False, (event.value,), checked(after, rules) if event in rules.wake else after

    def violation(self, state: State) -> str | None:
        if state.request == NONE and (state.leads != SAME or not state.serving):
            return f"DR6: success is answered by a broker that {state.leads}"
        if state.request == NONE and not holds(state):
            return "DR3: success is answered without the follower"
        if state.request == PARKED and (state.leads != SAME or not state.serving):
            return f"DR4: a request waits at a broker that {state.leads if state.serving else 'serves nothing'}"
        if state.request == PARKED and holds(state):
            return "DR4: a request waits for nothing"
        return None
