"""A client connection without its socket: requests in, bytes out; bytes in, responses out.

Guards: responses come in the order of the requests, with their correlation ids. Anything else breaks the connection
(`broken` has the reason), because later bytes cannot be assigned to a request. The number of waiting requests and the
size of a response are bounded.

Bytes are received into one buffer, which grows to the largest response and is reused:

    get_buffer() ──> a socket fills some of it ──> receive(count) ──> [(waiter, response), ...]

Fields of a response are copied out of the buffer, except the records of a Fetch, which are views **valid until the next
`get_buffer`**; a Fetch therefore has its connection to itself. With `keeps_records` responses are decoded from a copy,
and their records stay valid.

It does not send, wait, close a socket or read a clock: monotonic times (`_ms`) are passed in and returned as deadlines.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from lowtide.protocol.client.versions import ApiExchange, ApiVersions, exchange_of
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.headers import (
    FRAME_BYTES_MAX,
    FRAME_SIZE_BYTES,
    check_frame_size,
    frame,
    read_response_header,
    request_header,
)

if TYPE_CHECKING:
    from lowtide.protocol.client.opening import ClientSession
    from lowtide.protocol.primitives import RecordsLike
    from lowtide.protocol.schema import ApiMessage

IN_FLIGHT_MAX: Final = 1000
"""The maximum number of requests that wait for responses on one connection."""

RECEIVE_BYTES: Final = 64 * 1024
"""The initial size of the receive buffer."""

LARGE_BYTES: Final = 1 << 20
SMALL_ANSWERS_UNTIL_SHRUNK: Final = 256
"""The number of consecutive responses of at most an eighth of a large buffer (`LARGE_BYTES`) after which it shrinks."""

NEVER_MS: Final = 1 << 62

W = TypeVar("W")

_SIZE = struct.Struct(">i")


class _WaitingRequest(NamedTuple, Generic[W]):
    correlation_id: int
    exchange: ApiExchange
    waiter: W
    due_ms: int


class ClientConnection(Generic[W]):
    """Frames of one connection, in both directions.

    A `waiter` is any object that the shell gets back with the response, such as a future.
    """

    def __init__(
        self, client_id: str, *, now_ms: int = 0, frame_bytes_max: int = FRAME_BYTES_MAX, keeps_records: bool = False
    ) -> None:
        self.closed = False
        self.reason = ""
        self.broken: str | None = None
        """Why the stream is unreadable. The shell closes the connection."""
        self.has_answered = False
        """Whether a request was answered; in a session, one of those that follow authentication."""
        self.in_session = False
        self.versions = ApiVersions({})
        self.client_id = client_id
        self._frame_bytes_max = frame_bytes_max
        self._keeps_records = keeps_records
        self._waiting: deque[_WaitingRequest[W]] = deque()
        self._correlation_id = 0
        self._used_at_ms = now_ms
        self._usable_until_ms = NEVER_MS
        self._buffer = bytearray(RECEIVE_BYTES)
        self._position = 0
        """The position of the first incomplete frame."""
        self._filled = 0
        self._needed = FRAME_SIZE_BYTES
        """The number of its bytes needed to continue."""
        self._small_answers = 0

    # ------------------------------------------------------------------ its life
    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def due_ms(self) -> int:
        return self._waiting[0].due_ms if self._waiting else NEVER_MS

    def begin_session(self, session: ClientSession, now_ms: int) -> None:
        """Starts the session: the broker accepted the client."""
        self.versions = session.versions
        self.in_session, self.has_answered = True, False
        if session.usable_ms is not None:
            self._usable_until_ms = now_ms + session.usable_ms

    def authentication_ends(self, now_ms: int) -> bool:
        """Returns whether the broker may close the connection at the next request (KIP-368)."""
        return now_ms >= self._usable_until_ms

    def is_usable(self, now_ms: int, max_idle_ms: int) -> bool:
        """Returns whether a request can be sent: it is open, authenticated, and was not idle for too long."""
        if self.closed or self.authentication_ends(now_ms):
            return False
        return bool(self._waiting) or max_idle_ms < 0 or now_ms - self._used_at_ms < max_idle_ms

    def refusal(self) -> str | None:
        """Returns why no request can be sent, or None."""
        if self.closed:
            return self.reason
        if len(self._waiting) >= IN_FLIGHT_MAX:
            return f"{IN_FLIGHT_MAX} requests are waiting for responses"
        return None

    def close(self, reason: str) -> list[W]:
        """Closes the connection for this reason.

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
        """Returns the frame to send; its response comes with `waiter`, until `due_ms`. `refusal` must be None."""
        exchange = exchange_of(type(message), version)
        body = exchange.request.encode(message)
        header = self._expect(exchange, waiter, due_ms)
        return b"".join((_SIZE.pack(len(header) + len(body)), header, body))

    def request_without_answer(self, message: ApiMessage, version: int) -> bytes:
        """Returns the frame of a request without a response: Produce with acks=0."""
        exchange = exchange_of(type(message), version)
        body = exchange.request.encode(message)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        return frame(request_header(exchange.key, version, self._correlation_id, self.client_id), body)

    def request_parts(self, message: ApiMessage, version: int, waiter: W, due_ms: int = NEVER_MS) -> list[RecordsLike]:
        """Returns the frame in parts: records are separate parts, without a copy."""
        exchange = exchange_of(type(message), version)
        parts = exchange.request.encode_parts(message)
        header = self._expect(exchange, waiter, due_ms)
        return [_SIZE.pack(len(header) + sum(map(len, parts))) + header, *parts]

    def _expect(self, exchange: ApiExchange, waiter: W, due_ms: int) -> bytes:
        """Records a waiting request and returns its header."""
        waiting = self._waiting
        assert len(waiting) < IN_FLIGHT_MAX, "shells check `refusal` first"
        alone = not waiting or self._keeps_records or not (exchange.has_records or waiting[-1].exchange.has_records)
        assert alone, "a Fetch must have its connection to itself, for its records are views of the receive buffer"
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        waiting.append(_WaitingRequest(self._correlation_id, exchange, waiter, due_ms))
        return request_header(exchange.key, exchange.version, self._correlation_id, self.client_id)

    # ------------------------------------------------------------------ answers
    def get_buffer(self) -> memoryview:
        """Returns free buffer space, never empty. Invalidates the views in earlier responses."""
        if self._position or self._needed > len(self._buffer) or self._small_answers >= SMALL_ANSWERS_UNTIL_SHRUNK:
            self._make_room()
        return memoryview(self._buffer)[self._filled :]

    def receive(self, count: int, now_ms: int = 0) -> list[tuple[W, Any]]:
        """Returns the complete responses after `count` bytes arrived in the buffer, in order; then check `broken`."""
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
            self.broken = f"its response is invalid: {error}"
            return answers
        if position == filled:  # The next bytes can overwrite the responses.
            position = self._filled = 0
        self._position, self._needed = position, needed
        if answers:
            self._used_at_ms = now_ms
        return answers

    def _answer(self, start: int, end: int) -> tuple[W, Any]:
        """Decodes the frame with its content in `[start, end)`. Errors: ProtocolError."""
        if not self._waiting:
            raise ProtocolError(f"a response of {end - start} bytes without a request")
        waiting = self._waiting[0]
        exchange = waiting.exchange
        correlation_id, position = read_response_header(self._buffer, start, end, flexible=exchange.answer_is_flexible)
        if correlation_id != waiting.correlation_id:
            raise ProtocolError(f"response {correlation_id} instead of {waiting.correlation_id}")
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
        """Moves the incomplete frame to the beginning of the buffer, with space for `_needed` bytes."""
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
