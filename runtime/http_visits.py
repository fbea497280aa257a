"""Limits connections to an HTTP listener, and the rate of requests.

A visitor is an IPv4 address or a /48 of IPv6. Each kind of visitor has its own places and rates, so strangers take
nothing from this machine, from trusted proxies, or from addresses that have logged in. Within a kind each visitor has a
share.

If all places of a kind are taken, a connection of the visitor with the most gives way to one of a visitor with fewer;
otherwise the connection that has been silent the longest gives way if it is between requests; otherwise the new one is
closed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from lowtide.runtime.addresses import network_of, normal_address
from lowtide.runtime.http_origin import NO_PROXIES, Proxies

if TYPE_CHECKING:
    import asyncio

    from lowtide.runtime.clock import Clock
    from lowtide.runtime.tasks import TaskRegistry


class VisitorKind(Enum):
    """The listener's relation to a visitor."""

    HERE = "this machine, by 127.0.0.1 or ::1"
    PROXY = "a trusted proxy"
    KNOWN = "an address that has logged in"
    STRANGER = "any other address"


PLACES: Final[Mapping[VisitorKind, int]] = MappingProxyType(
    {VisitorKind.HERE: 16, VisitorKind.PROXY: 32, VisitorKind.KNOWN: 32, VisitorKind.STRANGER: 32}
)
"""The maximum number of open connections."""

ADDRESS_CONNECTIONS_MAX: Final = 16
"""Connections of one visitor, except a trusted proxy."""

SILENT_MS: Final = 1_000
"""A connection that was silent this long may give way to another."""

REQUESTS_PER_S: Final = 20
BURST: Final = 300
"""Requests of a visitor: per second, and at once. A console page has about twenty, and browsers
open several tabs at once. Probes are counted separately."""

ALL_REQUESTS_PER_S: Final = 100
ALL_BURST: Final = 1_000
"""Requests of all logged-in visitors; one login has `REQUESTS_PER_S`. Refused requests and those of this machine don't
count."""

CONNECTIONS_PER_S: Final = 10
CONNECTION_BURST: Final = 40
"""New connections of a visitor: per second, and at once. A TLS handshake takes a millisecond."""

ALL_CONNECTIONS_PER_S: Final = 50
ALL_CONNECTION_BURST: Final = 100
"""New connections of all visitors of a kind."""

PROXY_CONNECTIONS_PER_S: Final = 100
PROXY_CONNECTION_BURST: Final = 200
"""New connections of a trusted proxy, which may open one per request."""

VISITORS_MAX: Final = 1024
"""Visitors counted separately; the ones silent for longest are forgotten."""

KNOWN_MS: Final = 3_600_000
"""How long a visitor stays known after a login."""

_HERE: Final = frozenset({"127.0.0.1", "::1"})
"""Other addresses of 127.0.0.0/8 are strangers, so that one local process can't use them to take all places."""


class Visit(Protocol):
    """A counted connection."""

    kind: VisitorKind
    visitor: str
    since_ms: int

    @property
    def is_busy(self) -> bool: ...
    def is_too_slow(self, now_ms: int) -> bool: ...
    def begin(self, make_handler: MakeHandler) -> None: ...
    def abort(self) -> None: ...


MakeHandler: TypeAlias = Callable[[Any], "asyncio.Protocol"]


class Rate:
    """A rate per second with a burst (token bucket)."""

    __slots__ = ("_at_ms", "_burst", "_left", "_per_s")

    def __init__(self, now_ms: int, per_s: int, burst: int) -> None:
        self._at_ms = now_ms
        self._per_s = per_s
        self._burst = burst
        self._left: float = burst

    def has(self, now_ms: int) -> bool:
        """Returns whether one more is allowed now."""
        self._left = min(self._left + (now_ms - self._at_ms) * self._per_s / 1000, self._burst)
        self._at_ms = now_ms
        return self._left >= 1

    def take(self, now_ms: int) -> bool:
        """Takes one, if allowed."""
        if not self.has(now_ms):
            return False
        self._left -= 1
        return True


class Rates:
    """A rate for each visitor, and optionally one for all. Visitors silent for longest are forgotten."""

    __slots__ = ("_all", "_burst", "_by_visitor", "_per_s")

    def __init__(self, now_ms: int, each: tuple[int, int], together: tuple[int, int] | None = None) -> None:
        """`each` and `together` are a rate per second and a burst."""
        self._per_s, self._burst = each
        self._all = None if together is None else Rate(now_ms, *together)
        self._by_visitor: OrderedDict[str, Rate] = OrderedDict()

    def has(self, visitor: str, now_ms: int) -> bool:
        """Returns whether this visitor may take one more now."""
        return self._of(visitor, now_ms).has(now_ms) and (self._all is None or self._all.has(now_ms))

    def take(self, visitor: str, now_ms: int) -> bool:
        """Takes one for this visitor, if allowed."""
        return self._of(visitor, now_ms).take(now_ms) and (self._all is None or self._all.take(now_ms))

    def _of(self, visitor: str, now_ms: int) -> Rate:
        rate = self._by_visitor.pop(visitor, None) or Rate(now_ms, self._per_s, self._burst)
        self._by_visitor[visitor] = rate
        if len(self._by_visitor) > VISITORS_MAX:
            self._by_visitor.popitem(last=False)
        return rate


