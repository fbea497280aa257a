"""Frames: every request and every response goes behind its size, an int32 that doesn't count itself.

Frames are cut out of a stream where it is received: by `client.connection` in clients, and by a broker's connections,
which refuse empty ones too. Nothing here looks into a frame. Hex of a frame of two bytes: `00000002 abcd`.
"""

from __future__ import annotations

import struct

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
