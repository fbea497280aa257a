"""A delete that waits is answered at the event that ends its wait, and only by the leadership that accepted it."""

from __future__ import annotations

from operator import attrgetter

import pytest

from .search import search, stuck
from .wakes import PARKED, Event, Rules, State, Wakes

NEEDLESS = {Event.RETURNED, Event.DEADLINE}
"""A returning broker is an additional replica to wait for. If all other events wake, the deadline finds nothing."""


def test_every_wait_ends_at_its_event():
    found = search(Wakes(Rules()), faults=0)
    assert not found.broken, str(found)
    assert found.states > 50


def test_every_request_can_be_answered():
    def answered(state: State) -> bool:
        return state.request not in {PARKED, "accepted"}

    found = stuck(Wakes(Rules()), faults=0, goal=answered)
    assert not found.broken, str(found)


@pytest.mark.parametrize("event", sorted(set(Event) - NEEDLESS, key=attrgetter("name")), ids=attrgetter("name"))
def test_each_event_must_wake(event: Event):
    """Without it a request waits for nothing, or at a former leader, until its deadline."""
    found = search(Wakes(Rules(wake=frozenset(Event) - {event})), faults=0)
    print(found)
    assert found.broken.startswith("DR4: "), str(found)
    assert found.steps[-1] == event.value
    assert found.length == 2, str(found)


@pytest.mark.parametrize("event", sorted(NEEDLESS, key=attrgetter("name")), ids=attrgetter("name"))
def test_two_events_need_not_wake(event: Event):
    """They are in the rule for safety; the model finds no violation without them."""
    found = search(Wakes(Rules(wake=frozenset(Event) - {event})), faults=0)
    assert not found.broken, str(found)


def test_the_deadline_is_the_last_chance():
    """If an event is left out, the deadline finds that the condition holds: the answer is late, but still right."""

    class Truth(Wakes):
        def violation(self, state: State) -> str | None:
            return (
                "timed out without a reason"
                if state.request == "REQUEST_TIMED_OUT" and not (state.member or state.live)
                else None
            )

    forgotten = frozenset(Event) - {Event.SLOW}
    assert not search(Truth(Rules(wake=forgotten)), faults=0).broken
    assert search(Truth(Rules(wake=forgotten - {Event.DEADLINE})), faults=0).length == 3


@pytest.mark.parametrize(
    ("rules", "harm"),
    [
        (Rules(bound_to_leader_epoch=False), "DR4: a request waits at a broker that leads again"),
        (Rules(bound_to_topic_id=False), "DR4: a request waits at a broker that leads a new topic"),
        (Rules(checked_when_durable=False), "DR4: "),
    ],
    ids=["leader epoch", "topic id", "checked when durable"],
)
def test_a_request_belongs_to_its_leadership(rules: Rules, harm: str):
    found = search(Wakes(rules), faults=0)
    print(found)
    assert found.broken.startswith(harm), str(found)
    assert found.length == 2, str(found)


@pytest.mark.parametrize(
    "rules", [Rules(bound_to_leader_epoch=False), Rules(bound_to_topic_id=False)], ids=["leader epoch", "topic id"]
)
def test_otherwise_another_leadership_answers_it(rules: Rules):
    """Such a request ends with success, from a leadership that never accepted it."""

    class Answers(Wakes):
        def violation(self, state: State) -> str | None:
            broken = Wakes.violation(self, state)
            return broken if broken and broken.startswith("DR6") else None

    found = search(Answers(rules), faults=0)
    print(found)
    assert found.broken, str(found)
    assert found.length == 3, str(found)
