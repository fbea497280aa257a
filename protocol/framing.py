"""Frames: each request and response follows its size, an int32 that does not include itself.

`client.connection` and a broker's connections split a stream into frames; a broker refuses empty ones. A frame of two
bytes in hex: `00000002 abcd`.
"""

from __future__ import annotations

import struct

from lowtide.protocol.errors import ProtocolError

FRAME_SIZE_BYTES = 4
"""The size of the size before a frame."""

FRAME_BYTES_MAX = 104_857_600
"""The default maximum size of a frame: Kafka's `socket.request.max.bytes`."""

_SIZE = struct.Struct(">i")


def check_frame_size(size: int, limit: int) -> int:
    """Returns `size`, the number before a frame. Errors: ProtocolError if it is negative or above `limit`."""
    if not 0 <= size <= limit:
        raise ProtocolError(f"a frame of {size} bytes; allowed are 0 to {limit}")
    return size


def frame(*parts: bytes) -> bytes:
    """Returns the parts as one frame with its size."""
    return b"".join((_SIZE.pack(sum(map(len, parts))), *parts))
