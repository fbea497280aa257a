"""One client's connection: bytes to requests, answers to bytes, in order, without a task.

All connections receive into one shared buffer. A whole frame is handled where it lies, in the callback that brought it,
or with those of other connections at the end of the loop's pass (`gathering`). The parts of a connection: an incomplete
frame (`partial_frame`), when it executes (`execution`), and its answers in order (`answers`). While only Produce
requests are parked, a few later requests are executed too (`RequestBounds`), or acks=all would mean one batch a round
trip; any other parked request stops the reading, and so does a client that doesn't read its answers.

Invariant: a view of received bytes is never used after the pass that brought them, except one of a mapped frame.
"""

from __future__ import annotations

import asyncio
import struct
from functools import partial
from typing import cast

from lowtide.broker.network.connection.answers import Answers
from lowtide.broker.network.connection.connection_host import ConnectionHost
from lowtide.broker.network.connection.execution import LANED, PARK, PARKED, RUNNING, TURN_NS, ExecutionState
from lowtide.broker.network.connection.outgoing import OutgoingQueue
from lowtide.broker.network.connection.partial_frame import FREE_FRAME_BYTES, FrameRefusedError, PartialFrame
from lowtide.broker.network.routing.routes import read_request
from lowtide.broker.pending import NO_ANSWER, Pending
from lowtide.broker.request_context import RequestContext
from lowtide.broker.security.principal import ANONYMOUS, KafkaPrincipal, ShownBy
from lowtide.protocol.broker_frames import REQUEST_HEADER_BYTES_MIN
from lowtide.protocol.errors import SurplusBytesError
from lowtide.runtime.addresses import named_peer
from lowtide.runtime.network import peer_has_closed

_LENGTH, _HEAD, _FRAME = struct.Struct(">i"), struct.Struct(">hhi"), struct.Struct(">ihh")
"""A length; the API key, version and correlation id of a request; a length with an API key and version."""


