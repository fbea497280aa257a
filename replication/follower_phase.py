"""The phases of a followed partition and the events that change them.

    FETCHING                   ── ASK_EPOCH ──> ASKING_EPOCH
    FETCHING                   ── ASK_RANGE ──> ASKING_RANGE
    ASKING_EPOCH, ASKING_RANGE ── ANSWERED ──>  FETCHING
    FETCHING                   ── CUT ──>       SETTLING
    SETTLING                   ── SETTLED ──>   FETCHING
    SETTLING                   ── ASK_EPOCH ──> ASKING_EPOCH

A partition starts in FETCHING and has no phase once it is no longer followed (`has_left`). Every other pair is a bug
and raises.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Phase(Enum):
    """What a followed partition does next."""

    FETCHING = "fetching"
    """action: it is fetched unless it is delayed. transition: the log is truncated or emptied (CUT) → SETTLING; the
    leader must report the end of the last leader epoch (ASK_EPOCH) → ASKING_EPOCH; an offset is out of range
    (ASK_RANGE) → ASKING_RANGE."""
    ASKING_EPOCH = "asking where its last leader epoch ends"
    """action: OffsetForLeaderEpoch, before fetching from a leader that doesn't report diverging epochs in a Fetch.

    transition: ANSWERED → FETCHING, followed by a truncation if needed.
    """
    ASKING_RANGE = "asking where the leader's log starts and ends"
    """action: ListOffsets. transition: ANSWERED → FETCHING, followed by a truncation, a reset or a delay."""
    SETTLING = "waiting for the disk"
    """action: none; nothing may be appended.

    transition: the truncation is journalled and durable (SETTLED) → FETCHING; the leader's epoch is unknown here and
    the next one must be requested (ASK_EPOCH) → ASKING_EPOCH.
    """


class FollowerEvent(Enum):
    """An event that changes a phase."""

    ASK_EPOCH = "the leader must say where a leader epoch ends"
    ASK_RANGE = "the log's end is out of the leader's range"
    ANSWERED = "the leader has answered the question"
    CUT = "the log is truncated or emptied"
    SETTLED = "what was cut is durable"


TRANSITIONS: Final[Mapping[tuple[Phase, FollowerEvent], Phase]] = {
    (Phase.FETCHING, FollowerEvent.ASK_EPOCH): Phase.ASKING_EPOCH,
    (Phase.FETCHING, FollowerEvent.ASK_RANGE): Phase.ASKING_RANGE,
    (Phase.FETCHING, FollowerEvent.CUT): Phase.SETTLING,
    (Phase.ASKING_EPOCH, FollowerEvent.ANSWERED): Phase.FETCHING,
    (Phase.ASKING_RANGE, FollowerEvent.ANSWERED): Phase.FETCHING,
    (Phase.SETTLING, FollowerEvent.SETTLED): Phase.FETCHING,
    (Phase.SETTLING, FollowerEvent.ASK_EPOCH): Phase.ASKING_EPOCH,
}


def next_phase(phase: Phase, event: FollowerEvent) -> Phase:
    """Returns the phase after an event. Raises AssertionError if the event is impossible in the phase."""
    following = TRANSITIONS.get((phase, event))
    assert following is not None, f"{event.name} can't happen to a follower in {phase.name}"
    return following
