"""A part of a large answer that is kept compressed until it is sent."""

from __future__ import annotations

import zlib
from typing import final


@final
class PackedPart:
    """Bytes of a large answer that take less memory than they are, until they are sent."""

    __slots__ = ("packed", "size")

    def __init__(self, content: bytes) -> None:
        self.size = len(content)
        self.packed = zlib.compress(content, 1)

    def __len__(self) -> int:
        """Of what is sent."""
        return self.size

    def content(self) -> bytes:
        """What is sent."""
        return zlib.decompress(self.packed, bufsize=self.size)
