"""One connection as its client sees it, without its socket: requests in, bytes out; bytes in, answers out.

Guards: answers come in the order of the requests, each with its correlation id. Anything else breaks the connection
(`broken` says why), for what follows can't be assigned to a request. The requests that wait, and the size of an answer,
are bounded.

Bytes are received into one buffer, which grows to the largest answer and is used again:

    get_buffer() ──> a socket fills some of it ──> receive(count) ──> [(waiter, answer), ...]

Fields of an answer are copied out of the buffer, except the records of a Fetch, which are views **valid until the next
`get_buffer`**; a Fetch therefore has its connection to itself. With `keeps_records` answers are decoded from a copy
instead, and nothing ends.

It does not send, wait, or close a socket, and knows no clock: moments (`_ms`, monotonic) are passed in and returned as
deadlines.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from lowtide.protocol.client.versions import ApiVersions, Exchange, exchange_of
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.framing import FRAME_BYTES_MAX, FRAME_SIZE_BYTES, check_frame_size, frame
from lowtide.protocol.headers import read_response_header, request_header

if TYPE_CHECKING:
    from lowtide.protocol.client.opening import Session
    from lowtide.protocol.primitives import RecordsLike
    from lowtide.protocol.schema import ApiMessage

IN_FLIGHT_MAX: Final = 1000
"""Requests that may wait for their answers on one connection."""

RECEIVE_BYTES: Final = 64 * 1024
"""The receive buffer, until an answer is larger."""

LARGE_BYTES: Final = 1 << 20
SMALL_ANSWERS_UNTIL_SHRUNK: Final = 256
"""A receive buffer above `LARGE_BYTES` is given back when so many answers in a row would have fitted into an eighth of it."""

NEVER_MS: Final = 1 << 62
"""A moment that doesn't come."""

W = TypeVar("W")

_SIZE = struct.Struct(">i")


class _Waiting(NamedTuple, Generic[W]):
    """A request on its way."""

    correlation_id: int
    exchange: Exchange
    waiter: W
    due_ms: int


