"""Limits connections: in total, per address, and so that descriptors never run out.

At the limit, a new connection replaces another one. The first that exists is closed:

1. the oldest connection without a login that is at least `LOGIN_MS` old;
2. the newest one that has sent nothing for `SILENT_MS`, or else the one idle for longest, at least `IDLE_MS`;
3. one of the visitor with the most connections, if the new one's visitor has fewer. A visitor is an IPv4 address or an
   IPv6 /48.

Without any, the new connection is closed. A connection on the brokers' own listener replaces any client's.

Connections without a login have at most half of the places. At that limit, 1 and 3 apply among them. So clients that
can't log in never replace those that can, and one address can't keep others from logging in.

A refused connection is accepted and closed at once. Kafka stops accepting instead, so that a client that holds all
connections keeps all others out.

Source: Kafka's SocketServer: ConnectionQuotas (maxConnectionsExceeded, protectedListener, maxConnectionsPerIpOverrides)
and Processor.closeExcessConnections, KIP-402 and KIP-612.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from lowtide.broker.config.listeners import OVERRIDES, PER_IP, parse_overrides
from lowtide.runtime.addresses import network_of

if TYPE_CHECKING:
    from lowtide.broker.config.broker_config import BrokerConfig
    from lowtide.broker.descriptors import DescriptorBudget

IDLE_MS: Final = 60_000
"""An idle connection of this age may be closed for another one. Clients reconnect when they need to."""

SILENT_MS: Final = 1_000
"""The same for a connection that has sent nothing."""

LOGIN_MS: Final = 1_000
"""The same for a connection without a login. A login takes some milliseconds and network delay."""

LOGIN_SHARE: Final = 2
"""One place in so many is for connections without a login, and at least `LOGINS_MIN` places are."""
LOGINS_MIN: Final = 16

CROWD_MS: Final = 100
"""The minimum time between two counts by visitor, which visit all connections."""

_CANDIDATES: Final = 64
"""The candidates that one search finds: each search visits all connections."""


class Admitted(Protocol):
    """A connection, as admission sees it. Times are monotonic."""

    listener_name: str
    connected_ms: int
    """Above `last_active_ms` until something is received."""

    @property
    def closed(self) -> bool: ...
    @property
    def last_active_ms(self) -> int: ...
    @property
    def client_address(self) -> str: ...
    @property
    def busy(self) -> bool: ...
    def close(self, reason: str) -> None: ...


class ConnectionLimits(msgspec.Struct, frozen=True):
    """The limits of open connections."""

    total: int
    total_reason: str
    """The text of the limit that sets `total`: a key, or the limit of open files."""
    per_address: int
    overrides: Mapping[str, int] = MappingProxyType({})
    """Limits by address, instead of `per_address`."""
    brokers_listener: str | None = None
    """The brokers' own listener; None if clients use it too."""

    @property
    def logins(self) -> int:
        """The most connections without a login."""
        return max(self.total // LOGIN_SHARE, min(self.total, LOGINS_MIN))


def connection_limits(config: BrokerConfig, budget: DescriptorBudget) -> ConnectionLimits:
    """Returns the limits by configuration and descriptors."""
    reason = f"max.connections={config.max_connections} are open"
    if budget.connections < config.max_connections:
        reason = f"{budget.connections} are open, as many as the limit of open files ({budget.limit}, ulimit -n) allows"
    return ConnectionLimits(
        total=min(config.max_connections, budget.connections),
        total_reason=reason,
        per_address=config.max_connections_per_ip,
        overrides=parse_overrides(config.values),
        brokers_listener=config.inter_broker_listener if len(config.listeners) > 1 else None,
    )


NO_LOGINS: Final[Mapping[Admitted, None]] = MappingProxyType({})


class Admission:
    """Admits connections. Used from the event loop only."""

    def __init__(self, limits: ConnectionLimits, now_ms: Callable[[], int]) -> None:
        self.limits = limits
        self._now_ms = now_ms
        self._by_address: Counter[str] = Counter()
        self._leaving: set[Admitted] = set()
        """Closed connections, which count until the event loop closes their sockets."""
        self._candidates: deque[Admitted] = deque()
        self._looked_ms = -SILENT_MS
        self._connections = _Crowd(self, now_ms)
        self._logins = _Crowd(self, now_ms)

    def follow(self, limits: ConnectionLimits) -> None:
        """Takes over new limits. They close no open connection."""
        self.limits = limits

    def admit(
        self, connection: Admitted, connections: Mapping[Admitted, None], logins: Mapping[Admitted, None] = NO_LOGINS
    ) -> str | None:
        """Counts a new connection, one of `connections`. Returns why it is refused, or None.

        `logins` are the open ones without a login, oldest first.
        """
        limits, address = self.limits, connection.client_address
        self._by_address[address] += 1
        refused = self._over_address(address)
        is_brokers = connection.listener_name == limits.brokers_listener
        if refused is not None:
            pass
        elif connection in logins and len(logins) > limits.logins and not is_brokers:
            victim = self._late_login(logins) or self._logins.victim(logins, network_of(address), self._may_go)
            refused = self._give_way(f"{limits.logins} connections have still to log in", victim)
        elif len(connections) - len(self._leaving) > limits.total:
            victim = self._late_login(logins) or self._victim(connections, of_any_age=is_brokers)
            victim = victim or self._connections.victim(connections, network_of(address), self._may_go)
            refused = self._give_way(limits.total_reason, victim)
        if refused is not None:
            self._leaving.add(connection)
        return refused

    def _give_way(self, reason: str, victim: Admitted | None) -> str | None:
        """Closes `victim` for the new connection. Returns why the new one is refused, or None."""
        if victim is None:
            return reason
        self._leaving.add(victim)
        victim.close(f"{reason}, and this one was silent")
        return None

    def _late_login(self, logins: Iterable[Admitted]) -> Admitted | None:
        """Returns the oldest connection that has had enough time to log in, if there is one."""
        oldest = next(
            (each for each in logins if each.listener_name != self.limits.brokers_listener and self._may_go(each)), None
        )
        return oldest if oldest is not None and self._now_ms() - oldest.connected_ms >= LOGIN_MS else None

    def left(self, connection: Admitted) -> None:
        """Uncounts a connection."""
        self._leaving.discard(connection)
        address = connection.client_address
        self._by_address[address] -= 1
        if self._by_address[address] <= 0:
            del self._by_address[address]

    def _over_address(self, address: str) -> str | None:
        allowed = self.limits.overrides.get(address)
        if allowed is None:
            allowed, key = self.limits.per_address, PER_IP
        else:
            key = OVERRIDES
        return f"{key}={allowed} are open from {address}" if self._by_address[address] > allowed else None

    def _victim(self, connections: Iterable[Admitted], *, of_any_age: bool) -> Admitted | None:
        """Returns the connection to close for a new one, if there is one."""
        now_ms = self._now_ms()
        if of_any_age:
            clients = [
                each
                for each in connections
                if each.listener_name != self.limits.brokers_listener and self._may_go(each)
            ]
            return min(clients, key=_last_active_ms, default=None)
        if not self._candidates and now_ms - self._looked_ms >= SILENT_MS:
            self._looked_ms = now_ms
            idle = [each for each in connections if self._is_idle(each, now_ms)]
            self._candidates.extend(heapq.nsmallest(_CANDIDATES, idle, key=_order_of_leaving))
        while self._candidates:
            candidate = self._candidates.popleft()
            if self._is_idle(candidate, now_ms):
                return candidate
        return None

    def _may_go(self, connection: Admitted) -> bool:
        return not connection.closed and connection not in self._leaving

    def _is_idle(self, connection: Admitted, now_ms: int) -> bool:
        if not self._may_go(connection) or connection.busy or connection.listener_name == self.limits.brokers_listener:
            return False
        return now_ms - connection.last_active_ms >= (SILENT_MS if _has_sent_nothing(connection) else IDLE_MS)


class _Crowd:
    """The connections of the visitor with the most, counted from time to time."""

    def __init__(self, admission: Admission, now_ms: Callable[[], int]) -> None:
        self._admission = admission
        self._now_ms = now_ms
        self._counts: Counter[str] = Counter()
        self._crowd: deque[Admitted] = deque()
        self._counted_ms = -CROWD_MS

    def victim(
        self, among: Mapping[Admitted, None], visitor: str, may_go: Callable[[Admitted], bool]
    ) -> Admitted | None:
        """Returns the longest idle connection of the visitor with the most, if `visitor` has fewer.

        One with a pending request comes last.
        """
        now_ms = self._now_ms()
        if now_ms - self._counted_ms >= CROWD_MS:
            self._counted_ms = now_ms
            self._count(among)
        while self._crowd and len(self._crowd) > self._counts[visitor] + 1:
            found = self._crowd.popleft()
            if found in among and may_go(found):
                self._counts[visitor] += 1
                return found
        return None

    def _count(self, among: Mapping[Admitted, None]) -> None:
        clients = [each for each in among if each.listener_name != self._admission.limits.brokers_listener]
        by_address = Counter(each.client_address for each in clients)
        self._counts = Counter()
        for address, count in by_address.items():
            self._counts[network_of(address)] += count
        most = max(self._counts, key=self._counts.__getitem__, default="")
        addresses = {address for address in by_address if network_of(address) == most}
        self._crowd = deque(sorted((each for each in clients if each.client_address in addresses), key=_order_in_crowd))


def _has_sent_nothing(connection: Admitted) -> bool:
    return connection.last_active_ms < connection.connected_ms


def _order_of_leaving(connection: Admitted) -> tuple[bool, int]:
    """Orders the newest silent connections first, so that a flood does not replace those before it."""
    if _has_sent_nothing(connection):
        return False, -connection.connected_ms
    return True, connection.last_active_ms


def _last_active_ms(connection: Admitted) -> int:
    return connection.last_active_ms


def _order_in_crowd(connection: Admitted) -> tuple[bool, int]:
    return connection.busy, connection.last_active_ms
