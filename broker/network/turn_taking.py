"""When a connection executes what it has received: at once, in turn with others, or after a pause.

Guards: requests of one connection hold the loop for `TURN_NS` at most, but for the one that is begun. One in the slow
lane (`slow_lane`) executes nothing in its callback, but a frame when it is given a turn; one that is muted executes
nothing for a time. `execution` has the states. Pending requests, with what was answered behind them, have
`RequestBounds.parked_max` bytes at most, or there is one.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import Any, cast

from lowtide.broker.network.connection_host import ConnectionHost
from lowtide.broker.network.execution import END_TURN, ENTER_LANE, GO_ON, IN_TURN, LEAVE_LANE, PARK, RUNNING, TURN
from lowtide.broker.network.muting import lengthened
from lowtide.broker.network.outgoing import AnswerSlot
from lowtide.broker.network.partial_frame import PartialFrame
from lowtide.broker.network.routes import Route
from lowtide.broker.request_context import Client
from lowtide.protocol.errors import SurplusBytesError
from lowtide.runtime.network import peer_has_closed

_FRAME = struct.Struct(">ihh")
"""The length of a frame, then the API key and version of its request."""


class TurnTaking(PartialFrame):
    """The part of a connection that decides when requests are executed."""

    closed: bool
    eof_ms: int
    _reading_paused: bool
    _transport: asyncio.Transport | None
    _slots: deque[AnswerSlot[Route]]

    def __init__(self, host: ConnectionHost) -> None:
        """`host` gives what connections share."""
        super().__init__(host)
        self._execution = RUNNING
        self._turns_left = 0
        self._backlog = b""
        self._parked_bytes = 0
        self._parked_max = host.bounds.parked_max
        self._unmuting: asyncio.TimerHandle | None = None

    def _resume_reading(self) -> None:
        raise NotImplementedError

    def _read(
        self, route: Route, buffer: memoryview, start: int, stop: int, *, again: bool = False
    ) -> tuple[Any, str | None]:
        """The request in `buffer[start:stop]`, and its client id. Errors: those of `Route.read`."""
        try:
            return route.read(buffer, start, stop, route.rows_max, route.is_flexible)
        except SurplusBytesError as surplus:  # Kafka passes over them too.
            if not again:
                self._host.on_surplus(cast("Client", self), route.name, stop - surplus.position)
            return route.read(buffer, start, surplus.position, route.rows_max, route.is_flexible)

    @property
    def parked_ms(self) -> int | None:
        """Since when the oldest request waits whose answer isn't there; None if none does."""
        return self._slots[0].parked_ns // 1_000_000 if self._slots else None

    def look_for_end(self) -> None:
        """Find out whether the client has gone, where nothing tells that: while a request is parked, what came behind it isn't read."""
        if (
            self._reading_paused
            and not self.eof_ms
            and self._transport is not None
            and peer_has_closed(self._transport)
        ):
            self.eof_ms = self._host.clock.now_ms()

    def _end_turn(self) -> None:
        """Let other connections have theirs: held as if a request were parked, until the event loop comes round."""
        if self._execution == IN_TURN:
            self._execution = END_TURN[IN_TURN]
        else:
            self._execution = PARK[self._execution]
            asyncio.get_running_loop().call_soon(self.begin)

    def begin(self) -> None:
        """The broker serves now, or it is this connection's turn again: execute what came meanwhile, and read on."""
        self._execution = GO_ON[self._execution]
        self._begin_turn()
        self._unblock()

    def _begin_turn(self) -> None:
        """What is there may be executed now; it has waited since it came, or since the turn before."""
        host, waited_ns = self._host, -self.active_ns
        self.active_ns = host.clock.now_ns()
        if len(self._backlog) >= _FRAME.size and not self._blocked:
            route = host.routes[_FRAME.unpack_from(self._backlog)[1:]]
            if route is not None:
                route.times.queue[(self.active_ns + waited_ns).bit_length()] += 1

    def enter_slow_lane(self, turns: int) -> None:
        """Execute a frame at a time, when it is given a turn; until it has had so many, or may leave."""
        self._execution = ENTER_LANE[self._execution]
        self._turns_left = turns

    def take_turn(self, *, may_leave: bool) -> None:
        """Execute the next frame that waits, if nothing else holds it, and read on if none waits any more."""
        if self.closed:
            return
        self._execution = TURN[self._execution]
        if not self._blocked and (self._backlog or self._frame_is_whole):
            self._turns_left -= 1
        leaves = may_leave or self._turns_left <= 0
        if leaves:
            self._execution = LEAVE_LANE[self._execution]
        self._begin_turn()
        self._unblock()
        if not self._backlog and not self.closed:
            self._resume_reading()  # Also when a request was parked: its client may go.
        if not leaves:
            self._execution = END_TURN[self._execution]

    def mute(self, for_ms: int) -> None:
        """Execute nothing for so long, as if too many requests were parked; the longest of several times counts."""
        if not self.closed:
            self._parked_max = 0
            self._unmuting = lengthened(self._unmuting, for_ms, self._unmute)

    def _unmute(self) -> None:
        self._unmuting = None
        self._parked_max = self._host.bounds.parked_max
        self._begin_turn()
        self._unblock()
