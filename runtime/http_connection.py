"""A connection of the HTTP listener, and its limits: how large a head, how slow a peer. `http_visits` has those of all.

An `HttpConnection` stands between a socket and aiohttp's handler, which is made when there is one: until then it keeps
what arrives. It knows of HTTP only where a head ends, so that a head without an end is cut off by its size and by its
time.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final, cast

from lowtide.runtime.addresses import network_of
from lowtide.runtime.http_visits import Kind, MakeHandler, Visits

HEAD_BYTES_MAX: Final = 32 * 1024
"""Of the first line and all headers of a request."""

HEAD_MS: Final = 10_000
"""How long a head may take, from its first byte or from the connection on."""

IDLE_MS: Final = 75_000
"""How long a connection stays without a request: longer than Prometheus waits between two scrapes, as a rule."""

UNREAD_MS: Final = 30_000
"""How long a peer may leave unread what fills its socket."""

HELD_BYTES_MAX: Final = HEAD_BYTES_MAX
"""What a connection may send before there is what answers it."""

_END: Final = b"\r\n\r\n"

_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain\r\nContent-Length: 0\r\nConnection: close\r\n"
    b"X-Content-Type-Options: nosniff\r\n\r\n"
)


class Phase(Enum):
    """Where a connection is."""

    IDLE = "idle"
    """No byte of the next request is there."""
    HEAD = "head"
    """Some are."""
    WHOLE = "whole"
    """The head is there, and its answer isn't begun."""
    BUSY = "busy"
    """The request is being answered."""


class HttpConnection(asyncio.Protocol):
    """One connection: a protocol to its socket."""

    def __init__(self, visits: Visits) -> None:
        self._visits = visits
        self._is_in = False
        self.handshake: asyncio.Task[None] | None = None
        """The handshake that is under way."""
        self._transport: asyncio.Transport | None = None
        self._handler: asyncio.Protocol | None = None
        self._held = bytearray()
        self._tail = b""
        self._head_bytes = 0
        self._full_since_ms: int | None = None
        self.address = ""
        """The address of the peer."""
        self.visitor = ""
        """Whose share it uses."""
        self.kind = Kind.STRANGER
        self.phase = Phase.IDLE
        self.since_ms = 0
        """When this phase began."""
        self.answered = False
        """Whether it has had an answer: then it may be idle for longer."""

    def enter(self, transport: asyncio.BaseTransport) -> bool:
        """Whether there is a place for a connection of this socket's peer."""
        name = transport.get_extra_info("peername")
        self.address = name[0] if name else ""
        self.visitor, self.kind = network_of(self.address), self._visits.kind_of(self.address)
        self.since_ms = self._visits.now_ms()
        self._is_in = self._visits.enter(self)
        return self._is_in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A socket was accepted, or the handshake of one that has its place (`enter`) has ended."""
        self._transport = cast("asyncio.Transport", transport)
        if self._is_in or self.enter(transport):
            self._visits.open(self)
        else:
            self._transport.abort()

    def begin(self, make_handler: MakeHandler) -> None:
        """There is what answers: it gets what has arrived."""
        if self._handler is not None or self._transport is None or self._transport.is_closing():
            return
        self._handler = make_handler(self)
        self.since_ms = self._visits.now_ms()
        self._handler.connection_made(self._transport)
        if self._held:
            held, self._held = bytes(self._held), bytearray()
            self._handler.data_received(held)
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        if self._transport is None or not self._is_small_enough(data):
            return
        if self._handler is not None:
            self._handler.data_received(data)
            return
        self._held += data
        if len(self._held) >= HELD_BYTES_MAX:
            self._transport.pause_reading()

    def eof_received(self) -> bool | None:
        """The peer sends nothing more."""
        return None if self._handler is None else self._handler.eof_received()

    def pause_writing(self) -> None:
        """The socket is full."""
        self._full_since_ms = self._visits.now_ms()
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """The peer has read."""
        self._full_since_ms = None
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it. No cycle may be left."""
        handler, self._handler = self._handler, None
        self._transport = None
        self._held.clear()
        self._visits.leave(self)
        if handler is not None:
            handler.connection_lost(exc)

    def on_request(self) -> None:
        """Its answer is begun."""
        self._enter(Phase.BUSY)

    def on_answered(self) -> None:
        """Its answer has ended, and the next request may come."""
        self.answered = True
        self._enter(Phase.IDLE)

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self.phase is Phase.BUSY

    def is_too_slow(self, now_ms: int) -> bool:
        """Whether a head, a request or a reader takes too long."""
        if self._full_since_ms is not None and now_ms - self._full_since_ms > UNREAD_MS:
            return True
        if self.phase is Phase.BUSY or (self.phase is Phase.WHOLE and self._handler is None):
            return False  # It is answered, or what answers it is being imported.
        allowed_ms = IDLE_MS if self.phase is Phase.IDLE and self.answered else HEAD_MS
        return now_ms - self.since_ms > allowed_ms

    def abort(self) -> None:
        """End it at once."""
        self._visits.leave(self)
        if self.handshake is not None:
            self.handshake.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.since_ms = self._visits.now_ms()
        self._head_bytes = 0
        self._tail = b""

    def _is_small_enough(self, data: bytes) -> bool:
        """Follows a head to its end. False where it is too large: then the connection is about to be closed."""
        if self.phase is Phase.BUSY or self.phase is Phase.WHOLE:
            return True
        if self.phase is Phase.IDLE:
            self._enter(Phase.HEAD)
        seen = self._tail + data[:HEAD_BYTES_MAX]
        if _END in seen:
            self._enter(Phase.WHOLE)
            return True
        self._head_bytes += len(data)
        self._tail = seen[1 - len(_END) :]
        if self._head_bytes <= HEAD_BYTES_MAX:
            return True
        self._visits.slow_count += 1
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_TOO_LARGE)
            self._transport.close()
        return False
