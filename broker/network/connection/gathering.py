"""Executes Produce requests together: of one connection, or of several in one pass of the event loop.

A producer that waits for each answer has one request in flight, so its connection alone has nothing to append together.
But if many such producers keep the loop busy, one pass finds many of them readable. Their requests stay in the receive
buffer, one behind the other, until the pass is over. Those for the same partition are then checked and appended at
once.

Waiting costs a lone request some hundred nanoseconds. So a request waits only if one of another connection was executed
less than `NEAR_NS` ago, and none waits for `REST_NS` after a pass that had nothing to execute together.

Guards: at most one request of a connection waits here, and the connection executes nothing else meanwhile, so its
answers leave in the order of its requests. What waits is executed in the next pass at the latest.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lowtide.broker.network.connection.answers import Answers
from lowtide.broker.network.connection.execution import RUNNING, ExecutionState
from lowtide.broker.network.connection.pass_answers import PassAnswers
from lowtide.broker.network.routing.request_times import RequestClock
from lowtide.broker.network.routing.routes import JointForm, Route
from lowtide.broker.pending import Pending
from lowtide.broker.request_context import Client
from lowtide.protocol import native
from lowtide.protocol.api_keys import ApiKey

NEAR_NS = 100_000
"""Within this time after a request of another connection, more may arrive in the same pass."""

REST_NS = 2_000_000
"""How long no request waits after a pass without requests to execute together."""

GATHERED_MAX = 64
"""The most requests that wait: as many as one call of the compiled module takes (`REQUESTS_MAX` in produce.h)."""

_FRAME = struct.Struct(">ihh")
"""The length of a frame, then the API key and version of its request."""


class Gathered(Client, Protocol):
    """A connection whose request may wait."""

    answers: Answers
    turns: ExecutionState
    closed: bool

    def on_request(self, buffer: memoryview, start: int, stop: int) -> None:
        """Executes the request `buffer[start:stop]`."""
        ...


OnFailed = Callable[..., None]
"""`ConnectionHost.on_failed`."""


def _joint_form(route: Route | None) -> JointForm | None:
    """Returns the joint form of a route. Wrapping a handler, as a quota does, removes it."""
    return None if route is None else route.joint


class Gathering:
    """The requests of a broker's connections that wait for the end of a pass."""

    def __init__(self, size: int, routes: Mapping[Any, Route | None], clock: RequestClock, on_failed: OnFailed) -> None:
        """`size` is the largest receive. While requests wait, at least half of it stays free."""
        self.room = self._buffer = memoryview(bytearray(size))
        """The rest of the buffer behind the waiting requests. Connections receive into it."""
        self.last: object = None
        """The connection that has executed a request of this kind last, or whose request came last of those that
        wait."""
        self.is_used = native.compiled is not None
        """Whether requests may have a joint form, which needs compiled code."""
        self.pass_answers = PassAnswers(clock)
        """The answers to other requests, which wait for the end of the pass too."""
        self._last_ns = self._rest_until_ns = self._first_ns = 0
        self._routes = routes
        self._clock = clock
        self._on_failed = on_failed
        self._connections: list[Gathered] = []
        self._ends: list[int] = []

    def take(self, connection: Gathered, size: int) -> bool:
        """Keeps the request whose frame of `size` bytes has just been received at the start of `room`.

        Returns False if it must be executed now.
        """
        if connection.turns.execution != RUNNING:
            return False
        now_ns = self._clock.moment_ns
        is_near = now_ns - self._last_ns < NEAR_NS
        self.last, self._last_ns = connection, now_ns
        if not is_near or now_ns < self._rest_until_ns:
            return False
        if _joint_form(self._routes[_FRAME.unpack_from(self.room)[1:]]) is None:
            return False
        if not self._connections:
            self._first_ns = now_ns
            asyncio.get_running_loop().call_soon(self.execute)
        connection.answers.gathered = True
        used = size + (self._ends[-1] if self._ends else 0)
        self._connections.append(connection)
        self._ends.append(used)
        self.room = self._buffer[used:]
        if len(self._connections) >= GATHERED_MAX or 2 * used >= len(self._buffer):
            self.execute()
        return True

    def forget(self, connection: object) -> None:
        """Forgets a connection."""
        if self.last is connection:
            self.last = None

    def execute(self) -> None:
        """Executes all waiting requests."""
        connections, ends, clock = self._connections, self._ends, self._clock
        if not connections:
            return
        self._connections, self._ends = [], []
        clock.moment_ns = now_ns = clock.now_ns()
        executed = set[int]()
        if len(connections) > 1 and not any(connection.closed for connection in connections):
            executed = self._execute_groups(connections, ends[-1])
        if not executed:
            self._rest_until_ns = now_ns + REST_NS
        start = 0
        for place, (connection, end) in enumerate(zip(connections, ends, strict=True)):
            if place not in executed:
                clock.moment_ns = clock.now_ns()
                connection.answers.gathered = False
                if not connection.closed:
                    connection.on_request(self._buffer, start + 4, end)
                    connection.answers.flush()
            start = end
        self.room = self._buffer
        self._last_ns = clock.now_ns()

    def execute_own(self, connection: Gathered, buffer: memoryview, position: int, end: int, frame_max: int) -> int:
        """Executes the request of a connection that begins at `position`, with those behind it that are alike.

        Returns where they end, or 0 if they must be executed one by one. The connection executes at once and owes no
        answer, so answers leave in the order of their requests.
        """
        route = self._routes[_FRAME.unpack_from(buffer, position)[1:]]
        joint = None if route is None else route.joint
        if route is None or joint is None:
            return 0
        clock, answers = self._clock, connection.answers
        try:
            groups = joint.read(buffer, position, end, frame_max, True)
            if not groups:
                return 0
            group = groups[0]
            given = joint.answer(group, buffer, [connection] * len(group.places))
        except Exception as error:  # noqa: BLE001  as in `Connection.on_request`
            self._on_failed(connection, route, route.name, error, was_read=True)
            return 0
        if given is None:
            return 0
        stop: int = group.stop
        count = len(given)
        took_ns = clock.now_ns() - clock.moment_ns
        waiting = sum([type(answer) is Pending for answer in given])
        if done := count - waiting:  # Those that wait are counted when they are answered.
            times = clock.times = route.times
            times.quick[(took_ns // done).bit_length()] += done
            times.quick_ns += took_ns
        if answers.slots or waiting or type(given[0]) is not bytes:
            for correlation_id, answer in zip(group.correlation_ids, given, strict=True):
                _give(answers, route, correlation_id, answer, (stop - position) // count)
        else:
            answers.ready += given
        return stop

    def _execute_groups(self, connections: list[Gathered], end: int) -> set[int]:
        """Returns the places of the requests that were executed."""
        executed = set[int]()
        joint = _joint_form(self._routes[_FRAME.unpack_from(self._buffer)[1:]])
        for group in () if joint is None else joint.read(self._buffer, 0, end, len(self._buffer), False) or ():
            if self._execute_group(group, [connections[place] for place in group.places]):
                executed.update(group.places)
        return executed

    def _execute_group(self, group: Any, connections: list[Gathered]) -> bool:
        """Returns whether the requests were executed; if not, nothing was changed."""
        route, clock = self._routes[ApiKey.PRODUCE, group.version], self._clock
        joint = _joint_form(route)
        if route is None or joint is None:
            return False
        began_ns = clock.now_ns()
        try:
            answers = joint.answer(group, self._buffer, list[Client](connections))
        except Exception as error:  # noqa: BLE001  as in `Connection._on_request`, of several
            for connection in connections:
                connection.answers.gathered = False
                self._on_failed(connection, route, route.name, error, was_read=True)
            return True
        if answers is None:
            return False
        took_ns, times = clock.now_ns() - began_ns, route.times
        clock.times, clock.moment_ns = times, began_ns
        times.queue[(began_ns - self._first_ns).bit_length()] += len(connections)
        if count := sum([type(answer) is not Pending for answer in answers]):
            times.quick[(took_ns // count).bit_length()] += count
            times.quick_ns += took_ns
        for connection, correlation_id, answer in zip(connections, group.correlation_ids, answers, strict=True):
            _give_gathered(connection, route, correlation_id, answer)
        return True


def _give(answers: Answers, route: Route, correlation_id: int, answer: Any, size: int) -> None:
    """Adds the answer of a joint form: a frame, a response, or a promise of either."""
    if type(answer) is Pending:
        answers.park(route, correlation_id, answer, size)
    else:
        answers.add([answer] if type(answer) is bytes else route.write(correlation_id, answer))


def _give_gathered(connection: Gathered, route: Route, correlation_id: int, answer: Any) -> None:
    """Sends the answer to the gathered request."""
    answers = connection.answers
    answers.gathered = False
    if answers.outgoing is None:
        return  # The connection is lost.
    if type(answer) is bytes:
        answers.ready.append(answer)  # Nothing else waits.
    else:
        _give(answers, route, correlation_id, answer, 0)  # It is small.
    answers.flush()