class KnownVisitors:
    """The visitors that have recently logged in."""

    __slots__ = ("_until_ms",)

    def __init__(self) -> None:
        self._until_ms: OrderedDict[str, int] = OrderedDict()

    def add(self, visitor: str, now_ms: int) -> None:
        self._until_ms[visitor] = now_ms + KNOWN_MS
        self._until_ms.move_to_end(visitor)
        if len(self._until_ms) > VISITORS_MAX:
            self._until_ms.popitem(last=False)

    def has(self, visitor: str, now_ms: int) -> bool:
        return self._until_ms.get(visitor, now_ms) > now_ms


class Visits:
    """All connections of a server, and their statistics."""

    def __init__(
        self, clock: Clock, tasks: TaskRegistry, on_made: Callable[[], None], proxies: Proxies = NO_PROXIES
    ) -> None:
        self.tasks = tasks
        self.now_ms = clock.monotonic_ms
        self.proxies = proxies
        self.known = KnownVisitors()
        self.requests_count = 0
        """Requests, including refused ones."""
        self.refused_count = 0
        """Connections without a place, and requests above a rate."""
        self.slow_count = 0
        """Connections ended for slowness or a too large head."""
        self._on_made = on_made
        self._make_handler: MakeHandler | None = None
        self._connections: dict[Visit, None] = {}
        now_ms = self.now_ms()
        each = REQUESTS_PER_S, BURST
        self._requests, self._probes = Rates(now_ms, each), Rates(now_ms, each)
        self._logged_in = Rates(now_ms, each, (ALL_REQUESTS_PER_S, ALL_BURST))
        entering = (CONNECTIONS_PER_S, CONNECTION_BURST), (ALL_CONNECTIONS_PER_S, ALL_CONNECTION_BURST)
        self._entering = {kind: Rates(now_ms, *entering) for kind in VisitorKind}
        self._entering[VisitorKind.PROXY] = Rates(now_ms, (PROXY_CONNECTIONS_PER_S, PROXY_CONNECTION_BURST))

    @property
    def count(self) -> int:
        return len(self._connections)

    def serve(self, make_handler: MakeHandler) -> None:
        """Starts answering requests, including waiting ones."""
        self._make_handler = make_handler
        for connection in list(self._connections):
            connection.begin(make_handler)

    def kind_of(self, address: str) -> VisitorKind:
        """Returns the kind of the visitor at an address."""
        if self.proxies.has(address):
            return VisitorKind.PROXY
        if normal_address(address) in _HERE:
            return VisitorKind.HERE
        return VisitorKind.KNOWN if self.known.has(network_of(address), self.now_ms()) else VisitorKind.STRANGER

    def enter(self, connection: Visit) -> bool:
        """Counts a new connection, if there is a place. Returns whether there is; then `leave` must follow."""
        if not self._has_place(connection):
            self.refused_count += 1
            return False
        self._connections[connection] = None
        return True

    def open(self, connection: Visit) -> None:
        """Lets a connection be answered, after its handshake if any."""
        if self._make_handler is not None:
            connection.begin(self._make_handler)
        self._on_made()

    def leave(self, connection: Visit) -> None:
        """Removes a connection. A second call does nothing."""
        self._connections.pop(connection, None)

    def admits_request(self, visitor: str, *, is_probe: bool) -> bool:
        """Counts a request before its sender is known. Returns whether it may be answered."""
        self.requests_count += 1
        return self._take(self._probes if is_probe else self._requests, visitor)

    def admits_login(self, login: str) -> bool:
        """Counts a request of a login. Returns whether it may be answered."""
        return self._take(self._logged_in, login)

    def on_login(self, visitor: str) -> None:
        """Moves a visitor that has logged in from strangers to known visitors."""
        self.known.add(visitor, self.now_ms())
        for each in self._connections:
            if (
                each.visitor == visitor
                and each.kind is VisitorKind.STRANGER
                and len(self._of_kind(VisitorKind.KNOWN)) < PLACES[VisitorKind.KNOWN]
            ):
                each.kind = VisitorKind.KNOWN

    def end_slow(self) -> None:
        now_ms = self.now_ms()
        for connection in [each for each in self._connections if each.is_too_slow(now_ms)]:
            self.slow_count += 1
            connection.abort()

    def end_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    def _take(self, rates: Rates, visitor: str) -> bool:
        if rates.take(visitor, self.now_ms()):
            return True
        self.refused_count += 1
        return False

    def _of_kind(self, kind: VisitorKind) -> list[Visit]:
        return [each for each in self._connections if each.kind is kind]

    def _has_place(self, connection: Visit) -> bool:
        kind, visitor = connection.kind, connection.visitor
        if not self._entering[kind].take(visitor, self.now_ms()):
            return False
        own = [each for each in self._connections if each.visitor == visitor]
        if kind is not VisitorKind.PROXY and len(own) >= ADDRESS_CONNECTIONS_MAX and not self._make_room(own):
            return False
        of_kind = self._of_kind(kind)
        if len(of_kind) < PLACES[kind]:
            return True
        largest, count = Counter(each.visitor for each in of_kind).most_common(1)[0]
        if count > len(own) + 1:
            held = (each for each in of_kind if each.visitor == largest)
            min(held, key=lambda each: (each.is_busy, each.since_ms)).abort()
            return True
        return self._make_room(of_kind)

    def _make_room(self, among: Iterable[Visit]) -> bool:
        """Ends a silent connection to make room for a new one, if possible."""
        now_ms = self.now_ms()
        silent = [each for each in among if not each.is_busy and now_ms - each.since_ms >= SILENT_MS]
        if not silent:
            return False
        min(silent, key=lambda each: each.since_ms).abort()
        return True
