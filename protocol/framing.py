"""Frames: every request and every response goes behind its size, an int32 that doesn't count itself.

`check_frame_size` is the one rule, for the broker's connections (which cut frames in place) and for `FrameDecoder`, which clients and
tests use. It knows nothing of what is in a frame. Hex of a frame of two bytes: `00000002 abcd`.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final, Literal

from lowtide.protocol.errors import ProtocolError

FRAME_SIZE_BYTES = 4
"""The size in front of a frame."""

FRAME_BYTES_MAX = 104_857_600
"""Largest frame by default: Kafka's `socket.request.max.bytes`."""

_SIZE = struct.Struct(">i")


def check_frame_size(size: int, limit: int) -> int:
    """Give back `size`, the number in front of a frame, if a frame may have it; `limit` is inclusive.

    Errors: ProtocolError when it's negative or above the limit.
    """
    if not 0 <= size <= limit:
        message = f"a frame of {size} bytes; allowed are 0 to {limit}"
        raise ProtocolError(message)
    return size


def frame(*parts: bytes) -> bytes:
    """The parts as one frame, with their size in front."""
    return b"".join((_SIZE.pack(sum(map(len, parts))), *parts))


class _NeedData(Enum):
    NEED_DATA = "need data"


NEED_DATA: Final = _NeedData.NEED_DATA
"""There is no whole frame yet."""


class FrameDecoder:
    """Cuts a stream into frames, however its bytes arrive."""

    def __init__(self, limit: int = FRAME_BYTES_MAX) -> None:
        self._limit = limit
        self._received = bytearray()
        self._position = 0

    def feed(self, received: bytes) -> None:
        """Take the next bytes of the stream."""
        if self._position:
            del self._received[: self._position]
            self._position = 0
        self._received += received

    def next_frame(self) -> bytes | Literal[_NeedData.NEED_DATA]:
        """The next frame, without its size, or `NEED_DATA`.

        Errors: ProtocolError for a size that isn't allowed, as soon as it's there; the stream cannot be read on then.
        """
        start = self._position + FRAME_SIZE_BYTES
        if len(self._received) < start:
            return NEED_DATA
        (size,) = _SIZE.unpack_from(self._received, self._position)
        end = start + check_frame_size(size, self._limit)
        if len(self._received) < end:
            return NEED_DATA
        self._position = end
        return bytes(self._received[start:end])

    @property
    def buffered_bytes(self) -> int:
        """How much is held that isn't in a frame given out."""
        return len(self._received) - self._position
