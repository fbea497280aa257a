"""Requests that have arrived together and are alike, executed together: see `RunPath`.

Guards: the connection asks only while it executes at once and owes no answer, so that answers leave in the order of their requests.
"""

from __future__ import annotations

import struct
from typing import cast

from lowtide.broker.network.outgoing import Part
from lowtide.broker.network.routes import Route
from lowtide.broker.network.turn_taking import TurnTaking
from lowtide.broker.request_context import Client

_FRAME = struct.Struct(">ihh")
"""The length of a frame, then the API key and version of its request."""


class RunTaking(TurnTaking):
    """The part of a connection that executes runs of requests."""

    _ready: list[Part]

    def _on_failed(self, route: Route | None, name: str, error: Exception, *, was_read: bool) -> None:
        raise NotImplementedError

    def _on_run(self, buffer: memoryview, position: int, end: int) -> int:
        """Execute the requests whose frames begin at `position` together, if they are alike (`RunPath`). Returns where they end, or 0."""
        if end - position < _FRAME.size:
            return 0
        host = self._host
        route = host.routes[_FRAME.unpack_from(buffer, position)[1:]]
        run = None if route is None or route.quick is None else route.quick.run
        if route is None or run is None:
            return 0
        clock = host.clock
        try:
            asked = run.read(buffer, position, end, self._maximum_frame_bytes)
            done = None if asked is None else run.handle(asked, buffer, cast("Client", self))
        except Exception as error:  # noqa: BLE001  as in `_on_request`
            self._on_failed(route, route.name, error, was_read=True)
            return 0
        if done is None:
            return 0
        answers, stop, count = done
        self._ready.append(answers)
        took_ns = clock.now_ns() - clock.moment_ns
        times = clock.times = route.times
        times.quick[(took_ns // count).bit_length()] += count
        times.quick_ns += took_ns
        return stop
