"""The network of a simulation: TCP as a program sees it, between hosts that are only names.

A connection is two `Direction`s. Each carries segments in order, after random delays; writes are split into segments of
random length, as TCP may. A receiver that doesn't read closes the window, so that the sender's buffer grows and
`pause_writing` is called. A cut link holds segments back, like retransmission, and releases them when it heals; only a
dying host loses data.

Connections end as on Linux: `close` flushes and sends FIN, or RST if something was left unread; bytes to a closed
socket are answered by RST; a killed process has its sockets closed; a dead machine is silent until it is back.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import socket
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any, Final, TypeVar

from lowtide.runtime.random import Random
from lowtide.runtime.simulated_node import HostLoop, SimulatedNode
from lowtide.runtime.simulated_transport import Address, SimulatedTransport
from lowtide.runtime.simulated_wire import Direction, WireSegment

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)

ANY_HOST: Final = "*"
LOCAL_HOST: Final = "localhost"
OWN_NAMES: Final = frozenset({"", "0.0.0.0", "::", "127.0.0.1", "::1", LOCAL_HOST})
FIRST_EPHEMERAL_PORT: Final = 49152
LAST_PORT: Final = 65535
WINDOW_BYTES: Final = 64 * 1024
"""Bytes in flight or unread at the receiver: a usual initial socket buffer."""

CONNECT_RETRY_S: Final = 1.0
CONNECT_TIMEOUT_S: Final = 127.0
"""Linux retries a SYN after 1, 2, 4, ... seconds and gives up after 127 (net.ipv4.tcp_syn_retries = 6)."""


class _BoundSocket:
    __slots__ = ("_address",)

    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        return self._address


class SimulatedServer(asyncio.AbstractServer):
    """The result of create_server: it accepts until it is closed."""

    def __init__(
        self, network: SimulatedNetwork, address: Address, factory: Callable[[], asyncio.BaseProtocol], context: Context
    ) -> None:
        self._network = network
        self._address = address
        self._factory = factory
        self.context = context

    @property
    def sockets(self) -> Sequence[_BoundSocket]:
        return (_BoundSocket(self._address),) if self.is_serving() else ()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop

    def is_serving(self) -> bool:
        return self._network.listeners.get(self._address) is self

    async def start_serving(self) -> None:
        """Does nothing: it serves from the beginning."""

    async def serve_forever(self) -> None:
        await self._network.loop.create_future()

    def close(self) -> None:
        if self.is_serving():
            del self._network.listeners[self._address]

    async def wait_closed(self) -> None:
        # Like asyncio's before 3.12, it doesn't wait for connections.
        await asyncio.sleep(0)

    def accept(self, transport: SimulatedTransport) -> None:
        """Gives a new connection its protocol. Runs in the server's context."""
        try:
            protocol = self._factory()
        except Exception as error:  # noqa: BLE001 - asyncio reports it and drops the connection; so do we
            self._network.loop.call_exception_handler({"message": "the protocol factory failed", "exception": error})
            transport.abort()
        else:
            transport.start(protocol)


