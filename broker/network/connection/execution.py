"""When a connection executes the requests that it has received: at once, in turn with others, or after a pause.

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

Guards: requests of one connection hold the loop for at most `TURN_NS`, except the current one. A connection in the slow
lane (`slow_lane`) executes one frame in each turn that it is given, and a muted one executes nothing for a time.
A connection also executes nothing while its parked requests have too many bytes, or its client does not read responses
(`Connection._blocked`), and after it was closed.

Each request reads the state as an int: those from `PARKED` on execute nothing, those from `LANED` on wait for a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum, IntEnum
from typing import Final

TURN_NS: Final = 2_000_000
"""How long requests of one connection are executed while others may wait."""


class Execution(IntEnum):
    """Whether a connection executes requests now. A connection begins in RUNNING."""

    RUNNING = 0
    """action: executes requests as they arrive, for up to `TURN_NS`.
    transition: PARK → PARKED; ENTER_LANE → LANED; GO_ON → RUNNING."""
    IN_TURN = 1
    """action: executes one frame.
    transition: PARK → IN_TURN_PARKED; GO_ON → IN_TURN; END_TURN → LANED; LEAVE_LANE → RUNNING."""
    PARKED = 2
    """action: keeps what arrives. transition: GO_ON → RUNNING; PARK → PARKED."""
    IN_TURN_PARKED = 3
    """action: keeps what arrives; the turn passes.
    transition: GO_ON → IN_TURN; PARK → IN_TURN_PARKED; END_TURN → LANED_PARKED; LEAVE_LANE → PARKED."""
    LANED = 4
    """action: keeps what arrives, and asks for a turn.
    transition: TURN → IN_TURN; PARK → LANED_PARKED; GO_ON → LANED; END_TURN → LANED."""
    LANED_PARKED = 5
    """action: as in LANED. transition: TURN → IN_TURN_PARKED; GO_ON → LANED; PARK, END_TURN → LANED_PARKED."""


class ExecutionEvent(Enum):
    """The events that change the state."""

    PARK = "a request is parked, the connection's time is up, or the broker is not ready yet"
    GO_ON = "the parked request has its answer, other connections have had their turn, or the broker is ready"
    ENTER_LANE = "the connection comes from an address that sends damaged frames"
    TURN = "the slow lane gives it a turn"
    END_TURN = "the turn is over"
    LEAVE_LANE = "it has sent enough valid requests, or its address has stopped sending damaged frames"


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
"""The table by event, so that a transition costs no call. A pair that is not in it raises KeyError."""

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


class ExecutionState:
    """Decides when one connection executes requests. The connection reads `execution` and `parked_max`."""

    __slots__ = ("_bytes_max", "_resume", "_unmuting", "execution", "parked_bytes", "parked_max", "turns_left")

    def __init__(self, parked_max: int, resume: Callable[[], None]) -> None:
        """`resume` executes the received requests. Parked requests have at most `parked_max` bytes, or there is one."""
        self._bytes_max = self.parked_max = parked_max
        self._resume: Callable[[], None] | None = resume
        self.execution = RUNNING
        self.parked_bytes = 0
        self.turns_left = 0
        """The remaining turns in the slow lane."""
        self._unmuting: asyncio.TimerHandle | None = None

    def close(self) -> None:
        self._resume = None
        if self._unmuting is not None:
            self._unmuting.cancel()
            self._unmuting = None

    def end_turn(self) -> None:
        """Lets other connections execute until the next pass of the event loop."""
        if self.execution == IN_TURN:
            self.execution = END_TURN[IN_TURN]
        else:
            self.execution = PARK[self.execution]
            asyncio.get_running_loop().call_soon(self.begin)

    def begin(self) -> None:
        """Executes the received requests: it is this connection's turn again, or the broker is ready now."""
        self.execution = GO_ON[self.execution]
        if self._resume is not None:
            self._resume()

    def enter_slow_lane(self, turns: int) -> None:
        """Executes one frame in each turn from now on, for so many turns or until it may leave."""
        self.execution = ENTER_LANE[self.execution]
        self.turns_left = turns

    def begin_lane_turn(self) -> None:
        self.execution = TURN[self.execution]

    def end_lane_turn(self) -> None:
        self.execution = END_TURN[self.execution]

    def counts_turn(self, *, has_frame: bool, may_leave: bool) -> bool:
        """Counts a turn in the slow lane that executes a frame. Returns whether the connection leaves the lane."""
        if has_frame:
            self.turns_left -= 1
        leaves = may_leave or self.turns_left <= 0
        if leaves:
            self.execution = LEAVE_LANE[self.execution]
        return leaves

    def mute(self, for_ms: int) -> None:
        """Executes nothing for this time, as if too many requests were parked. The latest end counts."""
        self.parked_max = 0
        loop = asyncio.get_running_loop()
        end_s = loop.time() + for_ms / 1000
        if self._unmuting is not None:
            if self._unmuting.when() >= end_s:
                return
            self._unmuting.cancel()
        self._unmuting = loop.call_at(end_s, self._unmute)

    def _unmute(self) -> None:
        self._unmuting = None
        self.parked_max = self._bytes_max
        if self._resume is not None:
            self._resume()
