"""One client's connection: bytes to requests, answers to bytes, in order, without a task.

All connections receive into one shared buffer; a whole frame is handled where it lies, in the callback that brought it,
or with those of other connections at the end of the loop's pass (`gathering`). What is left of a partial frame goes
into a buffer of the connection's own (`partial_frame`). Answers leave in the order of their requests through a queue of
slots. While only Produce requests are parked, a few later requests are executed too (`RequestBounds`), or acks=all
would mean one batch a round trip; any other parked request stops the reading, and so does a client that doesn't take
its answers. One in the slow lane (`slow_lane`) executes a frame when it is given a turn.

Invariant: a view of received bytes is never used after the pass that brought them, but for one of a mapped frame.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
from collections import deque
from functools import partial
from typing import Any, cast

from lowtide.broker.network.connection_host import ConnectionHost
from lowtide.broker.network.execution import GO_ON, LANED, PARK, PARKED, RUNNING
from lowtide.broker.network.large_requests import ROWS_MAX_KEY, LargeRequest
from lowtide.broker.network.outgoing import AnswerSlot, OutgoingQueue, Part, held_bytes
from lowtide.broker.network.partial_frame import FREE_FRAME_BYTES
from lowtide.broker.network.request_parts import row_count
from lowtide.broker.network.routes import Route
from lowtide.broker.network.run_taking import FRAME_HEAD_BYTES, RunTaking
from lowtide.broker.pending import NO_ANSWER, Pending
from lowtide.broker.request_context import RequestContext
from lowtide.broker.security.principal import ANONYMOUS, KafkaPrincipal, ShownBy
from lowtide.protocol.errors import TooManyRowsError
from lowtide.protocol.headers import REQUEST_HEADER_BYTES_MIN
from lowtide.runtime.addresses import named_peer

TURN_NS = 2_000_000
"""How long requests of one connection are executed while others may wait; the one that is begun is finished."""

_LENGTH, _HEAD = struct.Struct(">i"), struct.Struct(">hhi")


class Connection(RunTaking):
    """One connection of a client. Created by the server for each accepted socket."""

    principal: KafkaPrincipal = ANONYMOUS
    client_address, write_grants, shown_by, software, of_a_follower = "", None, ShownBy.NOTHING, ("", ""), False

    def __init__(self, host: ConnectionHost, listener_name: str = "") -> None:
        """`host` gives what connections share: routes, limits, buffers, the log.

        `listener_name`: by which of the listeners it came.
        """
        super().__init__(host)
        self.listener_name = listener_name
        self._transport: asyncio.Transport | None = None
        self._outgoing: OutgoingQueue | None = None
        self._slots: deque[AnswerSlot[Route]] = deque()
        self._ready: list[Part] = []
        self._reading_paused = self._eof = self.closed = False
        self.eof_ms, self.connected_ms, self.peer = 0, 0, ""

    # ------------------------------------------------------------------ asyncio's callbacks
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket up and count it."""
        self._transport = cast("asyncio.Transport", transport)
        self.client_address, self.peer = named_peer(transport.get_extra_info("peername"))
        self.local_address = (transport.get_extra_info("sockname") or ())[:2] or None
        self._transport.set_write_buffer_limits(high=0)
        host = self._host
        self._outgoing = OutgoingQueue(
            self._transport,
            host.frame_buffers.chunks,
            host.worker,
            self.close,
            host.clock,
            self.resume_writing,
            host.answers,
        )
        self.connected_ms = host.clock.now_ms()
        self.active_ns = self.connected_ms * 1_000_000 - 1  # What comes in the same millisecond counts.
        reason = self._host.on_connected(self)
        if reason is not None:
            self.close(reason)
        elif not self._host.serving:
            # Held as if a request were parked. What comes first pauses the reading; here uvloop would ignore it, and
            # begin to read.
            self._execution = PARK[self._execution]

    def get_buffer(self, sizehint: int) -> memoryview:
        """The rest of the partial frame, else the buffer that all connections share, or little of it while they have little memory."""
        if self._frame is None:
            return (
                self._host.gathering.room[:FREE_FRAME_BYTES]
                if self._host.memory.is_short
                else self._host.gathering.room
            )
        return memoryview(self._frame)[self._filled : self._allowed]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle every whole request that is there now."""
        if self.closed:
            return
        host = self._host
        clock = host.clock
        self.active_ns = clock.moment_ns = clock.now_ns()
        if self._frame is None:
            room = host.gathering.room
            if self._gathered:
                host.gathering.execute()
            self._consume(room, nbytes)
        else:
            self._filled += nbytes
            self._continue_frame()
        self._flush()

    def eof_received(self) -> bool:
        """A client that closed its writing side still gets its answers."""
        self._eof = True
        self.eof_ms = self._host.clock.now_ms()
        self._close_when_done()
        return True

    def pause_writing(self) -> None:
        """The socket is full: execute nothing more until the client takes what it asked for."""
        if self._outgoing is not None:
            self._outgoing.paused = True

    def resume_writing(self) -> None:
        """The socket is empty again."""
        if self._outgoing is not None and not self.closed:
            self._outgoing.resume()
            self._unblock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget all that waits for this client."""
        self.closed = True
        for slot in self._slots:
            if slot.pending is not None:
                slot.pending.abandon()
        self._slots.clear()
        self._drop_frame()
        self._backlog = b""
        if self._unmuting is not None:
            self._unmuting.cancel()
            self._unmuting = None
        if self._outgoing is not None:
            self._outgoing.close()
        # No cycle may be left: what the collector ignored while it was open would stay for ever.
        self._transport = self._outgoing = None
        self._host.on_disconnected(self)

    # ------------------------------------------------------------------ closing
    def close(self, reason: str) -> None:
        """Close without another answer. What the client did wrong is logged once."""
        if self.closed:
            return
        self.closed = True
        self._host.logins.pop(self, None)
        self._host.on_refused(self, reason)
        if self._transport is not None:
            self._transport.abort()

    def refuse(self, reason: str) -> None:
        """The client has sent what makes no sense: close."""
        if not self.closed:
            self._host.lane.on_malformed(self.client_address)
        self.close(reason)

    def close_gracefully(self) -> None:
        """Read nothing more; close when the answers that are owed were sent."""
        self._eof = True
        self._pause_reading()
        self._close_when_done()

    @property
    def waiting(self) -> bool:
        """Whether a request of this client is being worked on."""
        return bool(self._slots) or self._gathered

    @property
    def busy(self) -> bool:
        """Whether an answer is owed or on its way."""
        return bool(self._slots) or self._gathered or (self._outgoing is not None and not self._outgoing.idle)

    def _close_when_done(self) -> None:
        if (
            self._eof
            and not (self.closed or self.busy or self._backlog or self._frame_is_whole)
            and self._transport is not None
        ):
            self.closed = True
            self._transport.close()

    # ------------------------------------------------------------------ frames
    def _consume(self, buffer: memoryview, end: int) -> None:
        """Handle the whole frames in `buffer[:end]`; keep the rest."""
        position = 0
        maximum, turn_ns = self._maximum_frame_bytes, TURN_NS if self._execution == RUNNING else 0
        slots = self._slots
        outgoing: OutgoingQueue = self._outgoing  # type: ignore[assignment]  # it is open
        # As `_blocked`, without a call: every request comes by.
        while end - position >= 4 and not (  # noqa: PLR2004
            self._execution >= PARKED or self._parked_bytes >= self._parked_max or outgoing.paused
        ):
            size = _LENGTH.unpack_from(buffer, position)[0]
            if not 0 < size <= maximum:
                self._refuse_length(size)
                return
            stop = position + 4 + size
            if stop > end:
                break
            stop = self._execute(buffer, position, stop, end if turn_ns and not slots else stop)
            if not stop:
                return
            if self.closed:
                return
            position = stop
            if position < end:
                self._host.clock.moment_ns = now_ns = self._host.clock.now_ns()
                if now_ns >= self.active_ns + turn_ns and not self._blocked:
                    self._end_turn()
        if position == end:
            return
        if self._blocked:
            self._backlog += bytes(buffer[position:end])
            self._pause_reading()
        else:
            self._start_frame(buffer[position:end])

    def _execute(self, buffer: memoryview, position: int, stop: int, end: int) -> int:
        """Executes the request whose frame is `buffer[position:stop]`, with those up to `end` that go with it.

        Returns where they end; 0 for a request that waits for the end of this pass of the loop.
        """
        # Two bytes of zero are the API key of Produce, which alone has a joint form.
        if stop - position >= FRAME_HEAD_BYTES and not (buffer[position + 4] or buffer[position + 5]):
            gathering = self._host.gathering
            is_alone = stop == end and not (position or self._slots) and buffer is gathering.room
            if is_alone and gathering.last is not self and self._waits(end):
                return 0
            if ran := self._execute_joint(buffer, position, end):
                return ran
        if not self.closed:
            self._on_request(buffer, position + 4, stop)
        return stop

    @property
    def awaits_bytes(self) -> bool:
        """Whether it is for the client to send the rest of a frame."""
        return self._frame is not None and not self._reading_paused

    # ------------------------------------------------------------------ requests
    def _on_request(self, buffer: memoryview, start: int, stop: int) -> None:
        host = self._host
        if stop - start < REQUEST_HEADER_BYTES_MIN:
            self.refuse(f"a request of {stop - start} bytes is shorter than its header")
            return
        clock, began_ns = host.clock, host.clock.moment_ns
        api_key, api_version, correlation_id = _HEAD.unpack_from(buffer, start)
        route = host.routes[(api_key, api_version)]
        context = None
        try:
            if route is None:
                self._answer(
                    host.dispatcher.answer_unsupported(api_key, api_version, correlation_id, buffer[start + 8 : stop])
                )
                return
            request, client_id = self._read(route, buffer, start, stop)
            if stop - start > route.undivided_bytes and (rows := _rows_of(route, request)):
                self._submit_large(route, correlation_id, rows, buffer, start, stop)
                return
            context = RequestContext(api_version, client_id, self, None, correlation_id)
            response = route.handle(request, context)
            if type(response) is Pending:
                if not response.done:
                    self._park(route, correlation_id, response, stop - start)
                    return
                response = response.response
                if response is None:
                    self.close(f"{route.name} could not be answered")
            if response is not None and response is not NO_ANSWER:
                parts = route.write(correlation_id, response)
                if self._slots:
                    self._answer(parts)
                else:
                    self._ready += parts
            took_ns = clock.now_ns() - began_ns
            times = clock.times = route.follower_times if self.of_a_follower else route.times
            times.quick[took_ns.bit_length()] += 1
            times.quick_ns += took_ns
        except TooManyRowsError as error:
            assert route is not None
            self.refuse(f"{route.name} has {error}; {ROWS_MAX_KEY} is the limit")
        except Exception as error:  # noqa: BLE001  a bug of ours costs one connection, and is logged with its traceback
            self._on_failed(route, host.dispatcher.describe(api_key, api_version), error, was_read=context is not None)

    def _submit_large(
        self, route: Route, correlation_id: int, rows: int, buffer: memoryview, start: int, stop: int
    ) -> None:
        """Lets a request of many rows be worked on in turns with others. Its frame is kept where it was mapped, or copied."""
        is_mapped = isinstance(buffer.obj, mmap.mmap)
        frame = buffer if is_mapped else memoryview(bytes(buffer[start:stop]))
        bounds = (start, stop) if is_mapped else (0, stop - start)
        read = partial(self._read_large, route, correlation_id, frame, *bounds)
        assert route.cut is not None, "it is cut"
        request = LargeRequest(route.name, route.cut, route.bounds, rows, read, route.handle)
        if is_mapped:
            request.on_done = partial(self._host.memory.give_back, request)
            self._host.memory.keep(self, request)
        self._park(route, correlation_id, self._host.large_requests.submit(request), stop - start)

    def _read_large(
        self, route: Route, correlation_id: int, frame: memoryview, start: int, stop: int
    ) -> tuple[Any, RequestContext]:
        request, client_id = self._read(route, frame, start, stop, again=True)
        return request, RequestContext(_HEAD.unpack_from(frame, start)[1], client_id, self, {}, correlation_id)

    def _answer(self, parts: list[Part]) -> None:
        if self._slots:
            slot = AnswerSlot(cast("Route", None), 0, None, max(held_bytes(parts), self._host.bounds.parked_min), parts)
            self._parked_bytes += slot.size
            self._slots.append(slot)
        else:
            self._ready.extend(parts)

    def _park(self, route: Route, correlation_id: int, pending: Pending[Any], size: int) -> None:
        size = max(size, self._host.bounds.parked_min)
        slot = AnswerSlot(
            route,
            correlation_id,
            pending,
            size,
            None,
            may_be_followed=route.is_produce and not pending.holds_connection,
        )
        slot.times = route.follower_times if self.of_a_follower else route.times
        clock = self._host.clock
        slot.began_ns, slot.parked_ns = clock.moment_ns, clock.now_ns()
        clock.moment_ns = slot.parked_ns
        self._parked_bytes += size
        self._slots.append(slot)
        if not slot.may_be_followed:
            self._execution = PARK[self._execution]
        pending.listen(lambda response: self._on_answer(slot, response))

    def _on_answer(self, slot: AnswerSlot[Route], response: Any) -> None:
        """A parked request has its answer: send it when its turn has come."""
        if self.closed:
            return
        slot.pending = None
        if not slot.answered_ns:  # Otherwise it was: it is bytes only now.
            slot.answered_ns = self._host.clock.now_ns()
        if not slot.may_be_followed:
            self._execution = GO_ON[self._execution]
        if response is None:
            self.close(f"{slot.route.name} could not be answered")
            return
        if type(response) is bytes:
            slot.parts = [response]  # That of a joint form.
        else:
            slot.parts = slot.route.write(slot.correlation_id, response) if response is not NO_ANSWER else []
        slots = self._slots
        if slots[0] is not slot:
            return
        clock = self._host.clock
        clock.moment_ns = clock.now_ns()
        while slots and slots[0].parts is not None:
            slot = slots.popleft()
            self._parked_bytes -= slot.size
            self._ready.extend(slot.parts or ())
            slot.note_flushed(clock)
        answered = self._host.rounds.answered
        if answered is None:
            self._flush()
            self._unblock()
        else:
            answered[self] = None

    def send_answers(self) -> None:
        """Parked requests have been answered: send that, and execute what had to wait."""
        try:
            self._flush()
            self._unblock()
        except Exception:
            self.close("its answers could not be sent")
            raise

    # ------------------------------------------------------------------ flow
    @property
    def _blocked(self) -> bool:
        """Whether nothing may be executed now: by its state (`execution`), too much that is parked, or a client that doesn't read."""
        return (
            self._execution >= PARKED
            or self._parked_bytes >= self._parked_max
            or bool(self._outgoing and self._outgoing.paused)
        )

    def _flush(self) -> None:
        if self._ready and self._outgoing is not None and not self.closed:
            ready, self._ready = self._ready, []
            self._outgoing.send(ready)
        if self._eof:
            self._close_when_done()

    def _unblock(self) -> None:
        """Execute what had to wait, then read on."""
        if self._blocked or self.closed:
            if self._execution >= LANED:
                self._host.lane.enter(self)
            return
        self._host.clock.moment_ns = self._host.clock.now_ns()
        if self._frame is not None and self._frame_is_whole:
            self._execute_frame(self._frame)
            self._flush()
        if self._backlog and not self._blocked and not self.closed:
            backlog, self._backlog = self._backlog, b""
            self._consume(memoryview(backlog), len(backlog))
            self._flush()
        if not self._blocked and not self._backlog and not self.closed:
            self._resume_reading()
        if self._eof:
            self._close_when_done()

    def _pause_reading(self) -> None:
        if self._execution >= LANED:
            self._host.lane.enter(self)
        if not self._reading_paused and self._transport is not None and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if (
            self._reading_paused
            and self._transport is not None
            and not self._eof
            and not self._transport.is_closing()
            and not self._waits_for_memory
            and not self._frame_is_whole
        ):
            self._reading_paused = False
            self._transport.resume_reading()


def _rows_of(route: Route, request: Any) -> int:
    """Returns the rows of a request that is to be cut, 0 for one that isn't."""
    if route.cut is None:
        return 0
    rows = row_count(request, route.cut.fields)
    return rows if rows > route.bounds.undivided_max else 0
