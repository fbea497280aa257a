"""A frame that has arrived in part: its buffer, and how many bytes may arrive now.

The buffer grows with the received bytes, not with the announced length. A large frame gets mapped memory, which returns
to the system at once when it is freed.

Guards: of a frame larger than `FREE_FRAME_BYTES` and one receive, nothing more is read until memory is granted
(`request_memory`), for its beginning or for all of it.
"""

from __future__ import annotations

import mmap
import struct

from lowtide.broker.network.connection.frame_buffers import FRAME_BUFFER_BYTES, GROWTH_FACTOR, FrameBuffers
from lowtide.broker.network.connection.request_memory import Receiver, RequestMemory

FREE_FRAME_BYTES = FRAME_BUFFER_BYTES
"""How much of a frame is read without a grant."""

BEGINNING_BYTES = 1 << 20
"""How much of a frame is lent at its beginning: the largest request of standard clients by default
(`max.request.size`)."""

_LENGTH = struct.Struct(">i")


class FrameRefusedError(Exception):
    """Raised if there is no memory for a frame. The connection must be closed."""


class PartialFrame:
    """The incomplete frame of a connection, if any. Memory is granted to the connection, the `receiver`."""

    __slots__ = ("_buffers", "_memory", "allowed", "buffer", "filled", "started_ms", "target")

    def __init__(self, buffers: FrameBuffers, memory: RequestMemory) -> None:
        self._buffers = buffers
        self._memory = memory
        self.buffer: bytearray | mmap.mmap | None = None
        self.filled = 0
        """Bytes that have arrived."""
        self.target = 0
        """The length of the frame with its prefix; that of the prefix alone until it is whole."""
        self.allowed = 0
        """How many bytes may arrive now."""
        self.started_ms = 0

    @property
    def is_whole(self) -> bool:
        """Whether the frame has arrived and was not executed yet."""
        return self.buffer is not None and self.filled == self.target > _LENGTH.size

    @property
    def announced_bytes(self) -> int | None:
        """The announced length if the prefix is complete and nothing else has arrived; otherwise None."""
        if self.buffer is None or not self.filled == self.target == _LENGTH.size:
            return None
        return int(_LENGTH.unpack_from(self.buffer)[0])

    @property
    def waits_for_memory(self) -> bool:
        return self.buffer is not None and self.filled == self.allowed < self.target

    def start(self, received: memoryview, receiver: Receiver, now_ms: int) -> bool:
        """Keeps the beginning of a frame. Returns whether more may arrive. Errors: FrameRefusedError."""
        count = len(received)
        is_known = count >= _LENGTH.size
        self.filled = count
        self.target = _LENGTH.size + (_LENGTH.unpack_from(received)[0] if is_known else 0)
        self.allowed = min(self.target, max(count, FREE_FRAME_BYTES))
        may_go_on = count < self.allowed or not is_known or self._is_granted_more(receiver)
        self.buffer = self._buffers.take(min(self.allowed, max(FRAME_BUFFER_BYTES, count * GROWTH_FACTOR)))
        self.buffer[:count] = received
        self.started_ms = now_ms
        return may_go_on

    def learn_length(self, size: int, receiver: Receiver) -> None:
        """Makes room after a prefix that arrived in pieces. Errors: FrameRefusedError."""
        assert self.buffer is not None
        self.target += size
        self.allowed = min(self.target, FREE_FRAME_BYTES)
        self.buffer = self._buffers.grow(self.buffer, self.filled, min(self.target, FRAME_BUFFER_BYTES))

    def make_room(self, receiver: Receiver) -> bool:
        """Returns whether more may arrive now. Errors: FrameRefusedError.

        Beyond `FREE_FRAME_BYTES` the frame needs a grant, and is not read without one. So clients that only announce
        large frames do not stop those that send them, and large frames do not stop small ones.
        """
        if self.filled < self.allowed or self._is_granted_more(receiver):
            self._enlarge()
            return True
        return False

    def on_memory_granted(self, now_ms: int) -> None:
        """Continues to read the frame that waited for memory. Errors: FrameRefusedError."""
        self.allowed = self.target
        self._enlarge()
        self.started_ms = now_ms

    def take(self) -> bytearray | mmap.mmap:
        """Returns the whole frame. The caller gives it back with `give`."""
        buffer, self.buffer = self.buffer, None
        assert buffer is not None
        return buffer

    def give(self, buffer: bytearray | mmap.mmap, receiver: Receiver) -> None:
        """Takes back the buffer of an executed frame."""
        self._buffers.give(buffer)
        self.give_memory_back(receiver)

    def drop(self, receiver: Receiver) -> None:
        """Forgets the frame."""
        if self.buffer is not None:
            self._buffers.give(self.take())
        self.give_memory_back(receiver)

    def give_memory_back(self, receiver: Receiver) -> None:
        """Gives back the memory that was granted for the frame."""
        if self.target > FREE_FRAME_BYTES:
            self.target = 0
            self._memory.give_back(receiver)

    def _is_granted_more(self, receiver: Receiver) -> bool:
        beginning = min(self.target, BEGINNING_BYTES)
        if self.allowed < beginning and self._memory.lend(receiver, beginning):
            self.allowed = beginning
        elif self._memory.take(receiver, self.target):
            self.allowed = self.target
        else:
            return False
        return True

    def _enlarge(self) -> None:
        assert self.buffer is not None
        if self.filled < len(self.buffer):
            return
        if self.allowed > BEGINNING_BYTES:
            try:
                mapped = mmap.mmap(-1, self.target)
            except OSError as error:
                raise FrameRefusedError(f"a request of {self.target} bytes finds no memory: {error.strerror}") from None
            mapped[: self.filled] = memoryview(self.buffer)[: self.filled]
            self._buffers.give(self.buffer)
            self.buffer = mapped
        else:
            size = min(self.allowed, self.filled * GROWTH_FACTOR)
            self.buffer = self._buffers.grow(self.buffer, self.filled, size)
