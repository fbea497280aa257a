"""One end of a simulated connection: an asyncio transport. What lies between the two ends is in `simulated_wire.py`.

The transport promises what asyncio's selector transports promise, in the same order: `connection_made` first, then
data, one read per pass of the loop, then perhaps `eof_received`, then `connection_lost` exactly once and always later
than the call that caused it.
`Protocol` and `BufferedProtocol` are both served.

Source: asyncio/selector_events.py of CPython, whose behaviour it follows.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, TypeAlias

from lowtide.runtime.simulated_wire import Direction, Links, Segment

Address: TypeAlias = tuple[str, int]

READ_BYTES_MAX: Final = 256 * 1024
"""What asyncio reads at once for a plain Protocol."""

SEGMENT_BYTES_MAX: Final = 64 * 1024
HIGH_WATER_BYTES: Final = 64 * 1024
"""asyncio's default above which a protocol is asked to pause; the low mark is a quarter of the high one."""


class SimulatedTransport(asyncio.Transport):
    """One end of a connection. `outgoing` and `incoming` are set when the connection is established."""

    outgoing: Direction
    incoming: Direction

    def __init__(self, network: Links, local: Address, remote: Address, context: Context) -> None:
        super().__init__({"sockname": local, "peername": remote, "socket": None})
        self._network = network
        self._loop = network.loop
        self.host, self.peer_host = local[0], remote[0]
        self.name = f"{local[0]}:{local[1]}"
        self.context = context
        self._node = network.loop.node_of(context)
        if self._node is not None:
            self._node.transports[self] = None
        self._protocol: asyncio.BaseProtocol | None = None
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._received = bytearray()
        self._high_water_bytes, self._low_water_bytes = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._read_scheduled = False
        self._reading_paused = False
        self._writing_paused = False
        self._fin_wanted = False  # write_eof was called, or close with nothing left to flush.
        self._fin_sent = False
        self._fin_received = False
        self._eof_told = False
        self._closing = False
        self._lost = False  # connection_lost is scheduled, or called.
        self.is_gone = False  # The socket is closed: whatever arrives is answered by RST.

    def __repr__(self) -> str:
        return f"<SimulatedTransport {self.name} to {self.get_extra_info('peername')}{' closing' if self._closing else ''}>"

    def start(self, protocol: asyncio.BaseProtocol) -> None:
        """Give the connection its protocol and begin to read."""
        if self._closing:
            return
        self._protocol = protocol
        protocol.connection_made(self)
        self._schedule_read()

    # asyncio's interface

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None, self
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._closing and not self._reading_paused

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._schedule_read()

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

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
        copy = memoryview(bytes(data))
        self._unsent.append(copy)
        self._unsent_bytes += len(copy)
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
        self._force_close(None)

    # What the wire brings

    @property
    def has_unread_bytes(self) -> bool:
        """Whether something arrived that the protocol has not taken."""
        return bool(self._received)

    @property
    def is_waiting_for_peer(self) -> bool:
        """Whether something was sent, or is to be sent, that the peer has not taken."""
        return bool(self._unsent) or self.outgoing.unread_bytes > 0

    def on_bytes(self, data: bytes) -> None:
        """Take bytes from the wire."""
        if self.is_gone:
            self.outgoing.send(Segment.RESET)
            return
        self._received += data
        self._schedule_read()

    def on_fin(self) -> None:
        """The peer sends no more."""
        self._fin_received = True
        self._schedule_read()

    def on_reset(self) -> None:
        """The peer, or its kernel, has torn the connection."""
        self._received.clear()
        self._force_close(ConnectionResetError(errno.ECONNRESET, f"{self.name}: connection reset by peer"))

    def on_window(self) -> None:
        """The peer has taken something: send more."""
        if self._lost:
            return
        self._send()
        if self._writing_paused and self._unsent_bytes <= self._low_water_bytes:
            self._writing_paused = False
            self._tell("resume_writing")
        if self._closing and not self._unsent and not self._lost:
            self._lose(None)

    def die(self) -> None:
        """The process is gone; the protocol gets no call."""
        self._closing = self._lost = self.is_gone = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self._protocol = None

    # Sending

    def _send(self) -> None:
        """Send as much as the window takes, in segments of random length."""
        network = self._network
        while self._unsent and (window_bytes := self.outgoing.window_bytes) > 0:
            size = min(self._unsent_bytes, window_bytes, SEGMENT_BYTES_MAX)
            if size > 1 and network.random.random() < network.split_probability:
                size = network.random.randint(1, size)
            self.outgoing.send(Segment.BYTES, self._take_unsent(size))
        self._maybe_send_fin()

    def _take_unsent(self, size: int) -> bytes:
        self._unsent_bytes -= size
        parts = []
        while size:
            head = self._unsent.popleft()
            if len(head) > size:
                self._unsent.appendleft(head[size:])
                head = head[:size]
            parts.append(head)
            size -= len(head)
        return b"".join(parts)

    def _maybe_send_fin(self) -> None:
        if self._fin_wanted and not self._unsent and not self._fin_sent:
            self._fin_sent = True
            self.outgoing.send(Segment.FIN)

    def _maybe_pause_writing(self) -> None:
        if self._unsent_bytes > self._high_water_bytes and not self._writing_paused and not self._lost:
            self._writing_paused = True
            self._tell("pause_writing")

    def _tell(self, method: str) -> None:
        """Call the protocol's pause_writing or resume_writing; like asyncio, report what it raises and continue."""
        try:
            getattr(self._protocol, method)()
        except Exception as error:  # noqa: BLE001 - reported
            self._report(error, f"protocol.{method}() failed")

    # Receiving

    def _schedule_read(self) -> None:
        if self._read_scheduled or self._reading_paused or self._closing or self._protocol is None:
            return
        if self._received or (self._fin_received and not self._eof_told):
            self._read_scheduled = True
            self._loop.call_soon(self._read, context=self.context)

    def _read(self) -> None:
        """Hand the protocol what one read of the socket would have brought."""
        self._read_scheduled = False
        if self._reading_paused or self._closing:
            return
        protocol = self._protocol
        try:
            if not self._received:
                self._tell_eof()
            elif isinstance(protocol, asyncio.BufferedProtocol):
                self._read_into(protocol)
            else:
                assert isinstance(protocol, asyncio.Protocol), protocol
                data = bytes(self._received[:READ_BYTES_MAX])
                self._consume(len(data))
                protocol.data_received(data)
        except Exception as error:  # noqa: BLE001 - asyncio's rule: the protocol failed, so the connection does
            self._report(error, "the protocol failed while it received")
            self._force_close(error)
        self._schedule_read()

    def _read_into(self, protocol: asyncio.BufferedProtocol) -> None:
        buffer = memoryview(protocol.get_buffer(-1))
        size = min(len(buffer), len(self._received))
        if not size:
            raise RuntimeError("get_buffer() returned an empty buffer")
        buffer[:size] = self._received[:size]
        # The protocol may resize its buffer while it handles what has come.
        buffer.release()
        self._consume(size)
        protocol.buffer_updated(size)

    def _consume(self, size: int) -> None:
        del self._received[:size]
        self.incoming.on_read(size)

    def _tell_eof(self) -> None:
        self._eof_told = True
        protocol = self._protocol
        assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol), protocol
        if not protocol.eof_received():
            self.close()

    # The end

    def _force_close(self, error: Exception | None) -> None:
        if not self._lost:
            self._closing = True
            self._unsent.clear()
            self._unsent_bytes = 0
            self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        assert not self._lost, self
        self._lost = True
        self._loop.call_soon(self._end, error, context=self.context)

    def _end(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        try:
            if protocol is not None:
                protocol.connection_lost(error)
        finally:
            self._close_socket()

    def _close_socket(self) -> None:
        self.is_gone = True
        if self._node is not None:
            self._node.transports.pop(self, None)
        if self._received:
            self.outgoing.send(Segment.RESET)
        elif not self._fin_sent:
            self._fin_sent = True
            self.outgoing.send(Segment.FIN)

    def _report(self, error: Exception, message: str) -> None:
        report: Callable[[dict[str, Any]], None] = self._loop.call_exception_handler
        report({"message": message, "exception": error, "transport": self, "protocol": self._protocol})
