"""When a connection executes what it has received: at once, in turn with others, or after a pause.

Guards: requests of one connection hold the loop for `TURN_NS` at most, except the current one. A connection in the slow
lane (`slow_lane`) executes nothing in its callback, but one frame when it is given a turn; one that is muted executes
nothing for a time. `execution` has the states.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lowtide.broker.network.connection.execution import (
    END_TURN,
    ENTER_LANE,
    GO_ON,
    IN_TURN,
    LEAVE_LANE,
    PARK,
    RUNNING,
)

if TYPE_CHECKING:
    from collections.abc import Callable

TURN_NS = 2_000_000
"""How long requests of one connection are executed while others may wait."""


class TurnTaking:
    """Decides when one connection executes requests. The connection reads `execution` and `parked_max`."""

    __slots__ = ("_bytes_max", "_resume", "_turns_left", "_unmuting", "execution", "parked_bytes", "parked_max")

    def __init__(self, parked_max: int, resume: Callable[[], None]) -> None:
        """`resume` executes what has arrived. Pending requests have at most `parked_max` bytes, or there is one."""
        self._bytes_max = self.parked_max = parked_max
        self._resume: Callable[[], None] | None = resume
        self.execution = RUNNING
        self.parked_bytes = 0
        self._turns_left = 0
        self._unmuting: asyncio.TimerHandle | None = None

    @property
    def turns_left(self) -> int:
        """How many turns the connection still has in the slow lane."""
        return self._turns_left

    @property
    def is_muted(self) -> bool:
        return self._unmuting is not None

    def close(self) -> None:
        """Forgets the connection, which has ended."""
        self._resume = None
        if self._unmuting is not None:
            self._unmuting.cancel()
            self._unmuting = None

    def end_turn(self) -> None:
        """Lets other connections execute, until the event loop comes round."""
        if self.execution == IN_TURN:
            self.execution = END_TURN[IN_TURN]
        else:
            self.execution = PARK[self.execution]
            asyncio.get_running_loop().call_soon(self.begin)

    def begin(self) -> None:
        """Executes what has arrived: it is this connection's turn again, or the broker serves now."""
        self.execution = GO_ON[self.execution]
        if self._resume is not None:
            self._resume()

    def enter_slow_lane(self, turns: int) -> None:
        """Executes one frame in each turn from now on; until it has had so many, or may leave."""
        self.execution = ENTER_LANE[self.execution]
        self._turns_left = turns

    def counts_turn(self, *, has_frame: bool, may_leave: bool) -> bool:
        """Counts a turn in the slow lane that executes a frame. Returns whether the connection leaves the lane."""
        if has_frame:
            self._turns_left -= 1
        leaves = may_leave or self._turns_left <= 0
        if leaves:
            self.execution = LEAVE_LANE[self.execution]
        return leaves

    def mute(self, for_ms: int) -> None:
        """Executes nothing for so long, as if too many requests were parked; the longest of several times counts."""
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
