"""A connection of the HTTP listener and its limits: the size of a head, and slow peers. `http_visits` has the totals.

An `HttpConnection` stands between a socket and aiohttp's handler. Until that exists it buffers what arrives. Of HTTP it
knows only the end of a head, so that it can limit a head's size and time.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final, cast

from lowtide.runtime.addresses import network_of
from lowtide.runtime.http_visits import MakeHandler, VisitorKind, Visits

HEAD_BYTES_MAX: Final = 32 * 1024
"""The first line and all headers of a request."""

HEAD_MS: Final = 10_000
"""How long a head may take, from its first byte or from the connection."""

IDLE_MS: Final = 75_000
"""How long a connection may be idle between requests: longer than Prometheus's usual scrape interval."""

UNREAD_MS: Final = 30_000
"""How long a peer may leave a full socket unread."""

HELD_BYTES_MAX: Final = HEAD_BYTES_MAX
"""Bytes buffered before there is a handler."""

_END: Final = b"\r\n\r\n"

_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n"
    b"Connection: close\r\nX-Content-Type-Options: nosniff\r\n\r\n"
)


class ConnectionPhase(Enum):
    """The state of a connection's current request."""

    IDLE = "idle"
    """No byte of the next request has arrived."""
    HEAD = "head"
    """A part of the head has arrived."""
    WHOLE = "whole"
    """The head has arrived, and its answer hasn't begun."""
    BUSY = "busy"
    """The request is being answered."""


class HttpConnection(asyncio.Protocol):
    """One connection: the protocol of its socket."""

    def __init__(self, visits: Visits) -> None:
        self._visits = visits
        self._is_in = False
        self.handshake: asyncio.Task[None] | None = None
        """The running handshake."""
        self._transport: asyncio.Transport | None = None
        self._handler: asyncio.Protocol | None = None
        self._held = bytearray()
        self._tail = b""
        self._head_bytes = 0
        self._full_since_ms: int | None = None
        self.address = ""
        self.visitor = ""
        """The visitor that it counts for."""
        self.kind = VisitorKind.STRANGER
        self.phase = ConnectionPhase.IDLE
        self.since_ms = 0
        """When this phase began."""
        self.answered = False
        """Whether it has had an answer: then it may be idle for longer."""

    def enter(self, transport: asyncio.BaseTransport) -> bool:
        """Counts the connection, if there is a place for this peer. Returns whether there is."""
        name = transport.get_extra_info("peername")
        self.address = name[0] if name else ""
        self.visitor, self.kind = network_of(self.address), self._visits.kind_of(self.address)
        self.since_ms = self._visits.now_ms()
        self._is_in = self._visits.enter(self)
        return self._is_in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handles an accepted socket, or the end of the handshake of one that has `enter`ed."""
        self._transport = cast("asyncio.Transport", transport)
        if self._is_in or self.enter(transport):
            self._visits.open(self)
        else:
            self._transport.abort()

    def begin(self, make_handler: MakeHandler) -> None:
        """Attaches the handler and passes it what has arrived."""
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
        if self._transport is None or not self._is_small_enough(data):
            return
        if self._handler is not None:
            self._handler.data_received(data)
            return
        self._held += data
        if len(self._held) >= HELD_BYTES_MAX:
            self._transport.pause_reading()

    def eof_received(self) -> bool | None:
        return None if self._handler is None else self._handler.eof_received()

    def pause_writing(self) -> None:
        self._full_since_ms = self._visits.now_ms()
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._full_since_ms = None
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection without leaving a reference cycle."""
        handler, self._handler = self._handler, None
        self._transport = None
        self._held.clear()
        self._visits.leave(self)
        if handler is not None:
            handler.connection_lost(exc)

    def on_request(self) -> None:
        self._enter(ConnectionPhase.BUSY)

    def on_answered(self) -> None:
        self.answered = True
        self._enter(ConnectionPhase.IDLE)

    @property
    def is_busy(self) -> bool:
        return self.phase is ConnectionPhase.BUSY

    def is_too_slow(self, now_ms: int) -> bool:
        """Returns whether a head, a request or a reader takes too long."""
        if self._full_since_ms is not None and now_ms - self._full_since_ms > UNREAD_MS:
            return True
        if self.phase is ConnectionPhase.BUSY or (self.phase is ConnectionPhase.WHOLE and self._handler is None):
            return False  # It is being answered, or its handler is being imported.
        allowed_ms = IDLE_MS if self.phase is ConnectionPhase.IDLE and self.answered else HEAD_MS
        return now_ms - self.since_ms > allowed_ms

    def abort(self) -> None:
        self._visits.leave(self)
        if self.handshake is not None:
            self.handshake.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _enter(self, phase: ConnectionPhase) -> None:
        self.phase = phase
        self.since_ms = self._visits.now_ms()
        self._head_bytes = 0
        self._tail = b""

    def _is_small_enough(self, data: bytes) -> bool:
        """Follows a head to its end. Returns False if it is too large; the connection then closes."""
        if self.phase is ConnectionPhase.BUSY or self.phase is ConnectionPhase.WHOLE:
            return True
        if self.phase is ConnectionPhase.IDLE:
            self._enter(ConnectionPhase.HEAD)
        seen = self._tail + data[:HEAD_BYTES_MAX]
        if _END in seen:
            self._enter(ConnectionPhase.WHOLE)
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
