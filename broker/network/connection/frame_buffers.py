"""Buffers for partial frames: small ones of their own size, larger ones from pools of the broker."""

from __future__ import annotations

import mmap

from lowtide.broker.network.connection.outgoing import BufferPool

FRAME_BUFFER_BYTES = 64 * 1024
"""The size of a partial frame's first buffer, unless less will do. Such are pooled, and so are those of a megabyte that
may follow."""

GROWTH_FACTOR = 4
"""A buffer beyond the first is at most this many times what was received, unless it is one that lay idle."""

_OWN_BUFFER_BYTES = 4096
"""A partial frame up to this size has a buffer of just its size."""

_IDLE_BUFFERS = 32
"""So many unused ones of the first size are kept: two megabytes."""


class FrameBuffers:
    """The buffers of frames that are received, by sizes."""

    def __init__(self, chunks: BufferPool) -> None:
        self.first = BufferPool(FRAME_BUFFER_BYTES, _IDLE_BUFFERS)
        self.chunks = chunks
        """Also the size of the buffers for answers."""

    def take(self, capacity: int) -> bytearray:
        """Returns a buffer of at least `capacity` bytes; `capacity` is a megabyte or less.

        An unused one may be larger at no cost.
        """
        first, chunks = self.first, self.chunks
        if capacity <= _OWN_BUFFER_BYTES:
            return bytearray(capacity)
        if capacity <= first.size:
            return first.take()
        return chunks.take() if chunks.has_idle or capacity * GROWTH_FACTOR > chunks.size else bytearray(capacity)

    def grow(self, buffer: bytearray | mmap.mmap, filled: int, capacity: int) -> bytearray:
        """Returns a larger buffer with the same beginning, and gives the old one back."""
        grown = self.take(capacity)
        grown[:filled] = memoryview(buffer)[:filled]
        self.give(buffer)
        return grown

    def give(self, buffer: bytearray | mmap.mmap) -> None:
        """Takes back a buffer that nothing reads or writes any more."""
        if isinstance(buffer, bytearray):
            for pool in (self.first, self.chunks):
                if len(buffer) == pool.size:
                    pool.give(buffer)
