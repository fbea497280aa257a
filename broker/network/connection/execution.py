"""Whether a connection executes requests now: the states, and what leads from one to the next.

    RUNNING, PARKED             ── PARK ──>       PARKED
    IN_TURN, IN_TURN_PARKED     ── PARK ──>       IN_TURN_PARKED
    LANED, LANED_PARKED         ── PARK ──>       LANED_PARKED
    RUNNING, PARKED             ── GO_ON ──>      RUNNING
    IN_TURN, IN_TURN_PARKED     ── GO_ON ──>      IN_TURN
    LANED, LANED_PARKED         ── GO_ON ──>      LANED
    RUNNING                     ── ENTER_LANE ──> LANED
    LANED                       ── TURN ──>       IN_TURN
    LANED_PARKED                ── TURN ──>       IN_TURN_PARKED
    IN_TURN, LANED              ── END_TURN ──>   LANED
    IN_TURN_PARKED, LANED_PARKED ── END_TURN ──>  LANED_PARKED
    IN_TURN                     ── LEAVE_LANE ──> RUNNING
    IN_TURN_PARKED              ── LEAVE_LANE ──> PARKED

A connection begins in RUNNING. Every other pair is a mistake in this program, and raises. Besides these states a
connection also executes nothing while Produce requests with too many bytes are parked or its client takes no answers
(`Connection._blocked`), and when it is closed.

Each request reads the state as an int: those from `PARKED` on execute nothing, those from `LANED` on wait for a turn.
`AFTER` has the table by event, so that a transition costs no call: `self._execution = PARK[self._execution]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Final


class Execution(IntEnum):
    """Whether a connection executes requests now."""

    RUNNING = 0
    """action: requests are executed as they arrive, for `TURN_MS` at a time. transition: a request is parked, others
    are to have their
    turn, or the broker doesn't serve yet (PARK) → PARKED; its address has sent damaged frames (ENTER_LANE) → LANED;
    GO_ON → RUNNING, where
    nothing was parked."""
    IN_TURN = 1
    """action: one frame is executed. transition: PARK → IN_TURN_PARKED; GO_ON → IN_TURN; the frame is executed
    (END_TURN) → LANED; it has
    had its turns, or the address is calm (LEAVE_LANE) → RUNNING."""
    PARKED = 2
    """action: what arrives is kept. transition: the answer is there, or the turn has come (GO_ON) → RUNNING; another
    reason (PARK) →
    PARKED."""
    IN_TURN_PARKED = 3
    """action: what arrives is kept; the turn goes by. transition: GO_ON → IN_TURN; PARK → IN_TURN_PARKED; END_TURN →
    LANED_PARKED;
    LEAVE_LANE → PARKED."""
    LANED = 4
    """action: what arrives is kept, and a turn asked for. transition: the slow lane gives it (TURN) → IN_TURN; PARK →
    LANED_PARKED; GO_ON →
    LANED; the turn has ended before (END_TURN) → LANED."""
    LANED_PARKED = 5
    """action: as in LANED. transition: TURN → IN_TURN_PARKED; GO_ON → LANED; PARK → LANED_PARKED; END_TURN →
    LANED_PARKED."""


class ExecutionEvent(Enum):
    """What changes the state."""

    PARK = "a request is parked, the connection's time is up, or the broker doesn't serve yet"
    GO_ON = "the parked request has its answer, the others have had their turn, or the broker serves"
    ENTER_LANE = "the connection comes from an address that sends damaged frames"
    TURN = "the slow lane gives it a turn"
    END_TURN = "the turn is over"
    LEAVE_LANE = "it has shown that it makes sense"


TRANSITIONS: Final[Mapping[tuple[Execution, ExecutionEvent], Execution]] = {
    (Execution.RUNNING, ExecutionEvent.PARK): Execution.PARKED,
    (Execution.RUNNING, ExecutionEvent.GO_ON): Execution.RUNNING,
    (Execution.RUNNING, ExecutionEvent.ENTER_LANE): Execution.LANED,
    (Execution.PARKED, ExecutionEvent.PARK): Execution.PARKED,
    (Execution.PARKED, ExecutionEvent.GO_ON): Execution.RUNNING,
    (Execution.IN_TURN, ExecutionEvent.PARK): Execution.IN_TURN_PARKED,
    (Execution.IN_TURN, ExecutionEvent.GO_ON): Execution.IN_TURN,
    (Execution.IN_TURN, ExecutionEvent.END_TURN): Execution.LANED,
    (Execution.IN_TURN, ExecutionEvent.LEAVE_LANE): Execution.RUNNING,
    (Execution.IN_TURN_PARKED, ExecutionEvent.PARK): Execution.IN_TURN_PARKED,
    (Execution.IN_TURN_PARKED, ExecutionEvent.GO_ON): Execution.IN_TURN,
    (Execution.IN_TURN_PARKED, ExecutionEvent.END_TURN): Execution.LANED_PARKED,
    (Execution.IN_TURN_PARKED, ExecutionEvent.LEAVE_LANE): Execution.PARKED,
    (Execution.LANED, ExecutionEvent.PARK): Execution.LANED_PARKED,
    (Execution.LANED, ExecutionEvent.GO_ON): Execution.LANED,
    (Execution.LANED, ExecutionEvent.TURN): Execution.IN_TURN,
    (Execution.LANED, ExecutionEvent.END_TURN): Execution.LANED,
    (Execution.LANED_PARKED, ExecutionEvent.PARK): Execution.LANED_PARKED,
    (Execution.LANED_PARKED, ExecutionEvent.GO_ON): Execution.LANED,
    (Execution.LANED_PARKED, ExecutionEvent.TURN): Execution.IN_TURN_PARKED,
    (Execution.LANED_PARKED, ExecutionEvent.END_TURN): Execution.LANED_PARKED,
}

AFTER: Final[Mapping[ExecutionEvent, Mapping[Execution, Execution]]] = {
    event: {state: after for (state, cause), after in TRANSITIONS.items() if cause is event} for event in ExecutionEvent
}
"""The table by event; a pair that isn't in it raises KeyError."""

PARK: Final = AFTER[ExecutionEvent.PARK]
GO_ON: Final = AFTER[ExecutionEvent.GO_ON]
ENTER_LANE: Final = AFTER[ExecutionEvent.ENTER_LANE]
TURN: Final = AFTER[ExecutionEvent.TURN]
END_TURN: Final = AFTER[ExecutionEvent.END_TURN]
LEAVE_LANE: Final = AFTER[ExecutionEvent.LEAVE_LANE]

RUNNING: Final = Execution.RUNNING
IN_TURN: Final = Execution.IN_TURN
PARKED: Final = Execution.PARKED
LANED: Final = Execution.LANED
