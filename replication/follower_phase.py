"""What a partition that is followed does next: the phases, and what leads from one to the next.

    FETCHING                   ── ASK_EPOCH ──> ASKING_EPOCH
    FETCHING                   ── ASK_RANGE ──> ASKING_RANGE
    ASKING_EPOCH, ASKING_RANGE ── ANSWERED ──>  FETCHING
    FETCHING                   ── CUT ──>       SETTLING
    SETTLING                   ── SETTLED ──>   FETCHING
    SETTLING                   ── ASK_EPOCH ──> ASKING_EPOCH

A partition is followed from FETCHING on, and in no phase when it is followed no longer (`Following.has_left`). Every
other pair is a mistake in this program, and raises.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Phase(Enum):
    """What a partition that is followed does next."""

    FETCHING = "fetching"
    """action: it is in the fetch, unless it is delayed. transition: the log is truncated or emptied (CUT) → SETTLING; the leader must say
    where the last leader epoch ends (ASK_EPOCH) → ASKING_EPOCH; an offset is out of range (ASK_RANGE) → ASKING_RANGE."""
    ASKING_EPOCH = "asking where its last leader epoch ends"
    """action: OffsetForLeaderEpoch, before it fetches from a leader that can't say it in a Fetch. transition: ANSWERED → FETCHING, and on
    to a truncation where something has to go."""
    ASKING_RANGE = "asking where the leader's log starts and ends"
    """action: ListOffsets. transition: ANSWERED → FETCHING, and on to a truncation, a reset or a rest."""
    SETTLING = "waiting for the disk"
    """action: none; nothing may be appended. transition: truncated, journalled and durable (SETTLED) → FETCHING; the leader's epoch is
    unknown here, so that the next one has to be asked for (ASK_EPOCH) → ASKING_EPOCH."""


class FollowerEvent(Enum):
    """What changes a phase."""

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
    """The phase that an event leads to. Raises AssertionError where the event can't happen in the phase."""
    following = TRANSITIONS.get((phase, event))
    assert following is not None, f"{event.name} can't happen to a follower in {phase.name}"
    return following
