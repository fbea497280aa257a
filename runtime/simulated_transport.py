"""One end of a simulated connection: an asyncio transport. `simulated_wire` is between the two ends.

It has the promises of asyncio's selector transports, in the same order: `connection_made` first, then data, one read
per pass of the loop, then perhaps `eof_received`, then `connection_lost` exactly once, always later than the call that
caused it. It serves `Protocol` and `BufferedProtocol`.

Source: asyncio/selector_events.py of CPython, whose behaviour it follows.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, TypeAlias

from lowtide.runtime.simulated_wire import Direction, Links, WireSegment

Address: TypeAlias = tuple[str, int]

READ_BYTES_MAX: Final = 256 * 1024
"""The maximum size of one read for a plain Protocol, as in asyncio."""

SEGMENT_BYTES_MAX: Final = 64 * 1024
HIGH_WATER_BYTES: Final = 64 * 1024
"""asyncio's default above which a protocol must pause; the low mark is a quarter of the high one."""


class UnsentBytes:
    """The bytes that a transport has not sent yet."""

    __slots__ = ("_parts", "size_bytes")

    def __init__(self) -> None:
        self._parts: deque[memoryview] = deque()
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return self.size_bytes > 0

    def add(self, data: bytes) -> None:
        self._parts.append(memoryview(data))
        self.size_bytes += len(data)

    def take(self, size: int) -> bytes:
        """Removes and returns the first `size` bytes."""
        self.size_bytes -= size
        parts = []
        while size:
            head = self._parts.popleft()
            if len(head) > size:
                self._parts.appendleft(head[size:])
                head = head[:size]
            parts.append(head)
            size -= len(head)
        return b"".join(parts)

    def clear(self) -> None:
        self._parts.clear()
        self.size_bytes = 0


class ProtocolReads:
    """The received bytes of a transport, and the reads that pass them to its protocol."""

    __slots__ = ("_eof_told", "_is_scheduled", "_transport", "fin_received", "is_paused", "protocol", "received")

    def __init__(self, transport: SimulatedTransport) -> None:
        self._transport = transport
        self._is_scheduled = False
        self._eof_told = False
        self.protocol: asyncio.BaseProtocol | None = None
        self.received = bytearray()
        self.fin_received = False
        self.is_paused = False

    def schedule(self) -> None:
        """Schedules a read, if there is anything to pass on."""
        transport = self._transport
        if self._is_scheduled or self.is_paused or transport.is_closing() or self.protocol is None:
            return
        if self.received or (self.fin_received and not self._eof_told):
            self._is_scheduled = True
            transport.loop.call_soon(self._read, context=transport.context)

    def _read(self) -> None:
        """Passes to the protocol the bytes that one read of the socket would return."""
        self._is_scheduled = False
        transport = self._transport
        if self.is_paused or transport.is_closing():
            return
        protocol = self.protocol
        assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol), protocol
        try:
            if not self.received:
                self._eof_told = True
                if not protocol.eof_received():
                    transport.close()
            elif isinstance(protocol, asyncio.BufferedProtocol):
                self._read_into(protocol)
            else:
                data = bytes(self.received[:READ_BYTES_MAX])
                self._consume(len(data))
                protocol.data_received(data)
        except Exception as error:  # noqa: BLE001 - asyncio's rule: the protocol failed, so the connection does
            _report(transport, error, "the protocol failed while it received")
            transport.force_close(error)
        self.schedule()

    def _read_into(self, protocol: asyncio.BufferedProtocol) -> None:
        buffer = memoryview(protocol.get_buffer(-1))
        size = min(len(buffer), len(self.received))
        if not size:
            raise RuntimeError("get_buffer() returned an empty buffer")
        buffer[:size] = self.received[:size]
        # The protocol may resize its buffer while it handles the data.
        buffer.release()
        self._consume(size)
        protocol.buffer_updated(size)

    def _consume(self, size: int) -> None:
        del self.received[:size]
        self._transport.incoming.on_read(size)