class ClientConnection(Generic[W]):
    """Frames of one connection, in both directions.

    A `waiter` is what a shell wants back together with the answer, such as a future.
    """

    def __init__(
        self, client_id: str, *, now_ms: int = 0, frame_bytes_max: int = FRAME_BYTES_MAX, keeps_records: bool = False
    ) -> None:
        self.closed = False
        self.reason = ""
        """Why it is closed."""
        self.broken: str | None = None
        """Why nothing that follows can be read. The shell closes the connection."""
        self.has_answered = False
        """A request was answered; once the session is open, one of those that only a client may send that the broker accepts."""
        self.in_session = False
        self.versions = ApiVersions({})
        """What the broker speaks, once the session is open."""
        self.client_id = client_id
        self._frame_bytes_max = frame_bytes_max
        self._keeps_records = keeps_records
        self._waiting: deque[_Waiting[W]] = deque()
        self._correlation_id = 0
        self._used_at_ms = now_ms
        self._usable_until_ms = NEVER_MS
        self._buffer = bytearray(RECEIVE_BYTES)
        self._position = 0
        """Where the first frame begins that isn't whole yet."""
        self._filled = 0
        self._needed = FRAME_SIZE_BYTES
        """How much of it has to be here before it can be read on."""
        self._small_answers = 0

    # ------------------------------------------------------------------ its life
    @property
    def waiting_count(self) -> int:
        """How many requests are not answered yet."""
        return len(self._waiting)

    @property
    def due_ms(self) -> int:
        """When the oldest answer is late."""
        return self._waiting[0].due_ms if self._waiting else NEVER_MS

    def begin_session(self, session: Session, now_ms: int) -> None:
        """The broker has accepted us, and said what it speaks."""
        self.versions = session.versions
        self.in_session, self.has_answered = True, False
        if session.usable_ms is not None:
            self._usable_until_ms = now_ms + session.usable_ms

    def authentication_ends(self, now_ms: int) -> bool:
        """Whether the broker may close it at the next request (KIP-368)."""
        return now_ms >= self._usable_until_ms

    def is_usable(self, now_ms: int, max_idle_ms: int) -> bool:
        """Whether a request may still be sent: it is open, its authentication holds, and it wasn't idle for so long that it may be dead."""
        if self.closed or self.authentication_ends(now_ms):
            return False
        return bool(self._waiting) or max_idle_ms < 0 or now_ms - self._used_at_ms < max_idle_ms

    def refusal(self) -> str | None:
        """Why no further request can be sent; None where one can."""
        if self.closed:
            return self.reason
        if len(self._waiting) >= IN_FLIGHT_MAX:
            return f"{IN_FLIGHT_MAX} requests wait for their answers already"
        return None

    def close(self, reason: str) -> list[W]:
        """It is closed, for this reason.

        Returns the waiters of requests that the broker may have received; empty at a second call.
        """
        if self.closed:
            return []
        self.closed, self.reason = True, reason
        waiters = [waiting.waiter for waiting in self._waiting]
        self._waiting.clear()
        return waiters

    # ------------------------------------------------------------------ requests
    def request(self, message: ApiMessage, version: int, waiter: W, due_ms: int = NEVER_MS) -> bytes:
        """The frame to send; its answer comes with `waiter`, and is late after `due_ms`. `refusal` has to be None."""
        exchange = exchange_of(type(message), version)
        body = exchange.request.encode(message)
        header = self._expect(exchange, waiter, due_ms)
        return b"".join((_SIZE.pack(len(header) + len(body)), header, body))

    def request_without_answer(self, message: ApiMessage, version: int) -> bytes:
        """The frame of a request that no answer follows: Produce with acks=0."""
        exchange = exchange_of(type(message), version)
        body = exchange.request.encode(message)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        return frame(request_header(exchange.key, version, self._correlation_id, self.client_id), body)

    def request_parts(self, message: ApiMessage, version: int, waiter: W, due_ms: int = NEVER_MS) -> list[RecordsLike]:
        """As `request`, in parts that follow each other: records are a part of their own, the very object given."""
        exchange = exchange_of(type(message), version)
        parts = exchange.request.encode_parts(message)
        header = self._expect(exchange, waiter, due_ms)
        return [_SIZE.pack(len(header) + sum(map(len, parts))) + header, *parts]

    def _expect(self, exchange: Exchange, waiter: W, due_ms: int) -> bytes:
        """Note a request that waits. Returns its header."""
        waiting = self._waiting
        assert len(waiting) < IN_FLIGHT_MAX, "a shell asks for `refusal` first"
        alone = not waiting or self._keeps_records or not (exchange.has_records or waiting[-1].exchange.has_records)
        assert alone, "a Fetch must have its connection to itself, for its records are views of the receive buffer"
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        waiting.append(_Waiting(self._correlation_id, exchange, waiter, due_ms))
        return request_header(exchange.key, exchange.version, self._correlation_id, self.client_id)

    # ------------------------------------------------------------------ answers
    def get_buffer(self) -> memoryview:
        """Room for what arrives next, never empty. Ends the views that earlier answers have."""
        if self._position or self._needed > len(self._buffer) or self._small_answers >= SMALL_ANSWERS_UNTIL_SHRUNK:
            self._make_room()
        return memoryview(self._buffer)[self._filled :]

    def receive(self, count: int, now_ms: int = 0) -> list[tuple[W, Any]]:
        """The answers that are whole now that `count` bytes were put into the buffer, in their order; then look at `broken`."""
        answers: list[tuple[W, Any]] = []
        filled = self._filled = self._filled + count
        buffer, position = self._buffer, self._position
        try:
            while (rest := filled - position) >= FRAME_SIZE_BYTES:
                needed = FRAME_SIZE_BYTES + check_frame_size(
                    _SIZE.unpack_from(buffer, position)[0], self._frame_bytes_max
                )
                if needed > rest:
                    break
                answers.append(self._answer(position + FRAME_SIZE_BYTES, position + needed))
                position += needed
            else:
                needed = FRAME_SIZE_BYTES
        except ProtocolError as error:
            self.broken = f"its answer can't be read: {error}"
            return answers
        if position == filled:  # What comes next may take the place of the answers.
            position = self._filled = 0
        self._position, self._needed = position, needed
        if answers:
            self._used_at_ms = now_ms
        return answers

    def _answer(self, start: int, end: int) -> tuple[W, Any]:
        """The waiter and the message of the frame whose content is in `[start, end)`. Errors: ProtocolError."""
        if not self._waiting:
            raise ProtocolError(f"an answer of {end - start} bytes to no request")
        waiting = self._waiting[0]
        exchange = waiting.exchange
        correlation_id, position = read_response_header(self._buffer, start, end, flexible=exchange.answer_is_flexible)
        if correlation_id != waiting.correlation_id:
            raise ProtocolError(f"answer {correlation_id} instead of {waiting.correlation_id}")
        view = memoryview(self._buffer)
        if self._keeps_records and exchange.has_records:
            answer = exchange.decode(bytes(view[position:end]), 0, end - position)
        else:
            answer = exchange.decode(view, position, end)
        self._waiting.popleft()
        self.has_answered = True
        is_small = LARGE_BYTES < len(self._buffer) > (end - start) * 8
        self._small_answers = self._small_answers + 1 if is_small else 0
        return waiting.waiter, answer

    def _make_room(self) -> None:
        """Let the frame at `_position` begin the buffer, which then has room for `_needed` bytes of it."""
        count = self._filled - self._position
        needed = max(self._needed, count)
        shrinks = self._small_answers >= SMALL_ANSWERS_UNTIL_SHRUNK and needed <= RECEIVE_BYTES
        if self._needed > len(self._buffer) or shrinks:
            buffer = bytearray(max(needed, RECEIVE_BYTES))
            buffer[:count] = memoryview(self._buffer)[self._position : self._filled]
            self._buffer = buffer
            self._small_answers = 0
        elif count and self._position:
            self._buffer[:count] = self._buffer[self._position : self._filled]
        self._position, self._filled = 0, count