class SimulatedNetwork:
    """All links and listeners of a simulation.

    Settable at any time: `delay_range_ms` of a segment, `split_probability` that a segment is shorter than possible,
    `window_bytes`, and `arrival_step_ms`: segments arrive at its multiples, several at one moment, as in one pass of a
    busy loop. With 0 each arrives at its own time.
    """

    def __init__(self, loop: HostLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.delay_range_ms = (0.05, 1.0)
        self.split_probability = 0.25
        self.arrival_step_ms = 0.0
        self.window_bytes = WINDOW_BYTES
        self.held_count = 0
        """Segments that a cut link has held back so far."""
        self.listeners: dict[Address, SimulatedServer] = {}
        # Ordered, so that random choices per member don't depend on hashes.
        self._holding: dict[Direction, None] = {}
        self._half_open: dict[SimulatedTransport, None] = {}
        self._cut: set[tuple[str, str]] = set()
        self._hosts_down: set[str] = set()
        self._ports: dict[str, int] = {}

    def cut(self, source: str, target: str, *, both_ways: bool = True) -> None:
        """Holds back segments from host `source` to host `target` (ANY_HOST: every other).

        A host always reaches itself.
        """
        self._cut.add((source, target))
        if both_ways:
            self._cut.add((target, source))

    def heal(self, source: str = ANY_HOST, target: str = ANY_HOST) -> None:
        """Undoes the `cut` between the two hosts, both ways; without hosts, every cut."""
        if source == target == ANY_HOST:
            self._cut.clear()
        self._cut.difference_update({(source, target), (target, source)})
        holding, self._holding = self._holding, {}
        for direction in holding:
            if self.is_cut(direction.source.host, direction.target.host):
                self._holding[direction] = None
            else:
                direction.release()

    def is_cut(self, source: str, target: str) -> bool:
        """Returns whether segments from one host to the other are held back."""
        if not self._cut or source == target:
            return False
        return not self._cut.isdisjoint({(source, target), (source, ANY_HOST), (ANY_HOST, target)})

    def is_host_down(self, host: str) -> bool:
        """Returns whether the machine, not only its process, is dead."""
        return host in self._hosts_down

    def delay_s(self) -> float:
        """Returns a random travel time of one segment."""
        return self.random.uniform(*self.delay_range_ms) / 1000

    def arrival_s(self) -> float:
        """Returns a random arrival time of a segment sent now."""
        at_s, step_s = self.loop.time() + self.delay_s(), self.arrival_step_ms / 1000
        return math.ceil(at_s / step_s) * step_s if step_s else at_s

    def hold(self, direction: Direction) -> None:
        """Records a direction that `heal` must release."""
        self.held_count += 1
        self._holding[direction] = None

    def on_node_started(self, host: str) -> None:
        """Resets the connections of the machine's former life on which a peer still tries to send."""
        self._hosts_down.discard(host)
        for transport in [transport for transport in self._half_open if transport.peer_host == host]:
            del self._half_open[transport]
            if transport.is_waiting_for_peer and not transport.is_gone:
                delay_s = self.random.uniform(0, CONNECT_RETRY_S)
                self.loop.call_at(self.loop.time() + delay_s, transport.on_reset, context=transport.context)

    def on_node_killed(self, node: SimulatedNode, *, silently: bool) -> None:
        """Removes the dead process's listeners and sockets; with `silently` the machine died too."""
        if silently:
            self._hosts_down.add(node.name)
        for address in [address for address in self.listeners if address[0] == node.name]:
            del self.listeners[address]
        for transport in list(node.transports):
            outgoing = transport.outgoing
            transport.die()
            if silently:
                outgoing.discard()
                self._half_open[outgoing.target] = None
            else:
                reset = bool(transport.reads.received) or bool(self.random.getrandbits(1))
                outgoing.send(WireSegment.RESET if reset else WireSegment.FIN)

    def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int, context: Context
    ) -> SimulatedServer:
        """Serves the current node's `port`; 0 takes a free one."""
        own_host = self.loop.current_host()
        if host is not None and host not in OWN_NAMES and host != own_host:
            raise OSError(errno.EADDRNOTAVAIL, f"{own_host} cannot listen on {host}:{port}")
        address = (own_host, port or self._free_port(own_host))
        if address in self.listeners:
            raise OSError(errno.EADDRINUSE, f"{address[0]}:{address[1]} is in use")
        server = self.listeners[address] = SimulatedServer(self, address, factory, context)
        return server

    async def connect(
        self, factory: Callable[[], ProtocolT], host: str, port: int, context: Context
    ) -> tuple[SimulatedTransport, ProtocolT]:
        """Connects from the current node, with TCP's delays, refusals and timeouts."""
        own_host = self.loop.current_host()
        address = (own_host if host in OWN_NAMES else host, port)
        await self._reach(own_host, address)
        server = self.listeners.get(address)
        if server is None:
            await asyncio.sleep(self.delay_s())
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"connect to {address[0]}:{address[1]} refused")
        local = (own_host, self._free_port(own_host))
        client = SimulatedTransport(self, local, address, context)
        accepted = SimulatedTransport(self, address, local, server.context)
        client.outgoing = accepted.incoming = Direction(self, client, accepted)
        accepted.outgoing = client.incoming = Direction(self, accepted, client)
        self.loop.trace(f"{client.name}>{accepted.name} connect")
        self.loop.call_soon(server.accept, accepted, context=server.context)
        try:
            await asyncio.sleep(self.delay_s())
        except asyncio.CancelledError:
            client.abort()
            raise
        if client.is_closing():
            raise ConnectionResetError(errno.ECONNRESET, f"connect to {address[0]}:{address[1]}: reset by peer")
        protocol = factory()
        client.start(protocol)
        return client, protocol

    async def _reach(self, own_host: str, address: Address) -> None:
        """Waits until the first packet arrives at a live machine."""
        host, port = address
        if host != LOCAL_HOST and host not in self.loop.nodes:
            raise socket.gaierror(socket.EAI_NONAME, f"{host}: name not known")
        waited_s, retry_s = 0.0, CONNECT_RETRY_S
        while True:
            await asyncio.sleep(self.delay_s())
            if not (self.is_host_down(host) or self.is_cut(own_host, host) or self.is_cut(host, own_host)):
                return
            if waited_s + retry_s > CONNECT_TIMEOUT_S:
                raise TimeoutError(errno.ETIMEDOUT, f"connect to {host}:{port}: {os.strerror(errno.ETIMEDOUT)}")
            await asyncio.sleep(retry_s)
            waited_s, retry_s = waited_s + retry_s, retry_s * 2

    def _free_port(self, host: str) -> int:
        port = self._ports.get(host, FIRST_EPHEMERAL_PORT)
        while (host, port) in self.listeners:
            port += 1
        self._ports[host] = port + 1 if port < LAST_PORT else FIRST_EPHEMERAL_PORT
        return port


def unsupported(options: dict[str, Any]) -> None:
    """Refuses unsupported options, except None and empty values."""
    given = sorted(name for name, value in options.items() if value)
    if given:
        raise NotImplementedError(f"the simulated network does not know {', '.join(given)}")
