"""Memory into which batches are decompressed one after the other, and how much of it the batches of one request may still use."""

from __future__ import annotations

from mmap import mmap
from typing import TYPE_CHECKING, Final

from lowtide.protocol.compression import Compression, DecompressedTooLargeError, decompress_into
from lowtide.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from lowtide.protocol.compression import Buffer

RELEASE_BYTES: Final = 4 << 20
"""Pages given back at a time: about a tenth of a millisecond, during which the interpreter's lock is held."""

_DONTNEED: Final = 4
"""Linux's MADV_DONTNEED: the pages of a private mapping are zero again when they are next used."""


class RoomUsedUpError(ProtocolError):
    """What the batches of the request may decompress to together is used up: this one may pass in a request of its own."""


class DecompressionRoom:
    """The room of one request's batch. Its content is valid until the next batch is decompressed."""

    __slots__ = ("_memory", "left_bytes", "used_bytes")

    def __init__(self, memory: memoryview, left_bytes: int) -> None:
        """`memory` has as many bytes as the request may use; `left_bytes` of them are left to it."""
        self._memory = memory
        self.left_bytes = left_bytes
        self.used_bytes = 0

    def decompress(self, codec: Compression, data: Buffer, max_bytes: int) -> memoryview:
        """Turn a batch's records back, at most `max_bytes` (inclusive) of them.

        Errors: DecompressedTooLargeError for a batch that is too large by itself, RoomUsedUpError; CompressionError.
        """
        most = min(max_bytes, len(self._memory))
        self.used_bytes = min(most, self.left_bytes)
        try:
            content = decompress_into(codec, data, self._memory[: self.used_bytes])
        except DecompressedTooLargeError:
            self.left_bytes = 0
            if self.used_bytes == most:
                raise
            message = f"the batches of one request may have {len(self._memory)} bytes together when decompressed"
            raise RoomUsedUpError(message) from None
        self.used_bytes = len(content)
        self.left_bytes -= len(content)
        return content


def release_pages(memory: mmap, size: int) -> None:
    """Give the first `size` bytes' pages back to the system, where it takes them back. Their content is lost."""
    if hasattr(memory, "madvise"):
        for start in range(0, size, RELEASE_BYTES):
            memory.madvise(_DONTNEED, start, min(RELEASE_BYTES, len(memory) - start))
