"""The frame of a connection that has begun to arrive and isn't whole: where its bytes are kept, and how many of them may come.

It goes into a buffer of the connection's own, which grows with what really arrives, never with what the client announces. A large one is
mapped: its pages come into being as they are written, so that nothing is copied to grow, and go back to the system at once.

Guards: beyond `FREE_FRAME_BYTES`, and what one receive brings, nothing of a frame is read before memory for it is granted
(`request_memory`): for its beginning, or for all of it.
"""

from __future__ import annotations

import asyncio
import mmap
import struct

from lowtide.broker.network.connection_host import ConnectionHost
from lowtide.broker.network.frame_buffers import FRAME_BUFFER_BYTES, GROWTH_FACTOR

FREE_FRAME_BYTES = FRAME_BUFFER_BYTES
"""So much of a frame is read whatever others hold."""

BEGINNING_BYTES = 1 << 20
"""So much of it is read while there is room for beginnings: what standard clients send at most by default (`max.request.size`)."""

_LENGTH = struct.Struct(">i")


class PartialFrame(asyncio.BufferedProtocol):
    """The part of a connection that receives; the connection executes."""

    security_protocol = "PLAINTEXT"
    """What clients without TLS have to set to be understood."""

    def __init__(self, host: ConnectionHost) -> None:
        """`host` gives what connections share: buffers, memory, limits."""
        self._host = host
        self._maximum_frame_bytes = host.bounds.frame_max
        self._frame: bytearray | mmap.mmap | None = None
        self._filled = self._target = self._allowed = 0
        self.frame_started_ms = 0
        self.active_ns = 0
        """When something was received last, or its turn began."""

    @property
    def last_active_ms(self) -> int:
        """When something was received last."""
        return self.active_ns // 1_000_000

    # ------------------------------------------------------------------ what the connection does
    def close(self, reason: str) -> None:
        """Close without another answer."""
        raise NotImplementedError

    def refuse(self, reason: str) -> None:
        """The client has sent what makes no sense: close."""
        raise NotImplementedError

    @property
    def _blocked(self) -> bool | int:
        raise NotImplementedError

    def _execute(self, buffer: memoryview, position: int, stop: int, end: int) -> int:
        raise NotImplementedError

    def _pause_reading(self) -> None:
        raise NotImplementedError

    def _unblock(self) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------------ the frame
    def _start_frame(self, received: memoryview) -> None:
        """Keep the beginning of a frame whose end has not arrived."""
        count = len(received)
        is_known = count >= _LENGTH.size
        self._filled = count
        self._target = _LENGTH.size + (_LENGTH.unpack_from(received)[0] if is_known else 0)
        self._allowed = min(self._target, max(count, FREE_FRAME_BYTES))
        may_go_on = count < self._allowed or not is_known or self._is_granted_more()
        self._frame = self._host.frame_buffers.take(min(self._allowed, max(FRAME_BUFFER_BYTES, count * GROWTH_FACTOR)))
        self._frame[:count] = received
        self.frame_started_ms = self._host.clock.now_ms()
        if not may_go_on:
            self._pause_reading()

    def _continue_frame(self) -> None:
        """More of the partial frame is there: complete it, or make room for what follows."""
        frame = self._frame
        assert frame is not None
        if self._filled < min(len(frame), self._allowed):
            return
        if self._filled < self._target:
            self._make_room()
        elif self._target == _LENGTH.size:
            self._learn_length(_LENGTH.unpack_from(frame)[0])
        elif self._blocked:
            self._pause_reading()
        else:
            self._execute_frame(frame)

    @property
    def _frame_is_whole(self) -> bool:
        """Whether a frame is there that could not be executed yet."""
        return self._frame is not None and self._filled == self._target > _LENGTH.size

    def _execute_frame(self, frame: bytearray | mmap.mmap) -> None:
        self._frame = None
        self._execute(memoryview(frame), 0, self._target, self._target)
        self._host.frame_buffers.give(frame)
        self._forget_large_frame()

    def _drop_frame(self) -> None:
        frame, self._frame = self._frame, None
        if frame is not None:
            self._host.frame_buffers.give(frame)
        self._forget_large_frame()

    def _forget_large_frame(self) -> None:
        if self._target > FREE_FRAME_BYTES:
            self._target = 0
            self._host.memory.give_back(self)

    def _learn_length(self, size: int) -> None:
        """The four bytes that were cut apart are there."""
        if not 0 < size <= self._maximum_frame_bytes:
            self._refuse_length(size)
            return
        self._target += size
        self._allowed = min(self._target, FREE_FRAME_BYTES)
        assert self._frame is not None
        self._frame = self._host.frame_buffers.grow(self._frame, self._filled, min(self._target, FRAME_BUFFER_BYTES))

    def _refuse_length(self, size: int) -> None:
        """No frame has this length: the client speaks another protocol, or nonsense."""
        from lowtide.broker.network.foreign_protocols import instead_of_kafka  # noqa: PLC0415  for clients that are refused

        spoken = instead_of_kafka(_LENGTH.pack(size), self.security_protocol)
        self.refuse(spoken or f"a frame of {size} bytes is announced, 1 to {self._maximum_frame_bytes} are allowed")

    def _make_room(self) -> None:
        """Let more of the frame come.

        Beyond what is free for each it is counted, and not read while there is no memory for it. A client that
        announces large frames must not stop clients that send them, nor these clients that send small ones.
        """
        if self._filled < self._allowed or self._is_granted_more():
            self._enlarge_frame()
        else:
            self._pause_reading()

    def _is_granted_more(self) -> bool:
        """Whether more of the frame than was allowed may come now."""
        memory = self._host.memory
        beginning = min(self._target, BEGINNING_BYTES)
        if self._allowed < beginning and memory.lend(self, beginning):
            self._allowed = beginning
        elif memory.take(self, self._target):
            self._allowed = self._target
        else:
            return False
        return True

    def _enlarge_frame(self) -> None:
        assert self._frame is not None
        if self._filled < len(self._frame):
            return
        if self._allowed > BEGINNING_BYTES:
            try:
                mapped = mmap.mmap(-1, self._target)
            except OSError as error:
                self.close(f"a request of {self._target} bytes finds no memory: {error.strerror}")
                return
            mapped[: self._filled] = memoryview(self._frame)[: self._filled]
            self._host.frame_buffers.give(self._frame)
            self._frame = mapped
        else:
            self._frame = self._host.frame_buffers.grow(
                self._frame, self._filled, min(self._allowed, self._filled * GROWTH_FACTOR)
            )

    @property
    def received_bytes(self) -> int:
        """How much of the frame that is being received is there."""
        return self._filled

    def on_memory_granted(self) -> None:
        """The frame that waited for memory may be read on."""
        self._allowed = self._target
        self._enlarge_frame()
        self.frame_started_ms = self._host.clock.now_ms()
        self._unblock()

    @property
    def _waits_for_memory(self) -> bool:
        return self._frame is not None and self._filled == self._allowed < self._target