class SimulatedTransport(asyncio.Transport):
    """One end of a connection. `outgoing` and `incoming` are set when the connection is established."""

    outgoing: Direction
    incoming: Direction

    def __init__(self, network: Links, local: Address, remote: Address, context: Context) -> None:
        super().__init__({"sockname": local, "peername": remote, "socket": None})
        self._network = network
        self.loop = network.loop
        self.host, self.peer_host = local[0], remote[0]
        self.name = f"{local[0]}:{local[1]}"
        self.context = context
        self._node = network.loop.node_of(context)
        if self._node is not None:
            self._node.transports[self] = None
        self._unsent = UnsentBytes()
        self.reads = ProtocolReads(self)
        self._high_water_bytes, self._low_water_bytes = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._writing_paused = False
        self._fin_wanted = False  # write_eof was called, or close with nothing left to flush.
        self._fin_sent = False
        self._closing = False
        self._lost = False  # connection_lost is scheduled or was called.
        self.is_gone = False  # The socket is closed: whatever arrives is answered by RST.

    def __repr__(self) -> str:
        return (
            f"<SimulatedTransport {self.name} to "
            f"{self.get_extra_info('peername')}{' closing' if self._closing else ''}>"
        )

    def start(self, protocol: asyncio.BaseProtocol) -> None:
        """Gives the connection its protocol and starts reading."""
        if self._closing:
            return
        self.reads.protocol = protocol
        protocol.connection_made(self)
        self.reads.schedule()

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.reads.protocol is not None, self
        return self.reads.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.reads.protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._closing and not self.reads.is_paused

    def pause_reading(self) -> None:
        self.reads.is_paused = True

    def resume_reading(self) -> None:
        self.reads.is_paused = False
        self.reads.schedule()

    def get_write_buffer_size(self) -> int:
        return self._unsent.size_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_water_bytes, self._high_water_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_water_bytes, self._low_water_bytes = high, low
        self._maybe_pause_writing()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._fin_wanted:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not len(data):
            return
        was_empty = not self._unsent
        self._unsent.add(bytes(data))
        if was_empty:
            self._send()
        self._maybe_pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing and not self._fin_wanted:
            self._fin_wanted = True
            self._maybe_send_fin()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._unsent:
                self._lose(None)

    def abort(self) -> None:
        self.force_close(None)

    @property
    def is_waiting_for_peer(self) -> bool:
        """Whether the peer hasn't taken everything yet."""
        return bool(self._unsent) or self.outgoing.unread_bytes > 0

    def on_bytes(self, data: bytes) -> None:
        if self.is_gone:
            self.outgoing.send(WireSegment.RESET)
            return
        self.reads.received += data
        self.reads.schedule()

    def on_fin(self) -> None:
        self.reads.fin_received = True
        self.reads.schedule()

    def on_reset(self) -> None:
        """Receives a reset from the peer or its kernel."""
        self.reads.received.clear()
        self.force_close(ConnectionResetError(errno.ECONNRESET, f"{self.name}: connection reset by peer"))

    def on_window(self) -> None:
        """Sends more after the peer has read."""
        if self._lost:
            return
        self._send()
        if self._writing_paused and self._unsent.size_bytes <= self._low_water_bytes:
            self._writing_paused = False
            self._tell("resume_writing")
        if self._closing and not self._unsent and not self._lost:
            self._lose(None)

    def die(self) -> None:
        """Ends with the process, without a call of the protocol."""
        self._closing = self._lost = self.is_gone = True
        self._unsent.clear()
        self.reads.protocol = None

    def _send(self) -> None:
        """Sends as much as the window allows, in segments of random length."""
        network = self._network
        while self._unsent and (window_bytes := self.outgoing.window_bytes) > 0:
            size = min(self._unsent.size_bytes, window_bytes, SEGMENT_BYTES_MAX)
            if size > 1 and network.random.random() < network.split_probability:
                size = network.random.randint(1, size)
            self.outgoing.send(WireSegment.BYTES, self._unsent.take(size))
        self._maybe_send_fin()

    def _maybe_send_fin(self) -> None:
        if self._fin_wanted and not self._unsent and not self._fin_sent:
            self._fin_sent = True
            self.outgoing.send(WireSegment.FIN)

    def _maybe_pause_writing(self) -> None:
        if self._unsent.size_bytes > self._high_water_bytes and not self._writing_paused and not self._lost:
            self._writing_paused = True
            self._tell("pause_writing")

    def _tell(self, method: str) -> None:
        """Calls the protocol's pause_writing or resume_writing; like asyncio, reports an exception and continues."""
        try:
            getattr(self.reads.protocol, method)()
        except Exception as error:  # noqa: BLE001 - reported
            _report(self, error, f"protocol.{method}() failed")

    def force_close(self, error: Exception | None) -> None:
        if not self._lost:
            self._closing = True
            self._unsent.clear()
            self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        assert not self._lost, self
        self._lost = True
        self.loop.call_soon(self._end, error, context=self.context)

    def _end(self, error: Exception | None) -> None:
        protocol, self.reads.protocol = self.reads.protocol, None
        try:
            if protocol is not None:
                protocol.connection_lost(error)
        finally:
            self.is_gone = True
            if self._node is not None:
                self._node.transports.pop(self, None)
            if self.reads.received:
                self.outgoing.send(WireSegment.RESET)
            elif not self._fin_sent:
                self._fin_sent = True
                self.outgoing.send(WireSegment.FIN)


def _report(transport: SimulatedTransport, error: Exception, message: str) -> None:
    report: Callable[[dict[str, Any]], None] = transport.loop.call_exception_handler
    report({"message": message, "exception": error, "transport": transport, "protocol": transport.reads.protocol})
