"""One client's connection: bytes to requests, answers to bytes, in order, without a task.

All connections receive into one shared scratch buffer; a whole frame is handled where it lies, in the callback that brought it.
What is left of a partial frame goes into a buffer of the connection's own (`partial_frame`). Answers leave in the order of their
requests through a queue of slots. While only Produce requests are parked, a few later requests of the same connection are executed too
(`PARKED_PRODUCE_LIMIT`), or acks=all would mean one batch a round trip; any other parked request stops the reading, and so does a client
that doesn't take its answers. One in the slow lane (`slow_lane`) executes nothing in its callback, but a frame when it is given a turn.

Invariant: a view of received bytes is never used after the callback that brought them returned, but for one of a mapped frame.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
from collections import deque
from functools import partial
from typing import Any, cast

from lowtide.broker.network.connection_host import ConnectionHost
from lowtide.broker.network.execution import END_TURN, ENTER_LANE, GO_ON, IN_TURN, LANED, LEAVE_LANE, PARK, PARKED, RUNNING, TURN
from lowtide.broker.network.large_requests import LargeRequest
from lowtide.broker.network.outgoing import AnswerSlot, EncodedAnswer, OutgoingQueue, Part
from lowtide.broker.network.partial_frame import PartialFrame
from lowtide.broker.network.routes import Route
from lowtide.broker.pending import NO_ANSWER, Pending
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.errors import ProtocolError, TooManyRowsError
from lowtide.protocol.headers import REQUEST_HEADER_BYTES_MIN

PARKED_PRODUCE_LIMIT = 16
"""Produce requests of one connection that may wait at once, with what was answered behind them; several times what clients keep in
flight (Java: 5)."""

TURN_MS = 2
"""How long requests of one connection are executed while others may wait; the one that is begun is finished."""

_LENGTH, _HEAD = struct.Struct(">i"), struct.Struct(">hhi")


class Connection(PartialFrame):
    """One connection of a client. Created by the server for each accepted socket."""

    def __init__(self, host: ConnectionHost, listener_name: str = "") -> None:
        """`host` gives what connections share: routes, limits, buffers, the log. `listener_name`: by which of the listeners it came."""
        super().__init__(host)
        self.listener_name = listener_name
        self._transport: asyncio.Transport | None = None
        self._outgoing: OutgoingQueue | None = None
        self._slots: deque[AnswerSlot[Route]] = deque()
        self._execution = RUNNING
        self._turns_left = 0
        self._backlog = b""
        self._reading_paused = False
        self._ready: list[Part] = []
        self._eof = False
        self.eof_ms = 0
        self.closed = False
        self.connected_ms = self.last_active_ms = 0
        self.peer = ""
        self.log: Any = host.log

    # ------------------------------------------------------------------ asyncio's callbacks
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket up and count it."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else str(peer or "")  # noqa: PLR2004
        self._transport.set_write_buffer_limits(high=0)
        host = self._host
        self._outgoing = OutgoingQueue(self._transport, host.buffers, host.worker, self.close, self.resume_writing, host.answers)
        self.connected_ms = self._host.now_ms()
        self.last_active_ms = self.connected_ms - 1  # What comes in the same millisecond counts.
        reason = self._host.on_connected(self)
        if reason is not None:
            self.close(reason)
        elif not self._host.serving:
            # Held as if a request were parked. What comes first pauses the reading; here uvloop would ignore it, and begin to read.
            self._execution = PARK[self._execution]

    def get_buffer(self, sizehint: int) -> memoryview:
        """The rest of the partial frame, else the buffer that all connections share."""
        if self._frame is None:
            return self._host.scratch
        return memoryview(self._frame)[self._filled : self._allowed]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle every whole request that is there now."""
        if self.closed:
            return
        self.last_active_ms = self._host.now_ms()
        if self._frame is None:
            self._consume(self._host.scratch, nbytes)
        else:
            self._filled += nbytes
            self._continue_frame()
        self._flush()

    def eof_received(self) -> bool:
        """A client that closed its writing side still gets its answers."""
        self._eof = True
        self.eof_ms = self._host.now_ms()
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
        self._host.on_refused(self, reason)
        if self._transport is not None:
            self._transport.abort()

    def refuse(self, reason: str) -> None:
        """The client has sent what makes no sense: close."""
        if not self.closed:
            self._host.lane.on_malformed(self.address)
        self.close(reason)

    def close_gracefully(self) -> None:
        """Read nothing more; close when the answers that are owed were sent."""
        self._eof = True
        self._pause_reading()
        self._close_when_done()

    @property
    def address(self) -> str:
        """Where the client is, without its port."""
        return self.peer.rpartition(":")[0]

    @property
    def waiting(self) -> bool:
        """Whether a request of this client is being worked on."""
        return bool(self._slots)

    @property
    def busy(self) -> bool:
        """Whether an answer is owed or on its way."""
        return bool(self._slots) or (self._outgoing is not None and not self._outgoing.idle)

    def _close_when_done(self) -> None:
        if self._eof and not (self.closed or self.busy or self._backlog or self._frame_is_whole) and self._transport is not None:
            self.closed = True
            self._transport.close()

    # ------------------------------------------------------------------ frames
    def _consume(self, buffer: memoryview, end: int) -> None:
        """Handle the whole frames in `buffer[:end]`; keep the rest."""
        position = 0
        maximum, turn_ms = self._host.maximum_frame_bytes, TURN_MS if self._execution == RUNNING else 0
        while end - position >= 4 and not self._blocked:  # noqa: PLR2004
            size = _LENGTH.unpack_from(buffer, position)[0]
            if not 0 < size <= maximum:
                self.refuse(f"a frame of {size} bytes is announced, 1 to {maximum} are allowed")
                return
            stop = position + 4 + size
            if stop > end:
                break
            self._on_request(buffer, position + 4, stop)
            if self.closed:
                return
            position = stop
            if position < end and self._host.now_ms() >= self.last_active_ms + turn_ms and not self._blocked:
                self._end_turn()
        if position == end:
            return
        if self._blocked:
            self._backlog += bytes(buffer[position:end])
            self._pause_reading()
        else:
            self._start_frame(buffer[position:end])

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
        self.last_active_ms = self._host.now_ms()
        self._unblock()

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
        self.last_active_ms = self._host.now_ms()
        self._unblock()
        if not self._backlog and not self.closed:
            self._resume_reading()  # Also when a request was parked: its client may go.
        if not leaves:
            self._execution = END_TURN[self._execution]

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
        api_key, api_version, correlation_id = _HEAD.unpack_from(buffer, start)
        route = host.routes[(api_key, api_version)]
        try:
            if route is None:
                parts = host.dispatcher.answer_unsupported(api_key, api_version, correlation_id)
                self._answer(parts)
                return
            request, client_id = route.read(buffer, start, stop)
        except TooManyRowsError:
            self._submit_large(cast("Route", route), correlation_id, buffer, start, stop)
            return
        except ProtocolError as error:
            self.refuse(f"{host.dispatcher.describe(api_key, api_version)}: {error}")
            return
        context = RequestContext(api_version, client_id, self)
        try:
            response = route.handle(request, context)
            if type(response) is Pending:
                if not response.done:
                    self._park(route, correlation_id, response)
                    return
                response = response.response
                if response is None:
                    self.close(f"{route.name} could not be answered")
            if response is not None and response is not NO_ANSWER:
                self._answer(route.write(correlation_id, response))
        except TooManyRowsError:
            self._park(route, correlation_id, host.large_requests.encode(route.large, correlation_id, response))
        except Exception as error:  # noqa: BLE001  a bug of ours costs one connection, and is logged with its traceback
            host.on_bug(self, route, error)
            self.close(f"{host.dispatcher.describe(api_key, api_version)} failed inside")

    def _submit_large(self, route: Route, correlation_id: int, buffer: memoryview, start: int, stop: int) -> None:
        """It has many rows: have it worked on in turns with others. The frame is kept, where it was mapped, or copied."""
        frame = buffer if isinstance(buffer.obj, mmap.mmap) else memoryview(bytes(buffer[start:stop]))
        request = LargeRequest(route.large, frame, (start, stop) if frame is buffer else (0, stop - start), correlation_id, self)
        if frame is buffer:
            request.on_done = partial(self._host.memory.give_back, request)
            self._host.memory.keep(self, request)
        self._park(route, correlation_id, self._host.large_requests.submit(request))

    def _answer(self, parts: list[Part]) -> None:
        if self._slots:
            slot = AnswerSlot(cast("Route", None), 0, None)
            slot.parts = parts
            self._slots.append(slot)
        else:
            self._ready.extend(parts)

    def _park(self, route: Route, correlation_id: int, pending: Pending[Any]) -> None:
        slot = AnswerSlot(route, correlation_id, pending, may_be_followed=route.is_produce and not pending.holds_connection)
        self._slots.append(slot)
        if not slot.may_be_followed:
            self._execution = PARK[self._execution]
        pending.listen(lambda response: self._on_answer(slot, response))

    def _on_answer(self, slot: AnswerSlot[Route], response: Any) -> None:
        """A parked request has its answer: send it when its turn has come."""
        if self.closed:
            return
        slot.pending = None
        if not slot.may_be_followed:
            self._execution = GO_ON[self._execution]
        if response is None:
            self.close(f"{slot.route.name} could not be answered")
            return
        if type(response) is EncodedAnswer:
            slot.parts = response.parts
        else:
            try:
                slot.parts = slot.route.write(slot.correlation_id, response) if response is not NO_ANSWER else []
            except TooManyRowsError:  # Its slot waits on, and holds the connection, until the answer is bytes.
                slot.may_be_followed = False
                self._execution = PARK[self._execution]
                slot.pending = self._host.large_requests.encode(slot.route.large, slot.correlation_id, response)
                slot.pending.listen(partial(self._on_answer, slot))
                return
        slots = self._slots
        if slots[0] is not slot:
            return
        while slots and slots[0].parts is not None:
            self._ready.extend(slots.popleft().parts or ())
        self._flush()
        self._unblock()

    # ------------------------------------------------------------------ flow
    @property
    def _blocked(self) -> bool:
        """Whether nothing may be executed now: by its state (`execution`), too many parked answers, or a client that doesn't read."""
        return (
            self._execution >= PARKED or len(self._slots) >= PARKED_PRODUCE_LIMIT or (self._outgoing is not None and self._outgoing.paused)
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
