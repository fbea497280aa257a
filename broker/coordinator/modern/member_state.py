"""How far a member is on its way to its target: the states, and what leads from one to the next.

    STABLE, UNREVOKED_PARTITIONS, UNRELEASED_PARTITIONS           ── MUST_REVOKE ──> UNREVOKED_PARTITIONS
    STABLE, UNREVOKED_PARTITIONS, UNRELEASED_PARTITIONS, UNKNOWN  ── MUST_WAIT ──>   UNRELEASED_PARTITIONS
    STABLE, UNREVOKED_PARTITIONS, UNRELEASED_PARTITIONS, UNKNOWN  ── ARRIVED ──>     STABLE
    STABLE, UNREVOKED_PARTITIONS, UNRELEASED_PARTITIONS, UNKNOWN  ── CLEARED ──>     STABLE

A member that joins begins in STABLE, in epoch 0. One that is read from its record begins in the state of the record;
UNKNOWN comes from nowhere else. Every other pair is a mistake in this program, and raises.

Source: Kafka's `MemberState`, `CurrentAssignmentBuilder`; KIP-848.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Final


class MemberState(IntEnum):
    """How far a member is. The numbers are those of its record."""

    STABLE = 0
    """It has what its epoch's target gave it. action: heartbeats are answered with what it has; it stays while there is no newer target.
    transition: a newer target, or its own subscription, takes away what it has (MUST_REVOKE) → UNREVOKED_PARTITIONS; a newer target gives
    it what others still have (MUST_WAIT) → UNRELEASED_PARTITIONS; otherwise (ARRIVED), and when it leaves (CLEARED) → STABLE."""
    UNREVOKED_PARTITIONS = 1
    """It is asked to give partitions back. action: it stays until it no longer names them among what it has; after its rebalance time-out
    it is removed. transition: a newer target takes away more (MUST_REVOKE) → UNREVOKED_PARTITIONS; others still have what it is to get
    (MUST_WAIT) → UNRELEASED_PARTITIONS; it has all of its target (ARRIVED), or leaves (CLEARED) → STABLE."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others still have. action: each heartbeat gives it those that are free. transition: some are not free
    (MUST_WAIT) → UNRELEASED_PARTITIONS; a newer target takes something away (MUST_REVOKE) → UNREVOKED_PARTITIONS; all are free (ARRIVED),
    or it leaves (CLEARED) → STABLE."""
    UNKNOWN = 127
    """A newer coordinator's state, read from a record. action: a member that has something, or doesn't say, is fenced and must join again.
    transition: it has nothing, and others still have what it is to get (MUST_WAIT) → UNRELEASED_PARTITIONS, else (ARRIVED) → STABLE; it
    leaves (CLEARED) → STABLE."""

    __hash__ = int.__hash__
    """The hash that enumerations come with is a function in Python."""


class MemberEvent(Enum):
    """What changes a member's state: the outcomes of a comparison of what it has with its target, and its end."""

    MUST_REVOKE = "it may still have what it is not to have"
    MUST_WAIT = "others may still have what it is to get"
    ARRIVED = "it has all of its target, and nothing else"
    CLEARED = "the record of what it has is taken back"

    __hash__ = object.__hash__


_KNOWN: Final = (MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS)

TRANSITIONS: Final[Mapping[tuple[MemberState, MemberEvent], MemberState]] = {
    **{(state, MemberEvent.MUST_REVOKE): MemberState.UNREVOKED_PARTITIONS for state in _KNOWN},
    **{(state, MemberEvent.MUST_WAIT): MemberState.UNRELEASED_PARTITIONS for state in MemberState},
    **{(state, MemberEvent.ARRIVED): MemberState.STABLE for state in MemberState},
    **{(state, MemberEvent.CLEARED): MemberState.STABLE for state in MemberState},
}

_STATES: Final = {int(state): state for state in MemberState}


def next_state(state: MemberState, event: MemberEvent) -> MemberState:
    """The state that an event leads to. Raises AssertionError where the event can't happen in the state."""
    following = TRANSITIONS.get((state, event))
    assert following is not None, f"{event.name} can't happen to a member in {state.name}"
    return following


def state_of_record(number: int) -> MemberState:
    """The state that a record says; UNKNOWN for a number of a newer coordinator's."""
    return _STATES.get(number, MemberState.UNKNOWN)