class Connection(asyncio.BufferedProtocol):
    """One connection of a client. Created by the server for each accepted socket."""

    security_protocol = "PLAINTEXT"
    """The `security.protocol` that clients of the listener must set."""
    principal: KafkaPrincipal = ANONYMOUS
    client_address, write_grants, shown_by, software, of_a_follower = "", None, ShownBy.NOTHING, ("", ""), False
    may_gather = True
    """Whether its requests may be executed with those of other connections."""

    def __init__(self, host: ConnectionHost, listener_name: str = "") -> None:
        """`host` has what connections share. `listener_name` is the listener at which the client connected."""
        self._host = host
        self.listener_name = listener_name
        self._maximum_frame_bytes = host.bounds.frame_max
        self._transport: asyncio.Transport | None = None
        self._outgoing: OutgoingQueue | None = None
        self.frame = PartialFrame(host.frame_buffers, host.memory)
        self.turns = ExecutionState(host.bounds.parked_max, partial(self.unblock, is_turn=True))
        self.answers = Answers(self, self.turns, host.clock, host.rounds, host.bounds.parked_min)
        self._backlog = b""
        """Frames that have arrived and may not be executed yet."""
        self.reading_paused = self._eof = self.closed = False
        self.eof_ms = self.connected_ms = self.active_ns = 0
        """`active_ns` is when bytes were received last, or the turn began."""
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sets the socket up and counts it."""
        self._transport = cast("asyncio.Transport", transport)
        self.client_address, self.peer = named_peer(transport.get_extra_info("peername"))
        self.local_address = (transport.get_extra_info("sockname") or ())[:2] or None
        self._transport.set_write_buffer_limits(high=0)
        host = self._host
        pool, worker, clock = host.frame_buffers.chunks, host.worker, host.clock
        self._outgoing = self.answers.outgoing = OutgoingQueue(
            self._transport, pool, worker, self.close, clock, self.resume_writing, host.answers
        )
        self.connected_ms = host.clock.now_ms()
        self.active_ns = self.connected_ms * 1_000_000 - 1  # What comes in the same millisecond counts.
        reason = host.on_connected(self)
        if reason is not None:
            self.close(reason)
        elif not host.serving:
            # Waits as if a request were parked. The first bytes pause the reading: uvloop ignores a pause here, and
            # starts to read.
            self.turns.execution = PARK[self.turns.execution]

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the rest of the partial frame, else the buffer that all connections share."""
        frame, host = self.frame, self._host
        if frame.buffer is None:
            return host.gathering.room[:FREE_FRAME_BYTES] if host.memory.is_short else host.gathering.room
        return memoryview(frame.buffer)[frame.filled : frame.allowed]

    def buffer_updated(self, nbytes: int) -> None:
        """Executes every whole request that has arrived."""
        if self.closed:
            return
        host, frame = self._host, self.frame
        clock, now_ns = host.clock, host.clock.now_ns
        self.active_ns = clock.moment_ns = now_ns()
        if frame.buffer is None:
            room = host.gathering.room
            if self.answers.gathered:
                host.gathering.execute()
            self._consume(room, nbytes)
        else:
            frame.filled += nbytes
            if frame.filled >= min(len(frame.buffer), frame.allowed):
                self._continue_frame()
        answers, pass_answers = self.answers, host.gathering.pass_answers
        if answers.ready and pass_answers.last is not answers:
            pass_answers.take(answers)
        else:
            answers.flush()

    def eof_received(self) -> bool:
        """Sends all answers and then closes: the client has closed its writing side."""
        self._eof = self.answers.ends = True
        self.eof_ms = self._host.clock.now_ms()
        self.close_when_done()
        return True

    def pause_writing(self) -> None:
        """Executes nothing more until the client reads its answers: the socket is full."""
        if self._outgoing is not None:
            self._outgoing.paused = True

    def resume_writing(self) -> None:
        """Continues: the socket is empty again."""
        if self._outgoing is not None and not self.closed:
            self._outgoing.resume()
            self.unblock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Frees everything that waits for this client."""
        self.closed = True
        # No cycle may be left: the collector ignores objects that existed while connections were open.
        self.answers.close()
        self.turns.close()
        self.frame.drop(self)
        self._backlog = b""
        self._transport = self._outgoing = None
        self._host.on_disconnected(self)

    def close(self, reason: str) -> None:
        """Closes without another answer. The reason is logged."""
        if self.closed:
            return
        self.closed = True
        self._host.logins.pop(self, None)
        self._host.on_refused(self, reason)
        if self._transport is not None:
            self._transport.abort()

    def refuse(self, reason: str) -> None:
        """Closes because the client has sent invalid bytes."""
        if not self.closed:
            self._host.lane.on_malformed(self.client_address)
        self.close(reason)

    def close_gracefully(self) -> None:
        """Reads nothing more, and closes when all answers are sent."""
        self._eof = self.answers.ends = True
        self._pause_reading()
        self.close_when_done()

    def close_when_done(self) -> None:
        """Closes if the client sends nothing more and all answers are sent."""
        if (
            self._eof
            and not (self.closed or self.answers.busy or self._backlog or self.frame.is_whole)
            and self._transport is not None
        ):
            self.closed = True
            self._transport.close()

    @property
    def busy(self) -> bool:
        """Whether a request has no answer yet, or an answer is not sent."""
        return self.answers.busy

    @property
    def last_active_ms(self) -> int:
        """When bytes were received last."""
        return self.active_ns // 1_000_000

    def _consume(self, buffer: memoryview, end: int) -> None:
        """Handles the whole frames in `buffer[:end]`; keeps the rest."""
        position, turns, slots = 0, self.turns, self.answers.slots
        maximum, turn_ns = self._maximum_frame_bytes, TURN_NS if turns.execution is RUNNING else 0
        outgoing: OutgoingQueue = self._outgoing  # type: ignore[assignment]  # it is open
        # Like `_blocked`, but without a call, since every request passes here.
        while end - position >= 4 and not (  # noqa: PLR2004
            turns.execution >= PARKED or turns.parked_bytes >= turns.parked_max or outgoing.paused
        ):
            size = _LENGTH.unpack_from(buffer, position)[0]
            if not 0 < size <= maximum:
                self._host.on_invalid_length(self, size, maximum)
                return
            stop = position + 4 + size
            if stop > end:
                break
            # Two bytes of zero are the API key of Produce, which alone has a joint form.
            if size > 1 and not (buffer[position + 5] or buffer[position + 4]):
                position = self._execute(buffer, position, stop, end if turn_ns and not slots else stop)
            else:
                self.on_request(buffer, position + 4, stop)
                position = stop
            if position == end or self.closed:
                return
            self._host.clock.moment_ns = now_ns = self._host.clock.now_ns()
            if now_ns >= self.active_ns + turn_ns and not self._blocked:
                turns.end_turn()
        if self._blocked:
            self._backlog += bytes(buffer[position:end])
            self._pause_reading()
            return
        try:
            if not self.frame.start(buffer[position:end], self, self._host.clock.now_ms()):
                self._pause_reading()
        except FrameRefusedError as error:
            self.close(str(error))

    def _execute(self, buffer: memoryview, position: int, stop: int, end: int) -> int:
        """Executes the frame `buffer[position:stop]`, now or after this pass, with those up to `end` that join it.

        Returns where they end.
        """
        gathering = self._host.gathering
        if gathering.is_used and stop - position >= _FRAME.size:
            is_alone = stop == end and not (position or self.answers.slots) and buffer is gathering.room
            if is_alone and gathering.last is not self and self.may_gather and gathering.take(self, end):
                return stop
            if ran := gathering.execute_own(self, buffer, position, end, self._maximum_frame_bytes):
                return ran
        if not self.closed:
            self.on_request(buffer, position + 4, stop)
        return stop

    def _continue_frame(self) -> None:
        """Executes the frame if it is whole, or makes room for the rest."""
        frame = self.frame
        if frame.is_whole:
            if self._blocked:
                self._pause_reading()
            else:
                buffer = frame.take()
                self._execute(memoryview(buffer), 0, frame.target, frame.target)
                frame.give(buffer, self)
            return
        size = frame.announced_bytes
        try:
            if size is None:
                if not frame.make_room(self):
                    self._pause_reading()
            elif 0 < size <= self._maximum_frame_bytes:
                frame.learn_length(size, self)
            else:
                self._host.on_invalid_length(self, size, self._maximum_frame_bytes)
        except FrameRefusedError as error:
            self.close(str(error))

    @property
    def received_bytes(self) -> int:
        """The bytes of the partial frame that have arrived."""
        return self.frame.filled

    def on_memory_granted(self) -> None:
        """Continues to read the frame that waited for memory."""
        try:
            self.frame.on_memory_granted(self._host.clock.now_ms())
        except FrameRefusedError as error:
            self.close(str(error))
        else:
            self.unblock()

    def on_request(self, buffer: memoryview, start: int, stop: int) -> None:
        """Executes the request `buffer[start:stop]`. Its answer is sent by the next `flush`."""
        host = self._host
        if stop - start < REQUEST_HEADER_BYTES_MIN:
            self.refuse(f"a request of {stop - start} bytes is shorter than its header")
            return
        clock, answers, now_ns = host.clock, self.answers, host.clock.now_ns
        began_ns = clock.moment_ns
        api_key, api_version, correlation_id = _HEAD.unpack_from(buffer, start)
        route = host.routes[(api_key, api_version)]
        context = None
        try:
            if route is None:
                rest = buffer[start + 8 : stop]
                answers.add(host.dispatcher.answer_unsupported(api_key, api_version, correlation_id, rest))
                return
            # Python 3.11 loads a callable from a field faster by itself than with its call.
            read, handle, write = route.read, route.handle, route.write
            try:
                request, client_id = read(buffer, start, stop, route.rows_max, route.is_flexible)
            except SurplusBytesError:
                request, client_id = read_request(route, buffer, start, stop, partial(host.on_surplus, self))
            if stop - start > route.undivided_bytes and (rows := route.rows_to_cut(request)):
                pending = host.begin_large(self, route, correlation_id, rows, buffer[start:stop])
                answers.park(route, correlation_id, pending, stop - start)
                return
            context = RequestContext(api_version, client_id, self, None, correlation_id)
            response = handle(request, context)
            if type(response) is Pending:
                if not response.done:
                    answers.park(route, correlation_id, response, stop - start)
                    return
                if (response := response.response) is None:
                    self.close(f"{route.name} could not be answered")
            if response is not None and response is not NO_ANSWER:
                parts = write(correlation_id, response)
                if answers.slots:
                    answers.add(parts)
                else:
                    answers.ready += parts
            took_ns = now_ns() - began_ns
            times = clock.times = route.follower_times if self.of_a_follower else route.times
            times.quick[took_ns.bit_length()] += 1
            times.quick_ns += took_ns
        except Exception as error:  # noqa: BLE001  a bug of ours costs one connection, and is logged with its traceback
            name = host.dispatcher.describe(api_key, api_version)
            host.on_failed(self, route, name, error, was_read=context is not None)

    @property
    def _blocked(self) -> bool:
        """Whether nothing may be executed: by state, for parked bytes, or because the client does not read."""
        return (
            self.turns.execution >= PARKED
            or self.turns.parked_bytes >= self.turns.parked_max
            or bool(self._outgoing and self._outgoing.paused)
        )

    def unblock(self, *, is_turn: bool = False) -> None:
        """Executes waiting requests, then continues to read. With `is_turn` it counts the time they waited."""
        host, is_closed = self._host, self.closed
        if is_turn and not is_closed:
            waited_ns, self.active_ns = -self.active_ns, host.clock.now_ns()
            if len(self._backlog) >= _FRAME.size and not self._blocked:
                route = host.routes[_FRAME.unpack_from(self._backlog)[1:]]
                if route is not None:
                    route.times.queue[(self.active_ns + waited_ns).bit_length()] += 1
        if self._blocked or is_closed:
            if self.turns.execution >= LANED:
                host.lane.enter(self)
            return
        host.clock.moment_ns = host.clock.now_ns()
        if self.frame.buffer is not None and self.frame.is_whole:
            self._continue_frame()
            self.answers.flush()
        if self._backlog and not self._blocked and not self.closed:
            backlog, self._backlog = self._backlog, b""
            self._consume(memoryview(backlog), len(backlog))
            self.answers.flush()
        if self.reading_paused and not (self._backlog or self.closed or self._blocked):
            self._resume_reading()
        if self._eof:
            self.close_when_done()

    def _pause_reading(self) -> None:
        if self.turns.execution >= LANED:
            self._host.lane.enter(self)
        if not self.reading_paused and self._transport is not None and not self._transport.is_closing():
            self.reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if (
            self.reading_paused
            and self._transport is not None
            and not self._eof
            and not self._transport.is_closing()
            and not self.frame.waits_for_memory
            and not self.frame.is_whole
        ):
            self.reading_paused = False
            self._transport.resume_reading()

    def take_turn(self, *, may_leave: bool) -> None:
        """Executes the next waiting frame if it may, and continues to read if no other waits."""
        if self.closed:
            return
        turns = self.turns
        turns.begin_lane_turn()
        has_frame = not self._blocked and bool(self._backlog or self.frame.is_whole)
        leaves = turns.counts_turn(has_frame=has_frame, may_leave=may_leave)
        self.unblock(is_turn=True)
        if not self._backlog and not self.closed:
            self._resume_reading()  # Also with a parked request, to notice when the client goes.
        if not leaves:
            turns.end_lane_turn()

    def mute(self, for_ms: int) -> None:
        """Executes nothing for `for_ms`."""
        if not self.closed:
            self.turns.mute(for_ms)

    def look_for_end(self) -> None:
        """Finds out whether the client has gone. While a request is parked, nothing is read from the socket."""
        if self.reading_paused and not self.eof_ms and self._transport is not None and peer_has_closed(self._transport):
            self.eof_ms = self._host.clock.now_ms()
