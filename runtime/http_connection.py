"""Connections of the HTTP listener, and their limits: how many, how many of one address, how often, how large a head, how slow a peer.

An `HttpConnection` stands between a socket and aiohttp's handler, which is made when there is one: until then it keeps what arrives. It
knows of HTTP only where a head ends, so that a head without an end is cut off by its size and by its time.

Where all places are taken, the connection that is silent for longest gives way if it is between requests; else the new one is closed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias, cast

if TYPE_CHECKING:
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.tasks import TaskRegistry

CONNECTIONS_MAX: Final = 64
ADDRESS_CONNECTIONS_MAX: Final = 16

SILENT_MS: Final = 1_000
"""A connection that has been silent for so long may give way to another."""

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

REQUESTS_PER_S: Final = 20
BURST: Final = 120
"""Of an address: so many requests a second, and so many at once. A page of a console has some dozens."""

ALL_REQUESTS_PER_S: Final = 100
ALL_BURST: Final = 400

CONNECTIONS_PER_S: Final = 10
CONNECTION_BURST: Final = 40
"""Of an address: so many new connections a second, and so many at once. A handshake of TLS takes a millisecond."""

ALL_CONNECTIONS_PER_S: Final = 50
ALL_CONNECTION_BURST: Final = 100

_ADDRESSES_MAX: Final = 1024
"""Addresses whose requests are counted apart; the ones that were silent for longest are forgotten."""

_V6_NETWORK: Final = 4
"""Groups of an IPv6 address that stand for one visitor, who has the other half to choose from."""

_END: Final = b"\r\n\r\n"

_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain\r\nContent-Length: 0\r\nConnection: close\r\n"
    b"X-Content-Type-Options: nosniff\r\n\r\n"
)

MakeHandler: TypeAlias = Callable[["HttpConnection"], asyncio.Protocol]


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


def visitor_of(address: str) -> str:
    """Whose requests are counted together: an IPv4 address, or the first half of an IPv6 address."""
    return address if ":" not in address else ":".join(address.split(":")[:_V6_NETWORK])


class Rate:
    """So many a second, and what wasn't used for a while at once."""

    __slots__ = ("_at_ms", "_burst", "_left", "_per_s")

    def __init__(self, now_ms: int, per_s: int, burst: int) -> None:
        self._at_ms = now_ms
        self._per_s = per_s
        self._burst = burst
        self._left: float = burst

    def has(self, now_ms: int) -> bool:
        """Whether there is one more now."""
        self._left = min(self._left + (now_ms - self._at_ms) * self._per_s / 1000, self._burst)
        self._at_ms = now_ms
        return self._left >= 1

    def take(self, now_ms: int) -> bool:
        """Takes one, if there is one."""
        if not self.has(now_ms):
            return False
        self._left -= 1
        return True


class Rates:
    """A rate for each visitor, and one for all. Bounded: the visitors that were silent for longest are forgotten."""

    __slots__ = ("_all", "_burst", "_by_visitor", "_per_s")

    def __init__(self, now_ms: int, each: tuple[int, int], together: tuple[int, int]) -> None:
        """`each` and `together` are a rate a second and a burst."""
        self._per_s, self._burst = each
        self._all = Rate(now_ms, *together)
        self._by_visitor: OrderedDict[str, Rate] = OrderedDict()

    def has(self, visitor: str, now_ms: int) -> bool:
        """Whether there is one more now, for this visitor."""
        return self._of(visitor, now_ms).has(now_ms) and self._all.has(now_ms)

    def take(self, visitor: str, now_ms: int) -> bool:
        """Takes one, if there is one for this visitor."""
        return self._of(visitor, now_ms).take(now_ms) and self._all.take(now_ms)

    def _of(self, visitor: str, now_ms: int) -> Rate:
        rate = self._by_visitor.pop(visitor, None) or Rate(now_ms, self._per_s, self._burst)
        self._by_visitor[visitor] = rate
        if len(self._by_visitor) > _ADDRESSES_MAX:
            self._by_visitor.popitem(last=False)
        return rate


