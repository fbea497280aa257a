"""Requests that have arrived together and are alike, executed together: on this connection, or on several (`gathering`).

Guards: the connection asks only while it executes at once and owes no answer, so that answers leave in the order of their requests.
"""

from __future__ import annotations

import struct
from typing import Any, cast

from lowtide.broker.network.connection_host import ConnectionHost
from lowtide.broker.network.execution import RUNNING
from lowtide.broker.network.gathering import Gathered
from lowtide.broker.network.outgoing import OutgoingQueue, Part
from lowtide.broker.network.routes import Route
from lowtide.broker.network.turn_taking import TurnTaking
from lowtide.broker.pending import Pending
from lowtide.broker.request_context import Client
from lowtide.protocol.errors import ProtocolError

_FRAME = struct.Struct(">ihh")
"""The length of a frame, then the API key and version of its request."""

FRAME_HEAD_BYTES = _FRAME.size


class RunTaking(TurnTaking):
    """The part of a connection that executes runs of requests."""

    _ready: list[Part]
    _outgoing: OutgoingQueue | None
    _eof: bool

    def __init__(self, host: ConnectionHost) -> None:
        """`host` gives what connections share."""
        super().__init__(host)
        self._gathered = False
        """Whether a request waits for the end of this pass of the loop, to be executed with those of other connections."""

    def _on_failed(self, route: Route | None, name: str, error: Exception, *, was_read: bool) -> None:
        if route is None or (isinstance(error, ProtocolError) and not was_read):
            return self.refuse(f"{name}: {error}")
        self._host.on_bug(cast("Client", self), route, error)
        return self.close(f"{name} failed inside")

    def _on_request(self, buffer: memoryview, start: int, stop: int) -> None:
        raise NotImplementedError

    def _park(self, route: Route, correlation_id: int, pending: Pending[Any], size: int) -> None:
        raise NotImplementedError

    def _answer(self, parts: list[Part]) -> None:
        raise NotImplementedError

    def _flush(self) -> None:
        raise NotImplementedError

    def _execute_joint(self, buffer: memoryview, position: int, end: int) -> int:
        """Executes the request whose frame begins at `position`, with those behind it that are alike, by the `JointForm`.

        Returns where they end, or 0 where that isn't the way.
        """
        host = self._host
        route = host.routes[_FRAME.unpack_from(buffer, position)[1:]]
        joint = None if route is None else route.joint
        if route is None or joint is None:
            return 0
        clock = host.clock
        try:
            groups = joint.read(buffer, position, end, self._maximum_frame_bytes, True)
            if not groups:
                return 0
            group = groups[0]
            answers = joint.answer(group, buffer, [cast("Client", self)] * len(group.places))
        except Exception as error:  # noqa: BLE001  as in `_on_request`
            self._on_failed(route, route.name, error, was_read=True)
            return 0
        if answers is None:
            return 0
        stop: int = group.stop
        count = len(answers)
        took_ns = clock.now_ns() - clock.moment_ns
        waiting = sum([type(answer) is Pending for answer in answers])
        if done := count - waiting:  # Those that wait are counted when they are answered.
            times = clock.times = route.times
            times.quick[(took_ns // done).bit_length()] += done
            times.quick_ns += took_ns
        if self._slots or waiting or type(answers[0]) is not bytes:
            for correlation_id, answer in zip(group.correlation_ids, answers, strict=True):
                self._give(route, correlation_id, answer, (stop - position) // count)
        else:
            self._ready += answers
        return stop

    # ------------------------------------------------------------------ with others
    def _waits(self, size: int) -> bool:
        """Let a Produce request wait that came alone, its frame the first `size` bytes in the buffer of all.

        Returns whether it does.
        """
        if self._execution != RUNNING:
            return False
        self._gathered = True  # Before, for it may be executed within.
        if self._host.gathering.take(cast("Gathered", self), size):
            return True
        self._gathered = False
        return False

    def execute_alone(self, buffer: memoryview, start: int, stop: int) -> None:
        """Execute the request that waited, whose frame is `buffer[start:stop]`, and send its answer."""
        self._gathered = False
        if not self.closed:
            self._on_request(buffer, start + 4, stop)
            self._flush()

    def give_answer(self, route: Route, correlation_id: int, answer: Any) -> None:
        """Send the answer of the request that waited: the frame of one, what a handler returns, or the promise of either."""
        self._gathered = False
        if type(answer) is bytes and self._outgoing is not None and not (self.closed or self._eof):
            self._outgoing.send([answer])
        else:
            self._give(route, correlation_id, answer, 0)  # It is small, and all that waits.
            self._flush()

    def _give(self, route: Route, correlation_id: int, answer: Any, size: int) -> None:
        if type(answer) is Pending:
            self._park(route, correlation_id, answer, size)
        else:
            self._answer([answer] if type(answer) is bytes else route.write(correlation_id, answer))

    def fail_gathered(self, route: Route, error: Exception) -> None:
        """Close: the request that waited met a bug of ours."""
        self._gathered = False
        self._on_failed(route, route.name, error, was_read=True)
