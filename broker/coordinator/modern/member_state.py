"""The states of a member of a consumer group on the way to its target.

    STABLE, UNREVOKED_PARTITIONS, UNRELEASED_PARTITIONS           ── MUST_REVOKE ──> UNREVOKED_PARTITIONS
    STABLE, UNREVOKED_PARTITIONS, UNRELEASED_PARTITIONS, UNKNOWN  ── MUST_WAIT ──>   UNRELEASED_PARTITIONS
    STABLE, UNREVOKED_PARTITIONS, UNRELEASED_PARTITIONS, UNKNOWN  ── ARRIVED ──>     STABLE
    STABLE, UNREVOKED_PARTITIONS, UNRELEASED_PARTITIONS, UNKNOWN  ── CLEARED ──>     STABLE

A member that joins begins in STABLE, in epoch 0. A member that is loaded begins in the state of its record; only
records have UNKNOWN. Every other pair is a bug and raises.

Source: Kafka's `MemberState`, `CurrentAssignmentBuilder`; KIP-848.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Final


class MemberState(IntEnum):
    """The state of a member. The numbers are those of its record."""

    STABLE = 0
    """It has its part of its epoch's target. action: heartbeats return its assignment, until there is a newer target.
    transition: a newer target, or its subscription, takes partitions away (MUST_REVOKE) → UNREVOKED_PARTITIONS; a newer
    target gives it partitions that others still have (MUST_WAIT) → UNRELEASED_PARTITIONS; otherwise (ARRIVED), and
    when it leaves (CLEARED) → STABLE."""
    UNREVOKED_PARTITIONS = 1
    """It has to revoke partitions. action: it stays until it no longer reports them; after its rebalance timeout it is
    removed. transition: a newer target takes more away (MUST_REVOKE) → UNREVOKED_PARTITIONS; others still have
    partitions of its target (MUST_WAIT) → UNRELEASED_PARTITIONS; it has its target (ARRIVED), or leaves (CLEARED) →
    STABLE."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others still have. action: each heartbeat assigns those that are free.
    transition: some are not free (MUST_WAIT) → UNRELEASED_PARTITIONS; a newer target takes partitions away
    (MUST_REVOKE) → UNREVOKED_PARTITIONS; all are free (ARRIVED), or it leaves (CLEARED) → STABLE."""
    UNKNOWN = 127
    """A newer coordinator's state, read from a record. action: a member that reports partitions, or reports nothing, is
    fenced and must join again. transition: it reports none, and others still have partitions of its target (MUST_WAIT)
    → UNRELEASED_PARTITIONS, else (ARRIVED) → STABLE; it leaves (CLEARED) → STABLE."""

    __hash__ = int.__hash__
    """The hash of Enum is a Python function."""


class MemberEvent(Enum):
    """What changes a member's state: the outcome of comparing its assignment with its target, and its end."""

    MUST_REVOKE = "it may still have partitions that its target takes away"
    MUST_WAIT = "others may still have partitions of its target"
    ARRIVED = "it has exactly its target"
    CLEARED = "the record of its assignment is deleted"

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
    """Returns the next state. Raises AssertionError if the event can't happen in the state."""
    following = TRANSITIONS.get((state, event))
    assert following is not None, f"{event.name} can't happen to a member in {state.name}"
    return following


def state_of_record(number: int) -> MemberState:
    """Returns the state in a record; UNKNOWN for a number of a newer coordinator."""
    return _STATES.get(number, MemberState.UNKNOWN)