class Visits:
    """All connections of a server, and what is counted of them."""

    def __init__(self, clock: Clock, tasks: TaskRegistry, on_made: Callable[[], None]) -> None:
        self.tasks = tasks
        self.now_ms = clock.monotonic_ms
        self.requests_count = 0
        """Requests that were answered, refused ones too."""
        self.refused_count = 0
        """Connections that found no place, and requests that were too many."""
        self.slow_count = 0
        """Connections that were ended for being too slow, or for a head that was too large."""
        self._on_made = on_made
        self._make_handler: MakeHandler | None = None
        self._connections: dict[HttpConnection, None] = {}
        self._by_address: Counter[str] = Counter()
        now_ms = self.now_ms()
        self._requests = Rates(now_ms, (REQUESTS_PER_S, BURST), (ALL_REQUESTS_PER_S, ALL_BURST))
        self._entering = Rates(now_ms, (CONNECTIONS_PER_S, CONNECTION_BURST), (ALL_CONNECTIONS_PER_S, ALL_CONNECTION_BURST))

    @property
    def count(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    def serve(self, make_handler: MakeHandler) -> None:
        """From now on requests are answered, first those that wait."""
        self._make_handler = make_handler
        for connection in list(self._connections):
            connection.begin(make_handler)

    def enter(self, connection: HttpConnection) -> bool:
        """Whether a new connection may stay. It leaves, if so."""
        of_address = self._by_address[connection.visitor]
        is_one_too_many = of_address >= ADDRESS_CONNECTIONS_MAX or not self._entering.take(connection.visitor, self.now_ms())
        if is_one_too_many or (len(self._connections) >= CONNECTIONS_MAX and not self._make_room()):
            self.refused_count += 1
            return False
        self._connections[connection] = None
        self._by_address[connection.visitor] = of_address + 1
        return True

    def open(self, connection: HttpConnection) -> None:
        """A connection may be answered: its handshake has ended, if there is one."""
        if self._make_handler is not None:
            connection.begin(self._make_handler)
        self._on_made()

    def leave(self, connection: HttpConnection) -> None:
        """A connection is gone. A second call does nothing."""
        if connection not in self._connections:
            return
        del self._connections[connection]
        self._by_address[connection.visitor] -= 1
        if self._by_address[connection.visitor] <= 0:
            del self._by_address[connection.visitor]

    def may_ask(self, visitor: str) -> bool:
        """Counts a request; whether it is one of those that are answered."""
        self.requests_count += 1
        if self._requests.take(visitor, self.now_ms()):
            return True
        self.refused_count += 1
        return False

    def end_slow(self) -> None:
        """End connections whose time is over."""
        now_ms = self.now_ms()
        for connection in [each for each in self._connections if each.is_too_slow(now_ms)]:
            self.slow_count += 1
            connection.abort()

    def end_all(self) -> None:
        """End every connection."""
        for connection in list(self._connections):
            connection.abort()

    def _make_room(self) -> bool:
        """Whether a connection could be ended for a new one."""
        now_ms = self.now_ms()
        silent = [each for each in self._connections if each.phase is not Phase.BUSY and now_ms - each.since_ms >= SILENT_MS]
        if not silent:
            return False
        min(silent, key=lambda each: each.since_ms).abort()
        return True


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
        self.phase = Phase.IDLE
        self.since_ms = 0
        """When this phase began."""
        self.answered = False
        """Whether it has had an answer: then it may be idle for longer."""

    def enter(self, transport: asyncio.BaseTransport) -> bool:
        """Whether there is a place for a connection of this socket's peer."""
        name = transport.get_extra_info("peername")
        self.address = name[0] if name else ""
        self.visitor = visitor_of(self.address)
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
