"""The states of a classic group, and its transitions.

    EMPTY, COMPLETING_REBALANCE, STABLE  ── REBALANCE ──>  PREPARING_REBALANCE
    PREPARING_REBALANCE                  ── ALL_JOINED ──> COMPLETING_REBALANCE
    PREPARING_REBALANCE                  ── ALL_LEFT ──>   EMPTY
    COMPLETING_REBALANCE                 ── ASSIGNED ──>   STABLE
    EMPTY, PREPARING_REBALANCE, COMPLETING_REBALANCE, STABLE  ── GONE ──> DEAD

A group that is loaded begins in EMPTY without members, otherwise in STABLE; so does a downgraded consumer group. Every
other pair is a bug and raises.

Source: Kafka's `ClassicGroupState`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class GroupState(Enum):
    """What a group is doing. Values are the names in responses."""

    EMPTY = "Empty"
    """No members. action: joins begin a rebalance, commits without a member are kept. transition: a member joins
    (REBALANCE) → PREPARING_REBALANCE; deleted, expired or unloaded (GONE) → DEAD, as from every other state."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waits for the members' joins. action: joins wait, heartbeats and syncs are REBALANCE_IN_PROGRESS, commits of the
    last generation are kept. transition: all have joined, or the time is up (ALL_JOINED) → COMPLETING_REBALANCE; no
    member is left (ALL_LEFT) → EMPTY; GONE → DEAD."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Waits for the leader's assignments. action: syncs wait, heartbeats are fine, commits are REBALANCE_IN_PROGRESS.
    transition: the assignments are recorded (ASSIGNED) → STABLE; a member joins, leaves or changes (REBALANCE) →
    PREPARING_REBALANCE; GONE → DEAD."""
    STABLE = "Stable"
    """Members work. action: syncs are answered, heartbeats and commits are fine. transition: a member joins, leaves or
    changes, or the leader joins again (REBALANCE) → PREPARING_REBALANCE; GONE → DEAD."""
    DEAD = "Dead"
    """Gone from this coordinator. action: COORDINATOR_NOT_AVAILABLE. transition: none."""

    __hash__ = object.__hash__
    """Each member is one object. The hash of Enum is a Python function, and every request looks states up."""


class GroupEvent(Enum):
    """What changes a group's state."""

    REBALANCE = "a member joins, leaves or changes"
    ALL_JOINED = "the members of the next generation have joined"
    ALL_LEFT = "a rebalance ends without a member"
    ASSIGNED = "the leader's assignments are recorded"
    GONE = "the group is deleted, expires, or has another coordinator"

    __hash__ = object.__hash__


TRANSITIONS: Final[Mapping[tuple[GroupState, GroupEvent], GroupState]] = {
    (GroupState.EMPTY, GroupEvent.REBALANCE): GroupState.PREPARING_REBALANCE,
    (GroupState.PREPARING_REBALANCE, GroupEvent.ALL_JOINED): GroupState.COMPLETING_REBALANCE,
    (GroupState.PREPARING_REBALANCE, GroupEvent.ALL_LEFT): GroupState.EMPTY,
    (GroupState.COMPLETING_REBALANCE, GroupEvent.REBALANCE): GroupState.PREPARING_REBALANCE,
    (GroupState.COMPLETING_REBALANCE, GroupEvent.ASSIGNED): GroupState.STABLE,
    (GroupState.STABLE, GroupEvent.REBALANCE): GroupState.PREPARING_REBALANCE,
    **{(state, GroupEvent.GONE): GroupState.DEAD for state in GroupState if state is not GroupState.DEAD},
}


def next_state(state: GroupState, event: GroupEvent) -> GroupState:
    """Returns the next state. Raises AssertionError if the event can't happen in the state."""
    following = TRANSITIONS.get((state, event))
    assert following is not None, f"{event.name} can't happen to a group in {state.name}"
    return following
