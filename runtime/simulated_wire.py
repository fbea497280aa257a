"""The wire between the two ends of a simulated connection: two `Direction`s, each with segments in flight.

Segments of one direction arrive in the order of sending. A cut link holds them back, and a dead host's kernel answers
none.
"""

from __future__ import annotations

import zlib
from collections import deque
from contextvars import Context
from enum import Enum
from typing import Protocol

from lowtide.runtime.random import Random
from lowtide.runtime.simulated_node import HostLoop


class WireSegment(Enum):
    """The kind of a segment."""

    BYTES = "bytes"
    FIN = "fin"
    RESET = "reset"


class Links(Protocol):
    """The network, as the ends of a connection see it."""

    loop: HostLoop
    random: Random
    split_probability: float
    window_bytes: int

    def delay_s(self) -> float: ...
    def arrival_s(self) -> float: ...
    def is_cut(self, source: str, target: str) -> bool: ...
    def is_host_down(self, host: str) -> bool: ...
    def hold(self, direction: Direction) -> None: ...


class End(Protocol):
    """One end of a connection, as the wire sees it."""

    host: str
    name: str
    context: Context
    is_gone: bool
    """The socket is closed."""

    def get_write_buffer_size(self) -> int: ...
    def on_bytes(self, data: bytes) -> None: ...
    def on_fin(self) -> None: ...
    def on_reset(self) -> None: ...
    def on_window(self) -> None: ...


class Direction:
    """One direction of a connection: segments in flight from one transport to the other."""

    __slots__ = ("_held_count", "_in_flight", "_last_arrival_s", "_network", "source", "target", "unread_bytes")

    def __init__(self, network: Links, source: End, target: End) -> None:
        self._network = network
        self._in_flight: deque[tuple[WireSegment, bytes]] = deque()
        self._last_arrival_s = 0.0
        self._held_count = 0
        self.source = source
        self.target = target
        self.unread_bytes = 0

    @property
    def window_bytes(self) -> int:
        """How many bytes the source may still send."""
        return self._network.window_bytes - self.unread_bytes

    def send(self, segment: WireSegment, data: bytes = b"") -> None:
        """Sends a segment, which arrives after all earlier ones."""
        self.unread_bytes += len(data)
        if self.target.is_gone:
            self._send_to_nobody()
            return
        self._in_flight.append((segment, data))
        self._schedule()

    def on_read(self, size: int) -> None:
        """Opens the window by the bytes that the target's protocol has read; the source learns it a little later."""
        self.unread_bytes -= size
        source = self.source
        if source.get_write_buffer_size() and not source.is_gone:
            loop = self._network.loop
            loop.call_at(loop.time() + self._network.delay_s(), source.on_window, context=source.context)

    def release(self) -> None:
        """Releases what a cut link has held back."""
        held_count, self._held_count = self._held_count, 0
        for _ in range(held_count):
            self._schedule()

    def discard(self) -> None:
        """Drops what is in flight: its sender is dead and can't resend it."""
        self._held_count = 0
        self._in_flight.clear()

    def _schedule(self) -> None:
        network = self._network
        self._last_arrival_s = max(self._last_arrival_s, network.arrival_s())
        network.loop.call_at(self._last_arrival_s, self._arrive, context=self.target.context)

    def _arrive(self) -> None:
        if not self._in_flight:
            return
        network = self._network
        if network.is_cut(self.source.host, self.target.host):
            self._held_count += 1
            network.hold(self)
            return
        segment, data = self._in_flight.popleft()
        network.loop.trace(f"{self.source.name}>{self.target.name} {segment.value} {zlib.crc32(data):08x} {len(data)}")
        if segment is WireSegment.BYTES:
            self.target.on_bytes(data)
        elif segment is WireSegment.FIN:
            self.target.on_fin()
        else:
            self.target.on_reset()

    def _send_to_nobody(self) -> None:
        """Answers for a dead target: its host's kernel does, if the host lives."""
        network = self._network
        if not network.is_host_down(self.target.host) and not self.source.is_gone:
            arrival_s = network.loop.time() + network.delay_s() * 2
            network.loop.call_at(arrival_s, self.source.on_reset, context=self.source.context)
