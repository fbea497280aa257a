"""The answers of one connection, which leave in the order of its requests: each has a slot until it can be sent."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from lowtide.broker.network.connection.execution import GO_ON, PARK
from lowtide.broker.network.connection.outgoing import OutgoingQueue, held_bytes
from lowtide.broker.network.routing.routes import Part, Route
from lowtide.broker.pending import NO_ANSWER, AnswerRounds, Pending
from lowtide.storage.log.log import FileSlice

if TYPE_CHECKING:
    from lowtide.broker.network.connection.execution import ExecutionState
    from lowtide.broker.network.routing.request_times import ApiTimes, RequestClock


class AnsweringConnection(Protocol):
    """The connection whose answers these are."""

    closed: bool
    of_a_follower: bool

    def close(self, reason: str) -> None:
        """Closes without another answer."""
        ...

    def unblock(self) -> None:
        """Executes requests that had to wait."""
        ...

    def close_when_done(self) -> None:
        """Closes if no request will come and all answers are sent."""
        ...


class AnswerSlot(msgspec.Struct, eq=False):
    """The place of one response in the order of a connection's responses."""

    route: Route
    correlation_id: int
    pending: Pending[Any] | None
    size: int
    """How many bytes it counts toward the limit of pending requests."""
    parts: list[Part] | None
    may_be_followed: bool = False
    times: ApiTimes | None = None
    began_ns: int = 0
    parked_ns: int = 0
    answered_ns: int = 0

    def note_flushed(self, clock: RequestClock) -> None:
        """Records the times of a parked request whose response is sent now."""
        times, now_ns = self.times, clock.moment_ns
        if times is not None and self.answered_ns:
            times.local[(self.parked_ns - self.began_ns).bit_length()] += 1
            times.remote[(self.answered_ns - self.parked_ns).bit_length()] += 1
            times.response_queue[(now_ns - self.answered_ns).bit_length()] += 1
            times.total[(now_ns - self.began_ns).bit_length()] += 1
            times.total_ns += now_ns - self.began_ns
            clock.times = times


class Answers:
    """The answers that wait for earlier ones (`slots`), and those to be sent next (`ready`)."""

    __slots__ = (
        "_clock",
        "_connection",
        "_parked_min",
        "_rounds",
        "_turns",
        "ends",
        "gathered",
        "outgoing",
        "ready",
        "slots",
    )

    def __init__(
        self,
        connection: AnsweringConnection,
        turns: ExecutionState,
        clock: RequestClock,
        rounds: AnswerRounds,
        parked_min: int,
    ) -> None:
        """`parked_min` is the least size that a pending request counts."""
        self._clock = clock
        self._rounds = rounds
        self._parked_min = parked_min
        self._turns = turns
        self._connection: AnsweringConnection | None = connection
        self.outgoing: OutgoingQueue | None = None
        self.slots: deque[AnswerSlot] = deque()
        self.ready: list[Part] = []
        self.gathered = False
        """Whether a request waits for the end of this pass of the loop, to be executed with those of other
        connections."""
        self.ends = False
        """Whether the connection closes when all answers are sent."""

    @property
    def waiting(self) -> bool:
        """Whether a request of this client has no answer yet."""
        return bool(self.slots) or self.gathered

    @property
    def busy(self) -> bool:
        """Whether a request has no answer yet, or an answer is not sent."""
        return self.waiting or bool(self.ready) or (self.outgoing is not None and not self.outgoing.idle)

    @property
    def parked_ms(self) -> int | None:
        """When the oldest request without an answer was parked; None if there is none."""
        return self.slots[0].parked_ns // 1_000_000 if self.slots else None

    def close(self) -> None:
        """Abandons all requests when the connection has ended."""
        self._connection = None
        for slot in self.slots:
            if slot.pending is not None:
                slot.pending.abandon()
        self.slots.clear()
        if self.outgoing is not None:
            self.outgoing.close()
            self.outgoing = None

    def add(self, parts: list[Part]) -> None:
        """Adds an answer behind the earlier ones."""
        if self.slots:
            slot = AnswerSlot(cast("Route", None), 0, None, max(held_bytes(parts), self._parked_min), parts)
            self._turns.parked_bytes += slot.size
            self.slots.append(slot)
        else:
            self.ready += parts

    def park(self, route: Route, correlation_id: int, pending: Pending[Any], size: int) -> None:
        """Reserves the place of a later answer to a request of `size` bytes."""
        assert self._connection is not None, "it is open"
        size = max(size, self._parked_min)
        may_be_followed = route.is_produce and not pending.holds_connection
        slot = AnswerSlot(route, correlation_id, pending, size, None, may_be_followed=may_be_followed)
        slot.times = route.follower_times if self._connection.of_a_follower else route.times
        clock = self._clock
        slot.began_ns, slot.parked_ns = clock.moment_ns, clock.now_ns()
        clock.moment_ns = slot.parked_ns
        self._turns.parked_bytes += size
        self.slots.append(slot)
        if not may_be_followed:
            self._turns.execution = PARK[self._turns.execution]
        pending.listen(lambda response: self._on_answer(slot, response))

    def flush(self) -> None:
        """Sends the answers that are ready."""
        connection = self._connection
        if connection is None or connection.closed:
            return
        outgoing, ready = self.outgoing, self.ready
        if ready and outgoing is not None:
            self.ready = []
            # Only slices of files, and what the socket does not take, go through the queue.
            is_bytes = type(ready[0]) is bytes if len(ready) == 1 else FileSlice not in map(type, ready)
            if not is_bytes or outgoing.parts or outgoing.paused or outgoing.reading:
                outgoing.send(ready)
            else:
                outgoing.transport.writelines(ready)  # type: ignore[arg-type]  # no slices are among them
                if outgoing.paused:  # The transport has called `pause_writing`.
                    outgoing.on_unsent()  # type: ignore[unreachable]
        if self.ends:
            connection.close_when_done()

    def send_answers(self) -> None:
        """Sends the answers of a round, and executes requests that had to wait."""
        connection = self._connection
        if connection is None:
            return
        try:
            self.flush()
            connection.unblock()
        except Exception:
            connection.close("its answers could not be sent")
            raise

    def _on_answer(self, slot: AnswerSlot, response: Any) -> None:
        connection = self._connection
        if connection is None or connection.closed:
            return
        slot.pending = None
        clock, slots = self._clock, self.slots
        if not slot.answered_ns:  # Otherwise it was: it is bytes only now.
            slot.answered_ns = clock.now_ns()
        if not slot.may_be_followed:
            self._turns.execution = GO_ON[self._turns.execution]
        if response is None:
            connection.close(f"{slot.route.name} could not be answered")
            return
        if type(response) is bytes:
            slot.parts = [response]  # The frame of a joint form.
        else:
            slot.parts = slot.route.write(slot.correlation_id, response) if response is not NO_ANSWER else []
        if slots[0] is not slot:
            return
        clock.moment_ns = clock.now_ns()
        while slots and slots[0].parts is not None:
            slot = slots.popleft()
            self._turns.parked_bytes -= slot.size
            self.ready.extend(slot.parts or ())
            slot.note_flushed(clock)
        answered = self._rounds.answered
        if answered is None:
            self.flush()
            connection.unblock()
        else:
            answered[self] = None
