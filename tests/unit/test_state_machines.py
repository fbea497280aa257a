"""State machines are tables: each pair of state and event has a next state or raises."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

import pytest

from lowtide.broker.coordinator.classic import group_state
from lowtide.broker.coordinator.modern import member_state
from lowtide.broker.coordinator.transactions import transaction_state
from lowtide.broker.network import execution
from lowtide.broker.security import login_state, scram
from lowtide.replication import follower_phase
from lowtide.storage.log.segments import segment_life


class Machine(NamedTuple):
    """A table of transitions, with its enums. `next_state` is the function that the program calls."""

    states: type[Enum]
    events: type[Enum]
    transitions: Mapping[tuple[Any, Any], Any]
    next_state: Callable[[Any, Any], Any]
    read_only: frozenset[Any] = frozenset()
    """States that no event leads to: only a record that is read says them."""

    @property
    def module(self) -> str:
        """The name of its module."""
        return self.states.__module__

    @property
    def source(self) -> str:
        """The module's text: only it has the docstrings of members."""
        file = sys.modules[self.module].__file__
        assert file is not None
        with open(file, encoding="utf-8") as text:
            return text.read()


MACHINES = {
    "classic group": Machine(
        group_state.GroupState, group_state.GroupEvent, group_state.TRANSITIONS, group_state.next_state
    ),
    "consumer group member": Machine(
        member_state.MemberState,
        member_state.MemberEvent,
        member_state.TRANSITIONS,
        member_state.next_state,
        frozenset({member_state.MemberState.UNKNOWN}),
    ),
    "transaction": Machine(
        transaction_state.TransactionState,
        transaction_state.TransactionEvent,
        transaction_state.TRANSITIONS,
        transaction_state.next_state,
    ),
    "connection": Machine(
        execution.Execution,
        execution.ExecutionEvent,
        execution.TRANSITIONS,
        lambda state, event: execution.AFTER[event][state],
    ),
    "login": Machine(login_state.LoginState, login_state.LoginEvent, login_state.TRANSITIONS, login_state.next_state),
    "SCRAM": Machine(scram.ScramState, scram.ScramEvent, scram.TRANSITIONS, scram.next_state),
    "follower": Machine(
        follower_phase.Phase, follower_phase.FollowerEvent, follower_phase.TRANSITIONS, follower_phase.next_phase
    ),
    "segment": Machine(
        segment_life.SegmentLife, segment_life.SegmentEvent, segment_life.TRANSITIONS, segment_life.next_life
    ),
}
ARROW = re.compile(r"^    ([A-Z_, ]+?) +── ([A-Z_, ]+) ──> +([A-Z_]+)$", re.MULTILINE)


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> Machine:
    return MACHINES[request.param]


def test_every_pair_has_a_next_state_or_raises(machine: Machine) -> None:
    assert machine.transitions, "a table without an entry"
    for state, event in itertools.product(machine.states, machine.events):
        following = machine.transitions.get((state, event))
        if following is None:
            with pytest.raises((AssertionError, KeyError), match=state.name):
                machine.next_state(state, event)
        else:
            assert machine.next_state(state, event) is following


def test_the_diagram_is_the_table(machine: Machine) -> None:
    drawn = {
        (state.strip(), event.strip()): following
        for states, events, following in ARROW.findall(sys.modules[machine.module].__doc__ or "")
        for state in states.split(",")
        for event in events.split(",")
    }
    assert drawn == {
        (state.name, event.name): following.name for (state, event), following in machine.transitions.items()
    }


def test_every_state_documents_its_action_and_its_transitions(machine: Machine) -> None:
    source = machine.source
    for state in machine.states:
        found = re.search(rf'^    {state.name} = [^\n]*\n    """(.*?)"""', source, re.MULTILINE | re.DOTALL)
        assert found, state
        action, _, transition = found[1].partition("transition:")
        assert "action:" in action, state
        for (at, event), following in machine.transitions.items():
            if at is state:
                assert re.search(rf"\b{event.name}\b", transition), (state, event)
                assert re.search(rf"\b{following.name}\b", transition), (state, following)


def test_every_state_is_reached_and_every_event_happens(machine: Machine) -> None:
    """An unreachable state is a leftover; the machine starts in the first state."""
    first = next(iter(machine.states))
    assert set(machine.states) == {first, *machine.read_only, *machine.transitions.values()}
    assert not machine.read_only & set(machine.transitions.values())
    assert set(machine.events) == {event for _, event in machine.transitions}
